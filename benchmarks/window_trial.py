"""The kernel under `window_mlp` on one GPU: is it right, and how long do it and plain torch take.

PYTHONPATH=src python -m benchmarks.window_trial               # prints a table; median milliseconds, bf16 autocast
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor
from triton.testing import do_bench

from tokenmix.ops import window
from tokenmix.ops.kernels.window import fused_window_mlp

BATCH, CHANNELS, HIDDEN, WINDOW = 128, 512, 16, 16


def leaves(batch: int, length: int, channels: int) -> list[Tensor]:
    x = torch.randn(batch, WINDOW - 1 + length, channels, device="cuda").bfloat16()
    w = torch.randn(HIDDEN, WINDOW, device="cuda") / WINDOW**0.5
    b, a = (torch.randn(HIDDEN, device="cuda") for _ in range(2))
    return [t.requires_grad_() for t in (x, w, b, a)]


def old(*given: Tensor) -> Tensor:
    """`window_mlp` without its kernel."""
    with patch.object(window, "_fits_kernel", lambda *_: False):
        return window.window_mlp(*given)


def results(way: Callable[..., Tensor], given: list[Tensor], grad: Tensor) -> list[Tensor]:
    y = way(*given)
    return [y.detach(), *torch.autograd.grad(y, given, grad.to(y.dtype))]


def errors(length: int) -> list[float]:
    """Relative errors of y, dx, dw, db and da against plain torch in float64."""
    given = leaves(4, length, CHANNELS)
    grad = torch.randn(4, length, CHANNELS, device="cuda").bfloat16()
    got = results(fused_window_mlp, given, grad)
    right = results(old, [t.detach().double().requires_grad_() for t in given], grad)
    return [float((mine - exact).norm() / exact.norm()) for mine, exact in zip(got, right, strict=True)]


def times(way: Callable[..., Tensor], length: int) -> tuple[float, float]:
    """Milliseconds forward, and forward and backward."""
    given = leaves(BATCH, length, CHANNELS)
    grad = torch.randn(BATCH, length, CHANNELS, device="cuda").bfloat16()

    def forward() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            way(*given)

    def both() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            y = way(*given)
        torch.autograd.grad(y, given, grad.to(y.dtype))

    forward_ms, both_ms = (do_bench(step, warmup=20, rep=100, return_mode="median") for step in (forward, both))
    return forward_ms, both_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="the old way compiled, too (slow to start)")
    asked = parser.parse_args()
    for length in (64, 100):
        found = errors(length)
        print(f"length {length}: relative errors of y, dx, dw, db, da " + " ".join(f"{error:.1e}" for error in found))
        assert max(found) < 2e-2
    ways = {"old": old, "new": window.window_mlp}
    print("length  way            forward  forward + backward")
    for length in (64, 128, 256):
        if asked.compile:
            torch.compiler.reset()
            with patch.object(window, "_fits_kernel", lambda *_: False):
                forward, both = times(torch.compile(window.window_mlp, dynamic=False), length)
            print(f"{length:6}  {'old, compiled':13}  {forward:7.3f}  {both:7.3f}", flush=True)
        for name, way in ways.items():
            forward, both = times(way, length)
            print(f"{length:6}  {name:13}  {forward:7.3f}  {both:7.3f}", flush=True)


if __name__ == "__main__":
    main()
