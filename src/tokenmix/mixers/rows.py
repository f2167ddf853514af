"""The real tokens of a padded batch, for training that computes nothing for the others."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """Where the real tokens of x [batch, length, …] stand.

    >>> rows = Rows(torch.tensor([[True, True, False], [True, False, False]]))
    >>> rows.gather(torch.arange(6.0).view(2, 3, 1)).squeeze(1)
    tensor([0., 1., 3.])
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        self.index = mask.flatten().nonzero().squeeze(1)

    def __len__(self) -> int:
        return len(self.index)

    def gather(self, x: Tensor) -> Tensor:
        """[batch, length, …] → [tokens, …]"""
        return x.flatten(0, 1).index_select(0, self.index)

    def spread(self, x: Tensor) -> Tensor:
        """[tokens, …] → [batch, length, …], zero at padding"""
        padded = x.new_zeros(self.shape.numel(), *x.shape[1:]).index_copy(0, self.index, x)
        return padded.unflatten(0, self.shape)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x [batch, length, …] + y [tokens, …]"""
        return x.flatten(0, 1).index_add(0, self.index, y.to(x.dtype)).view_as(x)


def real_rows(mask: Tensor | None) -> Rows | None:
    """The real tokens; None where there is hardly any padding, and where leaving it out costs more than it saves: a CPU
    takes any number of rows, but compiled graphs and GPUs want fixed shapes."""
    if mask is None or mask.device.type != "cpu" or torch.compiler.is_compiling() or type(mask) is not Tensor:
        return None
    rows = Rows(mask)
    return rows if 0 < len(rows) <= 0.95 * mask.numel() else None
