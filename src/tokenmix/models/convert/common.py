"""What T5 and BERT share on their way here and back: activations, tied tensors, and why a model cannot be held."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from tokenmix.mixers import parse
from tokenmix.mixers.expression import Layer
from tokenmix.mixers.synthesizer import Dot
from tokenmix.models.config import TokenmixConfig
from tokenmix.naming import unknown

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


class Read(NamedTuple):
    """A model of theirs, understood."""

    options: dict[str, Any]  #: of our configuration
    names: dict[str, str]  #: our names → theirs
    unused: set[str]  #: tensors that nothing reads


class Written(NamedTuple):
    """A model of theirs, ready for our tensors."""

    model: PreTrainedModel
    names: dict[str, str]  #: our names → theirs
    copies: dict[str, str]  #: their second names of one tensor → the first
    output: str  #: the name of the output matrix
    embedding: str  #: the name of the embedding that it may be tied to


def bare(name: str, head: str) -> str:
    """Our name of a tensor in a model with this head."""
    return name.removeprefix("model.") if head == "none" else name


def activation(name: Any) -> str:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise unknown("activation to convert", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def same(first: Tensor, second: Tensor) -> bool:
    """Is it one tensor under two names?"""
    return first is second or (
        first.numel() > 0 and first.shape == second.shape and first.data_ptr() == second.data_ptr()
    )


def refuse_unless_held(
    what: str, config: TokenmixConfig, kinds: tuple[type, ...], layers: str, needed: dict[str, Any], other: list[str]
) -> Any:
    """The feed-forward of a layer that they can hold, or an error with every reason why they cannot."""
    expression = parse(config.layer)
    parts = expression.sublayers
    held = (
        isinstance(expression, Layer) and len(parts) == 2 and isinstance(parts[0], Dot) and isinstance(parts[1], kinds)
    )
    reasons = [] if held else [f"its layer is '{config.layer}', and {what} has {layers}"]
    for name, value in needed.items():
        if getattr(config, name) != value:
            reasons.append(f"it has {name}={getattr(config, name)!r}, and {what} {value!r}")
    if reasons or other:
        raise ValueError(f"Hugging Face's {what} cannot hold this model: {'; '.join(reasons + other)}")
    return parts[1]
