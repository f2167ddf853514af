"""Where a model runs: `auto`, `cpu` or `cuda`, as every command takes it; and what Python may ask there."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

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


def product_dtype(x: Tensor) -> torch.dtype:
    """The type in which linear layers multiply x: autocast's, where that is on.

    >>> product_dtype(torch.ones(2))
    torch.float32
    """
    device = x.device.type
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def readable(x: Tensor) -> bool:
    """Can Python look at the numbers? Not inside a compiled or recorded graph, nor under vmap, nor on the meta device.

    >>> readable(torch.ones(2)), readable(torch.ones(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or x.is_meta or _batched(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _batched(x: Tensor) -> bool:
    """Does x stand for one of many tensors, at any level of torch.func's transforms?"""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def transformed() -> bool:
    """Do torch.func or forward-mode derivatives look on? They see through plain operators, not through faster ones that
    bring their own way back; `autograd.Function`s that they accept cost every call 50 µs. Compilers see through both.

    >>> torch.func.grad(lambda x: x * transformed())(torch.tensor(2.0)), transformed()
    (tensor(1.), False)
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
