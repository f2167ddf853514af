"""Hugging Face's own tools work unchanged: `Trainer`, the Auto classes, `generate`."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainingArguments

from tokenmix import create_model, list_presets
from tokenmix.models import preset_config

SIZES = {"d_model": 32, "d_ff": 64, "heads": 2, "layers": 1, "vocab_size": 40, "max_length": 16}


def rows(head: str) -> list[dict[str, Any]]:
    """A few examples that any model can learn by heart, of different lengths where the head allows."""
    torch.manual_seed(1)
    examples: list[dict[str, Any]] = []
    for i in range(8):
        ids = torch.randint(2, 40, (10,))
        mask = (torch.arange(10) < 10 - i % 3).long()
        example = {"input_ids": ids * mask, "attention_mask": mask}
        if head == "image_classification":
            example = {"pixel_values": torch.full((1, 8, 8), i % 3 - 1.0), "labels": i % 3}
        elif head == "sequence_classification":
            example["labels"] = i % 2
        elif head == "question_answering":
            example |= {"start_positions": i % 4, "end_positions": i % 4 + 2}
        else:
            example["labels"] = torch.where(mask.bool(), ids, -100)
        examples.append(example)
    return examples


def model_for(head: str) -> Any:
    if head == "image_classification":
        sizes = {"image_size": 8, "patch_size": 4, "channels": 1, "d_model": 32, "d_ff": 64, "layers": 1}
        return create_model("gmlp-vision-tiny", num_labels=3, **sizes)
    preset = {
        "conditional_generation": "remixer-tiny",
        "causal_lm": "lm-tiny",
        "masked_lm": "gmlp-tiny",
        "sequence_classification": "bert-tiny",
        "question_answering": "amlp-tiny",
    }[head]
    return create_model(preset, head=head, **SIZES)


AUTO = {
    "conditional_generation": "AutoModelForSeq2SeqLM",
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "image_classification": "AutoModelForImageClassification",
}


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.values.append(logs["loss"])


@pytest.mark.parametrize("head", AUTO)
def test_trainer_lowers_the_loss_and_auto_classes_open_what_it_saved(head: str, tmp_path: Path) -> None:
    model, losses, data = model_for(head), Losses(), rows(head)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=12, learning_rate=1e-2, logging_steps=1,
        lr_scheduler_type="constant", report_to=[], save_strategy="no", eval_strategy="no", use_cpu=True, seed=0,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[losses])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.8 * before
    assert losses.values[-1] < losses.values[0]
    trainer.save_model(str(tmp_path / "saved"))
    assert {file.suffix for file in (tmp_path / "saved").iterdir()} <= {".json", ".safetensors", ".bin"}
    opened = getattr(transformers, AUTO[head]).from_pretrained(tmp_path / "saved").eval()
    assert type(opened) is type(model)
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in data]) for name in data[0]}
    with torch.no_grad():
        first, second = model.eval()(**batch), opened(**batch)
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("body", ["seq2seq", "encoder", "decoder", "vision"])
def test_auto_model_opens_the_bare_body(body: str, tmp_path: Path) -> None:
    preset = {"seq2seq": "t5-v1.1-tiny", "encoder": "bert-tiny", "decoder": "lm-tiny", "vision": "vit-tiny"}[body]
    model = create_model(preset, head="none").eval()
    model.save_pretrained(tmp_path)
    opened = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert type(opened) is type(model)
    for (name, one), two in zip(model.state_dict().items(), opened.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_a_body_takes_its_weights_from_a_model_with_a_head(tmp_path: Path) -> None:
    pretrained = create_model("bert-tiny", pooler=True)
    pretrained.save_pretrained(tmp_path)
    finetuned = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(finetuned.model.embed.tokens.weight, pretrained.model.embed.tokens.weight)
    assert finetuned.classifier.weight.shape == (3, 64)


GENERATIVE = [name for name in list_presets("*-tiny") if preset_config(name).body in ("seq2seq", "decoder")]


@pytest.mark.parametrize("beams", [1, 3], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", GENERATIVE)
def test_generate_warns_about_nothing(name: str, beams: int, caplog: pytest.LogCaptureFixture) -> None:
    model = create_model(name, layers=1).eval()
    ids = torch.randint(2, 500, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # a prompt is padded on the left
    logger = logging.getLogger("transformers")
    propagate, logger.propagate = logger.propagate, True
    try:
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, num_beams=beams, do_sample=False)
    finally:
        logger.propagate = propagate
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    prompt = 1 if model.config.is_encoder_decoder else ids.shape[1]
    assert out.shape[0] == 2
    assert prompt < out.shape[1] <= prompt + 6
