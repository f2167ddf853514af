"""The kernels under `persist`, each configuration alone: is it right, and how long does it take.

    PYTHONPATH=src python -m benchmarks.kernels                    # about a minute on one H200, compilation included

Writes benchmarks/results/kernels-<device>.json: milliseconds (the median of many launches, L2 cleared before each, bf16) at
Remixer's size, 128 × 512 × 2048, and the relative error against float64. What `choose` takes is the fastest of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.testing import do_bench

from tokenmix.ops.kernels import mix, outer
from tokenmix.ops.kernels.tune import Config

RESULTS = Path(__file__).parent / "results"
B, L, C, ALPHA = 128, 512, 2048, 0.3
Case = tuple[str, list[Config], Callable[[list[Config]], tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases() -> Iterator[Case]:
    """(what, its configurations, how it is called, what is right)."""
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


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none here")
    rows: dict[str, list[dict[str, Any]]] = {}
    for what, configs, call, right in cases():
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
        print(what, json.dumps(rows[what][0]), flush=True)
        del wanted
    device = torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    made = {
        "command": "PYTHONPATH=src python -m benchmarks.kernels",
        "device": device,
        "versions": versions,
        "rows": rows,
    }
    file = RESULTS / f"kernels-{device.split()[-1].lower()}.json"
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
