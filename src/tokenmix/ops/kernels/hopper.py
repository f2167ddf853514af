"""What the kernels written in Gluon share: descriptors for the bulk copy engine (TMA), wider numbers, a name that changed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton.experimental.gluon.language as gl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

if not hasattr(gl, "barrier"):
    gl.barrier = gl.thread_barrier  # its name up to Triton 3.6

# two numbers of bfloat16 as float32 in two instructions, where the compiler takes three
WIDEN = gl.constexpr("{.reg .b32 a, b; shl.b32 a, $2, 16; and.b32 b, $2, 0xffff0000; mov.b32 $0, a; mov.b32 $1, b;}")


@gluon.jit
def widened(t):
    """t, of a 16-bit type, as float32."""
    if t.dtype == gl.bfloat16:
        t = gl.inline_asm_elementwise(WIDEN, "=f,=f,r", [t], dtype=gl.float32, is_pure=True, pack=2)
    else:
        t = t.to(gl.float32)
    return t


def describe(
    t: Tensor, block: list[int], shape: list[int] | None = None, strides: list[int] | None = None
) -> TensorDescriptor:
    """A descriptor for blocks of t, as it is or with another shape and strides: 0 outside, where nothing is written."""
    kind = gl.bfloat16 if t.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for(block, kind)
    return TensorDescriptor(t, shape or list(t.shape), strides or list(t.stride()), block, layout)


def merged(t: Tensor) -> Tensor:
    """t [batch, heads, length, 64], whose heads lie side by side in memory, as [batch, length, channels]."""
    batch, heads, length, width = t.shape
    return t.as_strided((batch, length, heads * width), (t.stride(0), t.stride(2), 1))


def side_by_side(t: Tensor) -> bool:
    """Does t [batch, heads, length, 64] lie in memory as [batch, length, heads·64], and can TMA copy blocks of it?"""
    _, heads, length, width = t.shape
    b, h, n, one = t.stride()
    order = (heads == 1 or h == width) and one == 1 and n >= heads * width and (t.shape[0] == 1 or b >= length * n)
    return width == 64 and order and n % 8 == 0 and b % 8 == 0 and t.data_ptr() % 16 == 0
