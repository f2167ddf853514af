"""New weights start where the papers and Hugging Face start them, whichever way a model comes into being."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tokenmix import create_model, from_transformers
from tokenmix.models import TokenmixConfig


def plain_bert() -> Any:
    sizes = dict(vocab_size=400, hidden_size=128, num_hidden_layers=1, num_attention_heads=2, intermediate_size=256)
    return BertForMaskedLM(BertConfig(**sizes))


def plain_t5(tied: bool) -> Any:
    sizes = dict(vocab_size=400, d_model=128, d_kv=32, d_ff=256, num_layers=1, num_heads=4)
    return T5ForConditionalGeneration(
        T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=tied, decoder_start_token_id=0)
    )


@pytest.mark.parametrize("make", [plain_bert, lambda: plain_t5(False), lambda: plain_t5(True)])
def test_a_new_model_starts_where_theirs_starts(make: Any) -> None:
    """Every weight has the spread that Hugging Face gives it, embeddings and head included."""
    theirs = from_transformers(make())
    ours = create_model(theirs.config)
    for (name, wanted), (_, found) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        assert float(found.detach().std()) == pytest.approx(float(wanted.detach().std()), rel=0.25, abs=1e-6), name


def test_what_a_checkpoint_lacks_starts_as_it_should(tmp_path: Path) -> None:
    """Transformers makes missing weights of raw memory; ours are set up, the loaded ones left alone."""
    sizes: dict[str, Any] = {"layers": 1, "vocab_size": 90, "d_model": 128, "d_ff": 128, "heads": 2}
    create_model("bert-base", **sizes).save_pretrained(tmp_path)
    changed = TokenmixConfig.from_pretrained(tmp_path)
    wider = create_model(changed, layer="dot + dense | mlp").config
    found = []
    for _ in range(2):
        rubbish = [torch.full((128, 128), torch.nan) for _ in range(50)]
        del rubbish
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        found.append(model.pooler.dense.weight.detach().clone())
        assert float(model.pooler.dense.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
        assert float(model.pooler.dense.bias.detach().abs().max()) == 0
        grown = AutoModelForMaskedLM.from_pretrained(tmp_path, config=wider)
        for name, parameter in grown.named_parameters():
            assert torch.isfinite(parameter).all(), name
            assert float(parameter.detach().std()) < 0.2, name
    assert torch.equal(*found)
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items() if name in saved)


@pytest.mark.parametrize("positions", ["sinusoidal", "absolute", "none"])
@pytest.mark.parametrize("init", ["bert", "xavier", "t5"])
def test_positions_do_not_drown_the_tokens(positions: str, init: str) -> None:
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 64, "heads": 2, "layers": 1, "vocab_size": 500, "max_length": 32}
    model = create_model(TokenmixConfig(body="encoder", layer="dot | mlp", positions=positions, init=init, **sizes))
    x = model.model.embed(torch.randint(0, 500, (64, 32)), None, None, None)
    assert x.var(0).mean() > 0.3 * x.square().mean()  # what differs between texts, of all that there is


def test_new_rows_of_the_vocabulary_are_like_the_old() -> None:
    model = create_model("bert-tiny", vocab_size=90)
    model.resize_token_embeddings(400, mean_resizing=False)
    assert float(model.get_input_embeddings().weight[90:].detach().std()) == pytest.approx(0.02, rel=0.1)


def test_initial_losses_are_those_of_knowing_nothing() -> None:
    ids, labels = torch.randint(5, 400, (2, 16, 24))
    for name in ("bert-tiny", "gmlp-tiny", "amlp-tiny", "fnet-tiny"):
        model = create_model(name, vocab_size=400, max_length=24)
        assert float(model(ids, labels=labels).loss.detach()) == pytest.approx(math.log(400), rel=0.1), name
