"""Mistakes that were found once, each with the case that showed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tokenmix.mixers import REGISTRY, parse
from tokenmix.mixers.rows import Rows
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.losses import classification_loss

SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 4, "layers": 2, "vocab_size": 40, "max_length": 14}


def left_padded() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    ids, mask = torch.randint(2, 40, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[1, :3] = 0
    return ids, mask


@pytest.mark.parametrize("preset", ["bert-tiny", "lm-tiny", "t5-v1.1-tiny"])
def test_the_vocabulary_can_grow_and_shrink(preset: str, tmp_path: Path) -> None:
    model = create_model(preset).eval()
    for size in (520, 100):
        model.resize_token_embeddings(size, mean_resizing=False)
        ids = torch.full((1, 4), size - 1)
        assert model(ids, labels=ids).logits.shape == (1, 4, size)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(ids, labels=ids).logits, model(ids, labels=ids).logits)


def test_hidden_states_stand_where_the_tokens_stood() -> None:
    model = create_model(TokenmixConfig(body="encoder", layer="dot | mlp", **SIZES), head="none").eval()
    ids, mask = left_padded()
    for given in ({"attention_mask": mask}, {"document_ids": torch.tensor([[1, 1, 1, 1, 2, 2, 2, 0]] * 2)}):
        out = model(ids, **given, output_hidden_states=True)
        assert len(out.hidden_states) == 3
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        assert out.hidden_states[0].shape == (2, 8, 16)


def test_packed_documents_are_refused_where_they_would_be_ignored() -> None:
    ids, _ = left_padded()
    model = create_model(TokenmixConfig(body="seq2seq", **SIZES))
    with pytest.raises(ValueError, match="document_ids: a seq2seq model takes no packed documents"):
        model(ids, labels=ids, document_ids=torch.ones_like(ids))
    encoder = create_model(TokenmixConfig(body="encoder", **SIZES))
    with pytest.raises(ValueError, match=r"document_ids must be \[batch, length\] = \[2, 8\]"):
        encoder(ids, document_ids=torch.ones(2, 5))


def test_options_that_followed_a_changed_one_follow_it_again() -> None:
    config = TokenmixConfig(body="seq2seq", layer="dot | geglu", dropout=0.1, **SIZES)
    changed = create_model(config, layer="random | geglu", layers=1, dropout=0.0, tie_embeddings=True).config
    assert (changed.decoder_layer, changed.decoder_layers) == ("random | geglu", 1)
    assert (changed.attention_dropout, changed.inner_dropout, changed.scale_output) == (0.0, 0.0, True)
    own = TokenmixConfig(body="seq2seq", layer="dot | geglu", decoder_layer="dot | remix", **SIZES)
    assert create_model(own, layer="random | geglu").config.decoder_layer == "dot | remix"
    assert create_model(config, body="encoder").config.norm == "layer"


def test_new_num_labels_bring_new_names(caplog: pytest.LogCaptureFixture) -> None:
    config = TokenmixConfig(body="encoder", **SIZES)
    model = create_model(config, head="sequence_classification", num_labels=5)
    assert model.classifier.weight.shape == (5, 16)
    assert model.config.id2label[4] == "LABEL_4"
    assert not caplog.records


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("d_ff", 0), ("head_dim", 0), ("cross_heads", 0), ("cross_heads", -2), ("cross_head_dim", 0), ("dropout", "a"),
        ("dropout", None), ("z_loss", "x"), ("norm_eps", -1.0), ("pad_token_id", 40), ("decoder_start_token_id", None),
        ("layers", None), ("patch_size", 0), ("num_labels", 0), ("num_labels", -1), ("relative_buckets", "x"),
        ("tie_embeddings", "x"), ("scale", 1),
    ],
)  # fmt: skip
def test_impossible_sizes_are_named_not_replaced(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        TokenmixConfig(**{"body": "seq2seq", **SIZES, option: value})


def test_models_with_a_mask_run_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = create_model(TokenmixConfig(body="encoder", **SIZES))
        out = model(torch.zeros(2, 6, dtype=torch.long), attention_mask=torch.ones(2, 6))
    assert out.logits.shape == (2, 6, 40)


def test_models_made_on_the_meta_device_can_be_initialised_later() -> None:
    with torch.device("meta"):
        model = create_model(TokenmixConfig(body="encoder", head_transform=True, segments=2, **SIZES))
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    model.apply(model._init_weights)
    model.tie_weights()
    assert not [name for name, parameter in model.named_parameters() if parameter.isnan().any()]


@pytest.mark.parametrize("kind", ["regression", "single_label_classification", "multi_label_classification"])
def test_losses_stay_in_float64(kind: str) -> None:
    logits = torch.randn(3, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 3]) if kind.startswith("single") else torch.rand(3, 4, dtype=torch.float64)
    assert classification_loss(logits, labels, kind).dtype == torch.float64


HEADS = ["masked_lm", "sequence_classification", "question_answering", "causal_lm"]


def examples(head: str) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    rows = []
    for i in range(4):
        ids = torch.randint(2, 40, (8,))
        labels: dict[str, Any] = {"labels": torch.where(torch.arange(8) < 8 - i, ids, -100)}
        if head == "sequence_classification":
            labels = {"labels": i % 2}
        elif head == "question_answering":
            labels = {"start_positions": i, "end_positions": i + 2}
        rows.append({"input_ids": ids, **labels})
    return rows


def gradients(head: str, directory: Path, data: list[dict[str, Any]], **options: Any) -> dict[str, torch.Tensor]:
    """What one step of SGD with learning rate 1 takes from every parameter."""
    torch.manual_seed(0)
    body = "decoder" if head == "causal_lm" else "encoder"
    extra = {} if body == "decoder" else {"segments": 2}
    model = create_model(TokenmixConfig(body=body, layer="dot | mlp", **SIZES, **extra), head=head)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=1, learning_rate=1.0, lr_scheduler_type="constant", optim="sgd",
        max_grad_norm=0.0, report_to=[], save_strategy="no", use_cpu=True, seed=0, disable_tqdm=True,
        dataloader_pin_memory=False, **options,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=data).train()
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("head", HEADS)
def test_accumulated_batches_weigh_as_one(head: str, tmp_path: Path) -> None:
    data = examples(head)
    whole = gradients(head, tmp_path, data, per_device_train_batch_size=4)
    parts = gradients(head, tmp_path, data, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], atol=1e-5), name


def test_trainer_hands_segments_to_the_model(tmp_path: Path) -> None:
    data = [{**row, "token_type_ids": torch.arange(8) // 4} for row in examples("sequence_classification")]
    taken = gradients("sequence_classification", tmp_path, data, per_device_train_batch_size=4)
    assert taken["model.embed.segments.weight"][1].abs().max() > 0


@pytest.mark.parametrize("cross", ["random", "dense", "factorized_random", "factorized_dense", "random + dot"])
def test_cross_attention_by_position_counts_from_the_first_real_token(cross: str) -> None:
    torch.manual_seed(0)
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | mlp", cross=cross, **SIZES)).eval()
    ids, answer = torch.randint(2, 40, (1, 5)), torch.randint(2, 40, (1, 4))
    alone = model(ids, decoder_input_ids=answer).logits
    padded, mask = torch.cat([torch.full((1, 3), 7), ids], 1), torch.tensor([[0] * 3 + [1] * 5])
    assert torch.allclose(model(padded, attention_mask=mask, decoder_input_ids=answer).logits, alone, atol=1e-5)


def test_padding_between_tokens_is_refused_where_positions_are_counted() -> None:
    model = create_model(TokenmixConfig(body="decoder", layer="random | mlp", **SIZES)).eval()
    ids, mask = torch.full((1, 5), 3), torch.tensor([[1, 1, 0, 1, 1]])
    assert model(ids, attention_mask=mask).logits.isfinite().all()
    with pytest.raises(ValueError, match="padding stands before or after the tokens of a row, not between"):
        model(ids, attention_mask=mask, use_cache=True)


def test_names_of_hugging_face_mean_our_options() -> None:
    config = TokenmixConfig(body="encoder", hidden_size=32, num_attention_heads=4, tie_word_embeddings=False)
    assert (config.d_model, config.heads, config.tie_embeddings) == (32, 4, False)
    assert TokenmixConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_an_unknown_option_lists_options_only() -> None:
    with pytest.raises(ValueError, match="did you mean 'dropout'") as error:
        TokenmixConfig(dropuot=0.1)
    assert "attribute_map" not in str(error.value)


@pytest.mark.parametrize(("head", "bad"), [("masked_lm", 40), ("sequence_classification", 2), ("masked_lm", -1)])
def test_labels_out_of_range_are_named(head: str, bad: int) -> None:
    model = create_model(TokenmixConfig(body="encoder", **SIZES), head=head)
    labels = torch.tensor([[3, bad]]) if head == "masked_lm" else torch.tensor([bad])
    with pytest.raises(ValueError, match=f"label {bad} is outside 0 …"):
        model(torch.tensor([[3, 4]]), labels=labels)


def test_generate_starts_from_encoder_outputs() -> None:
    torch.manual_seed(0)
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | remix", **SIZES)).eval()
    ids, mask = left_padded()
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    ready = model.generate(encoder_outputs=model.get_encoder()(ids, mask), **options)
    assert torch.equal(ready, model.generate(ids, **options))


def test_tuples_and_hidden_states_by_argument_or_configuration() -> None:
    ids, _ = left_padded()
    model = create_model(TokenmixConfig(body="decoder", layer="dot | mlp", **SIZES))
    assert isinstance(model.model(ids, return_dict=False), tuple)
    assert isinstance(model(ids, return_dict=False), tuple)
    model.config.return_dict = False
    assert isinstance(model(ids), tuple)
    assert model(ids, return_dict=True).hidden_states is None
    model.config.output_hidden_states = True
    assert len(model(ids, return_dict=True).hidden_states) == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_ids": torch.zeros(5, dtype=torch.long)}, r"input ids must be whole numbers \[batch, length\]"),
        ({"input_ids": torch.zeros(2, 5)}, "input ids must be whole numbers"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, "at least one token per row"),
        ({"inputs_embeds": torch.zeros(2, 5, 7)}, r"input embeddings must be \[batch, length, 16\]"),
    ],
)
def test_inputs_of_the_wrong_shape_are_named(given: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        create_model(TokenmixConfig(body="encoder", **SIZES))(**given)


def test_seq2seq_inputs_that_do_not_fit_are_named() -> None:
    model, (ids, mask) = create_model(TokenmixConfig(body="seq2seq", **SIZES)), left_padded()
    with pytest.raises(ValueError, match="input embeddings to the decoder"):
        model(ids)
    with pytest.raises(ValueError, match="of the encoder's states"):
        model(encoder_outputs=model.get_encoder()(ids), attention_mask=mask[:, :4], decoder_input_ids=ids)


def test_one_lookup_for_both_texts_is_two_lookups() -> None:
    model = create_model("t5-v1.1-tiny", dropout=0.0)
    ids, targets = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
    table = model.get_input_embeddings().weight
    grads = []
    for inputs in (
        {"input_ids": ids, "decoder_input_ids": targets},
        {"inputs_embeds": table[ids], "decoder_inputs_embeds": table[targets]},
        {"input_ids": ids.int(), "decoder_inputs_embeds": table[targets]},
    ):
        model.zero_grad()
        model(**inputs, labels=targets).loss.backward()
        grads.append(table.grad.clone())
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(grads[0], grads[2])
    with pytest.raises(ValueError, match=r"token id \d+ is outside 0 … 511"):
        model(input_ids=ids, decoder_input_ids=targets + 600)


# terms and mixers of every kind: those that take the real tokens alone, and those that want them padded
LAYERS = [
    "dot | mlp", "random + dot | geglu", "factorized_random | mlp", 'dense(f="glu") + dot | geglu', 'dense(f="conv") | mlp',
    'mix(dense(query="dot"), dot, alpha="sigmoid") | mlp', "factorized_dense + relative | conv_relu", "lightconv | mlp",
    "dynamicconv | mlp", "token_mlp(hidden=6, window=3) | mlp", "gmlp", 'gmlp(gate="additive", toeplitz=True)',
    "gmlp(attention=8) | mlp", "dot | remix", 'dot | remix(alpha="gate", heads=2, compose="gated")',
    "dot | remix(literal=True, toeplitz=True)",
]  # fmt: skip


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("layer", [*LAYERS, "fourier | mlp", "linformer(k=4) | mlp"])
def test_training_computes_nothing_for_padding_and_learns_the_same(layer: str, norm_position: str) -> None:
    model, given = padded_batch(layer, norm_position=norm_position)
    (alone, found), (padded, right) = learned(model, given, return_logits=False), learned(model, given)
    assert (alone, padded) == ({16}, {24})
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_decoder_computes_nothing_behind_the_last_label(layer: str) -> None:
    model, given = padded_batch(layer, body="seq2seq", positions="relative")
    labels = torch.randint(3, 50, (3, 6)).masked_fill(torch.arange(6) >= torch.tensor([[2], [6], [4]]), -100)
    labels[1, :3] = -100  # not predicted, and yet read by what is
    given["labels"] = labels
    (alone, found), (padded, right) = learned(model, given, return_logits=False), learned(model, given)
    assert (alone, padded) == ({16, 12}, {24, 18})
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    mask = torch.ones(3, 6)
    mask[0, 2:] = 0  # a mask of one's own: all is computed
    given["decoder_attention_mask"] = mask
    computed, found = learned(model, given, return_logits=False)
    torch.testing.assert_close(found["loss"], learned(model, given)[1]["loss"])
    assert 18 in computed
    assert 12 not in computed


@pytest.mark.parametrize("layer", LAYERS)
def test_real_tokens_can_be_named_beforehand(layer: str) -> None:
    model, given = padded_batch(layer, body="seq2seq", positions="relative")
    given["labels"] = torch.randint(3, 50, (3, 6)).masked_fill(torch.arange(6) >= torch.tensor([[2], [6], [4]]), -100)
    right = model(**given)
    right.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    seen = tokens_of(model)
    for name, real, count in (
        ("encoder_tokens", given["attention_mask"], 18),
        ("decoder_tokens", given["labels"] != -100, 14),
    ):
        places = torch.cat([real.flatten().nonzero(), (~real).flatten().nonzero()])[:count, 0]
        given[name] = places[torch.randperm(count)]
    out = model(**given)
    out.loss.backward()
    assert set(seen) == {18, 14}
    torch.testing.assert_close(out.loss, right.loss)
    torch.testing.assert_close({n: p.grad for n, p in model.named_parameters()}, grads, rtol=1e-4, atol=1e-5)


def test_several_targets_for_each_input_are_learned_from() -> None:
    model, given = padded_batch("dot | geglu", body="seq2seq")
    memory = model.model.encode(given["input_ids"], given["attention_mask"])
    labels = torch.randint(3, 50, (6, 5)).masked_fill(torch.arange(5) >= torch.arange(6)[:, None], -100)
    asked = {"attention_mask": given["attention_mask"], "encoder_outputs": (memory,), "labels": labels}
    torch.testing.assert_close(model(**asked, return_logits=False).loss, model(**asked).loss)


@pytest.mark.parametrize("text", sorted(REGISTRY))
def test_functional_gradients_see_through_padding(text: str) -> None:
    _, given = padded_batch("dot | geglu")
    given["labels"] = torch.tensor([0, 1, 1])
    config = TokenmixConfig(body="encoder", layer=f"{text} | geglu", **SIZES | {"vocab_size": 50, "dropout": 0.0})
    model = create_model(config, head="sequence_classification").train()
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (), given).loss

    model(**given).loss.backward()
    found = torch.func.grad(loss)(weights)
    torch.testing.assert_close(found, {n: p.grad for n, p in model.named_parameters()}, rtol=1e-4, atol=1e-5)
    _, slope = torch.func.jvp(loss, (weights,), (found,))
    torch.testing.assert_close(slope, sum(g.square().sum() for g in found.values()), rtol=1e-3, atol=1e-4)


def test_functional_gradients_of_tokens_named_beforehand() -> None:
    rows = Rows.of(padded_batch("dot | geglu")[1]["attention_mask"])
    x, weight = torch.randn(3, 8, 4), torch.randn(3, 8, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (rows.spread(rows.gather(x).square()) * weight).sum()

    plain = x.clone().requires_grad_()
    loss(plain).backward()
    torch.testing.assert_close(torch.func.grad(loss)(x), plain.grad)
    torch.testing.assert_close(torch.func.jvp(loss, (x,), (x,))[1], (plain.grad * x).sum())
    each = torch.func.vmap(torch.func.grad(loss))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(each, torch.stack([plain.grad, 2 * plain.grad]))


def test_each_example_has_its_gradient_under_padding() -> None:
    model, given = padded_batch("random + dot | remix")
    model = model.model.train()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    ids, mask = given["input_ids"], given["attention_mask"]

    def loss(weights: dict[str, torch.Tensor], ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(model, weights, (ids[None], mask[None])).last_hidden_state
        return (out * mask[None, :, None]).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, ids, mask)
    for k in range(3):
        torch.testing.assert_close(
            {name: g[k] for name, g in each.items()},
            torch.func.grad(loss)(weights, ids[k], mask[k]),
            rtol=1e-3,
            atol=1e-4,
        )


def test_an_empty_batch_passes_through_a_seq2seq_model() -> None:
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | geglu", **SIZES)).train()
    ids = torch.zeros(0, 8, dtype=torch.long)
    out = model(ids, attention_mask=torch.ones_like(ids), labels=ids[:, :5])
    assert out.logits.shape == (0, 5, 40)
    assert out.loss == 0


def learned(model: Any, given: dict[str, Any], **options: Any) -> tuple[set[int], dict[str, torch.Tensor]]:
    """Numbers of tokens that were computed for; the loss, and the gradient of every parameter."""
    seen = tokens_of(model)
    model.zero_grad()
    out = model(**given, **options)
    out.loss.backward()
    return set(seen), {"loss": out.loss.detach()} | {name: p.grad.clone() for name, p in model.named_parameters()}


def test_whole_examples_are_dropped_without_padding_too() -> None:
    sublayer = parse("dot | geglu").build(d_model=8, d_ff=16, heads=2, max_length=8, drop_path=0.5)[1].train()
    real = torch.arange(8) < torch.tensor([[8], [3], [5], [1]])
    rows = Rows.of(real)
    x = torch.randn(4, 8, 8)
    torch.manual_seed(1)
    right = sublayer(x)
    torch.manual_seed(1)
    alone = sublayer(rows.gather(x), rows=rows)
    torch.testing.assert_close(alone, rows.gather(right))
    assert torch.equal(right[1], x[1]) != torch.equal(right[0], x[0])  # some were dropped, others not


@pytest.mark.parametrize("layer", ['gmlp(padding="include") | mlp', 'fourier(padding="include") | mlp'])
def test_what_looks_at_padding_finds_it_computed(layer: str) -> None:
    model, given = padded_batch(layer)
    right = model(**given).loss
    torch.testing.assert_close(model(**given, return_logits=False).loss, right)
    model.model.encoder.sees_padding = False
    assert abs(model(**given, return_logits=False).loss - right) > 1e-4  # it would be noticed


def test_padding_that_somebody_reads_is_computed() -> None:
    model, given = padded_batch("dot | geglu")
    seen = tokens_of(model)
    everywhere = given | {"labels": given["input_ids"]}
    right = model(**everywhere).loss  # with logits
    torch.testing.assert_close(model(**everywhere, return_logits=False).loss, right)  # labels at padding
    model(**given, return_logits=False, output_hidden_states=True)
    model.model(given["input_ids"], given["attention_mask"])
    model.eval()(**given, return_logits=False)
    assert set(seen) == {24}


def test_a_language_model_whose_padding_stands_before_the_text_predicts_its_first_word() -> None:
    model = create_model("gmlp-tiny", body="decoder", layer="dot | geglu", dropout=0.0).train()
    ids = torch.randint(3, 50, (2, 8))
    mask = torch.arange(8) >= torch.tensor([[0], [3]])
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~mask, -100)}
    torch.testing.assert_close(model(**given, return_logits=False).loss, model(**given).loss)


def tokens_of(model: Any) -> list[int]:
    """How many tokens each sublayer that could leave out padding was given; grows with every call of the model."""
    seen: list[int] = []
    for module in model.modules():
        if getattr(module, "by_rows", False):
            module.register_forward_hook(lambda _, inputs, out: seen.append(out.shape[:-1].numel()))
    return seen


def padded_batch(layer: str, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    body = options.pop("body", "encoder")
    config = TokenmixConfig(
        body=body, layer=layer, d_model=16, d_ff=32, heads=2, layers=2, vocab_size=50, dropout=0.0, **options
    )
    ids = torch.randint(3, 50, (3, 8))
    mask = torch.arange(8) < torch.tensor([[8], [3], [5]])
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~mask, -100)}
    model = create_model(config, head="masked_lm" if body == "encoder" else None).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)  # a gate that starts shut would hide what goes through it
    return model, given
