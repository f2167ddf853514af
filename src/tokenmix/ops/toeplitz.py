"""Toeplitz matrices: 2n − 1 parameters, one per offset."""

from __future__ import annotations

from torch import Tensor


def toeplitz(w: Tensor, length: int) -> Tensor:
    """The [.., length, length] matrix W[i, j] = w[n − 1 + j − i] of the 2n − 1 parameters w, cut to `length`.

    Every row is a window of w that starts one place further left, so the matrix is a gather-free strided view.
    """
    n = (w.shape[-1] + 1) // 2
    if length > n:
        raise ValueError(f"length {length} exceeds the {n} positions of this Toeplitz matrix")
    window = w[..., n - length : n + length - 1]  # offsets −(length − 1) … length − 1
    return window.unfold(-1, length, 1).flip(-2)  # row i starts at offset −i
