"""The gated feed-forward network's kernels compile for Hopper GPUs, with the Triton that is installed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton.experimental.gluon")
from test_hopper_kernels import SHARED, block, compiled

from tokenmix.ops.kernels import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="Gluon has no interpreter")


def made(back: bool, config: dict[str, Any], inputs: int, width: int, **fixed: int) -> Any:
    from tokenmix.ops.kernels.geglu_hopper import _geglu_hopper, constants

    numbers = {name: "i32" for name in ("tokens", "tiles") if name not in fixed}
    blocks = {"x": block(64, 64), "w": block(config["BN"] // 64, 4, 4, 2, 64)}
    types = {**blocks, **numbers, **dict.fromkeys(("given", "both", "h"), "*bf16")}
    return compiled(_geglu_hopper, types, {"BACK": back, **constants(config, inputs, width), **fixed})


@pytest.mark.parametrize(("back", "index"), [(False, 0), (False, 1), (True, 0)])
def test_every_configuration_compiles_for_hopper(back: bool, index: int) -> None:
    from tokenmix.ops.kernels import geglu_hopper as kernels

    config = (kernels.BACKWARD if back else kernels.FORWARD)[index]
    found = made(back, config, 768, 2048)
    assert f"wgmma.mma_async.sync.aligned.m64n{config['BN']}k16" in found.asm["ptx"]
    assert found.metadata.shared <= SHARED


@pytest.mark.parametrize("back", [False, True])
def test_small_products_compile_for_hopper(back: bool) -> None:
    """A width of one block, and a single tile, which Triton takes as a constant."""
    from tokenmix.ops.kernels import geglu_hopper as kernels

    assert "wgmma" in made(back, (kernels.BACKWARD[0] if back else kernels.FORWARD[0]), 64, 256, tiles=1).asm["ptx"]


def test_no_signal_between_groups_gets_lost_however_small_the_product() -> None:
    from tokenmix.ops.kernels import geglu_hopper as kernels

    for config in (*kernels.FORWARD, kernels.BACKWARD[0]):
        for steps in range(1, 20):
            found = kernels.constants(config, 64 * steps, 256)
            assert found["LAG"] < steps
            assert found["LAG"] < found["W_SLOTS"] <= steps + found["LAG"]
