"""The kernels under the operators, each configuration alone: right, the same every time, and how fast.

    PYTHONPATH=src python -m benchmarks.kernels                    # about two minutes on one H200, compilation included
    PYTHONPATH=src python -m benchmarks.kernels --only gMLP        # its gradients alone; --only dW, also Remixer's
    PYTHONPATH=src python -m benchmarks.kernels --only gelu        # gelu and norm, and their gradients
    PYTHONPATH=src python -m benchmarks.kernels --only attention   # its three kernels; --only GEGLU, a T5's feed-forward

Writes kernels-<device>.json to benchmarks/results (or --out): milliseconds (the median of many launches, L2 cleared
before each, bf16), the relative errors of all results against float64, memory filled with NaN before, and whether ten runs
gave the same bits. Remixer's size is 128 × 512 × 2048, gMLP-S/16's 256 × 196 × 768, T5.1.1-base's 128 × 512 (and a target
of 114) × 768, 12 heads of 64. `choose` takes the fastest.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor

from tokenmix.ops.kernels import attend, gelu_norm, mix, outer
from tokenmix.ops.kernels.tune import Config, gluon, milliseconds

RESULTS = Path(__file__).parent / "results"
B, L, C, ALPHA = 128, 512, 2048, 0.3
SIZES = [  # batch, queries, keys, width: gMLP-S/16, and lengths that leave little or nothing for the last tiles
    (256, 196, 196, 768), (16, 100, 100, 768), (16, 130, 257, 320), (16, 257, 130, 320), (16, 50, 300, 320),
]  # fmt: skip
ATTENTION = [(128, 512, 512, True), (128, 512, 512, False), (128, 114, 512, False), (3, 100, 300, True)]
GEGLU = [(65536, 768, 2048), (14592, 768, 2048), (1000, 128, 256)]  # tokens, d_model, d_ff


class Case(NamedTuple):
    what: str
    configs: list[Config]
    call: Callable[[list[Config]], tuple[Tensor, ...]]  # with a list of one configuration
    right: Callable[[], tuple[Tensor, ...]]
    timed: bool = True


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def remixer() -> Iterator[Case]:
    w, x, own, other = normal(1, L, L) / L**0.5, normal(B, L, C), normal(B, L, C), normal(B, L, C)
    bias = torch.randn(L, device="cuda")
    ready = mix.prepare(w, x.dtype)
    configs = mix.candidates(ready, x, False, True, simple=True)

    def product() -> Tensor:
        return w[0].double() @ x.double()

    def mixed(configs: list[Config], mode: str, keep: bool, **given: Any) -> tuple[Tensor, ...]:
        made = [torch.empty_like(x) for _ in range(1 + keep)]
        mix.mix(ready, x, made[0], keys=L, mode=mode, extra=made[1] if keep else None, alpha_value=ALPHA,
                configs=configs, **given)  # fmt: skip
        return tuple(made)

    def composed() -> tuple[Tensor, Tensor]:
        s = product()
        return ALPHA * s * x + (1 - ALPHA) * (x - s), s

    def gated() -> tuple[Tensor, Tensor]:
        s = product() + bias.double()[:, None]
        return own * s, s

    def outer_product(factor: Tensor | float) -> tuple[Tensor, Tensor]:
        ds = own.double() * factor
        return torch.einsum("bic,bjc->ij", ds, x.double())[None], ds

    yield Case("plain", configs, partial(mixed, mode="plain", keep=False), lambda: (product(),))
    yield Case("compose", configs, partial(mixed, mode="compose", keep=False, own=x), lambda: composed()[:1])
    yield Case("compose and keep s", configs, partial(mixed, mode="compose", keep=True, own=x), composed)
    yield Case(
        "gradient of compose", configs, partial(mixed, mode="compose_grad", keep=False, own=own, other=other),
        lambda: (product() + own * (ALPHA * other.double() + 1 - ALPHA),),
    )  # fmt: skip
    yield Case("gate and keep s", configs, partial(mixed, mode="gate", keep=True, own=own, bias=bias), gated)
    yield Case(
        "gradient of gate", configs, partial(mixed, mode="gate_grad", keep=True, own=own, other=other),
        lambda: (product(), own.double() * other),
    )  # fmt: skip
    summed = partial(outer.outer, own, x, 1, alpha_value=ALPHA)
    yield Case(
        "dW of plain", outer.candidates(own, own, x, 1, False, True, False),
        lambda configs: summed(mode="plain", configs=configs)[:1], lambda: outer_product(1.0)[:1],
    )  # fmt: skip
    yield Case(
        "dW of compose", outer.candidates(own, x, x, 1, False, True, False),
        lambda configs: summed(mode="compose", own=x, configs=configs)[:2],
        lambda: outer_product(ALPHA * x.double() - (1 - ALPHA)),
    )  # fmt: skip


def gmlp() -> Iterator[Case]:
    """What the gradient of a gate and its bias needs; the other modes, too, where lengths are odd."""
    for batch, queries, keys, width in SIZES:
        g, u, x = normal(batch, queries, width), normal(batch, queries, width), normal(batch, keys, width)
        yield summed("gate", g, u, x, timed=batch == 256)
        if batch < 256:
            yield summed("plain", g, None, x)
            yield summed("compose", normal(batch, keys, width), x, x)


def summed(mode: str, g: Tensor, own: Tensor | None, x: Tensor, timed: bool = False) -> Case:
    """dW, ds and Σ ds, the gradient of a bias."""

    def call(configs: list[Config]) -> tuple[Tensor, ...]:
        dw, ds, total = outer.outer(g, x, 1, mode=mode, own=own, alpha_value=ALPHA, total=True, configs=configs)
        assert total is not None
        return dw, ds, total

    def right() -> tuple[Tensor, ...]:
        ds = g.double()
        if own is not None:
            ds = ds * (own.double() if mode == "gate" else ALPHA * own.double() - (1 - ALPHA))
        return torch.einsum("bic,bjc->ij", ds, x.double())[None], ds, ds.sum((0, 2))

    configs = outer.candidates(g, g if own is None else own, x, 1, False, True, True)
    size = f"{g.shape[0]} × {g.shape[1]}, {x.shape[1]} × {g.shape[2]}"
    return Case(f"gMLP's dW of {mode}, {size}", configs, call, right, timed)


def gelu_and_norm() -> Iterator[Case]:
    """At gMLP-S/16's size; the gradients are those of h, of the linear layer's bias, and of the norm's parameters."""
    rows, width, eps = 256 * 196, 768, 1e-5
    h, dz1, dz2 = normal(rows, 2 * width), normal(rows, width), normal(rows, width)
    weight, bias = (torch.randn(width, device="cuda") for _ in range(2))

    def plain(h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = torch.nn.functional.gelu(h).chunk(2, -1)
        return z1, torch.nn.functional.layer_norm(z2, (width,), weight, bias, eps)

    def backward(configs: list[Config]) -> tuple[Tensor, ...]:
        dh, sums = gelu_norm.backward(dz1, dz2, h, weight, *statistics, configs=configs)
        return dh, *sums.split([2 * width, width, width])

    def gradients() -> tuple[Tensor, ...]:
        leaves = [t.double().requires_grad_() for t in (h, weight, bias)]
        dh, dw, db = torch.autograd.grad(plain(*leaves), leaves, (dz1.double(), dz2.double()))
        return dh, dh.sum(0), dw, db

    def forward(configs: list[Config]) -> tuple[Tensor, ...]:
        return gelu_norm.forward(h, weight, bias, eps, configs=configs)[:2]

    z2 = torch.nn.functional.gelu(h[:, width:].float())
    statistics = z2.mean(1), (z2.var(1, correction=0) + eps).rsqrt()
    yield Case("gelu and norm", gelu_norm.FORWARD, forward, lambda: plain(*(t.double() for t in (h, weight, bias))))
    yield Case("gradients of gelu and norm", gelu_norm.BACKWARD, backward, gradients)


CHOOSING = Lock()


@contextmanager
def chosen(config: Config) -> Iterator[None]:
    """Attention's kernels take this configuration, whatever there is to choose from; in one thread at a time."""
    with CHOOSING, mock.patch.object(attend, "choose", return_value=config):
        yield


def attention(batch: int, queries: int, keys: int, biased: bool) -> Iterator[Case]:
    """Forward, towards the keys, towards the queries; heads of 64, what is wanted made in float64 a few examples at a time."""
    q, k, v, g = (normal(batch, n, 12, 64).transpose(1, 2) for n in (queries, keys, keys, queries))
    q = q / 8
    bias = normal(12, queries, keys) if biased else None
    rest: tuple[Any, ...] = (None, None, None, None, False, 0.0)  # key_bias, mask, lengths, seed, causal, dropout

    @cache
    def wanted() -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for b in range(0, batch, 8):
            qb, kb, vb, gb = (t[b : b + 8].double() for t in (q, k, v, g))
            s = qb @ kb.mT + (0 if bias is None else bias.double())
            p = torch.softmax(s, -1)
            out = p @ vb
            delta = (out * gb).sum(-1)
            ds = p * (gb @ vb.mT - delta[..., None])
            lse = s.logsumexp(-1) / math.log(2)
            made = {"out": out, "lse": lse, "delta": delta, "dv": p.mT @ gb, "dk": ds.mT @ qb, "ds": ds.mT}
            for name, t in made.items():
                found.setdefault(name, []).append(t.float())
        return {name: torch.cat(parts) for name, parts in found.items()}

    @cache
    def given() -> Tensor:
        """dSᵀ, in the form in which one kernel hands it to the next."""
        return attend._apart(v, (batch, 12, keys, queries)).copy_(wanted()["ds"])

    def forward(configs: list[Config]) -> tuple[Tensor, ...]:
        with chosen(configs[0]):
            return attend.attend_op._init_fn(q, k, v, bias, *rest)[:1]

    def towards_keys(configs: list[Config]) -> tuple[Tensor, ...]:
        dk, dv, ds = attend.rows_first(k), attend.rows_first(v), attend._apart(v, (batch, 12, keys, queries))
        with chosen(configs[0]):
            attend._keys_pass(q, k, v, bias, *rest, g, wanted()["lse"], wanted()["delta"], dk, dv, ds, 0, batch)
        return dk, dv, ds

    def towards_queries(configs: list[Config]) -> tuple[Tensor, ...]:
        dq = attend.rows_first(q)
        with chosen(configs[0]):
            sums = attend._queries_pass(given(), k, dq, None, False, 0, batch, biased)
        return (dq,) if sums is None else (dq, sums)

    def of_queries() -> tuple[Tensor, ...]:
        dq = torch.cat([given()[b : b + 8].double().mT @ k[b : b + 8].double() for b in range(0, batch, 8)])
        return (dq, given().sum(0, dtype=torch.float64)) if biased else (dq,)

    size = f"{batch} × {queries} × {keys}, {'with' if biased else 'no'} bias"
    hopper = [attend.HOPPER] * gluon()
    yield Case(f"attention, {size}", [*hopper, attend.FORWARD[0]], forward, lambda: (wanted()["out"],))
    yield Case(
        f"gradients of attention's keys, {size}", [*hopper, attend.KEYS[0]], towards_keys,
        lambda: tuple(wanted()[name] for name in ("dk", "dv", "ds")),
    )  # fmt: skip
    yield Case(f"gradients of attention's queries, {size}", [*hopper, attend.QUERIES[0]], towards_queries, of_queries)


def feed_forward(tokens: int, channels: int, width: int) -> Iterator[Case]:
    """The two kernels of a T5's GEGLU."""
    x, g, both = normal(tokens, channels), normal(tokens, channels), normal(tokens, 2 * width)
    w, w3t = normal(2 * width, channels) / channels**0.5, normal(width, channels) / channels**0.5

    def expanded() -> tuple[Tensor, ...]:
        product = x.double() @ w.double().T
        a, b = product.chunk(2, -1)
        return product, torch.nn.functional.gelu(a, approximate="tanh") * b

    def contracted() -> tuple[Tensor, ...]:
        a, b = (t.requires_grad_() for t in both.double().chunk(2, -1))
        h = torch.nn.functional.gelu(a, approximate="tanh") * b
        return torch.cat(torch.autograd.grad(h, (a, b), g.double() @ w3t.double().T), -1), h.detach()

    if gluon():
        from tokenmix.ops.kernels import geglu_hopper

        size = f"{tokens} × {channels} × {width}"
        yield Case(f"GEGLU, {size}", geglu_hopper.FORWARD, partial(geglu_hopper.expand, x, w), expanded)
        call = partial(geglu_hopper.contract, g, both, w3t)
        yield Case(f"gradients of GEGLU, {size}", geglu_hopper.BACKWARD, call, contracted)


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN, so that what is not written shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def examine(case: Case, config: Config, wanted: tuple[Tensor, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {"config": " ".join(f"{name}={value}" for name, value in config.items() if value)}
    try:
        with poisoned():
            got = [tensor.clone() for tensor in case.call([config])]
        row["errors"] = [float(f"{float((a.double() - b).norm() / b.norm()):.2g}") for a, b in zip(got, wanted)]
        row["same bits in 10 runs"] = all(
            torch.equal(a, b) for _ in range(9) for a, b in zip(got, case.call([config]), strict=True)
        )
        if case.timed:
            row["ms"] = round(milliseconds(partial(case.call, [config])), 4)
    except Exception as error:  # what this machine cannot run
        row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
    return row


def everything() -> Iterator[Case]:
    yield from remixer()
    yield from gmlp()
    yield from gelu_and_norm()
    for size in ATTENTION:
        yield from attention(*size)
    for shape in GEGLU:
        yield from feed_forward(*shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose names hold TEXT")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none here")
    torch.manual_seed(0)
    cases = [case for case in everything() if given.only in case.what]

    def compile(case: Case, config: Config) -> None:
        with suppress(Exception):  # examine will say
            case.call([config])

    with ThreadPoolExecutor(8) as pool:
        for case in cases:
            for config in case.configs:
                pool.submit(compile, case, config)
    torch.cuda.synchronize()
    rows: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        wanted = case.right()
        rows[case.what] = [examine(case, config, wanted) for config in case.configs]
        rows[case.what].sort(key=lambda row: row.get("ms", float("inf")))
        print(case.what, *map(json.dumps, rows[case.what]), sep="\n    ", flush=True)
        del wanted
    device = torch.cuda.get_device_name()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"kernels-{device.split()[-1].lower()}.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if given.only and file.exists() else {}
    made = {
        "command": "PYTHONPATH=src python -m benchmarks.kernels",
        "device": device,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "rows": before | rows,
    }
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
