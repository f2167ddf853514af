"""From a preset's name, a configuration or bare options to a model."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from tokenmix.models import heads
from tokenmix.models.base import TokenmixModel, TokenmixPreTrainedModel
from tokenmix.models.config import NOT_OPTIONS, TokenmixConfig
from tokenmix.models.presets import preset_config
from tokenmix.naming import unknown

HEADS: dict[str, type[TokenmixPreTrainedModel]] = {
    "conditional_generation": heads.TokenmixForConditionalGeneration,
    "causal_lm": heads.TokenmixForCausalLM,
    "masked_lm": heads.TokenmixForMaskedLM,
    "sequence_classification": heads.TokenmixForSequenceClassification,
    "question_answering": heads.TokenmixForQuestionAnswering,
    "image_classification": heads.TokenmixForImageClassification,
    "none": TokenmixModel,
}
PRETRAINING = {
    "seq2seq": "conditional_generation",
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "vision": "image_classification",
}


def create_model(
    preset_or_config: str | TokenmixConfig, *, head: str | None = None, **overrides: Any
) -> TokenmixPreTrainedModel:
    """Build a model with fresh weights.

    Args:
        preset_or_config: a preset's name (`tokenmix models` lists them) or a :class:`TokenmixConfig`.
        head: "conditional_generation", "causal_lm", "masked_lm", "sequence_classification", "question_answering",
            "image_classification" or "none"; by default what the body is pretrained with.
        overrides: options of the configuration to change.

    >>> model = create_model("remixer-tiny", layer="random + dot | remix(alpha=0.3)", dropout=0.1)
    """
    if isinstance(preset_or_config, str):
        config = preset_config(preset_or_config, **overrides)
    elif isinstance(preset_or_config, TokenmixConfig):
        config = changed(preset_or_config, overrides) if overrides else preset_or_config
    else:
        raise TypeError(
            f"create_model takes a preset's name or a TokenmixConfig; got {type(preset_or_config).__name__}"
        )
    if head is None:
        head = PRETRAINING[config.body]
    elif head not in HEADS:
        raise unknown("head", head, HEADS)
    return HEADS[head](config)


def changed(config: TokenmixConfig, overrides: dict[str, Any]) -> TokenmixConfig:
    """The configuration with some options changed; what followed from a changed option follows it again.

    A decoder that took its layer from the encoder still does when `layer` changes; new `num_labels` bring new names.
    """
    options = plain(config)
    if "num_labels" in overrides and "id2label" not in overrides:
        del options["id2label"], options["label2id"]
    derived = [name for name in options if getattr(TokenmixConfig, name, 0) is None and options[name] is not None]
    for name in derived:
        if getattr(TokenmixConfig(**{**options, name: None}), name) == options[name]:
            options[name] = None
    return TokenmixConfig(**{**options, **overrides})


def plain(config: TokenmixConfig) -> dict[str, Any]:
    """The options of a configuration as keyword arguments."""
    options = {name: getattr(config, name) for name in TokenmixConfig.__annotations__ if name not in NOT_OPTIONS}
    if config.body == "vision":
        options.pop("max_length")
    return {**options, "id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}


def register_auto_classes() -> None:
    """Make `AutoModel…` open what tokenmix saved."""
    AutoConfig.register("tokenmix", TokenmixConfig, exist_ok=True)
    for auto, model in (
        (AutoModel, TokenmixModel),
        (AutoModelForSeq2SeqLM, heads.TokenmixForConditionalGeneration),
        (AutoModelForCausalLM, heads.TokenmixForCausalLM),
        (AutoModelForMaskedLM, heads.TokenmixForMaskedLM),
        (AutoModelForSequenceClassification, heads.TokenmixForSequenceClassification),
        (AutoModelForQuestionAnswering, heads.TokenmixForQuestionAnswering),
        (AutoModelForImageClassification, heads.TokenmixForImageClassification),
    ):
        auto.register(TokenmixConfig, model, exist_ok=True)
