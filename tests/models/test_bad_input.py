"""Bad input is right or a clear error, never wrong numbers."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, DynamicCache

import tokenmix
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.cache import MixingCache

SIZES = dict(d_model=16, d_ff=24, heads=4, layers=1, vocab_size=40, max_length=12)


def encoder(**options):
    return create_model(TokenmixConfig(body="encoder", layer="dot | mlp", **{**SIZES, **options})).eval()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(body="encodr"), "did you mean 'encoder'"),
        (dict(layer="dott | mlp"), "did you mean 'dot'"),
        (dict(layer=""), "empty layer expression"),
        (dict(heads=3), "heads=3 does not divide d_model=16"),
        (dict(d_model=0), "d_model must be a whole number >= 1"),
        (dict(layers=-1), "layers must be a whole number >= 0"),
        (dict(positions="rotary"), "unknown positions 'rotary'"),
        (dict(norm="batch"), "unknown norm"),
        (dict(norm_position="middle"), "unknown norm_position"),
        (dict(dropout=1.0), r"dropout must be a number in \[0, 1\)"),
        (dict(dropout=-0.1), "dropout must be"),
        (dict(laeyrs=3), "did you mean 'layers'"),
        (dict(decoder_layers=2), "belong to a seq2seq body"),
        (dict(body="vision", image_size=30), "does not divide image_size=30"),
        (dict(body="seq2seq", cross_heads=5), "cross_heads=5 does not divide"),
        (dict(body="seq2seq", cross="gmlp"), "cross-attention is made of attention terms"),
        (dict(body="seq2seq", cross="relative"), "no distance between two sequences"),
        (dict(body="decoder", layer="fourier | mlp"), "cannot be causal"),
        (dict(body="seq2seq", layer="linformer | mlp"), "cannot be causal"),
        (dict(layer="dot | remix(heads=5)"), "5 does not divide 24"),
    ],
)
def test_impossible_models_are_refused_by_name(options, says):
    with pytest.raises(ValueError, match=says):
        create_model(TokenmixConfig(**{**dict(body="encoder"), **SIZES, **options}))


def test_unknown_presets_and_heads_are_refused_by_name():
    with pytest.raises(ValueError, match="did you mean 'remixer-base'"):
        create_model("remixer-bas")
    with pytest.raises(ValueError, match="unknown head 'masked'"):
        create_model("bert-tiny", head="masked")
    with pytest.raises(ValueError, match="needs body='decoder'"):
        create_model("bert-tiny", head="causal_lm")
    with pytest.raises(TypeError, match="preset's name or a TokenmixConfig"):
        create_model(3)


def test_a_sequence_that_is_too_long_gets_the_documented_error():
    with pytest.raises(ValueError, match="sequence of 13 tokens exceeds max_length=12 of this model; truncate it"):
        encoder()(torch.zeros(1, 13, dtype=torch.long))
    model = create_model(TokenmixConfig(body="decoder", layer="random | mlp", **SIZES)).eval()
    with pytest.raises(ValueError, match="exceeds max_length=12"):
        model.generate(torch.full((1, 8), 3), max_new_tokens=9, do_sample=False, eos_token_id=None)


@pytest.mark.parametrize("bad", [-1, 40, 10_000])
def test_token_ids_out_of_range_are_named(bad):
    with pytest.raises(ValueError, match=rf"token id {bad} is outside 0 … 39 \(vocab_size=40"):
        encoder()(torch.tensor([[3, bad]]))


def test_segments_out_of_range_are_named():
    with pytest.raises(ValueError, match="segment id 2 is outside"):
        encoder(segments=2)(torch.tensor([[3, 4]]), token_type_ids=torch.tensor([[0, 2]]))


def test_masks_of_the_wrong_shape_are_named():
    with pytest.raises(ValueError, match="attention_mask must be"):
        encoder()(torch.zeros(2, 5, dtype=torch.long), attention_mask=torch.ones(2, 4))


@pytest.mark.parametrize("body", ["encoder", "decoder", "seq2seq"])
def test_masks_longer_than_the_tokens_are_named(body):
    model = create_model(TokenmixConfig(body=body, layer="dot | mlp", **SIZES)).eval()
    ids, long = torch.full((1, 2), 3), torch.ones(1, 5)
    answer = dict(decoder_input_ids=ids) if body == "seq2seq" else {}
    for options in ({}, dict(use_cache=True)):  # a cache that remembers nothing yet changes nothing
        with pytest.raises(ValueError, match=r"^attention_mask must be .*\[1, 2\] like input_ids; got \[1, 5\]"):
            model(ids, attention_mask=long, **answer, **(options if body != "encoder" else {}))
    if body == "seq2seq":
        with pytest.raises(
            ValueError, match=r"^decoder_attention_mask .*\[1, 2\] like decoder_input_ids; got \[1, 5\]"
        ):
            model(ids, decoder_input_ids=ids, decoder_attention_mask=long)
        with pytest.raises(ValueError, match=r"\[1, 2\] like input_ids; got \[1, 5\]"):
            model.get_encoder()(ids, attention_mask=long)


@pytest.mark.parametrize("body", ["decoder", "seq2seq"])
def test_with_a_cache_the_mask_may_cover_what_is_remembered(body):
    model = create_model(TokenmixConfig(body=body, layer="dot | mlp", **SIZES)).eval()
    ids, mask = torch.randint(2, 40, (2, 6)), torch.ones(2, 6)
    pre = "decoder_" if body == "seq2seq" else ""
    source = dict(input_ids=ids, attention_mask=mask) if body == "seq2seq" else {}
    full = model(**source, **{f"{pre}input_ids": ids, f"{pre}attention_mask": mask}).logits
    cache = MixingCache(12)
    for part in (slice(0, 4), slice(4, 6)):
        given = {f"{pre}input_ids": ids[:, part], f"{pre}attention_mask": mask[:, : part.stop]}
        out = model(**source, **given, past_key_values=cache).logits
        assert torch.allclose(out, full[:, part], atol=1e-5)


def test_images_of_the_wrong_size_are_named():
    with pytest.raises(ValueError, match=r"must be \[batch, 1, 28, 28\]"):
        create_model("vit-tiny")(torch.zeros(2, 3, 28, 28))


def test_ids_and_embeddings_exclude_each_other():
    with pytest.raises(ValueError, match="either input ids or input embeddings"):
        encoder()(None)
    with pytest.raises(ValueError, match="not both"):
        encoder()(torch.zeros(1, 2, dtype=torch.long), inputs_embeds=torch.zeros(1, 2, 16))


def test_all_padding_rows_length_one_and_empty_batches_are_fine():
    model = encoder()
    ids = torch.full((2, 6), 5)
    mask = torch.tensor([[1] * 6, [0] * 6])
    out = model(ids, attention_mask=mask, labels=ids)
    assert out.logits.isfinite().all()
    assert out.loss.isfinite()
    assert model(torch.tensor([[5]])).logits.shape == (1, 1, 40)
    assert model(torch.zeros(0, 6, dtype=torch.long)).logits.shape == (0, 6, 40)
    assert model(ids, labels=torch.full_like(ids, -100)).loss == 0


def test_options_left_out_take_the_bodys_convention():
    t5, bert = TokenmixConfig(body="seq2seq"), TokenmixConfig(body="encoder")
    assert (t5.norm, t5.bias, t5.positions, t5.tie_embeddings) == ("rms", False, "relative", False)
    assert (bert.norm, bert.bias, bert.positions, bert.tie_embeddings) == ("layer", True, "absolute", True)
    assert (t5.pad_token_id, t5.eos_token_id, t5.decoder_start_token_id) == (0, 1, 0)
    assert tokenmix.TokenmixConfig(layer=tokenmix.parse("dot|remix")).layer == "dot | remix"


def test_models_build_on_the_meta_device():
    with torch.device("meta"):
        model = tokenmix.create_model("t5-v1.1-base")
    assert sum(p.numel() for p in model.parameters()) == 247_577_856


def test_overrides_change_a_configuration_and_leave_it_alone():
    config = TokenmixConfig(body="encoder", **SIZES)
    model = create_model(config, layers=3, layer="gmlp")
    assert (model.config.layers, model.config.layer) == (3, "gmlp")
    assert config.layers == 1


def decoder(layer="dot | geglu", **options):
    return create_model(TokenmixConfig(body="decoder", layer=layer, **{**SIZES, **options})).eval()


def test_decoding_that_takes_tokens_back_is_refused():
    model, ids = decoder(), torch.randint(2, 40, (1, 4))
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=4, pad_token_id=0)
    cache = MixingCache(12)
    model(input_ids=ids, past_key_values=cache)
    with pytest.raises(ValueError, match="cannot go back to 2 tokens"):
        cache.crop(2)
    cache.reset()
    assert cache.get_seq_length() == 0
    again = model(input_ids=ids, past_key_values=cache).logits
    assert torch.equal(again, model(input_ids=ids, past_key_values=MixingCache(12)).logits)


def test_a_name_that_the_model_does_not_know_is_an_error():
    model, ids = decoder(), torch.randint(2, 40, (1, 4))
    with pytest.raises(ValueError, match="did you mean 'attention_mask'"):
        model(input_ids=ids, atention_mask=torch.ones_like(ids))
    with pytest.raises(ValueError, match="return_mixing=True gives every mixing matrix"):
        model(input_ids=ids, output_attentions=True)
    with pytest.raises(ValueError, match="must be a tokenmix MixingCache; got DynamicCache"):
        model(input_ids=ids, past_key_values=DynamicCache())
    assert torch.equal(model(input_ids=ids, output_attentions=False).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("layer", ["dot | geglu", "random + dot | remix", "gmlp"])
def test_flattened_batches_of_hugging_face_are_documents_of_their_own(layer):
    model = decoder(layer)
    texts = [torch.randint(2, 40, (length,)) for length in (5, 4, 3)]
    batch = DataCollatorWithFlattening(return_position_ids=True)([{"input_ids": text.tolist()} for text in texts])
    batch.pop("labels")
    together = model(**batch).logits[0]
    alone = torch.cat([model(input_ids=text[None]).logits[0] for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    ids = torch.randint(2, 40, (2, 6))
    with pytest.raises(ValueError, match="give document_ids, or neither"):
        torch.func.vmap(lambda places: model(input_ids=ids, position_ids=places).logits)(torch.zeros(3, 2, 6))
    counted = model(input_ids=ids, position_ids=torch.arange(6).expand(2, 6)).logits
    assert torch.equal(counted, model(input_ids=ids).logits)


def test_labels_may_be_of_any_whole_type():
    model, ids = decoder(), torch.randint(2, 40, (2, 6))
    for logits in (True, False):
        wide, narrow = (model(input_ids=ids, labels=kind, return_logits=logits).loss for kind in (ids, ids.int()))
        assert torch.equal(wide, narrow)
