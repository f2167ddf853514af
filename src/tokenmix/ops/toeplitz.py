"""Toeplitz matrices: 2n − 1 parameters, one per offset; as a matrix, or applied to long sequences without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.devices import transformed
from tokenmix.ops.epilogue import Epilogue
from tokenmix.ops.once import once
from tokenmix.ops.reference import apply_epilogue

# from this length on the FFT is faster than the matrix: benchmarks/results/ops-h200.json
LONG = {"cuda": 16384, "cpu": 2048}
BYTES = 1 << 31  # spectra that exist at once


def toeplitz(w: Tensor, length: int) -> Tensor:
    """The [.., length, length] matrix W[i, j] = w[n − 1 + j − i] of the 2n − 1 parameters w, cut to `length`.

    Every row is a window of w that starts one place further left, so the matrix is a gather-free strided view.
    """
    n = (w.shape[-1] + 1) // 2
    if length > n:
        raise ValueError(f"length {length} exceeds the {n} positions of this Toeplitz matrix")
    window = w[..., n - length : n + length - 1]  # offsets −(length − 1) … length − 1
    if w.is_cuda and not transformed():
        return _Diagonals.apply(window, length)
    return window.unfold(-1, length, 1).flip(-2)  # row i starts at offset −i


def toeplitz_share(matrix: Tensor) -> float:
    """How much of the variance of a [n, n] matrix the nearest Toeplitz matrix, its means along diagonals, explains.

    >>> toeplitz_share(toeplitz(torch.randn(255), 128))
    1.0
    >>> toeplitz_share(torch.randn(128, 128))  # as many means as that explain so much by chance
    0.016
    """
    m, n = matrix.detach().double(), len(matrix)
    nearest = toeplitz(torch.stack([m.diagonal(offset).mean() for offset in range(1 - n, n)]), n)
    return round(float(1 - (m - nearest).square().sum() / (m - m.mean()).square().sum()), 6)


class _Diagonals(torch.autograd.Function):
    """The matrix of a window of 2·length − 1 offsets; back, one sum along each diagonal, in a fixed order."""

    @staticmethod
    def forward(ctx: Any, window: Tensor, length: int) -> Tensor:
        return window.unfold(-1, length, 1).flip(-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        length = grad.shape[-1]
        # rows from the last to the first, each followed by `length` zeros and read 2·length − 1 wide: element (i, j)
        # comes to stand in column j − i + length − 1
        skewed = torch.nn.functional.pad(grad.flip(-2), (0, length)).flatten(-2)
        return skewed[..., :-length].unflatten(-1, (length, 2 * length - 1)).sum(-2), None


def persist_toeplitz(
    w: Tensor,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """persist(toeplitz(w, length), x, …), for long sequences in ℓ log ℓ steps and without the ℓ × ℓ matrix.

    `w` is [2n − 1] or [heads, 2n − 1]; the rest as in :func:`tokenmix.ops.persist`.

    >>> persist_toeplitz(torch.randn(2 * 4096 - 1), torch.randn(1, 4096, 4)).shape
    torch.Size([1, 4096, 4])
    """
    from tokenmix.ops.persist import persist

    length, heads = x.shape[1], 1 if w.dim() == 1 else w.shape[0]
    if length < LONG.get(x.device.type, LONG["cpu"]) or x.shape[-1] // heads % 2 or transformed():
        return persist(toeplitz(w, length), x, mask=mask, causal=causal, epilogue=epilogue)
    n = (w.shape[-1] + 1) // 2
    if length > n:
        raise ValueError(f"length {length} exceeds the {n} positions of this Toeplitz matrix")
    window = (w if w.dim() == 2 else w[None])[:, n - length : n + length - 1]
    seen = x if mask is None else x * mask.unsqueeze(-1).to(x.dtype)
    return apply_epilogue(torch.ops.tokenmix.toeplitz_fft(window, seen, causal), x, epilogue)


def _spectrum(window: Tensor, length: int, size: int, causal: bool) -> Tensor:
    """The transform of a[t] = w[length − 1 − t], the weight of the token t places back, [heads, size]."""
    past = window[:, :length].flip(-1)  # t = 0 … length − 1
    future = torch.zeros_like(window[:, length:]) if causal else window[:, length:].flip(-1)  # t = 1 − length … −1
    gap = past.new_zeros(past.shape[0], size - 2 * length + 1)
    return torch.fft.fft(torch.cat([past, gap, future], -1))


def _transform(x: Tensor, heads: int, size: int) -> Tensor:
    """[batch, size, heads, pairs of channels]: two real channels make one complex, since the filter is real."""
    pairs = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (heads, -1, 2)).contiguous()
    return torch.fft.fft(torch.view_as_complex(pairs), size, dim=1)


def _size(length: int) -> int:
    """A transform at least 2·length − 1 long that is quick: 2ᵃ, 3·2ᵃ or 5·2ᵃ."""
    return min(m << max(0, (-(-(2 * length - 1) // m) - 1).bit_length()) for m in (1, 3, 5))


def _examples(x: Tensor, size: int) -> int:
    return max(1, BYTES // (size * x.shape[2] * 4))


@torch.library.custom_op("tokenmix::toeplitz_fft", mutates_args=())
def toeplitz_fft(window: Tensor, x: Tensor, causal: bool) -> Tensor:
    """y[i] = Σ_j w[ℓ − 1 + j − i] x[j]: a convolution, by the FFT. window [heads, 2ℓ − 1], x [batch, ℓ, channels]."""
    length, heads = x.shape[1], window.shape[0]
    size = _size(length)
    filters = _spectrum(window.to(torch.promote_types(window.dtype, torch.float32)), length, size, causal).T[..., None]
    return torch.cat([_apply(filters, part, heads, size) for part in x.split(_examples(x, size))])


def _apply(filters: Tensor, x: Tensor, heads: int, size: int) -> Tensor:
    y = torch.fft.ifft(_transform(x, heads, size).mul_(filters), dim=1)[:, : x.shape[1]]
    return torch.view_as_real(y).flatten(-3).to(x.dtype)


@toeplitz_fft.register_fake
def _(window: Tensor, x: Tensor, causal: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("tokenmix::toeplitz_fft_backward", mutates_args=())
def toeplitz_fft_backward(grad: Tensor, window: Tensor, x: Tensor, causal: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    """dx is the convolution with the reversed filter (its conjugate spectrum); da[t] = Σ_i g[i] x[i − t]."""
    length, heads = x.shape[1], window.shape[0]
    size = _size(length)
    filters = _spectrum(window.to(torch.promote_types(window.dtype, torch.float32)), length, size, causal).T[..., None]
    dxs, sums = [], None
    for g, part in zip(grad.split(_examples(x, size)), x.split(_examples(x, size)), strict=True):
        spectrum = _transform(g, heads, size)
        if need_w:
            products = torch.einsum("bshc,bshc->hs", spectrum, _transform(part, heads, size).conj())
            sums = products if sums is None else sums + products
        y = torch.fft.ifft(spectrum.mul_(filters.conj()), dim=1)[:, :length]
        dxs.append(torch.view_as_real(y).flatten(-3).to(x.dtype))
    if sums is None:
        return torch.cat(dxs), window.new_empty(0)
    a = torch.fft.ifft(sums).real  # t = 0 … length − 1 first, t = 1 − length … −1 last
    future = a[:, size - length + 1 :].flip(-1)
    dw = torch.cat([a[:, :length].flip(-1), torch.zeros_like(future) if causal else future], -1)
    return torch.cat(dxs), dw.to(window.dtype)


@toeplitz_fft_backward.register_fake
def _(grad, window, x, causal, need_w):
    return x.new_empty(x.shape), window.new_empty(window.shape if need_w else 0)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.causal = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    window, x = ctx.saved_tensors
    dx, dw = torch.ops.tokenmix.toeplitz_fft_backward(grad, window, x, ctx.causal, ctx.needs_input_grad[0])
    return dw if ctx.needs_input_grad[0] else None, dx if ctx.needs_input_grad[1] else None, None


toeplitz_fft.register_autograd(_backward, setup_context=_setup)
once(toeplitz_fft_backward)
