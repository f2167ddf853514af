"""Numbers that are read from the weights of a model."""

from __future__ import annotations

import math

import pytest
import torch

from tokenmix.evaluation.weights import POSITIONS, read_weights, weight_metrics
from tokenmix.mixers.remix import RemixBlock
from tokenmix.models import TokenmixConfig, create_model

SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 3, "vocab_size": 50, "max_length": 48}


def remixer(layer: str = "dot | remix(heads=2)"):
    return create_model(TokenmixConfig(body="seq2seq", layer=layer, **SIZES))


def memories(model):
    return [b for b in model.modules() if isinstance(b, RemixBlock) and not b.site.causal]


def test_a_memory_that_weighs_all_alike_has_full_reach_and_does_not_avoid_itself():
    model = remixer()
    for block in memories(model):
        torch.nn.init.zeros_(block.h)
    found = weight_metrics(model)
    assert found["memory_reach_first"] == pytest.approx(100)
    assert found["memory_growth"] == pytest.approx(0, abs=1e-9)
    assert found["memory_self"] == pytest.approx(100)


@pytest.mark.parametrize("toeplitz", [False, True])
def test_reach_grows_where_the_first_layer_is_local_and_self_is_small_where_the_diagonal_is(toeplitz):
    model = remixer(f"dot | remix(heads=2, toeplitz={toeplitz})")
    n, blocks = SIZES["max_length"], memories(model)
    for number, block in enumerate(blocks):
        apart = torch.arange(1 - n, n).abs() if toeplitz else (torch.arange(n)[:, None] - torch.arange(n)).abs()
        local = -apart.float() if number == 0 else torch.zeros_like(apart, dtype=torch.float32)
        block.h.data[:] = local.masked_fill(apart == 0, -math.log(4))  # a quarter of what a zero would give
    found = weight_metrics(model)
    assert found["memory_reach_first"] < 20 < 99 < found["memory_reach_last"]
    assert found["memory_growth"] == pytest.approx(found["memory_reach_last"] - found["memory_reach_first"])
    assert found["memory_self"] == pytest.approx(
        (100 * math.e / 4 + 25 + 25) / 3, rel=0.03
    )  # rows at the ends have one neighbour


def test_what_finetuning_leaves_of_a_memory_is_a_correlation(tmp_path):
    model = remixer()
    model.save_pretrained(tmp_path)
    before = read_weights(tmp_path)
    assert weight_metrics(model, before)["memory_kept"] == pytest.approx(100)
    for block in memories(model):
        block.h.data[:, POSITIONS:, POSITIONS:] += 1  # nobody looks there
    assert weight_metrics(model, before)["memory_kept"] == pytest.approx(100)
    for block in memories(model):
        block.h.data[:] = torch.randn_like(block.h)
    assert abs(weight_metrics(model, before)["memory_kept"]) < 10
    assert "memory_kept" not in weight_metrics(model)


def test_only_free_matrices_of_a_gmlp_are_asked_for_diagonals():
    shares = [
        weight_metrics(create_model(TokenmixConfig(body="encoder", layer=f"gmlp(toeplitz={bound})", **SIZES)))
        for bound in (True, False)
    ]
    assert shares[0] == {}
    assert 0 < shares[1]["toeplitz"] < 10


def test_weights_that_are_gone_are_none(tmp_path):
    assert read_weights(tmp_path) is None
