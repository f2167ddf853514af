"""The papers' hyperparameter tables as named training settings: `tokenmix train --preset gmlp-mlm …`.

A preset is a part of a `RunConfig`: what the table states, no more. Options of the run lie above it. Where a table
leaves a choice ({16, 32}, {1e-5, 2e-5, 3e-5}), the middle or larger value stands here and the choice in the comment.

>>> training_preset("gmlp-mlm")["optimizer"]["lr"]
0.0001
"""

from __future__ import annotations

import copy
from typing import Any

from tokenmix.naming import unknown

_GMLP_ADAM = {"name": "adamw", "betas": [0.9, 0.999], "eps": 1e-6}
_NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "inner_dropout": 0.0}
_FINETUNE_DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "inner_dropout": 0.0}
_FINETUNE_ADAM = {**_GMLP_ADAM, "weight_decay": 0.01, "clip": 0.0}
# T5: Adafactor, gradients not clipped by norm (updates are, by 1.0), rate 1/√max(step, 10⁴)
_ADAFACTOR = {"name": "adafactor", "clip": 0.0}
_T5_PRETRAIN = {
    "optimizer": {**_ADAFACTOR, "lr": 1.0},
    "schedule": {"name": "inverse_sqrt", "warmup": 10_000, "ramp": False},
    "model": {"options": {"dropout": 0.0, "z_loss": 1e-4}},
}
_T5_FINETUNE = {
    "optimizer": {**_ADAFACTOR, "lr": 1e-3},
    "schedule": {"name": "constant", "warmup": 0},
    "model": {"options": {"dropout": 0.1}},
}
# Tensor2Tensor's base setting: rate 2.0 · d^-½ · min(1, step / 8000) / √max(step, 8000)
_T2T = {
    "optimizer": {"name": "adamw", "lr": 2.0 * 512**-0.5, "betas": [0.9, 0.997], "eps": 1e-9, "clip": 0.0},
    "schedule": {"name": "inverse_sqrt", "warmup": 8000},
}

PRESETS: dict[str, dict[str, Any]] = {
    # ------------------------------------------------------------------------------------- gMLP, Tables 7, 8 and 9
    "gmlp-imagenet": {
        "data": {"task": "imagenet", "batch_size": 4096, "augment": True},
        "budget": {"epochs": 300},
        "optimizer": {**_GMLP_ADAM, "lr": 1e-3, "weight_decay": 0.05, "clip": 1.0},
        "schedule": {"name": "cosine", "warmup": 10_000},
        "model": {"options": _NO_DROPOUT},  # stochastic depth belongs to the model's preset
    },
    "gmlp-mlm-ablation": {  # Table 8, left: C4/RealNews
        "data": {"task": "realnews", "batch_size": 2048, "max_input": 128},
        "budget": {"steps": 125_000},
        "optimizer": {**_GMLP_ADAM, "lr": 7e-4, "weight_decay": 0.01, "clip": 0.0},
        "schedule": {"name": "linear", "warmup": 10_000},
        "model": {"options": _NO_DROPOUT},
    },
    "gmlp-mlm": {  # Table 8, right: C4/English
        "data": {"task": "c4", "batch_size": 256, "max_input": 512},
        "budget": {"steps": 1_000_000},
        "optimizer": {**_GMLP_ADAM, "lr": 1e-4, "weight_decay": 0.01, "clip": 0.0},
        "schedule": {"name": "linear", "warmup": 10_000},
        "model": {"options": _NO_DROPOUT},
    },
    "gmlp-finetune-glue": {  # SST-2 and MNLI: batch {16, 32}, rate {1e-5, 2e-5, 3e-5}
        "data": {"batch_size": 32, "max_input": 128, "form": "classify"},
        "budget": {"epochs": 5},
        "optimizer": {**_FINETUNE_ADAM, "lr": 2e-5},
        "schedule": {"name": "linear", "warmup": 0.1},
        "model": {"options": _FINETUNE_DROPOUT},
    },
    "gmlp-finetune-squad": {
        "data": {"batch_size": 32, "max_input": 512, "form": "span"},
        "budget": {"steps": 8000},
        "optimizer": {**_FINETUNE_ADAM, "lr": 5e-5},
        "schedule": {"name": "linear", "warmup": 1000},
        "model": {"options": _FINETUNE_DROPOUT},
    },
    # ------------------------------------------------------------------------------------------ Synthesizer, A.1
    "synthesizer-mt": {
        **_T2T,
        "data": {"max_input": 256, "max_target": 256},
        "budget": {"steps": 250_000},
        "model": {"options": {"label_smoothing": 0.1, "dropout": 0.1}},
        "validation": {"beams": 4},
    },
    "synthesizer-lm": {**_T2T, "data": {"task": "lm1b", "max_input": 256}, "budget": {"steps": 300_000}},
    "synthesizer-summarization": {**_T2T, "data": {"batch_size": 128}, "budget": {"steps": 300_000}},
    "synthesizer-dialogue": {**_T2T, "budget": {"steps": 20_000}},
    "synthesizer-c4": {
        **_T5_PRETRAIN,
        "data": {"task": "c4", "batch_size": 128, "max_input": 512},
        "budget": {"steps": 524_288},
    },
    "synthesizer-cotrain": {  # GLUE and SuperGLUE in one model; embeddings and output matrix are kept fixed
        **_T5_FINETUNE,
        "data": {"task": "en_mix", "batch_size": 128, "max_input": 512},
        "budget": {"steps": 100_000},
        "model": {"freeze_embeddings": True, "options": {"dropout": 0.1}},
    },
    "synthesizer-classification": {  # "learning rate 0.05": a factor on warm-up × 1/√max(step, 8000)
        "data": {"batch_size": 128, "max_input": 512, "form": "classify", "vocab_size": 32_000},
        "budget": {"steps": 10_000},
        "optimizer": {"name": "adamw", "lr": 0.05, "clip": 0.0},
        "schedule": {"name": "inverse_sqrt", "warmup": 8000},
    },
    # --------------------------------------------------------------------------------------- Remixer, 3.1 to 3.4
    "remixer-pretrain": {
        **_T5_PRETRAIN,
        "data": {"task": "c4", "batch_size": 128, "max_input": 512},
        "budget": {"steps": 524_288},
    },
    "remixer-superglue": {
        **_T5_FINETUNE,
        "data": {"task": "superglue", "batch_size": 128, "max_input": 512},
        "budget": {"steps": 200_000},
    },
    "remixer-mt": {  # tasks and C4 span corruption together: give the shards of C4 as data.text
        **_T5_PRETRAIN,
        "data": {"task": "en_mix", "batch_size": 128, "max_input": 512},
        "budget": {"steps": 1_000_000},
    },
    "remixer-nli": {**_T5_FINETUNE, "data": {"batch_size": 128, "max_input": 512}, "budget": {"steps": 100_000}},
    "remixer-cogs": {**_T5_FINETUNE, "data": {"task": "cogs", "batch_size": 128}, "budget": {"steps": 50_000}},
    # From scratch, above the paper's result with pretraining: rate 1e-4, no warm-up, clip 1, no early stopping
    "cogs-scratch": {
        "data": {"task": "cogs", "batch_size": 128},
        "budget": {"steps": 50_000},
        "optimizer": {"name": "adamw", "lr": 1e-4, "clip": 1.0},
        "schedule": {"name": "constant", "warmup": 0},
    },
}


def list_training_presets() -> list[str]:
    """Names of all training presets."""
    return list(PRESETS)


def training_preset(name: str) -> dict[str, Any]:
    """The settings of that name, as nested dictionaries for `RunConfig.of`."""
    if name not in PRESETS:
        raise unknown("training preset", name, PRESETS)
    return copy.deepcopy(PRESETS[name])
