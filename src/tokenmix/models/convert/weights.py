"""What every conversion does: take each tensor by its name there, to its name here, and leave none over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmix.models.base import TokenmixPreTrainedModel
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.create import create_model


@dataclass(frozen=True)
class Part:
    """One of several equal blocks of rows of a tensor: queries, keys or values of a packed projection."""

    name: str
    index: int
    of: int = 3


Names = dict[str, "str | Part"]  #: our tensor → theirs


def linear(ours: str, theirs: str, *, bias: bool = True) -> dict[str, str]:
    """The names of a linear layer or a norm.

    >>> linear("model.encoder.final_norm", "encoder.final_layer_norm", bias=False)
    {'model.encoder.final_norm.weight': 'encoder.final_layer_norm.weight'}
    """
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in (("weight", "bias") if bias else ("weight",))}


def take(names: Mapping[str, str | Part], theirs: Mapping[str, Tensor], what: str, unused: Iterable[str] = ()) -> dict[str, Tensor]:
    """Their tensors under our names. One that is missing, or left over (but for `unused`), is an error that names it."""
    wanted = {source.name if isinstance(source, Part) else source for source in names.values()}
    problems = []
    if missing := sorted(wanted - set(theirs)):
        problems.append(f"missing: {', '.join(missing)}")
    if left := sorted(set(theirs) - wanted - set(unused)):
        problems.append(f"without a place here: {', '.join(left)}")
    if problems:
        raise ValueError(f"{what} cannot be converted; tensors {'; '.join(problems)}")
    return {
        ours: theirs[source.name].chunk(source.of)[source.index] if isinstance(source, Part) else theirs[source]
        for ours, source in names.items()
    }


def build(config: TokenmixConfig, head: str, tensors: Mapping[str, Tensor], what: str) -> TokenmixPreTrainedModel:
    """A model of ours that holds copies of these tensors; no time goes into initial values."""
    with torch.device("meta"):
        model = create_model(config, head=head)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        expected.pop("lm_head.weight", None)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [f"{name} {list(given[name])}, wanted {list(expected[name])}" for name in given if name in expected and given[name] != expected[name]]
    wrong += [f"{name} missing" for name in expected if name not in given]
    wrong += [f"{name} has no place" for name in given if name not in expected]
    if wrong:
        raise ValueError(f"the weights of {what} do not fit the configuration (were sizes overridden?): {'; '.join(wrong)}")
    state: dict[str, Any] = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    if config.tie_embeddings and "lm_head.weight" in model.state_dict():
        state["lm_head.weight"] = state["model.embed.tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model
