"""How large a model is: its parameters and the FLOPs of a forward pass, by part.

Models are counted on the meta device, so that no weight exists; all layers of a stack are equal, so that one of them
says it for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.initialization import no_init_weights

from tokenmix.mixers import parse
from tokenmix.mixers.residual import Residual
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.create import create_model, plain
from tokenmix.models.stack import Stack


@dataclass(frozen=True)
class Parts:
    """A count by part. A sublayer that mixes tokens counts as mixing with all that it holds (gmlp, remix)."""

    embeddings: int = 0  #: tokens, segments, positions, patches
    mixing: int = 0  #: sublayers that mix tokens, with their norms; relative positions
    channel: int = 0  #: sublayers that do not
    cross_attention: int = 0
    head: int = 0  #: last norm, output matrix (where it is not the embedding), classifier

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(astuple(self))

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Parts:
        return Parts(*(times * a for a in astuple(self)))

    def as_dict(self) -> dict[str, int]:
        """The parts and their total by name."""
        return {**asdict(self), "total": self.total}


def count_parameters(model: nn.Module | TokenmixConfig, head: str | None = None) -> Parts:
    """The parameters of a model, or of the model that a configuration describes; a tied matrix counts once.

    >>> count_parameters(create_model("gmlp-ti16-224")).total
    5867328
    >>> count_parameters(preset_config("t5-v1.1-base")).total
    247577856
    """
    if isinstance(model, TokenmixConfig):
        with one_layer_of(model, head) as small:
            return extrapolate(_parameters(small), model)
    return sum(_parameters(model).values(), Parts())


def forward_flops(
    config: TokenmixConfig,
    length: int | None = None,
    target_length: int | None = None,
    batch: int = 1,
    head: str | None = None,
) -> Parts:
    """FLOPs of a forward pass by `torch.utils.flop_counter`: matrix products and convolutions, two per multiply-add.

    Element-wise work and the Fourier transform count as nothing there. `length` and, for a seq2seq model,
    `target_length` are `max_length` by default; a vision model always sees its whole image.

    >>> forward_flops(preset_config("t5-v1.1-base"), length=512, target_length=114).cross_attention
    19874709504
    """
    with one_layer_of(config, head) as model:
        return extrapolate(_flops(model, _inputs(config, length, target_length, batch)), config)


def measure(config: TokenmixConfig, head: str | None = None) -> tuple[Parts, Parts]:
    """Parameters, and FLOPs of one example at `max_length`, from one build.

    >>> parameters, flops = measure(preset_config("remixer-base"))
    """
    with one_layer_of(config, head) as model:
        flops = _flops(model, _inputs(config, None, None, 1))
        return extrapolate(_parameters(model), config), extrapolate(flops, config)


def extrapolate(counted: dict[str, Parts], config: TokenmixConfig) -> Parts:
    """The whole model from the count of one layer of each stack ("encoder", "decoder") and of all else ("")."""
    both = config.body == "seq2seq"
    times = {"": 1, "encoder": config.layers, "decoder": (config.decoder_layers or 0) if both else config.layers}
    return sum((parts * times[layer] for layer, parts in counted.items()), Parts())


@contextmanager
def one_layer_of(config: TokenmixConfig, head: str | None = None) -> Iterator[nn.Module]:
    """The model with one layer in each stack, on the meta device, which stays the default device inside."""
    options = plain(config)
    for name in ("layers", "decoder_layers"):
        options[name] = options[name] and 1
    with torch.device("meta"):
        with no_init_weights():
            model = create_model(TokenmixConfig(**options), head=head)
        model.tie_weights()
        yield model.eval()


def _inputs(config: TokenmixConfig, length: int | None, target_length: int | None, batch: int) -> dict[str, Tensor]:
    if config.body == "vision":
        shape = (batch, config.channels, config.image_size, config.image_size)
        return {"pixel_values": torch.zeros(shape, device="meta")}
    lengths = {"input_ids": length or config.max_length}
    if config.body == "seq2seq":
        lengths["decoder_input_ids"] = target_length or config.max_length
    return {name: torch.zeros(batch, n, dtype=torch.long, device="meta") for name, n in lengths.items()}


def _places(model: Any) -> Iterator[tuple[nn.Module, tuple[str, str]]]:
    """The embedding and every sublayer, each with the stack whose layers repeat it ("" for none) and its part."""
    config, body = model.config, getattr(model, "model", model)
    yield body.embed, ("", "embeddings")
    for name in ("encoder", "decoder"):
        stack = getattr(body, name, None)
        if not isinstance(stack, Stack):
            continue
        text = config.decoder_layer if name == "decoder" and config.body == "seq2seq" else config.layer
        mixes = iter(sublayer.mixes for sublayer in parse(text).sublayers)
        cross = [label.startswith("cross: ") for label in stack.labels]
        parts = ["cross_attention" if there else "mixing" if next(mixes) else "channel" for there in cross]
        for layer in stack.layers:
            sublayers = [module for module in layer.modules() if isinstance(module, Residual)]
            yield from ((sublayer, (name, part)) for sublayer, part in zip(sublayers, parts, strict=True))


def _parameters(model: nn.Module) -> dict[str, Parts]:
    """Parameters of the layers of each stack and of all else."""
    counted: dict[str, Parts] = {}
    seen: set[int] = set()

    def add(layer: str, part: str, module: nn.Module) -> None:
        new = {id(p): p.numel() for p in module.parameters() if id(p) not in seen}
        seen.update(new)
        counted[layer] = counted.get(layer, Parts()) + Parts(**{part: sum(new.values())})

    for module, (layer, part) in _places(model):
        add(layer, part, module)
    for name in ("encoder", "decoder"):
        if (relative := getattr(getattr(getattr(model, "model", model), name, None), "relative", None)) is not None:
            add("", "mixing", relative)
    add("", "head", model)  # what is left
    return counted


def _flops(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Parts]:
    """FLOPs of the layers of each stack and of all else."""
    spent: dict[str, Parts] = {}
    before: list[int] = []
    places = dict(_places(model))

    def start(*_: Any) -> None:
        before.append(counter.get_total_flops())

    def finish(module: nn.Module, *_: Any) -> None:
        layer, part = places[module]
        spent[layer] = spent.get(layer, Parts()) + Parts(**{part: counter.get_total_flops() - before.pop()})

    for module in places:
        module.register_forward_pre_hook(start)
        module.register_forward_hook(finish)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    rest = counter.get_total_flops() - sum(parts.total for parts in spent.values())
    spent[""] = spent.get("", Parts()) + Parts(head=rest)
    return spent
