"""Weights from elsewhere: Hugging Face's T5, BERT and FNet, and timm's gMLP, MLP-Mixer and ViT."""

from tokenmix.models.convert.huggingface import from_transformers, to_transformers
from tokenmix.models.convert.timm import from_timm

__all__ = ["from_timm", "from_transformers", "to_transformers"]
