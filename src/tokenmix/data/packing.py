"""Packing: many documents in one row of tokens, kept apart by document ids and restarted positions.

>>> tokens, documents = pack([[5, 6], [7, 8, 9]], length=4)
>>> documents.tolist()                                # a document that does not fit goes on in the next row
[[1, 1, 2, 2], [1, 0, 0, 0]]
>>> CausalLM(max_length=4)(tokens, document_ids=documents)["labels"].tolist()
[[-100, 6, -100, 8], [-100, -100, -100, -100]]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Batch = dict[str, NDArray[np.int64]]
IGNORED = -100  # the label that PyTorch's cross entropy leaves out


@dataclass(frozen=True)
class CausalLM:
    """Packed causal LM: windows of joined documents, predicted left to right.

    Documents in one window do not see each other: ``document_ids`` tells them apart, positions restart, and a first
    token, which nothing of its own document precedes, is not predicted (labels are *not* shifted: Hugging Face models
    shift them). ``joined=True`` treats a window as one running text instead.
    """

    max_length: int = 512
    joined: bool = False

    @property
    def window(self) -> int:
        """Tokens of text that make one example."""
        return self.max_length

    def __call__(
        self, tokens: ArrayLike, index: Any = None, epoch: Any = 0, document_ids: ArrayLike | None = None
    ) -> Batch:
        """``document_ids`` [batch, window] as `Windows.document_ids` gives them; none means one document per row.

        Nothing is random here: ``index`` and ``epoch`` are taken so that all objectives are called alike.
        """
        inputs = check_rows(tokens, self.window).astype(np.int64)
        if document_ids is None:
            documents = np.ones_like(inputs)
        else:
            documents = np.asarray(document_ids, dtype=np.int64)
        if self.joined:
            documents = (documents > 0).astype(np.int64)
        position = np.broadcast_to(np.arange(self.window), inputs.shape)
        starts = np.ones(inputs.shape, dtype=bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        position = position - np.maximum.accumulate(np.where(starts, position, 0), axis=1)
        visible = documents > 0
        labels = np.where(visible & ~starts, inputs, IGNORED)
        return {
            "input_ids": inputs,
            "labels": labels,
            "attention_mask": visible.astype(np.int64),
            "position_ids": np.where(visible, position, 0),
            "document_ids": documents,
        }


def pack(documents: Iterable[ArrayLike], length: int, pad_id: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join documents into rows of ``length`` tokens: (tokens, document_ids), both [rows, length]; nothing is lost.

    A document that does not fit goes on in the next row. Document ids count from 1 in every row; 0 marks the padding.

    >>> pack([[5, 6], [7, 8, 9]], length=4)[1].tolist()
    [[1, 1, 2, 2], [1, 0, 0, 0]]
    """
    parts = [np.asarray(document, dtype=np.int64) for document in documents]
    owner = np.repeat(np.arange(1, len(parts) + 1), [len(part) for part in parts])
    rows = -(-len(owner) // length)
    tokens = np.full(rows * length, pad_id, dtype=np.int64)
    tokens[: len(owner)] = np.concatenate(parts) if parts else 0
    ids = np.zeros(rows * length, dtype=np.int64)
    ids[: len(owner)] = owner
    return tokens.reshape(rows, length), number_documents(ids.reshape(rows, length))


def number_documents(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber the documents of each row 1, 2, … in order; 0 (padding) stays 0."""
    new = np.zeros(owner.shape, dtype=np.int64)
    new[:, 1:] = owner[:, 1:] != owner[:, :-1]
    return np.where(owner > 0, np.cumsum(new, axis=1) + 1, 0)


def check_rows(tokens: ArrayLike, window: int) -> NDArray[Any]:
    """``tokens`` as a matrix [batch, window], or an error that says what to read."""
    matrix = np.asarray(tokens)
    if matrix.ndim != 2 or matrix.shape[1] != window:
        raise ValueError(f"tokens have shape {matrix.shape}, expected (batch, {window}); read windows({window})")
    return matrix
