"""Pretraining objectives: how a window of text tokens becomes inputs and labels.

Three objectives, each a small frozen object that turns a whole batch of windows at once:

| name | paper | window of text → example |
|---|---|---|
| `span_corruption` | T5 | 568 tokens → 512 inputs, 114 labels |
| `masked_lm` | BERT | 510 tokens → 512 inputs with [CLS] and [SEP] |
| `causal_lm` | GPT | 512 tokens → 512 inputs; packed documents do not see each other |

The result depends on (seed, epoch, index of the example) and on nothing else: not on the batch an example is in, the
worker that makes it, or how often the run was restarted. Keys are Hugging Face's: `input_ids`, `labels` (−100 is
ignored), `attention_mask`; a packed batch also has `position_ids` and `document_ids` (1, 2, … per document, 0 padding).

>>> objective = SpanCorruption(sentinel_id=32099)
>>> objective.window
568
>>> batch = objective(np.arange(3, 571)[None], index=[0])
>>> batch["input_ids"].shape, batch["labels"].shape
((1, 512), (1, 114))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenmix.data.packing import IGNORED, Batch, CausalLM, check_rows
from tokenmix.data.randomness import UInts, below, bits, choose, key
from tokenmix.naming import unknown


def noise_counts(length: int, noise_density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """(noise tokens, noise spans) of a window of ``length`` tokens: rounded, not drawn, so shapes are fixed."""
    noise = min(max(round(length * noise_density), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    return noise, spans


def t5_lengths(inputs_length: int = 512, noise_density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """(tokens of text, length of the labels) so that the corrupted inputs fill ``inputs_length``, end marks included.

    >>> t5_lengths(512)
    (568, 114)
    """
    if inputs_length < 4:
        raise ValueError(f"inputs_length={inputs_length} is too short for span corruption; give 4 or more")

    def lengths(raw: int) -> tuple[int, int]:
        noise, spans = noise_counts(raw, noise_density, mean_span)
        return raw - noise + spans + 1, noise + spans + 1  # + 1: the end mark

    raw = 2
    while lengths(raw + 1)[0] <= inputs_length:
        raw += 1
    return raw, lengths(raw)[1]


@dataclass(frozen=True)
class SpanCorruption:
    """T5's objective: spans of the text are replaced by sentinels in the inputs and spelt out in the labels.

    15% of the tokens are noise, in spans of 3 on average. How many tokens and spans is rounded, where they lie is a
    random segmentation of noise and kept text, and a window starts with kept text. Sentinels descend from
    ``sentinel_id``, the id of `<extra_id_0>`:

        text    Thank you for inviting me to your party last week
        inputs  Thank you <extra_id_0> me to your party <extra_id_1> week </s>
        labels  <extra_id_0> for inviting <extra_id_1> last </s>
    """

    sentinel_id: int
    end_id: int = 1
    inputs_length: int = 512
    noise_density: float = 0.15
    mean_span: float = 3.0
    sentinels: int = 100
    seed: int = 0
    window: int = field(init=False)  # tokens of text that make one example

    def __post_init__(self) -> None:
        if not 0 < self.noise_density < 1 or self.mean_span < 1:
            raise ValueError(
                f"noise_density={self.noise_density}, mean_span={self.mean_span}: expected a density between 0 and 1 "
                "and a mean span of 1 or more"
            )
        window, _ = t5_lengths(self.inputs_length, self.noise_density, self.mean_span)
        spans = noise_counts(window, self.noise_density, self.mean_span)[1]
        if spans > self.sentinels:
            raise ValueError(
                f"windows of {window} tokens have {spans} noise spans, but there are {self.sentinels} sentinels; "
                f"train the tokenizer with sentinels={spans} or more, or give a longer mean_span or shorter inputs"
            )
        object.__setattr__(self, "window", window)

    def __call__(self, tokens: ArrayLike, index: ArrayLike, epoch: ArrayLike = 0, **_: Any) -> Batch:
        """Corrupt ``tokens`` [batch, window]; ``index`` [batch] says which example of the epoch each row is."""
        tokens, keys = _rows(tokens, index, epoch, self.seed, self.window)
        noise, spans = noise_counts(self.window, self.noise_density, self.mean_span)
        kept, lost = _segments(keys, [self.window - noise, noise], spans)  # two times [batch, spans]
        kept_from = np.cumsum(kept, axis=1) - kept + np.cumsum(lost, axis=1) - lost  # kept, lost, kept, lost, …
        lost_from = kept_from + kept
        # Each run is copied with one token more, at the place of the sentinel: behind kept text, in front of lost text.
        inputs = self._with_sentinels(tokens, kept_from, kept + 1, sentinel=kept)
        labels = self._with_sentinels(tokens, lost_from - 1, lost + 1, sentinel=np.zeros_like(lost))
        return {"input_ids": inputs, "labels": labels, "attention_mask": np.ones_like(inputs)}

    def _with_sentinels(
        self, tokens: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], sentinel: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Runs of each row one behind another, the token ``sentinel`` of each run replaced, and an end mark behind."""
        rows, width = len(tokens), int(lengths[0].sum()) if len(tokens) else 0
        row = np.arange(rows)[:, None]
        to = np.cumsum(lengths, axis=1) - lengths  # where a run begins in its row of the result
        shift = starts + row * tokens.shape[1] - to - row * width
        source = np.repeat(shift.reshape(-1), lengths.reshape(-1))
        source += np.arange(rows * width)
        out = np.empty((rows, width + 1), dtype=np.int64)
        out[:, :-1] = tokens.reshape(-1)[source].reshape(rows, width)
        out.reshape(-1)[to + sentinel + row * (width + 1)] = self.sentinel_id - np.arange(lengths.shape[1])
        out[:, -1] = self.end_id
        return out

    def restore(self, input_ids: ArrayLike, labels: ArrayLike) -> list[list[int]]:
        """The text that a batch was made from: every sentinel of the inputs replaced by its span of the labels."""
        lowest = self.sentinel_id - self.sentinels
        texts = []
        for inputs, targets in zip(np.asarray(input_ids).tolist(), np.asarray(labels).tolist(), strict=True):
            spans: dict[int, list[int]] = {}
            for token in targets[:-1]:
                if lowest < token <= self.sentinel_id:
                    spans[token] = current = []
                else:
                    current.append(token)
            texts.append([token for item in inputs[:-1] for token in spans.get(item, [item])])
        return texts


@dataclass(frozen=True)
class MaskedLM:
    """BERT's objective: 15% of the tokens are to be predicted; of these 80% read [MASK], 10% a random token, 10% stay.

    The number of predictions is rounded per example, not drawn. Special tokens are never chosen. With ``cls_id`` and
    ``sep_id`` an example is [CLS] text [SEP] and fills ``max_length`` exactly; without them it is text alone.
    """

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = (0,)
    cls_id: int | None = None
    sep_id: int | None = None
    pad_id: int = 0
    max_length: int = 512
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1 or not 0 <= self.mask_share + self.random_share <= 1:
            raise ValueError(
                f"rate={self.rate}, mask_share={self.mask_share}, random_share={self.random_share}: expected a rate "
                "between 0 and 1, and shares that sum to 1 at most (the rest is left as it is)"
            )
        if (self.cls_id is None) != (self.sep_id is None):
            raise ValueError(f"cls_id={self.cls_id} and sep_id={self.sep_id}: give both or neither")

    @property
    def window(self) -> int:
        """Tokens of text that make one example."""
        return self.max_length - (0 if self.cls_id is None else 2)

    @property
    def predictions(self) -> int:
        """The most tokens of an example that are to be predicted."""
        return max(1, int(np.rint(self.window * self.rate)))

    def __call__(self, tokens: ArrayLike, index: ArrayLike, epoch: ArrayLike = 0, **_: Any) -> Batch:
        """Mask ``tokens`` [batch, window], padded with ``pad_id`` where a window is shorter."""
        tokens, keys = _rows(tokens, index, epoch, self.seed, self.window)
        labels = np.empty((len(tokens), self.max_length), dtype=np.int64)
        if self.cls_id is None or self.sep_id is None:
            labels[:] = tokens
        else:
            labels[:, 0], labels[:, 1:-1], labels[:, -1] = self.cls_id, tokens, self.sep_id
        special = np.zeros(max(self.vocab_size, int(labels.max(initial=0)) + 1, *self.special_ids) + 1, dtype=bool)
        special[list(self.special_ids)] = True
        candidates = np.flatnonzero(~special[labels])  # of all rows, row after row
        count = np.bincount(candidates // self.max_length, minlength=len(tokens))
        picks = np.where(count > 0, np.maximum(np.rint(count * self.rate).astype(np.int64), 1), 0)
        chosen = candidates[choose(key_stream(keys, 0), count, picks)]

        row = chosen // self.max_length
        fate = bits(key_stream(keys, 1)[row], chosen % self.max_length) / 2.0**32  # uniform in [0, 1)
        random_token = below(bits(key_stream(keys, 2)[row], chosen % self.max_length), self.vocab_size)
        inputs = labels.copy()
        was = labels.reshape(-1)[chosen]
        inputs.reshape(-1)[chosen] = np.where(
            fate < self.mask_share,
            self.mask_id,
            np.where(fate < self.mask_share + self.random_share, random_token, was),
        )
        attention_mask = (labels != self.pad_id).astype(np.int64)
        labels = np.full_like(labels, IGNORED)
        labels.reshape(-1)[chosen] = was
        return {"input_ids": inputs, "labels": labels, "attention_mask": attention_mask}


def key_stream(keys: UInts, stream: int) -> UInts:
    """Independent keys for the ``stream``-th use of randomness within an example."""
    return key(stream, keys)


def _segments(keys: UInts, items: list[int], segments: int) -> NDArray[np.int64]:
    """Lengths [len(items), batch, segments] of uniformly random divisions of ``items`` into non-empty segments."""
    every = np.concatenate([key_stream(keys, number) for number in range(len(items))])
    places = np.repeat(np.array(items) - 1, len(keys))  # between any two neighbours there may be a cut
    cuts = np.flatnonzero(choose(every, places, segments - 1)).reshape(len(every), segments - 1)
    edges = np.zeros((len(every), segments + 1), dtype=np.int64)
    edges[:, 1:-1] = cuts - (np.cumsum(places) - places)[:, None] + 1
    edges[:, -1] = places + 1
    return np.diff(edges, axis=1).reshape(len(items), len(keys), segments)


def _rows(tokens: ArrayLike, index: ArrayLike, epoch: ArrayLike, seed: int, window: int) -> tuple[NDArray[Any], UInts]:
    """``tokens`` as a matrix of windows, and one random key per row."""
    keys = key(seed, epoch, np.asarray(index, dtype=np.int64))
    matrix = check_rows(tokens, window)
    if len(keys) != len(matrix):
        raise ValueError(f"{len(matrix)} windows but {len(keys)} indices; give the index of every row")
    return matrix, keys


class Corrupted:
    """Windows of text turned into examples by an objective: `batch(indices, epochs)` gives the arrays of a batch."""

    def __init__(self, windows: Any, objective: Any) -> None:
        if windows.length != objective.window:
            raise ValueError(
                f"windows of {windows.length} tokens, but this objective makes an example out of {objective.window}; "
                f"take shards.windows({objective.window})"
            )
        self.windows, self.objective = windows, objective
        self._packs = hasattr(objective, "joined")  # only the packed objective asks where documents begin

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.example(index, 0)

    def example(self, index: int, epoch: int) -> dict[str, Any]:
        """One example, without the batch dimension."""
        batch = self.batch(np.array([index]), np.array([epoch]))
        return {name: value[0] for name, value in batch.items()}

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> Batch:
        """The examples ``indices``, each as of its epoch."""
        more = {"document_ids": self.windows.document_ids(indices)} if self._packs else {}
        return self.objective(self.windows.batch(indices), index=indices, epoch=epochs, **more)


OBJECTIVES = ("span_corruption", "masked_lm", "causal_lm")


def build_objective(name: str, tokenizer: Any, max_length: int = 512, seed: int = 0, **options: Any) -> Any:
    """The objective ``name`` with the ids of a Hugging Face tokenizer; ``options`` go to its class."""
    if name == "span_corruption":
        sentinels = sum(1 for token in tokenizer.get_vocab() if token.startswith("<extra_id_"))
        if not sentinels:
            raise ValueError(
                "this tokenizer has no <extra_id_…> sentinels, which span corruption needs; "
                "train one with `tokenmix tokenizer`, or load a T5 tokenizer"
            )
        top = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        ids = {"sentinel_id": top, "end_id": tokenizer.eos_token_id, "sentinels": sentinels}
        return SpanCorruption(**ids, inputs_length=max_length, seed=seed, **options)
    if name == "masked_lm":
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "this tokenizer has no mask token, which the masked LM needs; train one with "
                "`tokenmix tokenizer --style bert`, or load a BERT vocabulary"
            )
        special = tuple(sorted(tokenizer.all_special_ids))
        ids = {"mask_id": tokenizer.mask_token_id, "vocab_size": len(tokenizer), "special_ids": special}
        ids |= {"cls_id": tokenizer.cls_token_id, "sep_id": tokenizer.sep_token_id, "pad_id": tokenizer.pad_token_id}
        return MaskedLM(**ids, max_length=max_length, seed=seed, **options)
    if name == "causal_lm":
        return CausalLM(max_length=max_length, **options)
    raise unknown("objective", name, OBJECTIVES)
