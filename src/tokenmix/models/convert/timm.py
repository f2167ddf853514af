"""timm's gMLP, MLP-Mixer and ViT as models of ours, by their tensors' names and shapes; timm itself is not needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tokenmix.models.base import TokenmixPreTrainedModel
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.convert.weights import Names, Part, build, linear, take

SIGNS = {
    "gmlp": "blocks.0.mlp_channels.gate.proj.weight",
    "mixer": "blocks.0.mlp_tokens.fc1.weight",
    "vit": "blocks.0.attn.qkv.weight",
}


class Tensors(dict[str, Tensor]):
    """A state dict that says which tensor it lacks."""

    def __missing__(self, name: str) -> Tensor:
        raise ValueError(f"this model of timm's cannot be converted; tensors missing: {name}")


def from_timm(model: nn.Module | Mapping[str, Tensor], **overrides: Any) -> TokenmixPreTrainedModel:
    """timm's gMLP, MLP-Mixer or ViT, or its state dict, as a vision model of ours with the same outputs.

    Every tensor has exactly one place; one that is missing or unknown (a distillation token, layer scale) is an error
    that names it. A model without a classifier (`num_classes=0`) becomes one without a head. The number of heads of a
    ViT stands in no tensor: a bare state dict is read with heads of 64 unless `heads=` is given.

    >>> import timm
    >>> model = from_timm(timm.create_model("gmlp_s16_224", pretrained=True))
    >>> model.config.layer, model.num_parameters()
    ('gmlp', 19422656)
    """
    tensors = Tensors(model.state_dict() if isinstance(model, nn.Module) else model)
    what = type(model).__name__ if isinstance(model, nn.Module) else "this state dict"
    kind = next((name for name, sign in SIGNS.items() if sign in tensors), None)
    if kind is None:
        raise ValueError(
            f"{what} is none of timm's gMLP, MLP-Mixer and ViT, which are known by {', '.join(SIGNS.values())}; "
            f"its tensors are {', '.join(list(tensors)[:4])}, …"
        )
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks."))
    patches = "patch_embed.proj" if kind == "vit" else "stem.proj"
    width, channels, patch, _ = tensors[f"{patches}.weight"].shape
    options: dict[str, Any] = {
        "body": "vision",
        "d_model": width,
        "layers": layers,
        "patch_size": patch,
        "channels": channels,
    }
    names: Names = {**linear("model.embed.projection", patches), **linear("model.encoder.final_norm", "norm")}
    head = "image_classification" if "head.weight" in tensors else "none"
    if head != "none":
        options["num_labels"] = tensors["head.weight"].shape[0]
        names |= linear("classifier", "head")
    more, block = {"gmlp": _gmlp, "mixer": _mixer, "vit": _vit}[kind](model, tensors)
    options |= more
    for i in range(layers):
        for our, their in block.items():
            name = f"model.encoder.layers.{i}.{our}"
            names[name] = their.under(f"blocks.{i}") if isinstance(their, Part) else f"blocks.{i}.{their}"
    if kind == "vit":
        names |= {"model.embed.cls": "cls_token", "model.embed.positions": "pos_embed"}
    length = options.pop("length") - (kind == "vit")
    options["image_size"] = patch * math.isqrt(length)
    if math.isqrt(length) ** 2 != length:
        raise ValueError(f"{what} has {length} patches; only square images have a counterpart here")
    taken = take(names, tensors, what)
    config = TokenmixConfig(**{**options, **overrides})
    if head == "none":
        taken = {name.removeprefix("model."): tensor for name, tensor in taken.items()}
    ours = build(config, head, taken, what)
    return ours.train(model.training) if isinstance(model, nn.Module) else ours.eval()


def _gmlp(model: Any, tensors: Tensors) -> tuple[dict[str, Any], Names]:
    block: Names = {**linear("0.norm", "norm"), **linear("0.mixer.norm", "mlp_channels.gate.norm")}
    block |= linear("0.mixer.u", "mlp_channels.fc1") | linear("0.mixer.v", "mlp_channels.fc2")
    block |= linear("0.mixer", "mlp_channels.gate.proj")
    gate, up = tensors["blocks.0.mlp_channels.gate.proj.weight"], tensors["blocks.0.mlp_channels.fc1.weight"]
    return {"layer": "gmlp", "heads": 1, "d_ff": up.shape[0], "length": gate.shape[0]}, block


def _mixer(model: Any, tensors: Tensors) -> tuple[dict[str, Any], Names]:
    block: Names = {
        "0.mixer.w1": "mlp_tokens.fc1.weight",
        "0.mixer.b1": "mlp_tokens.fc1.bias",
        "0.mixer.w2": "mlp_tokens.fc2.weight",
        "0.mixer.b2": "mlp_tokens.fc2.bias",
    }
    block |= linear("0.norm", "norm1") | linear("1.norm", "norm2")
    block |= linear("1.mixer.wi", "mlp_channels.fc1") | linear("1.mixer.wo", "mlp_channels.fc2")
    hidden, length = tensors["blocks.0.mlp_tokens.fc1.weight"].shape
    up = tensors["blocks.0.mlp_channels.fc1.weight"]
    return {"layer": f"token_mlp(hidden={hidden}) | mlp", "heads": 1, "d_ff": up.shape[0], "length": length}, block


def _vit(model: Any, tensors: Tensors) -> tuple[dict[str, Any], Names]:
    block: Names = {
        f"0.mixer.{ours}.{part}": Part(f"attn.qkv.{part}", index)
        for index, ours in enumerate(("terms.0.query", "terms.0.key", "value"))
        for part in ("weight", "bias")
    }
    block |= linear("0.mixer.out", "attn.proj") | linear("0.norm", "norm1") | linear("1.norm", "norm2")
    block |= linear("1.mixer.wi", "mlp.fc1") | linear("1.mixer.wo", "mlp.fc2")
    width = tensors["cls_token"].shape[-1]
    heads = model.get_submodule("blocks.0.attn").num_heads if isinstance(model, nn.Module) else max(1, width // 64)
    return {
        "layer": "dot | mlp",
        "heads": heads,
        "d_ff": tensors["blocks.0.mlp.fc1.weight"].shape[0],
        "positions": "absolute",
        "pool": "cls",
        "length": tensors["pos_embed"].shape[1],
    }, block
