"""The kernels under `persist` and `gelu_norm`, each configuration alone: is it right, and how long does it take.

    PYTHONPATH=src python -m benchmarks.kernels                    # about a minute on one H200, compilation included
    PYTHONPATH=src python -m benchmarks.kernels --only gelu        # the rows whose name holds one of these words

Writes benchmarks/results/kernels-<device>.json: milliseconds (the median of many launches, L2 cleared before each, bf16) at
Remixer's size, 128 × 512 × 2048, or that of gMLP-S/16, 256 × 196 × 1536, and the relative error against float64. What
`choose` takes is the fastest of them. Rows that were not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.testing import do_bench

from tokenmix.ops.kernels import gelu_norm, mix, outer
from tokenmix.ops.kernels.tune import Config

RESULTS = Path(__file__).parent / "results"
B, L, C, ALPHA = 128, 512, 2048, 0.3
Case = tuple[str, list[Config], Callable[[list[Config]], tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases() -> Iterator[Case]:
    """(what, its configurations, how it is called, what is right)."""
    yield from persist_cases()
    yield from gelu_norm_cases()


def persist_cases() -> Iterator[Case]:
    w, x, own, other = normal(1, L, L) / L**0.5, normal(B, L, C), normal(B, L, C), normal(B, L, C)
    bias = torch.randn(L, device="cuda")
    ready = mix.prepare(w, x.dtype)
    configs = mix.candidates(ready, x, False, True, simple=True)

    def product() -> Tensor:
        return w[0].double() @ x.double()

    made = [torch.empty_like(x), torch.empty_like(x)]

    def mixed(configs: list[Config], mode: str, keep: bool, **given: Any) -> tuple[Tensor, ...]:
        mix.mix(ready, x, made[0], keys=L, mode=mode, extra=made[1] if keep else None, alpha_value=ALPHA,
                configs=configs, **given)  # fmt: skip
        return tuple(made[: 1 + keep])

    def composed() -> tuple[Tensor, Tensor]:
        s = product()
        return ALPHA * s * x + (1 - ALPHA) * (x - s), s

    def gated() -> tuple[Tensor, Tensor]:
        s = product() + bias.double()[:, None]
        return own * s, s

    def outer_product(factor: Tensor | float) -> tuple[Tensor, Tensor]:
        ds = own.double() * factor
        return torch.einsum("bic,bjc->ij", ds, x.double())[None], ds

    yield "plain", configs, partial(mixed, mode="plain", keep=False), lambda: (product(),)
    yield "compose", configs, partial(mixed, mode="compose", keep=False, own=x), lambda: composed()[:1]
    yield "compose and keep s", configs, partial(mixed, mode="compose", keep=True, own=x), composed
    yield (
        "gradient of compose", configs, partial(mixed, mode="compose_grad", keep=False, own=own, other=other),
        lambda: (product() + own * (ALPHA * other.double() + 1 - ALPHA),),
    )  # fmt: skip
    yield "gate and keep s", configs, partial(mixed, mode="gate", keep=True, own=own, bias=bias), gated
    yield (
        "gradient of gate", configs, partial(mixed, mode="gate_grad", keep=True, own=own, other=other),
        lambda: (product(), own.double() * other),
    )  # fmt: skip
    summed = partial(outer.outer, own, x, 1, alpha_value=ALPHA)
    yield (
        "dW of plain", outer.candidates(own, own, x, 1, False, True, False),
        lambda configs: summed(mode="plain", configs=configs)[:1], lambda: outer_product(1.0)[:1],
    )  # fmt: skip
    yield (
        "dW of compose", outer.candidates(own, x, x, 1, False, True, False),
        lambda configs: summed(mode="compose", own=x, configs=configs)[:2],
        lambda: outer_product(ALPHA * x.double() - (1 - ALPHA)),
    )  # fmt: skip


def gelu_norm_cases() -> Iterator[Case]:
    rows, width, eps = 256 * 196, 768, 1e-5
    h, dz1, dz2 = normal(rows, 2 * width), normal(rows, width), normal(rows, width)
    linear_bias, weight, bias = (torch.randn(size, device="cuda") for size in (2 * width, width, width))
    statistics = gelu_norm.gelu_norm_op(h, linear_bias, weight, bias, eps)[2:]

    def forward(configs: list[Config]) -> tuple[Tensor, ...]:
        with patch.object(gelu_norm, "FORWARD", configs):
            return gelu_norm.gelu_norm_op(h, linear_bias, weight, bias, eps)[:2]

    def backward(configs: list[Config]) -> tuple[Tensor, ...]:
        with patch.object(gelu_norm, "BACKWARD", configs):
            dh, sums = gelu_norm.gelu_norm_backward(dz1, dz2, h, weight, *statistics)
        return dh, *sums.split([2 * width, width, width])

    def plain(h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = torch.nn.functional.gelu(h).chunk(2, -1)
        return z1, torch.nn.functional.layer_norm(z2, (width,), weight, bias, eps)

    def right() -> tuple[Tensor, ...]:
        leaves = [t.double().requires_grad_() for t in (h, weight, bias)]
        dh, dw, db = torch.autograd.grad(plain(*leaves), leaves, (dz1.double(), dz2.double()))
        return dh, dh.sum(0), dw, db

    yield "gelu and norm", gelu_norm.FORWARD, forward, lambda: plain(h.double(), weight.double(), bias.double())
    yield "gradient of gelu and norm", gelu_norm.BACKWARD, backward, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="Rows whose name holds one of these.")
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none here")
    device = torch.cuda.get_device_name()
    file = RESULTS / f"kernels-{device.split()[-1].lower()}.json"
    rows: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())["rows"] if file.exists() else {}
    for what, configs, call, right in cases():
        if not any(word in what for word in only):
            continue
        wanted, rows[what] = right(), []
        for config in configs:
            row: dict[str, Any] = {"config": " ".join(f"{name}={value}" for name, value in config.items() if value)}
            try:
                for tensor in call([config]):
                    tensor.fill_(torch.nan)  # so that what is not written shows
                got = call([config])
                row["error"] = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted))
                row["ms"] = do_bench(lambda c=config, f=call: f([c]), warmup=15, rep=60, return_mode="median")
            except Exception as error:  # what this machine cannot run
                row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
            rows[what].append(row)
        rows[what].sort(key=lambda row: row.get("ms", float("inf")))
        for row in rows[what]:
            print(what, json.dumps(row), flush=True)
        del wanted
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    made = {
        "command": "PYTHONPATH=src python -m benchmarks.kernels",
        "device": device,
        "versions": versions,
        "rows": rows,
    }
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
