"""Where a model runs: `auto`, `cpu` or `cuda`, as every command takes it; and what Python may ask there."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmix.naming import unknown

DEVICES = ("auto", "cpu", "cuda")


def chosen_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, and no GPU is visible; take --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def readable(x: Tensor) -> bool:
    """Can Python look at the numbers? Not inside a compiled or recorded graph, nor on the meta device.

    >>> readable(torch.ones(2)), readable(torch.ones(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())
