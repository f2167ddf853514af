"""Arithmetic of a training step, and the peak of the machine: what MFU (share of peak) and FLOP budgets are made of."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import nn

# Dense bf16 tensor-core peaks in FLOP/s, from the vendors' data sheets.
PEAKS = {
    "H200": 989e12, "H100": 989e12, "H20": 148e12, "B200": 2250e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12,
    "L40": 181e12, "L4": 121e12,
    "A10": 125e12, "A6000": 155e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip


def forward_flops(model: nn.Module, shape: tuple[int, int]) -> float:
    """FLOPs of a forward pass over one example padded to ``shape`` (input length, target length), matrix products only.

    Counted by torch on fake tensors: the model is run without numbers, so it costs little time and no memory. The
    shape of a decoder or encoder has target length 0. Fourier mixing is no matrix product and counts as none.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.initialization import no_init_weights

    config: Any = model.config
    with FakeTensorMode(), no_init_weights():
        twin: Any = type(model)(config).eval()
        if hasattr(twin, "model") and hasattr(twin.model.embed, "_check"):
            twin.model.embed._check = lambda *_: None  # it would look at the ids
        ids = torch.zeros(1, max(1, shape[0]), dtype=torch.long)
        if config.body == "vision":
            inputs = {"pixel_values": torch.zeros(1, config.channels, config.image_size, config.image_size)}
        elif config.body == "seq2seq":
            inputs = {"input_ids": ids, "decoder_input_ids": torch.zeros(1, max(1, shape[1]), dtype=torch.long)}
        else:
            inputs = {"input_ids": ids}
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            twin(**inputs)
    return float(counter.get_total_flops())


class StepFlops:
    """FLOPs of a training step by shape, each counted once in a process: three times the forward pass."""

    _known: dict[tuple[type, str, tuple[int, int]], float] = {}

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.name = model.config.to_json_string(use_diff=False)  # type: ignore[union-attr,operator]

    def __call__(self, rows: int, shape: tuple[int, int]) -> float:
        key = (type(self.model), self.name, shape)
        if key not in self._known:
            self._known[key] = forward_flops(self.model, shape)
        return 3.0 * rows * self._known[key]


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
