"""Where a model runs: `auto`, `cpu` or `cuda`, as every command takes it."""

from __future__ import annotations

import torch

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
