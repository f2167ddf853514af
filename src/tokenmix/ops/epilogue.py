"""What `persist` does with s = W·x before it writes the result."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor


class Compose(NamedTuple):
    """α(s ⊙ x) + (1 − α)(x − s): Remixer's composition. `alpha` is a number, [channels] or [batch, length, channels]."""

    alpha: float | Tensor


class Gate(NamedTuple):
    """u ⊙ (s + bias + addend): gMLP's spatial gate. `bias` is [length], `addend` aMLP's tiny attention."""

    u: Tensor
    bias: Tensor | None = None
    addend: Tensor | None = None


Epilogue: TypeAlias = Compose | Gate
