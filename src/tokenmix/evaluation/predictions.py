"""A model's predictions and loss on examples, in every form of task.

>>> predictions = predict(model, maker, "text", examples, task)
>>> task.evaluate(predictions, examples)
{'exact_match': 98.4}
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenmix.data.task import Example, Task
from tokenmix.evaluation.decoding import generate
from tokenmix.training.batches import predicted, round_up

BATCH = 128


@contextlib.contextmanager
def evaluating(model: Any, precision: str = "fp32") -> Iterator[torch.device]:
    """Evaluation mode, no gradients, autocast where wanted; the mode is put back."""
    device = next(model.parameters()).device
    was = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield device
    finally:
        model.train(was)


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of similar length, the longest first (what does not fit in memory shows at once)."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def predict(
    model: Any,
    maker: Any,
    form: str,
    examples: Sequence[Example],
    task: Task | None = None,
    *,
    batch_size: int = BATCH,
    precision: str = "fp32",
    max_new_tokens: int | None = None,
    on_batch: Callable[[int], None] = lambda done: None,
    **decoding: Any,
) -> list[Any]:
    """One prediction per example, in the examples' order: text as the task reads it, label, number, answer.

    ``maker`` is what `features_for` gives. ``decoding``: num_beams, length_penalty, do_sample, …
    """
    if form == "text":
        texts = generate_texts(
            model, maker, [e.input for e in examples], batch_size=batch_size, precision=precision,
            max_new_tokens=max_new_tokens or _longest_target(model, maker, examples), on_batch=on_batch, **decoding,
        )  # fmt: skip
        return [task.postprocess(text, example) for text, example in zip(texts, examples)] if task else list(texts)
    if form == "span":
        return _answers(model, maker, examples, batch_size, precision, on_batch)
    features: Any = None if form == "image" else maker.encode(examples)
    lengths = [1] * len(examples) if features is None else [maker.sizes(f)[0] for f in features]
    out: list[Any] = [None] * len(examples)
    with evaluating(model, precision) as device:
        for rows in by_length(lengths, batch_size):
            made = [features[i] for i in rows] if features else maker.encode([examples[i] for i in rows])
            batch = _to(maker.collate(made, _shape(maker, made)), device)
            batch.pop("labels", None)
            logits = model(**batch).logits.float()
            values = logits.squeeze(-1) if logits.shape[-1] == 1 else logits.argmax(-1)
            for i, value in zip(rows, values.tolist()):
                out[i] = value
            on_batch(len(rows))
    return out


def generate_texts(
    model: Any,
    maker: Any,
    texts: Sequence[str],
    *,
    max_new_tokens: int,
    batch_size: int = BATCH,
    precision: str = "fp32",
    on_batch: Callable[[int], None] = lambda done: None,
    **decoding: Any,
) -> list[str]:
    """The model's answers to texts, in their order; batched by length."""
    tokenizer = maker.tokenizer
    inputs = maker.inputs(texts)
    out = [""] * len(inputs)
    if precision == "bf16" and next(model.parameters()).dtype != torch.bfloat16:
        # a decoding step waits for the weights: narrow ones come sooner
        model = copy.deepcopy(model).to(torch.bfloat16)
    with evaluating(model) as device:
        for rows in by_length([len(ids) for ids in inputs], batch_size):
            longest = max(1, *(len(inputs[i]) for i in rows))
            ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
            mask = torch.zeros(len(rows), longest, dtype=torch.long)
            for row, i in enumerate(rows):
                # a decoder goes on where the prompt ends, so its padding stands before it
                place = (
                    slice(longest - len(inputs[i]), None)
                    if model.config.body == "decoder"
                    else slice(0, len(inputs[i]))
                )
                ids[row, place], mask[row, place] = torch.tensor(inputs[i], dtype=torch.long), 1
            room = (
                max_new_tokens
                if model.config.body == "seq2seq"
                else min(max_new_tokens, model.config.max_length - longest)
            )
            made = generate(model, ids.to(device), mask.to(device), max_new_tokens=max(1, room), **decoding)
            for i, text in zip(rows, tokenizer.batch_decode(made, skip_special_tokens=True)):
                out[i] = text
            on_batch(len(rows))
    return out


def _longest_target(model: Any, maker: Any, examples: Sequence[Example]) -> int:
    """Room for the longest target and a quarter more: a wrong answer need not go on to the model's maximum."""
    ids = maker.tokenizer([e.target for e in examples], return_attention_mask=False).input_ids
    return min(model.config.max_length, 5 * max(map(len, ids), default=1) // 4 + 4)


def _answers(
    model: Any, maker: Any, examples: Sequence[Example], batch_size: int, precision: str, on_batch: Any
) -> list[str]:
    from tokenmix.data.windows import best_answers

    windows = maker.windows(examples)
    features = [{"input_ids": w.input_ids, "token_type_ids": w.token_type_ids, "start": 0, "end": 0} for w in windows]
    starts: list[Any] = [None] * len(windows)
    ends: list[Any] = [None] * len(windows)
    with evaluating(model, precision) as device:
        for rows in by_length([len(w.input_ids) for w in windows], batch_size):
            made = [features[i] for i in rows]
            batch = _to(maker.collate(made, _shape(maker, made)), device)
            out = model(**{k: v for k, v in batch.items() if not k.endswith("positions")})
            for i, start, end in zip(
                rows, out.start_logits.float().cpu().numpy(), out.end_logits.float().cpu().numpy()
            ):
                starts[i], ends[i] = start, end
            on_batch(len(rows))
    may_be_empty = any(not example.answers for example in examples)
    answers = best_answers(windows, starts, ends, examples, null_threshold=0.0 if may_be_empty else None)
    return [answer.text for answer in answers]


def mean_loss(
    model: Any,
    examples: Any,
    *,
    limit: int | None = None,
    batch_size: int = BATCH,
    precision: str = "fp32",
    causal: bool = False,
) -> tuple[float, int]:
    """(loss in nats per predicted item, number of items) over `TaskExamples` or `TextExamples`."""
    count = len(examples) if limit is None else min(limit, len(examples))
    sizes = examples.sizes(np.arange(count))
    total = items = 0.0
    takes = inspect.signature(model.forward).parameters
    lean = {"return_logits": False} if "return_logits" in takes else {}  # logits of a vocabulary need not exist at once
    with evaluating(model, precision) as device:
        for rows in by_length(sizes.sum(1).tolist(), batch_size):
            longest = sizes[rows].max(0)
            shape = tuple(min(round_up(n), max(int(n), model.config.max_length)) for n in longest)
            batch = examples.batch(np.array(rows), np.zeros(len(rows), dtype=np.int64), shape)
            if "labels" not in batch and "start_positions" not in batch:
                raise ValueError("these examples carry no labels (a hidden test set?); evaluate on another split")
            n = predicted(batch, causal)
            total += float(model(**_to(batch, device), **lean).loss) * n
            items += n
    return total / max(items, 1), int(items)


def document_losses(
    model: Any, tokenizer: Any, examples: Sequence[Example], *, batch_size: int = 32, precision: str = "fp32",
    on_batch: Callable[[int], None] = lambda done: None,
) -> list[tuple[float, int]]:  # fmt: skip
    """(summed negative log likelihood, tokens) of each document under a causal LM, in pieces of max_length."""
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    pieces: list[tuple[int, list[int]]] = []
    for number, ids in enumerate(tokenizer([e.target for e in examples], add_special_tokens=False).input_ids):
        ids, room = ids + end, model.config.max_length
        pieces += [(number, ids[max(0, start - 1) : start + room - 1]) for start in range(0, len(ids), room - 1)]
    pieces = [piece for piece in pieces if len(piece[1]) > 1]
    totals, counts = [0.0] * len(examples), [0] * len(examples)
    with evaluating(model, precision) as device:
        for rows in by_length([len(ids) for _, ids in pieces], batch_size):
            longest = max(len(pieces[i][1]) for i in rows)
            ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
            mask = torch.zeros(len(rows), longest, dtype=torch.long)
            for row, i in enumerate(rows):
                ids[row, : len(pieces[i][1])], mask[row, : len(pieces[i][1])] = torch.tensor(pieces[i][1]), 1
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits[:, :-1].float()
            targets = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100).to(device)
            losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)
            for i, loss in zip(rows, losses.tolist()):
                totals[pieces[i][0]] += loss
                counts[pieces[i][0]] += len(pieces[i][1]) - 1
            on_batch(len(rows))
    return list(zip(totals, counts))


def _shape(maker: Any, features: Sequence[Any]) -> tuple[int, int]:
    sizes = np.array([maker.sizes(f) for f in features]).max(0)
    return int(sizes[0]), int(sizes[1])


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch.items()}
