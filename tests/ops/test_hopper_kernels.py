"""The kernels for Hopper GPUs compile, here and without such a GPU, with the Triton that is installed."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton.experimental.gluon")
import triton
import triton.experimental.gluon.language as gl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from tokenmix.ops.kernels import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="Gluon has no interpreter")
HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 232_448  # bytes of shared memory that a program may use


def block(*shape: int) -> str:
    """The type of a descriptor for blocks of a bfloat16 tensor."""
    return f"tensordesc<bf16{list(shape)},{gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16)!r}>"


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> Any:
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=HOPPER, options={"num_warps": 4})


@pytest.mark.parametrize("mode", ["plain", "compose", "compose_grad", "gate", "gate_grad"])
def test_mixing_compiles_for_hopper(mode: str) -> None:
    from tokenmix.ops.kernels.mix_hopper import _mix_hopper

    integers = dict.fromkeys(("tiles", "chunks", "queries", "keys"), "i32")
    blocks = {"x": block(64, 128), **dict.fromkeys(("y", "extra", "own", "other"), block(64, 64))}
    constants = {"MODE": mode, "HAS_BIAS": mode == "gate", "SAVE": mode in ("compose", "gate", "gate_grad")}
    made = compiled(
        _mix_hopper,
        {"w": "*bf16", **blocks, "bias": "*fp32", **integers, "alpha": "fp32"},
        {**constants, "BLOCKS": 8, "BN": 128, "num_warps": 4},
    )
    assert "wgmma" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize(
    ("mode", "total", "turns", "one_part"),
    [
        ("plain", False, True, False),
        ("compose", False, True, False),
        ("compose", False, False, False),
        ("gate", False, True, False),
        ("gate", True, True, False),
        ("gate", True, False, False),
        ("gate", True, True, True),
    ],
)
def test_its_gradient_compiles_for_hopper(mode: str, total: bool, turns: bool, one_part: bool) -> None:
    from tokenmix.ops.kernels.outer_hopper import _outer_hopper

    integers = dict.fromkeys(("batch", "queries", "keys", "width", "across", "splits"), "i32")
    blocks = {"x": block(1, 256, 64), **dict.fromkeys(("g", "own", "ds"), block(1, 64, 64))}
    constants = {"MODE": mode, "SAME": mode == "compose", "TOTAL": total, "TURNS": turns, "SLOTS": 3}
    if one_part:  # Triton takes an argument of 1 as a constant
        del integers["splits"]
        constants["splits"] = 1
    made = compiled(
        _outer_hopper,
        {**blocks, "dw": "*fp32", "total": "*fp32", **integers, "alpha": "fp32"},
        {**constants, "BN": 256, "BK": 64, "num_warps": 4},
    )
    assert "wgmma" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("tma", [False, True])
def test_the_gradient_with_that_of_the_bias_compiles_for_hopper_in_triton(tma: bool, turns: bool) -> None:
    from tokenmix.ops.kernels.outer import _outer

    rows, columns = ("tensordesc<bf16[1, 128, 64]>", "tensordesc<bf16[1, 256, 64]>") if tma else ("*bf16", "*bf16")
    types = dict.fromkeys(("g", "own", "ds"), rows) | {"x": columns, "dw": "*fp32", "total": "*fp32"}
    types |= dict.fromkeys(("alpha", "row", "mask"), "*bf16") | {"alpha_value": "fp32"}
    constants = {"MODE": "gate", "ALPHA": 0, "WRITE": True, "TOTAL": True, "ROW": False, "MASK": False, "CAUSAL": False,
                 "EVEN": True, "PRECISION": "tf32", "BM": 128, "BN": 256, "BK": 64, "TMA": tma, "TURNS": turns,
                 "heads": 1, "sgc": 1, "soc": 1, "sxc": 1}  # fmt: skip
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in _outer.arg_names}
    values = {(_outer.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=_outer, signature=signature, constexprs=values)
    made = triton.compile(source, target=HOPPER, options={"num_warps": 8, "num_stages": 3})
    assert "wgmma" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("name", ["_forward", "_backward", "_backward_x"])
def test_the_windowed_network_compiles_for_hopper(name: str, block: int) -> None:
    from tokenmix.ops.kernels import window

    kernel = getattr(window, name)
    config = dict(window.FORWARD[0] if name == "_forward" else window.BACKWARD[0])
    constants = {"NARROW": True, "PRECISION": "tf32", "T": block, "H": 256 // block, "DX": True, "BC": config.pop("BC")}
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    pointers = dict.fromkeys(("x", "y", "dx", "dy"), "*bf16") | dict.fromkeys(
        ("w", "b", "a", "dw", "db", "da"), "*fp32"
    )
    types = {key: "constexpr" if key in constants else pointers.get(key, "i32") for key in kernel.arg_names}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    made = triton.compile(ASTSource(fn=kernel, signature=types, constexprs=values), target=HOPPER, options=config)
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize("width", [768, 1024, 4096, 20])
@pytest.mark.parametrize("name", ["_forward", "_backward"])
def test_gelu_and_norm_compile_for_hopper(name: str, width: int) -> None:
    import torch

    from tokenmix.ops.kernels import gelu_norm

    kernel, h = getattr(gelu_norm, name), torch.empty(1, 2 * width, dtype=torch.bfloat16, device="meta")
    for config in gelu_norm.FORWARD if name == "_forward" else gelu_norm.BACKWARD:
        constants = gelu_norm.constants(config, h)
        warps = constants.pop("num_warps")
        wide = dict.fromkeys(("w", "b", "mean", "r", "sums"), "*fp32")
        types = {"rows": "i32", "blocks": "i32", "eps": "fp32", **wide} | dict.fromkeys(constants, "constexpr")
        types = {key: types.get(key, "*bf16") for key in kernel.arg_names}
        values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        aligned = {(k,): [["tt.divisibility", 16]] for k, key in enumerate(kernel.arg_names) if types[key][0] == "*"}
        source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
        made = triton.compile(source, target=HOPPER, options={"num_warps": warps})
        assert made.metadata.shared <= SHARED
        if width % 256 == 0:  # whole rows are read in words of 8 or 16 bytes
            assert re.search(r"ld\.global\.v[24]\.b(32|64)", made.asm["ptx"])
