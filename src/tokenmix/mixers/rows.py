"""The real tokens of a padded batch, for training that computes nothing for the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmix.devices import transformed


class Rows:
    """Where the real tokens of x [batch, length, …] stand: their places in x.flatten(0, 1), each once.

    There may be places of padding among them, so that their number is fixed; what is computed there, nobody reads.

    >>> rows = Rows.of(torch.tensor([[True, True, False], [True, False, False]]))
    >>> rows.gather(torch.arange(6.0).view(2, 3, 1)).squeeze(1)
    tensor([0., 1., 3.])
    """

    def __init__(self, index: Tensor, shape: torch.Size, lengths: Tensor | None = None) -> None:
        self.index, self.shape = index, shape
        self.lengths = lengths  #: [batch], where each example's padding begins, if that is known

    @classmethod
    def of(cls, real: Tensor) -> Rows:
        """Of a mask [batch, length]."""
        return cls(real.flatten().nonzero().squeeze(1), real.shape)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def examples(self) -> Tensor:
        """[tokens], the row of the batch that a token belongs to"""
        return self.index // self.shape[1]

    def gather(self, x: Tensor) -> Tensor:
        """[batch, length, …] → [tokens, …]"""
        x = x.flatten(0, 1)
        return x.index_select(0, self.index) if transformed() else _Gather.apply(x, self.index)

    def spread(self, x: Tensor) -> Tensor:
        """[tokens, …] → [batch, length, …], zero at padding"""
        spread = _put if transformed() else _Spread.apply
        return spread(x, self.index, self.shape.numel()).unflatten(0, self.shape)


class _Gather(torch.autograd.Function):
    """No token stands in two places: the gradient is put where its token was, without adding up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _put(g, index, ctx.count), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return _put(x, index, count)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return g.index_select(0, index), None, None


def _put(x: Tensor, index: Tensor, count: int) -> Tensor:
    zeros = x.new_zeros(count, *x.shape[1:])
    if torch.compiler.is_compiling() or transformed():
        # torch 2.11 compiles a backward that writes in place to one of zeros; vmap refuses some writes in place
        return zeros.index_copy(0, index, x)
    return zeros.index_copy_(0, index, x)


def real_rows(real: Tensor | None) -> Rows | None:
    """The real tokens; None where there is hardly any padding, and where their number may not vary: a CPU takes any
    number of rows, but compiled graphs and GPUs want fixed shapes."""
    if real is None or real.device.type != "cpu" or torch.compiler.is_compiling() or type(real) is not Tensor:
        return None
    if transformed():  # under vmap the number of real tokens varies
        return None
    rows = Rows.of(real)
    return rows if 0 < len(rows) <= 0.95 * real.numel() else None
