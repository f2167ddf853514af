"""From a task's examples to what a model reads: one small class per form, for training, evaluation and prediction.

form       body       head                      a feature holds
text       seq2seq    conditional_generation    input_ids, labels
text       decoder    causal_lm                 input_ids (prompt and target), labels (the target alone)
classify   encoder    sequence_classification   input_ids, token_type_ids, label
span       encoder    question_answering        input_ids, token_type_ids, start, end
image      vision     image_classification      pixels, label
document   any        by objective              see `tokenmix.training.examples`
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenmix.data.task import Example, Task

IGNORED = -100
ENDLESS = 1 << 30  # tokens: no text is cut to it
Feature = dict[str, Any]
HEADS = {
    ("seq2seq", "text"): "conditional_generation",
    ("seq2seq", "document"): "conditional_generation",
    ("decoder", "text"): "causal_lm",
    ("decoder", "document"): "causal_lm",
    ("encoder", "classify"): "sequence_classification",
    ("encoder", "span"): "question_answering",
    ("encoder", "document"): "masked_lm",
    ("vision", "image"): "image_classification",
}
OBJECTIVES = {"seq2seq": "span_corruption", "encoder": "masked_lm", "decoder": "causal_lm"}


def choose_form(task: Task, body: str, form: str | None = None) -> str:
    """The form in which a body can learn a task: the one asked for, else the task's first that fits.

    >>> choose_form(get_task("scan"), "seq2seq")
    'text'
    """
    able = [f for f in task.forms if (body, f) in HEADS]
    if (form is not None and form not in able) or not able:
        asked = f"the form {form!r} of " if form else ""
        bodies = sorted({b for b, f in HEADS if f in ((form,) if form else task.forms)})
        raise ValueError(
            f"a model with body {body!r} cannot learn {asked}task {task.name!r} (forms: {', '.join(task.forms)}); "
            f"take one with body {' or '.join(bodies) or 'of another kind'}"
            + (f", or form {able[0]!r}" if able else "")
        )
    return form or able[0]


def pad(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    """Rows of different lengths as one tensor [rows, length], padded on the right."""
    out = np.full((len(rows), length), value, dtype=np.int64)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return torch.from_numpy(out)


class TextFeatures:
    """Text to text, for a seq2seq body or (prompt, then answer) for a decoder."""

    def __init__(self, tokenizer: Any, body: str, max_input: int, max_target: int) -> None:
        self.tokenizer, self.body, self.max_input, self.max_target = tokenizer, body, max_input, max_target

    def inputs(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of the inputs; a decoder's prompt is not ended."""
        ids = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_input, return_attention_mask=False
        ).input_ids
        return (
            [row[:-1] if row and row[-1] == self.tokenizer.eos_token_id else row for row in ids]
            if self.body == "decoder"
            else ids
        )

    def encode(self, examples: Sequence[Example]) -> list[Feature]:
        sources = self.inputs([example.input for example in examples])
        targets = self.tokenizer(
            [example.target for example in examples],
            truncation=True,
            max_length=self.max_target,
            return_attention_mask=False,
        ).input_ids
        if self.body == "decoder":
            return [
                {"input_ids": (s + t)[: self.max_input], "labels": ([IGNORED] * len(s) + t)[: self.max_input]}
                for s, t in zip(sources, targets)
            ]
        return [{"input_ids": s, "labels": t} for s, t in zip(sources, targets)]

    def collate(self, features: Sequence[Feature], shape: tuple[int, int]) -> dict[str, Tensor]:
        lengths = torch.tensor([len(f["input_ids"]) for f in features])
        return {
            "input_ids": pad([f["input_ids"] for f in features], shape[0], self.tokenizer.pad_token_id),
            "attention_mask": (torch.arange(shape[0]) < lengths[:, None]).long(),
            "labels": pad([f["labels"] for f in features], shape[0] if self.body == "decoder" else shape[1], IGNORED),
        }

    def sizes(self, feature: Feature) -> tuple[int, int]:
        return len(feature["input_ids"]), 0 if self.body == "decoder" else len(feature["labels"])


class ClassFeatures:
    """One label, or number, per text or pair of texts."""

    def __init__(self, tokenizer: Any, max_input: int, segments: int, regression: bool) -> None:
        self.tokenizer, self.max_input, self.segments, self.regression = tokenizer, max_input, segments, regression

    def encode(self, examples: Sequence[Example]) -> list[Feature]:
        first = [example.texts[0] for example in examples]
        pairs = [[example.texts[1] for example in examples]] if len(examples[0].texts) > 1 else []
        encoded = self.tokenizer(first, *pairs, truncation=True, max_length=self.max_input, return_token_type_ids=True)
        return [
            {"input_ids": ids, "token_type_ids": types, "label": example.label}
            for ids, types, example in zip(encoded.input_ids, encoded.token_type_ids, examples)
        ]

    def collate(self, features: Sequence[Feature], shape: tuple[int, int]) -> dict[str, Tensor]:
        batch = _encoder_inputs(features, shape[0], self.tokenizer.pad_token_id, self.segments)
        if all(feature["label"] is not None for feature in features):
            batch["labels"] = torch.tensor(
                [f["label"] for f in features], dtype=torch.float if self.regression else torch.long
            )
        return batch

    def sizes(self, feature: Feature) -> tuple[int, int]:
        return len(feature["input_ids"]), 0


class SpanFeatures:
    """Where the answer to a question stands in its context; long contexts are cut into windows."""

    def __init__(self, tokenizer: Any, max_input: int, segments: int) -> None:
        self.tokenizer, self.max_input, self.segments = tokenizer, max_input, segments

    def windows(self, examples: Sequence[Example]) -> list[Any]:
        from tokenmix.data.windows import make_windows

        overlap, question = min(128, self.max_input // 4), min(64, self.max_input // 4)
        return make_windows(examples, self.tokenizer, self.max_input, overlap=overlap, max_question=question)

    def encode(self, examples: Sequence[Example]) -> list[Feature]:
        return [
            {"input_ids": w.input_ids, "token_type_ids": w.token_type_ids, "start": w.start, "end": w.end}
            for w in self.windows(examples)
        ]

    def collate(self, features: Sequence[Feature], shape: tuple[int, int]) -> dict[str, Tensor]:
        batch = _encoder_inputs(features, shape[0], self.tokenizer.pad_token_id, self.segments)
        batch["start_positions"] = torch.tensor([f["start"] for f in features])
        batch["end_positions"] = torch.tensor([f["end"] for f in features])
        return batch

    def sizes(self, feature: Feature) -> tuple[int, int]:
        return len(feature["input_ids"]), 0


class ImageFeatures:
    """Pixels in [−1, 1], resized to what the model takes, and a label."""

    def __init__(self, image_size: int, channels: int, unit: bool = False) -> None:
        self.image_size, self.channels = image_size, channels
        self.unit = unit  # leave pixels in [0, 1], for augmentation on the device

    def encode(self, examples: Sequence[Example]) -> list[Feature]:
        return [{"pixels": self.pixels(example.image), "label": example.label} for example in examples]

    def pixels(self, image: np.ndarray) -> Tensor:
        """[channels, size, size] out of [height, width(, 3)] in uint8."""
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        pixels = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
        if pixels.shape[0] != self.channels:
            pixels = pixels.mean(0, keepdim=True).expand(self.channels, -1, -1)
        if pixels.shape[1:] != (self.image_size, self.image_size):
            size = (self.image_size, self.image_size)
            pixels = torch.nn.functional.interpolate(pixels[None], size, mode="bilinear", antialias=True)[0]
        return pixels.contiguous() if self.unit else normalized(pixels)

    def collate(self, features: Sequence[Feature], shape: tuple[int, int]) -> dict[str, Tensor]:
        batch = {"pixel_values": torch.stack([f["pixels"] for f in features])}
        if all(feature["label"] is not None for feature in features):
            batch["labels"] = torch.tensor([f["label"] for f in features])
        return batch

    def sizes(self, feature: Feature) -> tuple[int, int]:
        return 1, 0


def too_long(maker: Any, examples: Sequence[Example]) -> list[tuple[str, float, int]]:
    """(what, share that is longer than the model takes, tokens that it takes) of inputs and targets of texts.

    Questions' contexts are cut into windows, of which none is lost.
    """
    if not isinstance(maker, (TextFeatures, ClassFeatures)):
        return []
    whole: Any = copy.copy(maker)
    most = [maker.max_input, getattr(maker, "max_target", maker.max_input)]
    whole.max_input = whole.max_target = ENDLESS
    sizes = np.array([whole.sizes(feature) for feature in whole.encode(examples)])
    shares = (sizes > most).mean(0)
    return [(what, float(share), limit) for what, share, limit in zip(("inputs", "targets"), shares, most)]


def normalized(pixels: Tensor) -> Tensor:
    """From [0, 1] to [−1, 1]."""
    return pixels * 2 - 1


def _encoder_inputs(features: Sequence[Feature], length: int, padding: int, segments: int) -> dict[str, Tensor]:
    lengths = torch.tensor([len(f["input_ids"]) for f in features])
    batch = {
        "input_ids": pad([f["input_ids"] for f in features], length, padding),
        "attention_mask": (torch.arange(length) < lengths[:, None]).long(),
    }
    if segments > 1:
        batch["token_type_ids"] = pad([f["token_type_ids"] for f in features], length, 0)
    return batch


def features_for(
    form: str, config: Any, tokenizer: Any, task: Task, max_input: int | None = None, max_target: int | None = None
) -> Any:
    """The feature maker of a form for a model's configuration.

    >>> features_for("text", model.config, tokenizer, get_task("scan")).encode(examples)[0]["labels"]
    """
    longest = min(max_input or config.max_length, config.max_length)
    if form == "text":
        return TextFeatures(tokenizer, config.body, longest, min(max_target or config.max_length, config.max_length))
    if form == "classify":
        return ClassFeatures(tokenizer, longest, config.segments, task.regression)
    if form == "span":
        return SpanFeatures(tokenizer, longest, config.segments)
    if form == "image":
        return ImageFeatures(config.image_size, config.channels)
    raise ValueError(
        f"form {form!r} has no features of its own; text for pretraining is read by tokenmix.training.examples"
    )
