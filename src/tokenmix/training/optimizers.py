"""Optimizers of the papers: AdamW without decay on norms and biases, and Adafactor as T5 runs it.

>>> optimizer = build_optimizer(create_model("remixer-tiny"), OptimizerConfig(name="adafactor", lr=1e-3))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor as _Adafactor

from tokenmix.training.config import OptimizerConfig

FACTORED_FROM = 128  # Mesh TensorFlow keeps the full second moment of anything smaller


class Adafactor(_Adafactor):
    """Adafactor (Shazeer & Stern, 2018) with T5's settings.

        R_t = β R_{t−1} + (1 − β) mean_cols(G² + ε₁),   C_t alike over rows,   β = 1 − t^−0.8
        U = G / √(R Cᵀ / mean(R)),   clipped to RMS(U) ≤ 1,   W ← W − lr · max(ε₂, RMS(W)) · U

    The second moment is factored over the last two dimensions where these are the two largest and both at least 128,
    else kept whole: transformers' factors every matrix. And a step asks the device for no number, so nothing waits.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, eps: tuple[float, float] = (1e-30, 1e-3), **options: Any
    ) -> None:
        defaults: dict[str, Any] = {"clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None, "weight_decay": 0.0}
        super().__init__(
            params, lr=lr, eps=eps, scale_parameter=True, relative_step=False, warmup_init=False, **(defaults | options)
        )

    @staticmethod
    def _get_options(param_group: dict[str, Any], param_shape: torch.Size) -> tuple[bool, bool]:
        last = sorted(param_shape[-2:])
        factored = (
            len(param_shape) >= 2 and last[0] >= FACTORED_FROM and all(size <= last[0] for size in param_shape[:-2])
        )
        return factored, param_group["beta1"] is not None

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> Tensor:
        return param_group["lr"] * param_state["RMS"].clamp(min=param_group["eps"][1])


def decayed(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: matrices yes; norms, biases, scalars, position biases and a ViT's own tokens no.

    >>> decayed("encoder.final_norm.weight", torch.ones(8))
    False
    """
    spared = name.endswith(("bias", "bias.weight", "embed.cls", "embed.positions")) or "relative" in name
    return parameter.dim() >= 2 and not spared and "norm" not in name


def build_optimizer(model: nn.Module, config: OptimizerConfig, lr: float | None = None) -> torch.optim.Optimizer:
    """The optimizer over the parameters that learn, fused where the device has it."""
    lr = lr if lr is not None else config.lr if config.lr is not None else 1e-3
    learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError("no parameter of this model learns; freeze fewer")
    sharded = any(hasattr(parameter, "device_mesh") for _, parameter in learning)
    if config.name == "adafactor":
        if sharded:
            raise ValueError("adafactor cannot run on sharded parameters; take adamw, or device.sharding=none")
        return Adafactor([p for _, p in learning], lr=lr, weight_decay=config.weight_decay)
    groups = [
        {"params": [p for n, p in learning if decayed(n, p)], "weight_decay": config.weight_decay},
        {"params": [p for n, p in learning if not decayed(n, p)], "weight_decay": 0.0},
    ]
    fused = not sharded
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=lr, betas=config.betas, eps=config.eps, fused=fused,
        capturable=fused and learning[0][1].is_cuda,
    )  # fmt: skip


def clip(optimizer: torch.optim.Optimizer, most: float) -> Tensor:
    """Scale the gradients so that their norm, which is returned, is at most `most`.

    No pass over memory is made for it where none is needed: a CPU looks whether the norm is larger at all, and on a GPU
    the fused optimizer divides by `grad_scale` as it reads the gradients.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters], foreach=True)
    if norm.device.type == "cuda" and optimizer.defaults.get("fused"):
        optimizer.grad_scale = ((norm + 1e-6) / most).clamp(min=1.0)  # type: ignore[attr-defined]
    elif norm.device.type != "cpu" or not norm <= most:  # NaN too
        nn.utils.clip_grads_with_norm_(parameters, most, norm, foreach=True)
    return norm
