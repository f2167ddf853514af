"""Which attention weights are dropped: a function of a seed and a weight's place, so that nobody has to remember it.

The way back asks again, in whatever order and blocks; kernels, compiled and recorded graphs give the same answer.

    stream s = example · heads + head,  place n = query · keys + key
    draw = f(f(n ⊕ f(seed₀ + s)) + seed₁),  dropped where draw / 2³² < p        (all modulo 2³²)

f is a bijection of 32-bit numbers that changes about half of the bits of its result with every bit of its argument.
"""

from __future__ import annotations

import torch
from torch import Tensor


def new_seed(device: torch.device) -> Tensor:
    """Two numbers below 2³², on the device: drawing them asks nobody to wait."""
    return torch.randint(1 << 32, (2,), device=device)


def kept(seed: Tensor, v: Tensor, examples: slice, queries: slice, p: float) -> Tensor:
    """The factor of each weight, [examples, heads, queries, keys]: 1 / (1 − p), or 0 where it is dropped.

    `v` [batch, heads, keys, width] says how many heads and keys there are, and in which dtype.

    >>> out = kept(new_seed(torch.device("cpu")), torch.randn(2, 4, 8, 16), slice(0, 2), slice(0, 8), 0.5)
    >>> out.shape, sorted(set(out.flatten().tolist()))
    (torch.Size([2, 4, 8, 8]), [0.0, 2.0])
    """
    heads, keys = v.shape[1:3]
    first, second = _wrapped(seed)
    place = _wrapped(torch.arange(queries.start, queries.stop, device=seed.device)[:, None] * keys)
    place = place + torch.arange(keys, dtype=torch.int32, device=seed.device)
    stream = _wrapped(torch.arange(examples.start * heads, examples.stop * heads, device=seed.device))
    draws = place ^ _scrambled_(stream + first)[:, None, None]
    draws = _scrambled_(_scrambled_(draws).add_(second))
    dropped = draws.bitwise_right_shift_(8).bitwise_and_(0xFFFFFF) < p * (1 << 24)
    factor = 1 / (1 - p) if p < 1 else 0.0
    return dropped.logical_not_().to(v.dtype).mul_(factor).view(-1, heads, *place.shape)


def _wrapped(x: Tensor) -> Tensor:
    """The low 32 bits of 64."""
    return x.to(torch.int32)


def _scrambled_(x: Tensor) -> Tensor:
    """f in place; int32 numbers stand for unsigned ones, so that what a shift brings in is masked away."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x7FEB352D
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= 0x846CA68B - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
