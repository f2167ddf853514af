"""Ask a trained model: texts in, answers out, whatever its head is.

>>> answer = Answerer("runs/a")
>>> answer(["jump twice"])
['I_JUMP I_JUMP']
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tokenmix.data.task import Example
from tokenmix.evaluation.evaluate import open_checkpoint
from tokenmix.evaluation.predictions import generate_texts, predict
from tokenmix.training.features import ClassFeatures, SpanFeatures, TextFeatures


class Answerer:
    """A checkpoint that answers lines of text.

    Args:
        path: run, checkpoint or Hugging Face folder.
        decoding: num_beams, length_penalty, do_sample, temperature, top_p.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "auto",
        max_new_tokens: int | None = None,
        seed: int = 0,
        **decoding: Any,
    ) -> None:
        self.checkpoint = open_checkpoint(path, device)
        self.decoding, self.max_new_tokens = decoding, max_new_tokens
        config, tokenizer = self.checkpoint.model.config, self.checkpoint.tokenizer
        form = next((f for f in self.checkpoint.forms if f in ("text", "classify", "span")), None)
        if form is None:
            raise ValueError(f"{path} answers no text: it was trained for {' and '.join(self.checkpoint.forms)}")
        self.form = form
        self.maker: Any
        if form == "text":
            if self.checkpoint.precision == "bf16":  # once, not with every call
                self.checkpoint.model.to(torch.bfloat16)
            self.maker = TextFeatures(tokenizer, config.body, config.max_length, config.max_length)
        elif form == "classify":
            self.maker = ClassFeatures(tokenizer, config.max_length, config.segments, config.num_labels == 1)
        else:
            self.maker = SpanFeatures(tokenizer, config.max_length, config.segments)
        torch.manual_seed(seed)

    def __call__(self, lines: Sequence[str]) -> list[Any]:
        """One answer per line. Pairs of texts, and question and context, have a tab between them."""
        if isinstance(lines, str):
            raise ValueError(f"lines are a list of texts; got one text, {lines[:60]!r}: give [text]")
        if not lines:
            return []
        model, precision = self.checkpoint.model, self.checkpoint.precision
        if self.form == "text":
            longest = self.max_new_tokens or model.config.max_length
            return generate_texts(
                model, self.maker, lines, max_new_tokens=longest, precision=precision, **self.decoding
            )
        if self.form == "classify":
            examples = [Example(texts=tuple(line.split("\t"))) for line in lines]
            found = []
            for example in examples:  # pairs and single texts may stand in one file
                found += predict(model, self.maker, "classify", [example], precision=precision)
            return [model.config.id2label[f] if isinstance(f, int) else f for f in found]
        examples = []
        for line in lines:
            question, tab, context = line.partition("\t")
            if not tab:
                raise ValueError(f"{line[:60]!r}: expected QUESTION, a tab and CONTEXT")
            examples.append(Example(question=question, context=context, answers=("",)))
        return predict(model, self.maker, "span", examples, precision=precision)
