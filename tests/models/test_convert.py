"""Models from Hugging Face and timm give the same outputs here, and go back bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from timm_models import GmlpBlock, MixerBlock, MlpMixer, VisionTransformer
from torch import Tensor, nn
from transformers import BertConfig, FNetConfig, T5Config, T5EncoderModel, T5ForConditionalGeneration, T5Model

from tokenmix import create_model, from_timm, from_transformers, to_transformers

TOLERANCE = {"rtol": 0, "atol": 1e-4}


def scattered(model: nn.Module, std: float = 0.1) -> Any:
    """The model with every parameter moved away from its initial value, so that no bias is 0 and no norm 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * std)
    return model.eval()


def padded(batch: int, length: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Token ids and a mask whose rows have different lengths; with `left`, some rows are padded on the left."""
    ids = torch.randint(4, 90, (batch, length))
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        if left and row % 2:
            mask[row, : 3 * row] = 0
        else:
            mask[row, length - 3 * row :] = 0
    return ids, mask


def assert_same_state(first: nn.Module, second: nn.Module) -> None:
    one, two = first.state_dict(), second.state_dict()
    assert list(one) == list(two)
    for name in one:
        assert torch.equal(one[name], two[name]), name


# ----------------------------------------------------------------------------------------------------------------- T5


def t5(feed_forward: str, tying: str, num_decoder_layers: int = 3) -> Any:
    config = T5Config(
        vocab_size=90, d_model=32, d_kv=10, d_ff=48, num_layers=2, num_decoder_layers=num_decoder_layers, num_heads=4,
        feed_forward_proj=feed_forward, tie_word_embeddings=tying.endswith("and scaled"), decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    if tying.startswith("untied"):
        model.lm_head.weight = nn.Parameter(torch.randn(90, 32) * 0.2)
    return scattered(model)


T5S = [
    (feed_forward, tying)
    for feed_forward in ("relu", "gated-gelu")
    for tying in ("tied and scaled", "tied", "untied", "untied and scaled")
]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("feed_forward, tying", T5S)
@torch.no_grad()
def test_t5_gives_the_same_logits(feed_forward: str, tying: str, left: bool) -> None:
    theirs = t5(feed_forward, tying)
    ours = from_transformers(theirs)
    assert (ours.lm_head.weight is ours.model.embed.tokens.weight) == tying.startswith("tied")
    assert ours.config.scale_output == tying.endswith("and scaled")
    ids, mask = padded(4, 160, left=left)  # longer than the relative bias tells apart
    targets, target_mask = padded(4, 20)
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets}
    torch.testing.assert_close(ours(**batch).logits, theirs(**batch).logits, **TOLERANCE)
    batch["decoder_attention_mask"] = target_mask
    real = target_mask.bool()
    torch.testing.assert_close(ours(**batch).logits[real], theirs(**batch).logits[real], **TOLERANCE)
    labels = torch.where(real, targets, -100)
    losses = [model(input_ids=ids, attention_mask=mask, labels=labels).loss for model in (ours, theirs)]
    torch.testing.assert_close(*losses, **TOLERANCE)


@pytest.mark.parametrize("feed_forward, tying", T5S)
@torch.no_grad()
def test_t5_goes_back_bit_by_bit(feed_forward: str, tying: str, tmp_path: Any) -> None:
    theirs = t5(feed_forward, tying)
    back = to_transformers(from_transformers(theirs))
    assert_same_state(theirs, back)
    assert (back.lm_head.weight is back.shared.weight) == tying.startswith("tied")
    ids, mask = padded(2, 12)
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    expected = theirs(**batch).logits
    assert torch.equal(back(**batch).logits, expected)
    back.save_pretrained(tmp_path)
    assert torch.equal(T5ForConditionalGeneration.from_pretrained(tmp_path).eval()(**batch).logits, expected)


@pytest.mark.parametrize("beams", [1, 3], ids=["greedy", "beam"])
def test_t5_generates_the_same_text(beams: int) -> None:
    theirs = t5("gated-gelu", "untied", num_decoder_layers=2)  # transformers cannot generate with 2 and 3
    ours = from_transformers(theirs)
    ids, mask = padded(3, 15)
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 12, "num_beams": beams, "do_sample": False}
    assert torch.equal(ours.generate(**options), theirs.generate(**options))


@torch.no_grad()
def test_t5_without_a_head_and_without_a_decoder() -> None:
    whole = scattered(T5Model(t5("relu", "tied").config))
    ids, mask = padded(2, 12)
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    ours = from_transformers(whole)
    torch.testing.assert_close(ours(**batch).last_hidden_state, whole(**batch).last_hidden_state, **TOLERANCE)
    assert_same_state(whole, to_transformers(ours))
    encoder = scattered(T5EncoderModel(whole.config))
    ours = from_transformers(encoder)
    assert ours.config.body == "encoder"
    states = [model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()] for model in (ours, encoder)]
    torch.testing.assert_close(*states, **TOLERANCE)


def test_options_can_be_overridden() -> None:
    theirs = t5("relu", "tied")
    assert from_transformers(theirs).config.max_length == 512
    ours = from_transformers(theirs, max_length=32, dropout=0.3)
    assert (ours.config.max_length, ours.config.dropout) == (32, 0.3)
    with pytest.raises(ValueError, match=r"do not fit .*model.encoder.layers.0.1.mixer.wi.weight"):
        from_transformers(theirs, d_ff=64)
    with pytest.raises(ValueError, match="max_lenght"):
        from_transformers(theirs, max_lenght=32)


def test_the_converted_model_stands_alone_and_keeps_type_and_mode() -> None:
    theirs = t5("relu", "untied").to(torch.bfloat16).train()
    ours = from_transformers(theirs)
    assert ours.dtype == torch.bfloat16
    assert ours.training
    before = ours.lm_head.weight.clone()
    with torch.no_grad():
        theirs.lm_head.weight.zero_()
    assert torch.equal(ours.lm_head.weight, before)


# ------------------------------------------------------------------------------------------------------ BERT and FNet

HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering", "Model")


def bert(head: str, **options: Any) -> Any:
    config = BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, num_labels=2 if head == "ForQuestionAnswering" else 5, type_vocab_size=3,
        layer_norm_eps=1e-7, **options,
    )  # fmt: skip
    return scattered(getattr(transformers, f"Bert{head}")(config))


def fnet(head: str) -> Any:
    config = FNetConfig(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=48,
        max_position_embeddings=40,
        num_labels=2 if head == "ForQuestionAnswering" else 5,
    )
    return scattered(getattr(transformers, f"FNet{head}")(config))


def outputs(model: Any, mask: Tensor | None = None, **batch: Tensor) -> Tensor:
    """The logits (or states) of a model at real tokens, as one tensor."""
    out = model(**batch) if mask is None else model(**batch, attention_mask=mask)
    if "start_logits" in out:
        logits = torch.stack([out.start_logits, out.end_logits], -1)
    else:
        logits = out.logits if "logits" in out else out.last_hidden_state
    return logits[mask.bool()] if mask is not None and logits.dim() == 3 else logits


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_bert_gives_the_same_outputs(head: str) -> None:
    theirs = bert(head)
    ours = from_transformers(theirs)
    ids, mask = padded(4, 24)
    segments = torch.randint(0, 3, ids.shape)
    for batch in ({"input_ids": ids}, {"input_ids": ids, "token_type_ids": segments}):
        torch.testing.assert_close(outputs(ours, **batch), outputs(theirs, **batch), **TOLERANCE)
        torch.testing.assert_close(outputs(ours, mask, **batch), outputs(theirs, mask, **batch), **TOLERANCE)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_bert_masked_lm_with_other_activations_and_tyings(activation: str, tied: bool) -> None:
    theirs = bert("ForMaskedLM", hidden_act=activation, tie_word_embeddings=tied)
    ours = from_transformers(theirs)
    ids, _ = padded(2, 24)
    torch.testing.assert_close(outputs(ours, input_ids=ids), outputs(theirs, input_ids=ids), **TOLERANCE)
    assert (ours.lm_head.weight is ours.model.embed.tokens.weight) == tied
    back = to_transformers(ours)
    assert (back.cls.predictions.decoder.weight is back.get_input_embeddings().weight) == tied
    assert torch.equal(outputs(back, input_ids=ids), outputs(theirs, input_ids=ids))


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_bert_goes_back_bit_by_bit(head: str) -> None:
    theirs = (
        bert(head)
        if head != "Model"
        else scattered(transformers.BertModel(bert("Model").config, add_pooling_layer=False))
    )
    back = to_transformers(from_transformers(theirs))
    assert type(back) is type(theirs)
    assert_same_state(theirs, back)
    ids, mask = padded(3, 20)
    assert torch.equal(outputs(back, mask, input_ids=ids), outputs(theirs, mask, input_ids=ids))
    assert back.config.id2label == theirs.config.id2label


def test_bert_positions_can_be_cut_but_not_made_up() -> None:
    theirs = bert("ForMaskedLM")
    assert from_transformers(theirs).config.max_length == 40
    assert from_transformers(theirs, max_length=24).model.embed.positions.weight.shape == (24, 32)
    with pytest.raises(ValueError, match="40 learned positions; max_length=64"):
        from_transformers(theirs, max_length=64)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_fnet_gives_the_same_outputs(head: str) -> None:
    theirs = fnet(head)
    ours = from_transformers(theirs)
    assert ours.config.layer.startswith('fourier(padding="include")')
    ids, mask = padded(4, 24)
    segments = torch.randint(0, 4, ids.shape)
    for batch in ({"input_ids": ids}, {"input_ids": ids, "token_type_ids": segments}):
        expected = outputs(theirs, **batch)  # FNet knows no mask: it mixes padding in
        torch.testing.assert_close(outputs(ours, **batch), expected, **TOLERANCE)
        real = expected[mask.bool()] if expected.dim() == 3 else expected
        torch.testing.assert_close(outputs(ours, mask, **batch), real, **TOLERANCE)


# ----------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "model, what",
    [
        (
            transformers.BertForTokenClassification,
            "unknown model to convert 'BertForTokenClassification'.*BertForMaskedLM",
        ),
        (transformers.BertForPreTraining, "unknown model to convert 'BertForPreTraining'"),
    ],
)
def test_a_class_without_counterpart_is_named(model: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        from_transformers(model(bert("Model").config))


def test_a_configuration_without_counterpart_is_named() -> None:
    config = T5Config(vocab_size=90, d_model=32, d_ff=48, num_layers=1, num_heads=2, feed_forward_proj="gated-silu")
    with pytest.raises(ValueError, match="gated-silu"):
        from_transformers(T5ForConditionalGeneration(config))
    with pytest.raises(ValueError, match="decoder"):
        from_transformers(bert("Model", is_decoder=True))
    with pytest.raises(ValueError, match="unknown activation to convert 'tanh'"):
        from_transformers(bert("Model", hidden_act="tanh"))
    apart = t5("relu", "tied")
    apart.decoder.embed_tokens.weight = nn.Parameter(torch.randn(90, 32))
    with pytest.raises(ValueError, match=r"decoder.embed_tokens.weight apart from shared.weight"):
        from_transformers(apart)


@pytest.mark.parametrize(
    "preset, options, why",
    [
        ("synthesizer-r-tiny", {}, "layer is 'random | geglu', and T5 has 'dot | geglu'"),
        ("remixer-tiny", {}, "layer is 'dot | remix'"),
        ("t5-v1.1-tiny", {"decoder_layer": "random | geglu"}, "decoder_layer='random | geglu'"),
        ("t5-v1.1-tiny", {"norm": "layer"}, "norm='layer'"),
        ("t5-v1.1-tiny", {"positions": "sinusoidal", "bias": True}, "positions='sinusoidal'.*; it has bias=True"),
        ("t5-v1.1-tiny", {"cross_heads": 2}, "cross-attention is 2 × 32 wide"),
        ("gmlp-tiny", {}, "BERT cannot hold this model: its layer is 'gmlp', and BERT has 'dot | mlp'"),
        ("bert-tiny", {}, "norm_position='pre', and BERT 'post'"),
        ("lm-tiny", {}, "neither can hold body='decoder'"),
        ("vit-tiny", {}, "neither can hold body='vision'"),
    ],
)
def test_a_model_that_hugging_face_cannot_hold_is_refused_with_the_reason(preset: str, options: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        to_transformers(create_model(preset, **options))


def test_to_transformers_wants_a_model_of_ours() -> None:
    with pytest.raises(ValueError, match="takes a model of tokenmix; got Linear"):
        to_transformers(nn.Linear(2, 2))


# --------------------------------------------------------------------------------------------------------------- timm

TIMM = {
    "gmlp": lambda **sizes: scattered(MlpMixer(GmlpBlock, **sizes)),
    "mixer": lambda **sizes: scattered(MlpMixer(MixerBlock, **sizes)),
    "vit": lambda **sizes: scattered(VisionTransformer(**sizes)),
}


@pytest.mark.parametrize("kind", TIMM)
@torch.no_grad()
def test_timm_models_give_the_same_logits(kind: str) -> None:
    theirs = TIMM[kind]()
    ours = from_timm(theirs)
    pixels = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(ours(pixels).logits, theirs(pixels), **TOLERANCE)
    assert ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())
    bare = from_timm(theirs.state_dict(), **({"heads": 4} if kind == "vit" else {}))
    assert not bare.training
    assert torch.equal(bare(pixels).logits, ours(pixels).logits)


@pytest.mark.parametrize("kind", TIMM)
def test_timm_models_without_a_classifier_become_bare_bodies(kind: str) -> None:
    theirs = TIMM[kind](labels=0, channels=1)
    ours = from_timm(theirs, drop_path=0.1)
    assert type(ours).__name__ == "TokenmixModel"
    assert ours.config.drop_path == 0.1
    states = ours(pixel_values=(pixels := torch.randn(2, 1, 16, 16))).last_hidden_state
    torch.testing.assert_close(states[:, 0] if kind == "vit" else states.mean(1), theirs(pixels), **TOLERANCE)


@pytest.mark.parametrize("kind", TIMM)
def test_a_missing_or_unknown_tensor_is_named(kind: str) -> None:
    state = TIMM[kind]().state_dict()
    with pytest.raises(ValueError, match=r"without a place here: blocks\.0\.ls1\.gamma"):
        from_timm({**state, "blocks.0.ls1.gamma": torch.ones(32)})
    for name in ("norm.bias", next(name for name in state if name.endswith("fc2.weight"))):
        with pytest.raises(ValueError, match=f"missing: {name}"):
            from_timm({key: value for key, value in state.items() if key != name})
    with pytest.raises(ValueError, match="none of timm's gMLP, MLP-Mixer and ViT"):
        from_timm(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "preset, width, count",
    [("gmlp-ti16-224", 128, 5_867_328), ("gmlp-s16-224", 256, 19_422_656), ("gmlp-b16-224", 512, 73_075_392)],
)
def test_gmlp_presets_have_timms_tensors_one_to_one(preset: str, width: int, count: int) -> None:
    with torch.device("meta"):
        theirs = MlpMixer(GmlpBlock, width=width, hidden=6 * width, layers=30, image=224, patch=16, labels=1000)
        ours = create_model(preset)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == count
    assert ours.num_parameters() == count
    converted = {name: tensor.shape for name, tensor in from_timm(theirs).state_dict().items()}
    assert converted == {name: tensor.shape for name, tensor in ours.state_dict().items()}


@pytest.mark.parametrize("name", ["gmlp_ti16_224", "mixer_s32_224", "vit_tiny_patch16_224"])
@torch.no_grad()
def test_real_timm_models_give_the_same_logits(name: str) -> None:
    timm = pytest.importorskip("timm")
    theirs = scattered(timm.create_model(name), std=0.02)
    pixels = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(from_timm(theirs)(pixels).logits, theirs(pixels), **TOLERANCE)
