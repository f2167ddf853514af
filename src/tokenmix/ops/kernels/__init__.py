"""Triton kernels behind `tokenmix.ops`: optional, and used where they were measured to be the fastest way.

`usable(x)` says whether they can run on x: on an NVIDIA GPU of the Ampere generation or later, or anywhere inside
Triton's interpreter (TRITON_INTERPRET=1, for tests on a CPU), but not under torch.func. TOKENMIX_KERNELS=0 turns them
off.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from tokenmix.devices import transformed

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INSTALLED = importlib.util.find_spec("triton") is not None and os.environ.get("TOKENMIX_KERNELS", "1") != "0"
INTERPRETING = os.environ.get("TRITON_INTERPRET", "0") == "1"


def usable(x: Tensor) -> bool:
    """Can the kernels run on x?"""
    if not INSTALLED or x.dtype not in DTYPES or x.numel() == 0:
        return False
    return (_recent() if x.is_cuda else INTERPRETING) and not transformed()


@torch.compiler.assume_constant_result
def _recent() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


@torch.compiler.assume_constant_result
def on_hopper() -> bool:
    """Do the kernels written in Gluon run here? Ask where others are usable."""
    from tokenmix.ops.kernels.tune import gluon

    return gluon()
