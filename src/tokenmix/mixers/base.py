"""What every mixer shares: its interface, its memory between decoding steps, and how weights start.

A mixer is a plain `nn.Module` from x [batch, length, d_model] to the same shape. Besides x it takes, all optional:

- `mask` [batch, length], True for real tokens; the output at real tokens does not depend on padding;
- `bias` [heads, length, length], a position bias shared by all layers (attention only);
- `slot`, the memory of incremental decoding: x then holds the new tokens alone;
- `record`, a dict that receives the mixing matrices, for figures;
- `rows`, where it says that it takes them: x and the output then hold the real tokens alone, [tokens, d_model].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokenmix.mixers.site import Site
from tokenmix.ops.linear import Linear


class Mixer(nn.Module):
    """Base class of all mixers; see the module's docstring for the interface."""

    by_rows = False  #: whether it also takes the real tokens alone, x [tokens, d_model], with their places as `rows`
    sees_padding = False  #: whether it depends on padding
    limited = False  #: whether its parameters go by position, so that x is at most max_length long

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        slot: Slot | None = None,
        record: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Mix; each subclass says how."""
        raise TypeError(f"{type(self).__name__} does not mix")

    def reset_parameters(self) -> None:
        """Give the parameters that this module owns, and those of its linear layers, their initial values."""


def too_long(length: int, longest: int, what: str) -> ValueError:
    """The error for a sequence that a model or layer is too short for."""
    return ValueError(
        f"sequence of {length} tokens exceeds max_length={longest} of this {what}; "
        f"truncate it, or build the {what} with max_length >= {length}"
    )


def check_input(width: int, longest: int | None, module: nn.Module, given: tuple[Any, ...], named: Any) -> None:
    """A hook before a built layer's forward: x is [batch, length, width], and no longer than the parameters reach.

    Decoding steps and rows of real tokens have limits of their own.
    """
    if named.get("slot") is not None or named.get("slots") is not None or named.get("rows") is not None:
        return
    x = given[0] if given else named.get("x")
    mask = given[1] if len(given) > 1 else named.get("mask")
    if isinstance(x, Tensor):  # else forward says what is missing
        if x.dim() != 3 or x.shape[-1] != width:
            raise ValueError(f"x must be [batch, length, d_model={width}]; got {list(x.shape)}")
        if longest is not None and x.shape[1] > longest:
            raise too_long(x.shape[1], longest, "layer")
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(f"mask must be [batch, length] = {list(x.shape[:2])} like x; got {list(mask.shape)}")


class Slot:
    """What one sublayer remembers between decoding steps: named static tensors, one row per example.

    Rows may stand at different positions (prompts of different lengths), so every read and write is by `positions`.
    Beams that change places move nothing: `source` says in which row each beam's past stands.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  #: longest sequence it can hold
        self.tensors: dict[str, Tensor] = {}  #: [batch, capacity, …] by position
        self.windows: dict[str, Tensor] = {}  #: [batch, size, …] the last tokens alone
        self.memory: dict[str, Tensor] = {}  #: [examples, keys, …] made of the encoder's states, once
        self.positions: Tensor = torch.empty(0)  #: [batch, new] position of each new token; set before every step
        self.span = capacity  #: positions that a read covers, from 0
        self.fresh = True  #: nothing is remembered yet: the new tokens are the whole sequence
        self.counts: Tensor | None = None  #: [batch] how many of the new tokens are real; None: all
        self.source: Tensor | None = None  #: [batch, capacity] the row in which a position stands; None: its own

    def append(self, name: str, new: Tensor) -> Tensor:
        """Write new [batch, new, …] at its positions; returns all that may be visible, [batch, span, …]."""
        if name not in self.tensors:
            self.tensors[name] = new.new_zeros(new.shape[0], self.capacity, *new.shape[2:])
        held = self.tensors[name]
        rows = torch.arange(new.shape[0], device=new.device)[:, None]
        held[rows, self.positions.clamp(max=self.capacity - 1)] = new.to(held.dtype)
        if self.source is None:
            return held[:, : self.span]
        return held[self.source[:, : self.span], torch.arange(self.span, device=new.device)]

    def window(self, name: str, new: Tensor, size: int) -> Tensor:
        """The last `size` tokens before the new ones, and the new: [batch, size + new, …]; zeros before the start."""
        if name not in self.windows:
            self.windows[name] = new.new_zeros(new.shape[0], size, *new.shape[2:])
        joined = torch.cat([self.windows[name], new], 1)
        if self.counts is None:
            last = joined[:, joined.shape[1] - size :]
        else:  # a right-padded prompt: keep what precedes each row's own next token
            index = self.counts[:, None] + torch.arange(size, device=new.device)[None]
            last = joined[torch.arange(new.shape[0], device=new.device)[:, None], index]
        self.windows[name].copy_(last)
        return joined

    def visible(self) -> Tensor:
        """[batch, new, span]: new token at position p sees what stands at j ≤ p."""
        return torch.arange(self.span, device=self.positions.device) <= self.positions[..., None]


def mix_rows(weight: Tensor, x: Tensor, slot: Slot, *, softmax: bool) -> Tensor:
    """Rows of a persistent matrix for the new tokens: `weight` [heads, ≥p, ≥span], x [batch, span, channels]."""
    heads = weight.shape[0]
    rows = take_rows(weight[..., : slot.span], slot.positions)  # [batch, heads, new, span]
    hidden = ~slot.visible()[:, None]
    if softmax:
        rows = torch.softmax(
            rows.masked_fill(hidden, float("-inf")), -1, dtype=torch.promote_types(rows.dtype, torch.float32)
        )
    else:
        rows = rows.masked_fill(hidden, 0.0)
    return torch.einsum("bhij,bjhd->bihd", rows.to(x.dtype), x.unflatten(-1, (heads, -1))).flatten(-2)


def take_rows(table: Tensor, positions: Tensor) -> Tensor:
    """table [heads, rows, …] at positions [batch, new] → [batch, heads, new, …]."""
    return table[:, positions.clamp(max=table.shape[1] - 1)].transpose(0, 1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
    "relu": torch.relu,
    "silu": nn.functional.silu,
}


def linear(site: Site, inputs: int, outputs: int, *, bias: bool | None = None) -> Linear:
    """A linear layer with or without bias, as the site has it."""
    return Linear(inputs, outputs, bias=site.bias if bias is None else bias)


def untouched(*layers: nn.Module) -> bool:
    """Whether calling these layers is x Wᵀ + b, or x Wᵀ for all of them, and nothing else, so that their weights may be used
    together: no adapter, no quantized or sharded stand-in, no `forward` of its own, no hook."""
    return all(map(_untouched, layers)) and len({layer.bias is None for layer in layers}) == 1


def _untouched(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    plain = type(layer) is Linear and "forward" not in layer.__dict__ and not any(hooks)
    return plain and type(layer.weight) in (Tensor, nn.Parameter)


def init_linear(layer: nn.Linear, site: Site, *, std: float | None = None) -> None:
    """Initial weights by the site's convention; `std` overrides the fan-in rule of T5."""
    match site.init:
        case "t5":
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5 if std is None else std)
        case "bert":
            nn.init.normal_(layer.weight, std=0.02)
        case "xavier":
            nn.init.xavier_uniform_(layer.weight)
        case other:
            raise ValueError(f'init must be "t5", "bert" or "xavier"; got {other!r}')
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=1e-6) if site.init == "xavier" else nn.init.zeros_(layer.bias)


def glorot_(table: Tensor) -> None:
    """The published initialisation of R [heads, ℓ, ℓ]: Glorot-uniform over [ℓ, heads, ℓ], about ±0.0047 at 512."""
    heads, rows, columns = table.shape
    limit = math.sqrt(6.0 / (rows * (heads + columns)))
    nn.init.uniform_(table, -limit, limit)


def shift_window(x: Tensor, taps: int, *, causal: bool, slot: Slot | None, name: str = "window") -> Tensor:
    """x [batch, length, channels] with a zero margin so that tap s of token t is row t + s: [batch, length + taps − 1, …].

    Causal windows end at the token (t − taps + 1 … t), others are centred on it.
    """
    if slot is not None and causal:
        return slot.window(name, x, taps - 1)
    left = taps - 1 if causal else (taps - 1) // 2
    return nn.functional.pad(x, (0, 0, left, taps - 1 - left))


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x with padding set to 0."""
    return x if mask is None else x * mask.unsqueeze(-1).to(x.dtype)
