"""Objectives: nothing is lost, rates are met, and an example depends on (seed, epoch, index) alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmix.data.objectives import MaskedLM, SpanCorruption, build_objective, noise_counts, t5_lengths
from tokenmix.data.packing import IGNORED, CausalLM, pack
from tokenmix.data.randomness import bits, choose, key, permute
from tokenmix.data.tokenizers import train_tokenizer

TOP = 32_099
BERT = {"mask_id": 4, "vocab_size": 1000, "special_ids": (0, 1, 2, 3, 4), "cls_id": 2, "sep_id": 3}


def text(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(10, 1000, (rows, length)).astype(np.uint16)


def objectives():
    return [SpanCorruption(TOP, inputs_length=64), MaskedLM(**BERT, max_length=64), CausalLM(max_length=64)]


# --- randomness


@given(size=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70))
def test_permutation_is_one(size, seed):
    order = permute(np.arange(size), size, key(seed))
    assert sorted(order.tolist()) == list(range(size))


def test_permutations_are_spread_evenly():
    keys = key(3, np.arange(24_000))
    orders = np.stack([permute(np.full(24_000, place), 4, keys) for place in range(4)], axis=1)
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 850
    assert counts.max() < 1150


def test_position_outside_a_permutation_is_an_error():
    with pytest.raises(ValueError, match="position 5 is outside a permutation of 5 items"):
        permute([5], 5, key(0))


def test_random_bits_are_uniform_and_keys_independent():
    values = bits(key(0, np.arange(400))[:, None], np.arange(500)[None]) / 2**32
    assert abs(values.mean() - 0.5) < 0.003
    assert np.abs(np.corrcoef(values[:40])[np.triu_indices(40, 1)]).max() < 0.25
    assert len(np.unique(key(0, np.arange(1000)[:, None], np.arange(10)[None]))) == 10_000


@given(sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_choose_takes_exactly_as_many_as_asked(sizes):
    items, picks = np.array([(n, min(n, k)) for n, k in sizes]).T
    rows = np.split(choose(key(1, np.arange(len(items))), items, picks), np.cumsum(items)[:-1])
    assert [int(row.sum()) for row in rows] == picks.tolist()


def test_every_subset_is_equally_likely():
    chosen = choose(key(5, np.arange(20_000)), 5, 2).reshape(-1, 5)
    _, counts = np.unique(chosen @ (1 << np.arange(5)), return_counts=True)
    assert len(counts) == 10
    assert counts.min() > 1800
    assert counts.max() < 2200


# --- span corruption


def test_t5_lengths_are_t5s():
    assert t5_lengths(512) == (568, 114)
    assert noise_counts(568) == (85, 28)
    batch = SpanCorruption(TOP)(text(3, 568), index=np.arange(3))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 512)
    assert batch["labels"].shape == (3, 114)


@pytest.mark.parametrize("inputs_length", [4, 5, 16, 100, 511, 1024])
def test_inputs_are_filled_at_every_length(inputs_length):
    objective = SpanCorruption(TOP, inputs_length=inputs_length)
    batch = objective(text(2, objective.window), index=[0, 1])
    assert batch["input_ids"].shape == (2, inputs_length)
    assert batch["labels"].shape == (2, t5_lengths(inputs_length)[1])


@settings(max_examples=60, deadline=None)
@given(
    inputs_length=st.integers(6, 300),
    density=st.floats(0.05, 0.6),
    mean_span=st.floats(1, 8),
    seed=st.integers(0, 2**64),
)
def test_span_corruption_loses_no_token_and_inverts(inputs_length, density, mean_span, seed):
    objective = SpanCorruption(
        TOP, inputs_length=inputs_length, noise_density=density, mean_span=mean_span, seed=seed, sentinels=300
    )
    tokens = text(4, objective.window, seed=seed % 1000)
    batch = objective(tokens, index=np.arange(4), epoch=3)
    assert objective.restore(batch["input_ids"], batch["labels"]) == tokens.tolist()


def test_span_corruption_has_t5s_form():
    batch = SpanCorruption(TOP)(text(200, 568), index=np.arange(200))
    for inputs, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        assert inputs[-1] == labels[-1] == 1
        assert inputs[0] < 1000
        assert labels[0] == TOP
        for row in (inputs, labels):
            sentinels = row[row > 1000]
            assert sentinels.tolist() == list(range(TOP, TOP - 28, -1))
        is_sentinel = inputs > 1000
        assert not (is_sentinel[1:] & is_sentinel[:-1]).any()  # kept text between any two spans


def test_every_place_but_the_ends_is_noise_at_the_stated_rate():
    objective = SpanCorruption(TOP, inputs_length=100)
    tokens = np.broadcast_to(np.arange(10, 10 + objective.window, dtype=np.uint16), (4000, objective.window))
    labels = objective(tokens, index=np.arange(4000))["labels"]
    rate = np.bincount(labels[labels < 1000], minlength=10 + objective.window)[10:] / 4000
    noise = noise_counts(objective.window)[0] / objective.window
    assert rate[0] == 0
    assert abs(rate.mean() - noise) < 1e-9
    assert np.abs(rate[20:-20] - noise).max() < 0.035


def test_span_lengths_are_a_uniform_segmentation():
    # 4 noise tokens in 2 spans: lengths (1, 3), (2, 2), (3, 1) are equally likely.
    objective = SpanCorruption(TOP, inputs_length=26, noise_density=0.15, mean_span=2.0)
    assert noise_counts(objective.window, 0.15, 2.0) == (4, 2)
    labels = objective(text(6000, objective.window), index=np.arange(6000))["labels"]
    first = np.argmax(labels == TOP - 1, axis=1) - 1
    assert np.abs(np.bincount(first)[1:] / 6000 - 1 / 3).max() < 0.03


def test_span_corruption_answers_mistakes():
    with pytest.raises(
        ValueError, match="28 noise spans, but there are 10 sentinels; train the tokenizer with sentinels=28"
    ):
        SpanCorruption(TOP, sentinels=10)
    with pytest.raises(ValueError, match="expected a density between 0 and 1"):
        SpanCorruption(TOP, noise_density=1.5)
    with pytest.raises(ValueError, match=r"tokens have shape \(2, 512\), expected \(batch, 568\)"):
        SpanCorruption(TOP)(text(2, 512), index=[0, 1])
    with pytest.raises(ValueError, match="2 windows but 1 indices"):
        SpanCorruption(TOP)(text(2, 568), index=[0])
    with pytest.raises(ValueError, match="inputs_length=3 is too short"):
        t5_lengths(3)


# --- masked LM


def test_masks_hit_the_stated_rates():
    objective = MaskedLM(**BERT)
    tokens = text(400, 510)
    batch = objective(tokens, index=np.arange(400))
    inputs, labels = batch["input_ids"], batch["labels"]
    whole = np.concatenate([np.full((400, 1), 2), tokens, np.full((400, 1), 3)], axis=1)
    chosen = labels != IGNORED
    assert inputs.shape == (400, 512)
    assert (chosen.sum(axis=1) == round(0.15 * 510)).all()  # exactly, in every example
    assert (labels[chosen] == whole[chosen]).all()
    assert (inputs[~chosen] == whole[~chosen]).all()
    masked, same = (inputs[chosen] == 4).mean(), (inputs[chosen] == whole[chosen]).mean()
    assert abs(masked - 0.8) < 0.01
    assert abs(same - 0.1) < 0.01
    random = inputs[chosen][(inputs[chosen] != 4) & (inputs[chosen] != whole[chosen])]
    assert random.min() < 30
    assert random.max() > 970
    assert np.abs(chosen[:, 1:-1].mean(axis=0) - 0.15).max() < 0.1  # everywhere alike


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_special_tokens_are_never_masked_and_padding_is_not_seen(seed, share):
    rng = np.random.default_rng(seed)
    tokens = np.where(rng.random((5, 62)) < share, rng.integers(0, 5, (5, 62)), rng.integers(10, 1000, (5, 62)))
    batch = MaskedLM(**BERT, max_length=64, seed=seed)(tokens, index=np.arange(5))
    inner = batch["labels"][:, 1:-1]
    assert (inner[tokens < 5] == IGNORED).all()
    assert (batch["labels"][:, [0, -1]] == IGNORED).all()
    assert (batch["input_ids"][:, 1:-1][tokens < 5] == tokens[tokens < 5]).all()
    assert ((batch["attention_mask"][:, 1:-1] == 0) == (tokens == 0)).all()
    words = (tokens >= 5).sum(axis=1)
    assert ((inner != IGNORED).sum(axis=1) == np.where(words > 0, np.maximum(np.rint(words * 0.15), 1), 0)).all()


def test_masked_lm_without_frame_and_its_mistakes():
    objective = MaskedLM(mask_id=4, vocab_size=1000, max_length=64)
    assert objective.window == 64
    assert objective(text(1, 64), index=[0])["input_ids"].shape == (1, 64)
    with pytest.raises(ValueError, match="give both or neither"):
        MaskedLM(mask_id=4, vocab_size=1000, cls_id=2)
    with pytest.raises(ValueError, match="shares that sum to 1 at most"):
        MaskedLM(mask_id=4, vocab_size=1000, mask_share=0.9, random_share=0.2)


# --- packed causal LM


@given(lengths=st.lists(st.integers(0, 20), max_size=12), row=st.integers(1, 16))
def test_packing_loses_nothing(lengths, row):
    total = sum(lengths)
    documents = np.split(np.arange(1, total + 1), np.cumsum(lengths))[: len(lengths)]
    tokens, ids = pack(documents, row)
    assert tokens[ids > 0].tolist() == list(range(1, total + 1))
    assert tokens.size - total < row
    batch = CausalLM(max_length=row)(tokens, document_ids=ids)
    owner = dict(zip(range(1, total + 1), np.repeat(np.arange(len(lengths)), lengths).tolist(), strict=True))
    for r in range(len(tokens)):
        pieces = {}
        for column in np.flatnonzero(ids[r]):
            pieces.setdefault(ids[r, column], []).append(column)
        assert list(pieces) == list(range(1, len(pieces) + 1))
        for columns in pieces.values():
            assert len({owner[token] for token in tokens[r, columns]}) == 1  # one document, one id
            assert batch["position_ids"][r, columns].tolist() == list(range(len(columns)))
            assert batch["labels"][r, columns[0]] == IGNORED  # nothing of its own precedes it
            assert (batch["labels"][r, columns[1:]] == tokens[r, columns[1:]]).all()
    assert (batch["labels"][ids == 0] == IGNORED).all()
    assert ((batch["attention_mask"] > 0) == (ids > 0)).all()


def test_joined_documents_are_one_text():
    tokens, ids = pack([[5, 6], [7, 8, 9]], length=8)
    batch = CausalLM(max_length=8, joined=True)(tokens, document_ids=ids)
    assert batch["labels"].tolist() == [[IGNORED, 6, 7, 8, 9, IGNORED, IGNORED, IGNORED]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]]
    assert batch["document_ids"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]


# --- all of them


@pytest.mark.parametrize("objective", objectives(), ids=lambda o: type(o).__name__)
def test_an_example_depends_on_seed_epoch_and_index_alone(objective):
    tokens = text(32, objective.window)
    whole = objective(tokens, index=np.arange(32), epoch=2)
    rows = [17, 3, 30]
    part = objective(tokens[rows], index=rows, epoch=[2, 2, 2])
    alone = objective(tokens[17:18], index=[17], epoch=2)
    for name, values in whole.items():
        assert values.dtype == np.int64
        assert (part[name] == values[rows]).all()
        assert (alone[name] == values[17]).all()


@pytest.mark.parametrize("objective", objectives()[:2], ids=lambda o: type(o).__name__)
def test_another_seed_epoch_or_index_gives_another_example(objective):
    tokens = np.repeat(text(1, objective.window), 2, axis=0)
    first = objective(tokens, index=[0, 1])["input_ids"]
    assert (first[0] != first[1]).any()
    assert (objective(tokens, index=[0, 1], epoch=1)["input_ids"] != first).any(axis=1).all()
    other = type(objective)(
        **{f: getattr(objective, f) for f in objective.__dataclass_fields__ if f != "window"} | {"seed": 9}
    )
    assert (other(tokens, index=[0, 1])["input_ids"] != first).any(axis=1).all()


@pytest.mark.parametrize("objective", objectives(), ids=lambda o: type(o).__name__)
def test_an_empty_batch_stays_empty(objective):
    batch = objective(np.empty((0, objective.window), np.uint16), index=np.empty(0, np.int64))
    assert len(batch["input_ids"]) == 0


def test_objectives_are_built_from_a_tokenizer():
    texts = ["The old cat sat on the mat.", "A new dog ran."]
    t5 = train_tokenizer(texts, vocab_size=400)
    spans = build_objective("span_corruption", t5, max_length=128, seed=5)
    assert spans.sentinel_id == len(t5) - 1
    assert spans.sentinels == 100
    assert spans.end_id == 1
    assert spans.seed == 5
    bert = train_tokenizer(texts, vocab_size=400, style="bert", sentinels=0)
    masked = build_objective("masked_lm", bert, max_length=128)
    assert masked.window == 126
    assert masked.mask_id == bert.mask_token_id
    assert set(masked.special_ids) == set(range(6))
    assert build_objective("causal_lm", t5, joined=True).joined
    with pytest.raises(ValueError, match=r"unknown objective 'span'.*Known: causal_lm, masked_lm, span_corruption"):
        build_objective("span", t5)
    with pytest.raises(ValueError, match="has no mask token"):
        build_objective("masked_lm", t5)
    with pytest.raises(ValueError, match="has no <extra_id_…> sentinels"):
        build_objective("span_corruption", bert)
