"""Properties of whole models: every mixer in every body that can hold it."""

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from tokenmix.mixers import REGISTRY
from tokenmix.models import MixingCache, TokenmixConfig, create_model

SIZES = dict(d_model=16, d_ff=24, heads=4, layers=2, vocab_size=40, max_length=14)
COMBINED = [
    "random + dot | remix(heads=2)",
    "dense + dot | geglu",
    "gmlp(attention=4, toeplitz=True)",
    "dot | gmlp",
    "dot | remix | lightconv",
]
NAMES = sorted(REGISTRY) + COMBINED
AUTO = {
    "seq2seq": AutoModelForSeq2SeqLM,
    "encoder": AutoModelForMaskedLM,
    "decoder": AutoModelForCausalLM,
    "vision": AutoModelForImageClassification,
}


def causal(name):
    return name not in REGISTRY or REGISTRY[name].causal


CASES = [(name, body) for name in NAMES for body in AUTO if body in ("encoder", "vision") or causal(name)]
CAUSAL = [(name, body) for name, body in CASES if body in ("seq2seq", "decoder")]
TEXT = [(name, body) for name, body in CASES if body != "vision"]


def build(name, body, **options):
    torch.manual_seed(0)
    layer = name if name not in ("mlp", "geglu", "bag_of_words", "conv_relu") else f"dot | {name}"
    if body == "vision":
        config = TokenmixConfig(
            body=body, layer=layer, image_size=12, patch_size=4, **{**SIZES, "max_length": 1}, **options
        )
    else:
        config = TokenmixConfig(body=body, layer=layer, **SIZES, **options)
    model = create_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def inputs(body, rows=3, length=9, seed=1):
    torch.manual_seed(seed)
    if body == "vision":
        return dict(pixel_values=torch.randn(rows, 3, 12, 12))
    ids = torch.randint(2, 40, (rows, length))
    return dict(input_ids=ids, decoder_input_ids=ids) if body == "seq2seq" else dict(input_ids=ids)


@pytest.mark.parametrize(("name", "body"), CASES)
def test_saving_and_loading_keeps_outputs_bit_identical(name, body, tmp_path):
    model, given = build(name, body), inputs(body)
    model.save_pretrained(tmp_path)
    again = AUTO[body].from_pretrained(tmp_path).eval()
    assert type(again) is type(model)
    assert torch.equal(model(**given).logits, again(**given).logits)
    assert not list(tmp_path.glob("*.bin"))
    bare = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(bare(**given).last_hidden_state, model.model(**given).last_hidden_state)


@pytest.mark.parametrize(("name", "body"), TEXT)
def test_output_does_not_depend_on_padding_left_or_right(name, body):
    model, given = build(name, body), inputs(body, rows=1, length=6)
    alone = model(**given).logits
    for side in ("right", "left"):
        filler = torch.randint(2, 40, (1, 3))
        parts = [given["input_ids"], filler] if side == "right" else [filler, given["input_ids"]]
        real = [torch.ones(1, 6), torch.zeros(1, 3)] if side == "right" else [torch.zeros(1, 3), torch.ones(1, 6)]
        row, mask = torch.cat(parts, 1), torch.cat(real, 1).long()
        other = torch.randint(2, 40, (1, 9))
        batch = torch.cat([other, row]), torch.cat([torch.ones_like(mask), mask])
        if body == "seq2seq":
            out = model(
                batch[0], attention_mask=batch[1], decoder_input_ids=given["decoder_input_ids"].expand(2, -1)
            ).logits[1:]
        else:
            out = model(batch[0], attention_mask=batch[1]).logits[1:]
            out = out[:, :6] if side == "right" else out[:, 3:]
        assert torch.allclose(out, alone, atol=1e-4)


@pytest.mark.parametrize(("name", "body"), CAUSAL)
def test_position_t_does_not_change_when_later_tokens_change(name, body):
    model, given = build(name, body), inputs(body)
    key = "decoder_input_ids" if body == "seq2seq" else "input_ids"
    before = model(**given).logits
    changed = {**given, key: torch.cat([given[key][:, :5], (given[key][:, 5:] + 7) % 38 + 2], 1)}
    assert torch.allclose(model(**changed).logits[:, :5], before[:, :5], atol=1e-5)


@pytest.mark.parametrize(("name", "body"), CAUSAL)
def test_incremental_equals_full(name, body):
    model, given = build(name, body), inputs(body)
    full, cache, outs = model(**given).logits, MixingCache(14), []
    for first, last in ((0, 4), (4, 5), (5, 7), (7, 9)):
        if body == "seq2seq":
            memory = model.get_encoder()(given["input_ids"])
            step = dict(encoder_outputs=memory, decoder_input_ids=given["decoder_input_ids"][:, first:last])
        else:
            step = dict(input_ids=given["input_ids"][:, first:last])
        outs.append(model(**step, past_key_values=cache).logits)
    assert torch.allclose(torch.cat(outs, 1), full, atol=1e-4)


@pytest.mark.parametrize("name", ["dot", "random", "gmlp", "lightconv", "dot | remix"])
def test_incremental_decoding_of_left_padded_prompts(name):
    model = build(name, "decoder")
    ids = inputs("decoder")["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    full, cache = model(ids, attention_mask=mask).logits, MixingCache(14)
    outs = [model(ids[:, :6], attention_mask=mask[:, :6], past_key_values=cache).logits]
    outs += [model(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], past_key_values=cache).logits for t in (6, 7, 8)]
    assert torch.allclose(torch.cat(outs, 1)[mask.bool()], full[mask.bool()], atol=1e-4)


@pytest.mark.parametrize(("name", "body"), [(n, b) for n, b in TEXT if b in ("encoder", "decoder")])
def test_packed_documents_never_see_each_other_and_restart_their_positions(name, body):
    model = build(name, body)
    ids = inputs(body, rows=2, length=12)["input_ids"]
    documents = torch.tensor([[1] * 5 + [2] * 4 + [0] * 3, [1] * 2 + [2] * 10])
    packed = model(ids, document_ids=documents).logits
    for row, first, last in ((0, 0, 5), (0, 5, 9), (1, 0, 2), (1, 2, 12)):
        alone = model(ids[row : row + 1, first:last]).logits
        assert torch.allclose(packed[row, first:last], alone[0], atol=1e-4)


@pytest.mark.parametrize(("name", "body"), CASES)
def test_every_parameter_gets_a_gradient_and_mixing_is_handed_out(name, body):
    model, given = build(name, body).train(), inputs(body)
    labels = torch.randint(0, 2, (3,)) if body == "vision" else given.get("decoder_input_ids", given.get("input_ids"))
    out = model(**given, labels=labels, return_mixing=True)
    out.loss.backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing
    stacks = {record.stack for record in out.mixing}
    assert stacks == {"seq2seq": {"encoder", "decoder"}, "decoder": {"decoder"}}.get(body, {"encoder"})
    if body == "seq2seq":
        crosses = [r for r in out.mixing if r.name == "cross: dot"]
        assert len(crosses) == 2
        assert crosses[0].matrices["mixing"].shape == (3, 4, 9, 9)


@pytest.mark.parametrize("positions", ["relative", "relative_per_layer", "absolute", "sinusoidal", "none"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_positions_and_norms(positions, norm, place):
    model = build("dot | mlp", "encoder", positions=positions, norm=norm, norm_position=place)
    ids = inputs("encoder")["input_ids"]
    out = model(ids).logits
    assert out.isfinite().all()
    turned = model(ids.flip(1)).logits.flip(1)
    assert torch.allclose(out, turned, atol=1e-4) == (positions == "none")  # without positions, order is invisible


def test_stochastic_depth_skips_whole_examples_and_keeps_the_mean():
    torch.manual_seed(0)
    config = TokenmixConfig(body="encoder", layer="mlp", **{**SIZES, "layers": 1}, drop_path=0.5)
    model = create_model(config, head="none").train()
    ids = torch.full((64, 2), 5)
    kinds = {tuple(row.flatten().tolist()) for row in model(ids).last_hidden_state}
    assert len(kinds) == 2
    assert len({tuple(row.flatten().tolist()) for row in model.eval()(ids).last_hidden_state}) == 1


def test_gradient_checkpointing_changes_nothing():
    model, given = build("random + dot | remix", "seq2seq").train(), inputs("seq2seq")
    labels = given["decoder_input_ids"]
    model(**given, labels=labels).loss.backward()
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**given, labels=labels).loss.backward()
    assert all(torch.allclose(p.grad, before[n], atol=1e-6) for n, p in model.named_parameters())


@pytest.mark.parametrize("cross", ["dot", "random", "dense", "factorized_random", "random + dot"])
def test_cross_attention_can_be_replaced_to_test_that_it_cannot(cross):
    model, given = build("dot | geglu", "seq2seq", cross=cross), inputs("seq2seq")
    full, cache, outs = model(**given).logits, MixingCache(14), []
    memory = model.get_encoder()(given["input_ids"])
    for t in range(9):
        step = model(
            encoder_outputs=memory, decoder_input_ids=given["decoder_input_ids"][:, t : t + 1], past_key_values=cache
        )
        outs.append(step.logits)
    assert torch.allclose(torch.cat(outs, 1), full, atol=1e-4)


def test_label_smoothing_and_z_loss():
    model, given = build("dot | geglu", "seq2seq"), inputs("seq2seq")
    labels = given["decoder_input_ids"].clone()
    labels[0, 4:] = -100
    logits = model(**given).logits
    log_p = torch.log_softmax(logits, -1)
    real = labels != -100
    plain = -log_p.gather(-1, labels.clamp_min(0)[..., None])[..., 0][real].mean()
    assert torch.allclose(model(**given, labels=labels).loss, plain, atol=1e-5)
    model.config.label_smoothing, model.config.z_loss = 0.1, 0.01
    smooth = 0.9 * plain + 0.1 * -log_p.mean(-1)[real].mean() + 0.01 * torch.logsumexp(logits, -1).square()[real].mean()
    assert torch.allclose(model.train()(**given, labels=labels).loss, smooth, atol=1e-5)
    assert torch.allclose(model.eval()(**given, labels=labels).loss, plain, atol=1e-5)


@pytest.mark.parametrize("body", ["seq2seq", "encoder", "decoder"])
@pytest.mark.parametrize("tied", [False, True])
def test_loss_without_logits_is_the_same_with_the_same_gradients(body, tied):
    model = build("dot | mlp", body, tie_embeddings=tied, label_smoothing=0.1, z_loss=1e-3).train()
    given = inputs(body)
    labels = given["input_ids"].clone()
    labels[0, 3:6] = -100
    plain = model(**given, labels=labels)
    plain.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    chunked = model(**given, labels=labels, return_logits=False)
    chunked.loss.backward()
    assert chunked.logits is None
    assert torch.allclose(chunked.loss, plain.loss, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-5), name
