"""What every conversion does: take each tensor by its name there, to its name here, and leave none over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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

    def under(self, prefix: str) -> Part:
        """The same part of a tensor further inside."""
        return Part(f"{prefix}.{self.name}", self.index, self.of)


Names = dict[str, "str | Part"]  #: our tensor → theirs


def linear(ours: str, theirs: str, *, bias: bool = True) -> dict[str, str]:
    """The names of a linear layer or a norm.

    >>> linear("model.encoder.final_norm", "encoder.final_layer_norm", bias=False)
    {'model.encoder.final_norm.weight': 'encoder.final_layer_norm.weight'}
    """
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in (("weight", "bias") if bias else ("weight",))}


def take(
    names: Mapping[str, str | Part], theirs: Mapping[str, Tensor], what: str, unused: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Their tensors under our names. One that is missing, or left over (but for `unused`), is an error naming it."""
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
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = bool(config.tie_embeddings and expected.pop("lm_head.weight", None))
    given = {name: list(tensor.shape) for name, tensor in tensors.items()}
    wrong = [
        f"{name} is {given.get(name, 'missing')} and should be {expected.get(name, 'absent')}"
        for name in {**expected, **given}
        if given.get(name) != expected.get(name)
    ]
    if wrong:
        raise ValueError(f"the weights of {what} do not fit this configuration: {'; '.join(wrong)}")
    state = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    if tied:
        state["lm_head.weight"] = state["model.embed.tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model
