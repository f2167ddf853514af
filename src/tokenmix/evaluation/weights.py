"""What the weights of a trained model say by themselves: how Toeplitz-like a gMLP's matrices are (gMLP, Appendix C), what a
Remixer's memory has learned (Remixer, Sec. 4.2).

>>> weight_metrics(create_model("remixer-tiny"))
{'memory_reach_first': 100.1, 'memory_reach_last': 99.9, 'memory_growth': -0.2, 'memory_self': 100.3}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tokenmix.mixers.gating import GmlpBlock
from tokenmix.mixers.remix import RemixBlock
from tokenmix.ops.toeplitz import toeplitz, toeplitz_share

POSITIONS = 32  # of a memory that is looked at: those that almost every input has, so that all of it was trained


def weight_metrics(model: nn.Module, before: Mapping[str, Tensor] | None = None) -> dict[str, float]:
    """Numbers read from the weights, by name; none for models without such weights.

    - `toeplitz`: the share of the variance of free spatial matrices that lies along their diagonals, in percent.
    - `memory_reach_first`, `memory_reach_last`: how far softmax(H) of the encoder's first and last layer looks, the mean
      of |i − j|, in percent of a memory that weighs all tokens alike; `memory_growth` is the second less the first.
    - `memory_self`: the weight of a token itself in percent of its two neighbours', over all layers.
    - `memory_kept`: the correlation of softmax(H) with that of the weights ``before`` finetuning, in percent.
    """
    blocks = [block for block in model.modules() if isinstance(block, GmlpBlock) and not block.spec.toeplitz]
    shares = [toeplitz_share(block.weight.float()) for block in blocks if block.weight.dim() == 2]
    found = {"toeplitz": 100 * sum(shares) / len(shares)} if shares else {}
    return found | _memory_metrics(model, before)


def _memory_metrics(model: nn.Module, before: Mapping[str, Tensor] | None) -> dict[str, float]:
    named = [(f"{name}.h", block) for name, block in model.named_modules()
             if isinstance(block, RemixBlock) and not block.site.causal]  # fmt: skip
    if not named:
        return {}
    memories = [_memory(block, block.h) for _, block in named]
    reach = [_reach(memory) for memory in memories]
    selves = [_self_weight(memory) for memory in memories]
    found = {
        "memory_reach_first": reach[0],
        "memory_reach_last": reach[-1],
        "memory_growth": reach[-1] - reach[0],
        "memory_self": sum(selves) / len(selves),
    }
    if before is not None and all(name in before and before[name].shape == block.h.shape for name, block in named):
        earlier = [_memory(block, before[name]) for name, block in named]
        both = torch.stack([torch.cat([memory.flatten().cpu() for memory in part]) for part in (memories, earlier)])
        found["memory_kept"] = 100 * float(torch.corrcoef(both)[0, 1])
    return found


def _memory(block: RemixBlock, h: Tensor) -> Tensor:
    """softmax(H) [heads, n, n] of an input of n tokens."""
    n = min(POSITIONS, block.site.max_length)
    logits = toeplitz(h, n) if block.spec.toeplitz else h[:, :n, :n]
    return torch.softmax(logits.detach().double(), -1)


def _distance(n: int) -> Tensor:
    i = torch.arange(n, dtype=torch.float64)
    return (i[:, None] - i).abs()


def _reach(memory: Tensor) -> float:
    apart = _distance(memory.shape[-1]).to(memory.device)
    return 100 * float((memory * apart).sum(-1).mean() / apart.mean())


def _self_weight(memory: Tensor) -> float:
    near = _distance(memory.shape[-1]).to(memory.device)
    mine, neighbours = (memory[:, near == apart].mean() for apart in (0, 1))
    return 100 * float(mine / neighbours)


def read_weights(folder: str | Path) -> dict[str, Tensor] | None:
    """The weights of a run by name; None where they are not there any more."""
    from safetensors.torch import load_file

    file = Path(folder) / "model.safetensors"
    return load_file(file) if file.exists() else None
