"""What is generated is what recomputing everything, brute force, or Hugging Face gives."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tokenmix.generation import Generated, api, engine, fused, generate, stream
from tokenmix.generation.search import Limits, Sampling
from tokenmix.mixers import REGISTRY, Mix, parse
from tokenmix.mixers.expression import Term
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.convert import from_transformers

OPTIONS = {
    "token_mlp": "token_mlp(hidden=8, window=3)",
    "lightconv": "lightconv(width=3)",
    "dynamicconv": "dynamicconv(width=3)",
}
CAUSAL = []
for _name, _kind in sorted(REGISTRY.items()):
    try:
        parse(OPTIONS.get(_name, _name)).build(d_model=8, heads=2, max_length=8, causal=True)
    except ValueError:
        continue  # Linformer, FNet: not in decoders
    CAUSAL.append(OPTIONS.get(_name, _name))
SUMS = [
    "random + dot",
    "dense + dot",
    "random + dense",
    "factorized_random + dot",
    'mix(dense(query="dot"), dot, alpha="sum")',
]
VARIANTS = [
    "dot | remix(heads=2)",
    "gmlp(attention=4)",
    "gmlp(toeplitz=True)",
    'dense(f="conv_relu_conv") | geglu',
    "dot | gmlp",
    "dot | mlp",
]
LAYERS = [*CAUSAL, *SUMS, *VARIANTS]


def tiny(body: str, layer: str, **options: object):
    """A model with little in it that says something else for every prompt."""
    torch.manual_seed(0)
    config = TokenmixConfig(
        **{"body": body, "layer": layer, "d_model": 16, "d_ff": 32, "heads": 2, "layers": 2, "vocab_size": 40}
        | {"max_length": 24, "eos_token_id": None}
        | options
    )
    model = create_model(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # mixing matrices start near 0, where mistakes would hide
            if parameter.dim() >= 2 or "weight" in name:
                parameter.normal_(std=0.5)
    return model


def prompts(rows: int = 3, length: int = 6, size: int = 40) -> tuple[Tensor, Tensor]:
    """Ids and a mask with padding on the left of some rows."""
    ids = torch.randint(2, size, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    mask[-1, : length - 1] = 0
    return ids.masked_fill(mask == 0, 0), mask


@torch.no_grad()
def recomputed(model, ids: Tensor, mask: Tensor, tokens: int) -> Tensor:
    """Greedy search that runs the whole model on the whole prefix for every token, row by row."""
    rows = []
    for row, real in zip(ids, mask.bool(), strict=True):
        given = row[real][None]
        out = torch.zeros(1, 1, dtype=torch.long) if model.config.body == "seq2seq" else given
        for _ in range(tokens):
            logits = (model(given, decoder_input_ids=out) if model.config.body == "seq2seq" else model(out)).logits
            out = torch.cat([out, logits[:, -1].argmax(-1)[:, None]], 1)
        rows.append(out[:, -tokens:])
    return torch.cat(rows)


@pytest.mark.parametrize("body", ["seq2seq", "decoder"])
@pytest.mark.parametrize("layer", LAYERS)
def test_cached_greedy_equals_recomputing_the_whole_prefix(layer: str, body: str) -> None:
    model = tiny(body, layer)
    ids, mask = prompts()
    assert torch.equal(generate(model, ids, mask, max_new_tokens=10).tokens, recomputed(model, ids, mask, 10))


@pytest.mark.parametrize("positions", ["absolute", "sinusoidal", "relative_per_layer", "none"])
def test_every_kind_of_position_decodes_as_it_computes(positions: str) -> None:
    model = tiny("decoder", "dot | geglu", positions=positions)
    ids, mask = prompts()
    assert torch.equal(generate(model, ids, mask, max_new_tokens=8).tokens, recomputed(model, ids, mask, 8))


@pytest.mark.parametrize("norm", ["post", "layer", "biases"])
def test_models_without_a_lean_form_decode_too(norm: str) -> None:
    options = {"post": {"norm_position": "post"}, "layer": {"norm": "layer"}, "biases": {"bias": True, "scale": True}}[
        norm
    ]
    model = tiny("seq2seq", "dot | geglu", **options)
    ids, mask = prompts()
    assert torch.equal(generate(model, ids, mask, max_new_tokens=8).tokens, recomputed(model, ids, mask, 8))


@pytest.mark.parametrize(
    "layer", ["dot | geglu", "random | geglu", "dot | remix", "lightconv(width=3) | mlp", "gmlp(attention=4)"]
)
@pytest.mark.parametrize("body", ["seq2seq", "decoder"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_of_mixed_lengths_equals_one_by_one(layer: str, body: str, beams: int) -> None:
    model = tiny(body, layer)
    ids, mask = prompts(4)
    options = {"max_new_tokens": 8, "num_beams": beams, "eos_token_id": [5, 7, 11, 13, 20], "return_scores": True}
    together = generate(model, ids, mask, **options)
    for i, real in enumerate(mask.bool()):
        alone = generate(model, ids[i, real][None], **options)
        length = alone.tokens.shape[1]
        assert torch.equal(together.tokens[i, :length], alone.tokens[0])
        assert (together.tokens[i, length:] == 0).all()
        torch.testing.assert_close(together.scores[i], alone.scores[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def brute_force(model, ids: Tensor, tokens: int, eos: int, penalty: float) -> tuple[list[int], float]:
    """The best of all sequences that end with eos or have `tokens` tokens, by log P / n^λ."""
    best: tuple[list[int], float] = ([], float("-inf"))
    size = model.config.vocab_size
    for n in range(1, tokens + 1):
        for text in itertools.product(range(size), repeat=n):
            if eos in text[:-1] or (n < tokens and text[-1] != eos):
                continue
            decoder = torch.tensor([[0, *text]])
            logits = model(ids, decoder_input_ids=decoder).logits[0].log_softmax(-1)
            score = sum(float(logits[i, token]) for i, token in enumerate(text)) / n**penalty
            if score > best[1]:
                best = (list(text), score)
    return best


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_beam_search_equals_brute_force_on_a_tiny_vocabulary(penalty: float) -> None:
    # with as many beams as there are prefixes, beam search sees everything
    model = tiny("seq2seq", "dot | geglu", vocab_size=5)
    ids = torch.randint(2, 5, (1, 4))
    found = generate(
        model, ids, max_new_tokens=3, num_beams=25, length_penalty=penalty, eos_token_id=1, return_scores=True
    )
    text, score = brute_force(model, ids, 3, 1, penalty)
    assert found.tokens[0].tolist()[: len(text)] == text
    assert float(found.scores[0]) == pytest.approx(score, abs=1e-4)


def up_to_end(rows: Tensor, marks: list[int]) -> list[list[int]]:
    """Rows up to their end mark: Hugging Face's beam search pads with the end mark where the padding id is 0."""
    cut = []
    for row in rows.tolist():
        ends = [i for i, token in enumerate(row) if i and token in marks]
        cut.append(row[: ends[0] + 1] if ends else row)
    return cut


MARKS = [1, *range(10, 22)]


@pytest.fixture(scope="module")
def pair():
    """A tiny T5 of Hugging Face's and the same as ours."""
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    theirs = T5ForConditionalGeneration(config).eval()
    return theirs, from_transformers(theirs).eval()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("marks", [[1], MARKS, []])
def test_converted_t5_generates_what_hugging_face_does(pair, beams: int, padded: bool, marks: list[int]) -> None:
    theirs, ours = pair
    ids, mask = prompts(5, 9, 60)
    mask = mask if padded else torch.ones_like(mask)
    theirs.generation_config.eos_token_id = marks or None
    options = {"max_new_tokens": 20, "num_beams": beams, "do_sample": False}
    if beams > 1:
        options["length_penalty"] = 0.6
    a = theirs.generate(ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options)
    b = generate(ours, ids, mask, eos_token_id=marks, return_scores=True, **options)
    assert up_to_end(a.sequences, marks) == up_to_end(b.sequences, marks)
    assert a.sequences.shape == b.sequences.shape
    if beams > 1:
        torch.testing.assert_close(a.sequences_scores, b.scores, atol=1e-4, rtol=0)
    else:
        gained = theirs.compute_transition_scores(a.sequences, a.scores, normalize_logits=True)
        before = torch.zeros_like(gained, dtype=torch.bool)
        for mark in marks:
            before |= a.sequences[:, 1:] == mark
        before = before.cumsum(-1) - before.long() == 0
        torch.testing.assert_close((gained * before).sum(-1), b.scores, atol=1e-4, rtol=0)


@pytest.mark.parametrize("body", ["seq2seq", "decoder"])
@pytest.mark.parametrize("layer", ["dot | remix", "random + dot | geglu", "lightconv(width=3) | mlp", "gmlp"])
@pytest.mark.parametrize("beams", [1, 4])
def test_generate_of_hugging_face_gives_the_same_on_our_models(body: str, layer: str, beams: int) -> None:
    model = tiny(body, layer)
    ids, mask = prompts()
    options = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False, "eos_token_id": [5, 7, 11]}
    if beams > 1:
        options["length_penalty"] = 0.6
    theirs = model.generate(ids, attention_mask=mask, **options)
    ours = generate(model, ids, mask, **options)
    start = ours.prompt
    assert up_to_end(theirs[:, start - 1 :], [5, 7, 11]) == up_to_end(ours.sequences[:, start - 1 :], [5, 7, 11])


def test_all_rows_may_end_at_once() -> None:
    model = tiny("seq2seq", "dot | geglu")
    ids, _ = prompts()
    first = generate(model, ids, max_new_tokens=1).tokens[:, 0].unique().tolist()
    for beams in (1, 2):
        out = generate(model, ids, max_new_tokens=9, num_beams=beams, eos_token_id=list(range(40)))
        assert out.tokens.shape == (3, 1)
    assert generate(model, ids, max_new_tokens=9, eos_token_id=first).tokens.shape == (3, 1)


def test_beams_may_outnumber_the_vocabulary() -> None:
    model = tiny("decoder", "dot | geglu", vocab_size=3)
    ids = torch.tensor([[1, 2]])
    wide = generate(model, ids, max_new_tokens=3, num_beams=16, eos_token_id=(), return_scores=True)
    texts = torch.tensor(list(itertools.product(range(3), repeat=3)))
    whole = torch.cat([ids.expand(27, -1), texts], 1)
    with torch.no_grad():
        logits = model(whole).logits.log_softmax(-1)[:, 1:-1]
    scores = logits.gather(-1, texts[..., None]).sum((1, 2)) / 3
    assert torch.equal(wide.tokens[0], texts[scores.argmax()])
    torch.testing.assert_close(wide.scores[0], scores.max(), atol=1e-5, rtol=1e-5)


def test_nothing_is_asked_for_and_nothing_comes() -> None:
    model = tiny("seq2seq", "dot | geglu")
    out = generate(model, prompts()[0], max_new_tokens=0, num_beams=2, return_scores=True)
    assert isinstance(out, Generated)
    assert out.sequences.shape == (3, 1)
    assert out.tokens.shape == (3, 0)
    empty = generate(model, torch.zeros(0, 4, dtype=torch.long), max_new_tokens=3)
    assert empty.sequences.shape == (0, 1)


def test_rows_stop_where_the_model_ends_each_for_itself() -> None:
    model = tiny("decoder", "random | geglu")  # max_length 24
    ids, mask = prompts(3, 20)
    out = generate(model, ids, mask, max_new_tokens=50)
    assert out.tokens.shape == (3, 24)  # the row of one token has room for 24 more, the last of which is never read
    assert (out.tokens[1, 5:] == 0).all()
    assert torch.equal(out.tokens[1:2, :5], recomputed(model, ids[1:2], mask[1:2], 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.ones(1, 25, dtype=torch.long)}, "exceeds max_length=24"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.long)}, "empty"),
        ({"attention_mask": torch.zeros(3, 6)}, "empty"),
        ({"attention_mask": torch.ones(3, 7)}, r"\[3, 6\]"),
        ({"input_ids": torch.ones(6, dtype=torch.long)}, r"\[batch, length\]"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "do_sample": True}, "exclude each other"),
        ({"do_sample": True, "temperature": 0.0}, "temperature"),
        ({"do_sample": True, "top_p": 1.5}, "top_p"),
        ({"top_k": 4}, "do_sample=True"),
        ({"stop_strings": "x"}, "tokenizer"),
        ({"input_ids": torch.full((1, 3), 99)}, "token id 99"),
    ],
)
@pytest.mark.parametrize("body", ["seq2seq", "decoder"])
def test_bad_input_is_named(body: str, change: dict[str, object], message: str) -> None:
    model = tiny(body, "dot | geglu")
    given = {"input_ids": prompts()[0], "max_new_tokens": 4} | change
    with pytest.raises(ValueError, match=message):
        generate(model, **given)


def test_encoders_do_not_generate() -> None:
    model = create_model("bert-tiny")
    with pytest.raises(TypeError, match="seq2seq or decoder"):
        generate(model, torch.ones(1, 3, dtype=torch.long), max_new_tokens=2)


def test_a_model_in_training_generates_without_dropout_and_stays_in_training() -> None:
    model = tiny("seq2seq", "dot | geglu", dropout=0.5)
    ids, mask = prompts()
    quiet = generate(model, ids, mask, max_new_tokens=6).tokens
    model.train()
    assert torch.equal(generate(model, ids, mask, max_new_tokens=6).tokens, quiet)
    assert model.training


def test_weights_that_change_are_seen_at_once() -> None:
    model = tiny("seq2seq", "dot | geglu")
    ids, mask = prompts()
    generate(model, ids, mask, max_new_tokens=6)
    for parameter in model.parameters():
        parameter.data.mul_(-0.7)
    assert torch.equal(generate(model, ids, mask, max_new_tokens=6).tokens, recomputed(model, ids, mask, 6))


def test_results_can_be_used_in_training() -> None:
    model = tiny("seq2seq", "dot | geglu")
    ids, mask = prompts()
    out = generate(model, ids, mask, max_new_tokens=4)
    model(ids, mask, labels=out.tokens).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_terms_and_sums_are_all_here() -> None:
    known = {
        str(part).split("(")[0] for layer in LAYERS for part in parse(layer).sublayers if not isinstance(part, Mix)
    }
    terms = {name for name, kind in REGISTRY.items() if issubclass(kind, Term)}
    assert terms <= known


@pytest.mark.parametrize("layer", ["dot | remix", "random | geglu", "dense + dot | geglu", "gmlp"])
def test_what_ended_rows_left_behind_does_not_reach_the_next_batch(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's session serves many batches, and its kernels leave out rows that have ended: their past may be anything."""
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 2, "vocab_size": 30, "max_length": 12}
    model = create_model(TokenmixConfig(body="seq2seq", layer=layer, **sizes)).eval()
    ids, sessions = torch.randint(3, 30, (3, 5)), []

    def opened(model: object, search: object, *_: object) -> engine.Session:
        if sessions:
            sessions[0].search.take_over(search)
        else:
            sessions.append(engine.Session(model, search, 12, static=True))
        return sessions[0]

    monkeypatch.setattr(api, "open_session", opened)
    first = generate(model, ids, max_new_tokens=6, eos_token_id=[]).tokens
    decoder = sessions[0].decoder
    left = [sublayer for sublayer in decoder.sublayers if isinstance(sublayer, fused.AsItIs)]
    pasts = [past for sublayer in left for past in decoder.state.cache.slot(sublayer.name).tensors.values()]
    assert pasts
    with torch.inference_mode():
        for past in pasts:
            past.fill_(torch.nan)
    assert torch.equal(generate(model, ids, max_new_tokens=6, eos_token_id=[]).tokens, first)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions as a GPU has them: static, and kept for the next batch of the same shape."""
    session, opened = engine.Session, engine.open_session

    def open_session(model: Any, search: Any, *shape: Any) -> engine.Session:
        tokens, search.tokens = search.tokens, SimpleNamespace(is_cuda=True)

        def made(model: Any, search: Any, capacity: int, *, static: bool) -> engine.Session:
            search.tokens = tokens
            return session(model, search, capacity, static=static)

        monkeypatch.setattr(engine, "Session", made)
        return opened(model, search, *shape)

    monkeypatch.setattr(api, "open_session", open_session)


def small(layer: str = "dot | geglu", body: str = "seq2seq", **options: Any) -> Any:
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "vocab_size": 40, "max_length": 64, **options}
    model = create_model(TokenmixConfig(body=body, layer=layer, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


@pytest.mark.usefixtures("as_on_a_gpu")
def test_two_streams_at_once_do_not_share_a_session() -> None:
    model = small()
    a, b = torch.randint(2, 40, (1, 7)), torch.randint(2, 40, (1, 9))
    options: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": ()}
    alone = [int(token) for token in stream(model, a, **options)]
    first = stream(model, a, **options)
    tokens = [int(next(first)) for _ in range(3)]
    list(stream(model, b, **options))
    assert tokens + [int(token) for token in first] == alone
    assert len(engine._sessions[model]) <= engine.KEPT
    assert [int(token) for token in stream(model, a, **options)] == alone  # a session that was used before


@pytest.mark.parametrize("layer", ['fourier(padding="include") | geglu', 'gmlp(padding="include")', "dot | geglu"])
def test_a_gpu_pads_no_encoder_that_sees_padding(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(layer, decoder_layer="dot | geglu")
    ids = torch.randint(2, 40, (3, 10))
    plain = generate(model, ids, max_new_tokens=6, eos_token_id=()).tokens
    original = engine.Session.__init__
    monkeypatch.setattr(engine.Session, "__init__", lambda *a, static, **k: original(*a, static=True, **k))
    assert torch.equal(generate(model, ids, max_new_tokens=6, eos_token_id=()).tokens, plain)


def test_rows_that_have_ended_may_hold_anything_when_others_are_drawn() -> None:
    search = Sampling(2, Limits(4, torch.tensor([4, 4]), (1,), 0), torch.device("cpu"))
    search.ended[0] = True
    logits = torch.randn(2, 9)
    logits[0] = torch.nan
    search.choose(logits)
    assert 0 <= int(search.tokens[1]) < 9


def test_prompts_of_different_lengths_go_on_to_the_end() -> None:
    """The long one ends at max_length, while the short ones have far to go."""
    model = small("dot | geglu", "decoder", max_length=16, positions="absolute")
    ids, mask = torch.randint(2, 40, (6, 12)), torch.zeros(6, 12, dtype=torch.long)
    mask[0] = 1
    mask[1:, 10:] = 1
    found = generate(model, ids, mask, max_new_tokens=14, eos_token_id=())
    assert found.lengths.tolist() == [5, *[14] * 5]
    alone = generate(model, ids[1:2, 10:], max_new_tokens=14, eos_token_id=())
    assert torch.equal(found.tokens[1], alone.tokens[0])
