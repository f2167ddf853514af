"""Models: an expression, a body and sizes, as Hugging Face classes."""

from tokenmix.models.base import TokenmixModel, TokenmixPreTrainedModel
from tokenmix.models.cache import MixingCache
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.create import create_model, register_auto_classes
from tokenmix.models.heads import (
    TokenmixForCausalLM,
    TokenmixForConditionalGeneration,
    TokenmixForImageClassification,
    TokenmixForMaskedLM,
    TokenmixForQuestionAnswering,
    TokenmixForSequenceClassification,
)
from tokenmix.models.presets import Preset, list_presets, preset_config
from tokenmix.models.stack import MixingRecord

register_auto_classes()

__all__ = [
    "MixingCache",
    "MixingRecord",
    "Preset",
    "TokenmixConfig",
    "TokenmixForCausalLM",
    "TokenmixForConditionalGeneration",
    "TokenmixForImageClassification",
    "TokenmixForMaskedLM",
    "TokenmixForQuestionAnswering",
    "TokenmixForSequenceClassification",
    "TokenmixModel",
    "TokenmixPreTrainedModel",
    "create_model",
    "list_presets",
    "preset_config",
]
