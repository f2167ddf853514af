"""Generation: cached greedy search, sampling and beam search for every causal mixer."""

from tokenmix.generation.api import Generated, generate
from tokenmix.generation.stream import stream

__all__ = ["Generated", "generate", "stream"]
