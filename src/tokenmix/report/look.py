"""Look into a model: run it on one text or image and keep its mixing matrices with the names of the tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenmix.mixers import parse
from tokenmix.mixers.expression import Mix, Term

#: sublayers whose matrix is learned and the same for every input
PERSISTENT = {"gmlp", "token_mlp", "remix", "random", "factorized_random", "relative", "fourier", "lightconv"}
#: a text, a pair of texts, token ids, a picture (file, array or pixels), or None for what needs no input
Inputs = str | Path | Sequence[Any] | Tensor | np.ndarray | None


@dataclass(frozen=True, eq=False)
class Matrix:
    """The matrix of one sublayer: who draws how much from whom."""

    stack: str  #: "encoder" or "decoder"
    layer: int  #: counted from 1
    sublayer: int
    name: str  #: the sublayer's expression, "cross: dot" for cross-attention
    kind: str  #: "mixing", or "attention" for aMLP's tiny attention
    values: np.ndarray  #: [heads, rows, columns]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def cross(self) -> bool:
        return self.name.startswith("cross:")

    @property
    def heads(self) -> int:
        return self.values.shape[0]

    @property
    def mean(self) -> np.ndarray:
        """The mean over the heads [rows, columns]."""
        return self.values.mean(0)

    @property
    def label(self) -> str:
        """What it is, without the layer: `encoder · random + dot`."""
        return f"{self.stack} · {self.name}" + (" · tiny attention" if self.kind == "attention" else "")

    def terms(self) -> tuple[str, ...]:
        """Names of the parts: ("random", "dot") for `random + dot`, ("gmlp",) for `gmlp(attention=16)`."""
        expression = parse(self.name.removeprefix("cross: "))
        return tuple(term.name for term in (expression.terms if isinstance(expression, Mix) else (expression,)))  # type: ignore[attr-defined]

    @property
    def attends(self) -> bool:
        """Whether it is an attention sublayer: rows sum to 1, logits are a sum of terms."""
        return isinstance(parse(self.name.removeprefix("cross: ")), (Term, Mix))

    @property
    def persistent(self) -> bool:
        """Whether the matrix is learned and the same for every input."""
        return self.kind == "mixing" and set(self.terms()) <= PERSISTENT


@dataclass(frozen=True, eq=False)
class Sight:
    """What was seen: the matrices in order of the sublayers, and the tokens."""

    matrices: list[Matrix]
    tokens: tuple[str, ...]
    target: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None  #: side of the square of patches, and tokens before them
    feed: dict[str, Tensor] = field(default_factory=dict)  #: what the model was given

    def pick(self, stack: str | None = None, **wanted: Any) -> list[Matrix]:
        """Matrices of a stack whose attributes (`kind`, `cross`, `attends`, `persistent`) are as wanted."""
        return [
            matrix
            for matrix in self.matrices
            if stack in (None, matrix.stack) and all(getattr(matrix, key) == value for key, value in wanted.items())
        ]


def look(
    model: Any, inputs: Inputs = None, *, tokenizer: Any = None, target: str | None = None, length: int | None = None
) -> Sight:
    """Run a model on one example and keep every mixing matrix.

    Args:
        inputs: a text or a pair of texts (with `tokenizer`), token ids, or, for a vision model, an image file, an array
            [height, width, 3] or pixels; None for an empty input of `length` tokens, enough for persistent mixers.
        target: what a seq2seq model answers; by default it generates an answer.

    >>> look(model, "jump twice", tokenizer=tokenizer).matrices[0].values.shape
    (4, 3, 3)
    """
    config = model.config
    side = config.image_size // config.patch_size if config.body == "vision" else 0
    if side:
        feed = {"pixel_values": _pixels(config, inputs)}
        offset = int(config.pool == "cls")
        tokens = ("<cls>",) * offset + tuple(f"{i + 1},{j + 1}" for i in range(side) for j in range(side))
        return Sight(_run(model, feed, tokens, tokens), tokens, grid=(side, offset), feed=feed)
    ids, segments, tokens = _tokens(config, inputs, tokenizer, length)
    if config.body == "decoder" and target is not None and tokenizer is not None:  # prompt and answer are one text
        more = tokenizer(target, truncation=True, max_length=config.max_length).input_ids
        ids = torch.cat([ids, torch.tensor([more], dtype=torch.long)], 1)[:, : config.max_length]
        tokens = names(ids[0].tolist(), tokenizer)
    feed = {"input_ids": ids}
    if segments is not None and config.segments > 1:
        feed["token_type_ids"] = segments
    answer: tuple[str, ...] = ()
    if config.body == "seq2seq":
        answers = _answer(model, feed, tokenizer, target, inputs is None)
        feed["decoder_input_ids"] = answers
        answer = names(answers[0].tolist(), tokenizer)
    return Sight(_run(model, feed, tokens, answer), tokens, answer, feed=feed)


def again(model: Any, sight: Sight) -> Sight:
    """Another model's matrices for the same input."""
    return replace(sight, matrices=_run(model, sight.feed, sight.tokens, sight.target))


def fresh(model: Any, seed: int = 0) -> Any:
    """A model of the same configuration as it was before training, weights drawn with ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(copy.deepcopy(model.config))


def names(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """Tokens as a reader knows them; numbers without a tokenizer."""
    if tokenizer is None:
        return tuple(str(number) for number in ids)
    plain = tokenizer.convert_ids_to_tokens(list(ids))
    read = [tokenizer.decode([number]).strip() for number in ids]
    return tuple(text or str(token) for text, token in zip(read, plain))


@torch.no_grad()
def _run(model: Any, feed: dict[str, Tensor], tokens: tuple[str, ...], target: tuple[str, ...]) -> list[Matrix]:
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        records = model(**{name: tensor.to(device) for name, tensor in feed.items()}, return_mixing=True).mixing
    finally:
        model.train(training)
    found = []
    for record in records:
        own = target if record.stack == "decoder" and target else tokens
        asked = tokens if record.name.startswith("cross:") else own
        for kind, values in record.matrices.items():
            array = values[0].detach().float().cpu().numpy().copy()  # not the weights themselves
            place = (record.stack, record.layer + 1, record.sublayer, record.name, kind)
            found.append(Matrix(*place, array, own, asked))
    return found


def _tokens(
    config: Any, inputs: Inputs, tokenizer: Any, length: int | None
) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """Ids [1, length], segments if the tokenizer has them, and names."""
    if inputs is None:
        count = min(length or config.max_length, config.max_length)
        return torch.zeros(1, count, dtype=torch.long), None, tuple(str(place + 1) for place in range(count))
    if isinstance(inputs, Path):
        raise ValueError(f"a model with the body {config.body!r} reads text, not the image {str(inputs)!r}")
    texts: Any = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, Tensor) and all(isinstance(text, str) for text in texts):
        if tokenizer is None:
            raise ValueError("a text needs a tokenizer: pass tokenizer=…, or token ids instead of the text")
        if not 1 <= len(texts) <= 2:
            raise ValueError(f"expected a text or a pair of texts; got {len(texts)}")
        encoded = tokenizer(*texts, truncation=True, max_length=config.max_length)
        row, kinds = encoded["input_ids"], encoded.get("token_type_ids")
        if config.body == "decoder" and row and row[-1] == tokenizer.eos_token_id:
            row = row[:-1]  # a prompt goes on
        if not row:
            raise ValueError("the text has no tokens; give one with at least a word")
        segments = None if kinds is None else torch.tensor([kinds])
        return torch.tensor([row]), segments, names(row, tokenizer)
    ids = torch.as_tensor(inputs).long()
    ids = ids[None] if ids.dim() == 1 else ids[:1]
    return ids, None, names(ids[0].tolist(), tokenizer)


def _answer(model: Any, feed: dict[str, Tensor], tokenizer: Any, target: str | None, empty: bool) -> Tensor:
    """Decoder inputs [1, length]: the start token and the answer, given or generated."""
    config = model.config
    start = torch.tensor([[config.decoder_start_token_id]])
    if empty:
        return start.expand(1, feed["input_ids"].shape[1])
    if target is not None:
        if tokenizer is None:
            raise ValueError("a target text needs a tokenizer: pass tokenizer=…")
        row = tokenizer(target, truncation=True, max_length=config.max_length).input_ids
        return torch.cat([start, torch.tensor([row], dtype=torch.long)], 1)[:, : config.max_length]
    device, room = next(model.parameters()).device, max(1, min(64, config.max_length - 1))
    if not hasattr(model, "generate"):
        return start
    with torch.no_grad():
        made = model.generate(feed["input_ids"].to(device), max_new_tokens=room, do_sample=False, num_beams=1)
    return made[:1].cpu()


def _pixels(config: Any, inputs: Inputs) -> Tensor:
    if inputs is None:
        return torch.zeros(1, config.channels, config.image_size, config.image_size)
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return inputs[None] if inputs.dim() == 3 else inputs[:1]
    from tokenmix.data.tasks.images import open_image
    from tokenmix.training.features import ImageFeatures

    image = np.asarray(inputs) if isinstance(inputs, (Tensor, list)) else inputs
    if isinstance(image, (str, Path)):
        try:
            image = open_image(image)
        except OSError as error:
            raise ValueError(f"cannot read the image {str(inputs)!r}: {error}") from error
    return ImageFeatures(config.image_size, config.channels).pixels(np.asarray(image))[None]
