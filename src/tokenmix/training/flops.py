"""Arithmetic of a training step, and the peak of the machine: what MFU (share of peak) and FLOP budgets are made of."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from tokenmix.models.counting import Parts, forward_flops
from tokenmix.models.create import HEADS

# Dense bf16 tensor-core peaks in FLOP/s, from the vendors' data sheets.
PEAKS = {
    "H200": 989e12, "H100": 989e12, "H20": 148e12, "B200": 2250e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12,
    "L40": 181e12, "L4": 121e12,
    "A10": 125e12, "A6000": 155e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip


class StepFlops:
    """FLOPs of a training step by shape, each counted once in a process: three times the forward pass."""

    _known: dict[tuple[str, str | None, tuple[int, int]], Parts] = {}

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.head = next((name for name, kind in HEADS.items() if type(model) is kind), None)
        self.name = self.config.to_json_string(use_diff=False)

    def __call__(self, rows: int, shape: tuple[int, int], predictions: int | None = None) -> float:
        """Of ``rows`` examples padded to ``shape``; ``predictions`` where the head sees only so many tokens of each."""
        key = (self.name, self.head, shape)
        length, target = (max(1, n) for n in shape)
        if key not in self._known:
            self._known[key] = forward_flops(self.config, length, target, head=self.head)
        flops = self._known[key]
        unseen = 0.0 if predictions is None else flops.head * (1 - predictions / length)
        return 3.0 * rows * (flops.total - unseen)


@functools.cache
def peak_flops(device: torch.device, precision: str) -> float:
    """The device's peak in FLOP/s: the data sheet's for known GPUs in bf16, else the best of a few matrix products."""
    if device.type == "cuda" and precision == "bf16":
        name = torch.cuda.get_device_name(device)
        for key, peak in PEAKS.items():
            if key in name:
                return peak
    size = 1024 if device.type == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2.0 * size**3 / (time.perf_counter() - start))
    return best
