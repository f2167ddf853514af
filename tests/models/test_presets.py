"""Every preset builds, has the paper's number of parameters or says why not, and the tiny ones run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tokenmix import create_model, list_presets
from tokenmix.models import preset_config
from tokenmix.models.counting import count_parameters, forward_flops, measure
from tokenmix.models.presets import PRESETS

#: the table of the issue, in millions
TABLE = {
    "t5-v1.1-base": 248,
    "bert-base": 110,
    "bert-large": 336,
    "gmlp-base": 130,
    "gmlp-large": 365,
    "gmlp-xlarge": 941,
    "amlp-base": 109,
    "amlp-large": 316,
    "gmlp-36": 102,
    "gmlp-36-linear": 92,
    "gmlp-36-additive": 92,
    "gmlp-36-multiplicative": 92,
    "gmlp-ti16-224": 5.9,
    "gmlp-s16-224": 19.5,
    "gmlp-b16-224": 73.4,
    "synthesizer-r-base": 254,
    "synthesizer-rv-base": 292,
    "synthesizer-d-base": 224,
    "synthesizer-dv-base": 243,
    "lightconv-base": 224,
    "dynamicconv-base": 257,
    "remixer-sbase": 224,
    "remixer-base": 324,
    "bert-base-relative": 110,
    "bert-base-no-attention": 96,
}


@pytest.mark.parametrize("name", TABLE)
def test_counts_of_the_papers_are_met_within_1_percent(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert model.num_parameters() == pytest.approx(TABLE[name] * 1e6, rel=0.01)
    assert PRESETS[name].millions == TABLE[name]


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_builds_and_a_count_that_is_off_is_explained(name: str) -> None:
    parameters, flops = measure(preset_config(name))  # builds and runs it on the meta device
    assert parameters.total > 0
    assert flops.total > 0
    preset = PRESETS[name]
    if preset.millions is not None and abs(parameters.total / (preset.millions * 1e6) - 1) > 0.01:
        assert preset.note, (
            f"{name}: {parameters.total / 1e6:.1f}M, the paper has {preset.millions}M, and no note says why"
        )
        assert any(character.isdigit() for character in preset.note), "the note shows the arithmetic"


WHOLE = ["t5-small", "remixer-sbase", "mixer-enc-base", "synthesizer-rv-mt", "bert-6-relative", "gmlp-ti16-224"]


@pytest.mark.parametrize("name", [*WHOLE, "fnet-base", *list_presets("*-tiny")])
def test_one_layer_says_it_for_all(name: str) -> None:
    """Counted from one layer of each stack, parameters and FLOPs are exactly those of the whole model."""
    config = preset_config(name)
    with torch.device("meta"):
        whole = create_model(name).eval()
    parameters = count_parameters(config)
    assert parameters == count_parameters(whole)
    assert parameters.total == sum(parameter.numel() for parameter in whole.parameters())
    if config.body == "vision":
        inputs = {"pixel_values": torch.zeros(1, config.channels, config.image_size, config.image_size, device="meta")}
    else:
        inputs = {"input_ids": torch.zeros(1, 32, dtype=torch.long, device="meta")}
    if config.body == "seq2seq":
        inputs["decoder_input_ids"] = torch.zeros(1, 16, dtype=torch.long, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        whole(**inputs)
    assert forward_flops(config, 32, 16).total == counter.get_total_flops()


def test_flops_by_part_are_those_of_the_equations() -> None:
    d, ff, layers, n, vocabulary = 768, 3072, 12, 512, 30522
    flops = forward_flops(preset_config("bert-base"))
    assert flops.mixing == layers * 2 * (4 * n * d * d + 2 * n * n * d)
    assert flops.channel == layers * 2 * (2 * n * d * ff)
    assert flops.head == 2 * n * d * (vocabulary + d)
    assert (flops.embeddings, flops.cross_attention) == (0, 0)
    assert forward_flops(preset_config("bert-base"), length=128, batch=2).channel == flops.channel // 2


def test_a_tied_matrix_counts_once() -> None:
    tied, untied = (count_parameters(preset_config("t5-v1.1-tiny", tie_embeddings=tie)) for tie in (True, False))
    assert untied.head - tied.head == 512 * 64
    assert untied.embeddings == tied.embeddings == 512 * 64
    assert count_parameters(preset_config("bert-tiny"), head="sequence_classification").head < 1000


@pytest.mark.parametrize("name", list_presets("*-tiny"))
def test_tiny_presets_run_with_a_loss(name: str) -> None:
    model = create_model(name)
    config = model.config
    if config.body == "vision":
        pixels = torch.randn(2, config.channels, config.image_size, config.image_size)
        loss = model(pixel_values=pixels, labels=torch.tensor([1, 2])).loss
    else:
        ids = torch.randint(2, config.vocab_size, (2, 12))
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
