"""`tokenmix.figures`: the papers' figures for one's own model. See :mod:`tokenmix.report.figures`.

>>> import tokenmix
>>> tokenmix.figures.remixer_memory(model, "jump twice", tokenizer=tokenizer).save("memory.svg")
"""

from tokenmix.report.figures import (
    Figure,
    attention_maps,
    patch_filters,
    remixer_memory,
    spatial_matrices,
    tiny_attention,
    token_filters,
    weight_histograms,
)

__all__ = [
    "Figure",
    "attention_maps",
    "patch_filters",
    "remixer_memory",
    "spatial_matrices",
    "tiny_attention",
    "token_filters",
    "weight_histograms",
]
