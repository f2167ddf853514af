"""Open a run: the model with its head, its tokenizer, and an example of the task it was trained on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from tokenmix.report.look import Inputs

logger = logging.getLogger(__name__)
WORDS = 24  # an example is no longer than this, so that its matrices can be read


def open_run(folder: str | Path) -> tuple[Any, Any]:
    """The model of a run folder, with the head it was saved with, and its tokenizer (None for vision models).

    >>> model, tokenizer = open_run("runs/scan")
    """
    from tokenmix.data.tokenizers import load_tokenizer
    from tokenmix.training.checkpoint import open_weights

    folder = Path(folder)
    model = open_weights(model_class(folder), folder).eval()
    text = model.config.body != "vision" and (folder / "tokenizer.json").exists()
    return model, load_tokenizer(folder) if text else None


def model_class(folder: Path) -> Any:
    """The class of the model that a run folder holds: body and head."""
    from tokenmix.models import create

    settings = folder / "config.json"
    if not settings.exists():
        raise FileNotFoundError(f"no model in {folder}: expected config.json and model.safetensors there")
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"no weights in {folder}: has the run saved a checkpoint yet? expected model.safetensors"
        )
    about = json.loads(settings.read_text(encoding="utf-8"))
    kinds = {kind.__name__: kind for kind in create.HEADS.values()}
    named = (about.get("architectures") or ["TokenmixModel"])[0]
    if about.get("model_type") != "tokenmix" or named not in kinds:
        raise ValueError(
            f"{settings} is not of a tokenmix model (model_type {about.get('model_type')!r}); "
            "tokenmix.from_transformers turns others into one"
        )
    return kinds[named]


def example_of(
    task: str, form: str | None = None, split: str | None = None, data: Any = None
) -> tuple[Inputs, str | None]:
    """Input and target of an example of a task, short enough to read; (None, None) without data."""
    from tokenmix.data.task import get_task

    if task.startswith("shards:"):  # token ids, whose text is elsewhere
        return None, None
    try:
        found = get_task(task)
        form = form if form in found.forms else found.forms[0]
        split = split if split in found.splits else found.default_split
        examples = list(found.load(split, data, form, 64))
    except (OSError, ValueError, KeyError) as error:
        logger.info("no example of %s to look at: %s", task, error)
        return None, None

    if not examples:
        return None, None
    if form == "image":
        return examples[0].image, None

    def words(example: Any) -> int:
        return len(" ".join([example.input, *example.texts, example.question, example.context, example.target]).split())

    fitting = [example for example in examples if words(example) <= 2 * WORDS]
    chosen = max(fitting, key=words) if fitting else min(examples, key=words)
    if form == "classify":
        return tuple(_cut(text) for text in chosen.texts), None
    if form == "span":
        return (_cut(chosen.question), _cut(chosen.context)), None
    if form == "document":
        return _cut(chosen.target), None
    return _cut(chosen.input), _cut(chosen.target)


def _cut(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= WORDS else " ".join(words[:WORDS])
