"""Every mixer of the registry learns: a tiny model knows a tiny set by heart after a bounded number of steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from small_runs import tiny

from tokenmix.mixers import REGISTRY
from tokenmix.mixers.channel import Channel
from tokenmix.training import train


@pytest.fixture(scope="module")
def sayings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen lines, each with an answer of its own."""
    draw, words = random.Random(0), ["ada", "ben", "cup", "dog", "elm", "fig", "gem", "hat"]
    path = tmp_path_factory.mktemp("data") / "sayings.jsonl"
    rows = [{"q": " ".join(draw.choices(words, k=5)), "a": " ".join(draw.choices(words, k=4))} for _ in range(16)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_tiny_model_learns_a_tiny_set(name: str, sayings: Path, tmp_path: Path) -> None:
    layer = f"dot | {name}" if issubclass(REGISTRY[name], Channel) else f"{name} | mlp"
    decoder = {} if REGISTRY[name].causal else {"decoder_layer": "dot | mlp"}
    config = tiny(
        tmp_path / "run", model__name=None, model__layer=layer, data__task=f"file:{sayings}?input=q&target=a",
        data__tokenizer="word", data__limit=None, data__batch_size=16, budget__steps=150, optimizer__lr=5e-3,
        validation__split="train", validation__metric=True, validation__examples=16, checkpoints__every=1000,
    )  # fmt: skip
    config.model.name = None
    config.model.options = {
        "d_model": 32,
        "d_ff": 64,
        "heads": 2,
        "layers": 1,
        "decoder_layers": 2,
        "max_length": 16,
        **decoder,
    }
    assert train(config).metrics["exact_match"] >= 99
