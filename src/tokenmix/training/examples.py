"""What a run learns from: examples by index, with their sizes, made into padded batches on request.

Three kinds, one interface: a task's examples, tokenized once; windows of text under a pretraining objective; a mixture
of both. Each answers

    locate(positions, seed)          which (indices, epochs) stand at these places of the endless stream
    sizes(indices)                   [n, 2]: input and target tokens of each
    batch(indices, epochs, shape)    tensors, padded to shape (input length, target length)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmix.data.mixtures import Mixture
from tokenmix.data.objectives import Corrupted, build_objective
from tokenmix.data.packing import IGNORED, number_documents
from tokenmix.data.randomness import key, permute
from tokenmix.data.task import Example, LazyExamples

logger = logging.getLogger(__name__)
Ints = NDArray[np.int64]
MOST_CHARACTERS = 500_000_000  # of text held in memory; more belongs into shards


class TaskExamples:
    """A task's examples as features; images stay unread until their turn."""

    def __init__(self, examples: Sequence[Example], features: Any) -> None:
        if not len(examples):
            raise ValueError("there are no examples to learn from")
        self.maker = features
        self.lazy = examples if isinstance(examples, LazyExamples) else None
        self.features: list[dict[str, Any]] = []
        if self.lazy is None:
            for start in range(0, len(examples), 4096):
                self.features += [_compact(f) for f in features.encode(examples[start : start + 4096])]
            self._sizes = np.array([features.sizes(f) for f in self.features], dtype=np.int64)
        else:
            self._sizes = np.tile(np.array([1, 0], dtype=np.int64), (len(examples), 1))

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.features[index] if self.lazy is None else self.maker.encode([self.lazy[index]])[0]

    def locate(self, positions: Ints, seed: int) -> tuple[Ints, Ints]:
        return shuffled(positions, len(self), seed)

    def sizes(self, indices: Ints | None = None) -> Ints:
        return self._sizes if indices is None else self._sizes[indices]

    def batch(self, indices: Ints, epochs: Ints, shape: tuple[int, int]) -> dict[str, Tensor]:
        return self.maker.collate([self[int(index)] for index in indices], shape)


class TextExamples:
    """Windows of text under an objective: span corruption, masked LM or causal LM."""

    def __init__(self, windows: Any, objective: Any) -> None:
        self.corrupted = Corrupted(windows, objective)
        if not len(windows):
            raise ValueError(
                f"the text is shorter than one window of {objective.window} tokens; take a smaller max_input"
            )
        first = self.corrupted.example(0, 0)
        targets = len(first["labels"]) if len(first["labels"]) != len(first["input_ids"]) else 0
        self._size = np.array([len(first["input_ids"]), targets], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.corrupted)

    def locate(self, positions: Ints, seed: int) -> tuple[Ints, Ints]:
        return shuffled(positions, len(self), seed)

    def sizes(self, indices: Ints | None = None) -> Ints:
        return np.broadcast_to(self._size, (len(self) if indices is None else len(indices), 2))

    def batch(self, indices: Ints, epochs: Ints, shape: tuple[int, int]) -> dict[str, Tensor]:
        arrays = self.corrupted.batch(indices, epochs)
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items() if name != "position_ids"}
        if most := getattr(self.corrupted.objective, "predictions", None):  # so many columns hold every label
            tensors["predicted_positions"] = torch.sort(tensors["labels"] == IGNORED, stable=True).indices[:, :most]
        return tensors


class MixtureExamples:
    """Several tasks, and text if wanted, in one endless stream at the mixture's rates."""

    def __init__(self, components: Mapping[str, TaskExamples | Corrupted], collate: Any, **options: Any) -> None:
        self.mixture = Mixture(components, **options)
        self.collate = collate
        self._component_sizes = [_component_sizes(self.mixture.components[name]) for name in self.mixture.names]

    def __len__(self) -> int:
        return len(self.mixture)

    def locate(self, positions: Ints, seed: int) -> tuple[Ints, Ints]:
        return positions, np.zeros_like(positions)

    def sizes(self, indices: Ints | None = None) -> Ints:
        if indices is None:
            return np.concatenate(self._component_sizes)
        component, index, _ = self.mixture.locate(indices)
        return np.stack([self._component_sizes[c][i] for c, i in zip(component, index)])

    def batch(self, indices: Ints, epochs: Ints, shape: tuple[int, int]) -> dict[str, Tensor]:
        return self.collate(self.mixture.batch(indices), shape)


class MemoryWindows:
    """Tokens in memory as consecutive windows, with the calls of `TokenShards.windows`."""

    def __init__(self, documents: Iterable[Sequence[int]], length: int) -> None:
        parts = [np.asarray(document, dtype=np.int32) for document in documents]
        owner = np.repeat(np.arange(1, len(parts) + 1), [len(part) for part in parts])
        whole = len(owner) // length * length
        tokens = np.concatenate(parts)[:whole] if parts else np.empty(0, dtype=np.int32)
        self.length = length
        self.tokens, self.owner = tokens.reshape(-1, length), owner[:whole].reshape(-1, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, indices: Any) -> NDArray[Any]:
        return self.tokens[np.asarray(indices)].astype(np.int64)

    def document_ids(self, indices: Any) -> Ints:
        return number_documents(self.owner[np.asarray(indices)])


def text_examples(
    documents: Iterable[Example], tokenizer: Any, objective: str, max_length: int, seed: int = 0
) -> TextExamples:
    """Documents of a task under an objective, tokenized in memory."""
    texts, characters = [], 0
    for document in documents:
        texts.append(document.target)
        characters += len(document.target)
        if characters > MOST_CHARACTERS:
            raise ValueError(
                f"more than {MOST_CHARACTERS:,} characters of text: write them into shards with `tokenmix prepare` and "
                "train with task shards:FOLDER, or set data.limit"
            )
    made = make_objective(objective, tokenizer, max_length, seed)
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False).input_ids if texts else []
    return TextExamples(MemoryWindows((row + end for row in ids), made.window), made)


def make_objective(name: str, tokenizer: Any, max_length: int, seed: int = 0) -> Any:
    """`build_objective`, and `joined_causal_lm`: a window is one running text, so that every batch has one shape."""
    if name == "joined_causal_lm":
        return build_objective("causal_lm", tokenizer, max_length, seed, joined=True)
    return build_objective(name, tokenizer, max_length, seed)


def shuffled(positions: Ints, size: int, seed: int) -> tuple[Ints, Ints]:
    """(indices, epochs) at places of an endless stream that goes through ``size`` examples in a new order each epoch.

    >>> indices, epochs = shuffled(np.arange(6), size=3, seed=0)
    >>> sorted(indices[:3].tolist()), epochs.tolist()
    ([0, 1, 2], [0, 0, 0, 1, 1, 1])
    """
    epochs, places = np.divmod(positions, size)
    return permute(places, size, key(seed, epochs)), epochs


def _component_sizes(component: Any) -> Ints:
    if isinstance(component, TaskExamples):
        return component.sizes()
    first = component.example(0, 0)
    return np.broadcast_to(np.array([len(first["input_ids"]), len(first["labels"])]), (len(component), 2))


def _compact(feature: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.asarray(value, dtype=np.int32) if isinstance(value, list) else value for name, value in feature.items()
    }
