"""The operators on one GPU, each beside the other ways of computing the same, in one run.

    PYTHONPATH=src python -m benchmarks.ops                        # about 2 minutes on one H200, compilation included
    PYTHONPATH=src python -m benchmarks.ops --only remix gating    # some tables; the file keeps the others

Writes benchmarks/results/ops-<device>.json: milliseconds, the median of many runs, bf16. "forward" and "both" (forward
and backward for every input that can have a gradient, upstream gradient fixed) are replays of a CUDA graph in the first
three tables, for every way alike, so that Python does not count, and launched from Python in the others; "eager" is
always the latter. With --profile every row of ours also lists its GPU kernels.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks import with_earlier
from tokenmix.ops import Compose, Gate, attend, linear_cross_entropy, persist
from tokenmix.ops import attend as attend_function
from tokenmix.ops.toeplitz import toeplitz

RESULTS = Path(__file__).parent / "results"
BF16 = torch.bfloat16
B, L, H, D = 128, 512, 12, 64


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> Tensor:
    """A leaf with a gradient."""
    return (torch.randn(*shape, device="cuda") * scale).to(dtype).requires_grad_()


GRAPHS = {"remix", "gating", "random"}  #: tables timed inside replayed CUDA graphs: the work alone, not its launching
timing = {"graph": True}


def timed(step: Callable[[], Any]) -> float:
    """Median milliseconds of a step."""
    for _ in range(3):
        step()
    if timing["graph"]:
        gc.collect()  # compiled code that is freed while a graph is captured would spoil the capture
        gc.disable()
        try:
            return do_bench_cudagraph(step, rep=40, return_mode="median")
        finally:
            gc.enable()
    return do_bench(step, warmup=10, rep=60, return_mode="median")


def forward(way: Callable[[], Tensor]) -> float:
    with torch.no_grad():
        return timed(way)


def stepper(way: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], Any]:
    grad = torch.randn_like(way())
    return lambda: torch.autograd.grad(way(), leaves, grad)


def both(way: Callable[[], Tensor], leaves: list[Tensor]) -> float:
    return timed(stepper(way, leaves))


def kernels(way: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, float]:
    """Microseconds of each GPU kernel of one step, the longest first."""
    grad = torch.randn_like(way())
    torch.autograd.grad(way(), leaves, grad)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            torch.autograd.grad(way(), leaves, grad)
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda e: -e.device_time_total)
    return {e.key[:70]: round(e.device_time_total / 5, 1) for e in events[:12] if e.device_time_total > 5}


def table(
    ways: dict[str, Callable[[], Tensor]], leaves: dict[str, list[Tensor]] | list[Tensor], profile: bool
) -> dict[str, Any]:
    """Each way's times; a way that cannot run says why."""
    rows: dict[str, Any] = {}
    for name, way in ways.items():
        mine = leaves if isinstance(leaves, list) else leaves[name]
        torch._dynamo.reset()
        torch.cuda.reset_peak_memory_stats()
        try:
            rows[name] = {"forward": forward(way), "both": both(way, mine)}
            rows[name]["eager"] = do_bench(stepper(way, mine), warmup=10, rep=40, return_mode="median")
            rows[name]["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
            if profile and name.startswith("tokenmix"):
                rows[name]["kernels_us"] = kernels(way, mine)
        except Exception as error:
            rows[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        print(
            f"    {name:32s}",
            {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[name].items()},
            flush=True,
        )
    return rows


def remix(profile: bool) -> dict[str, Any]:
    """softmax(H)·x and Remixer's composition, 128 × 512 × 2048."""
    h, x = normal(L, L, scale=0.02, dtype=torch.float32), normal(B, L, 2048)

    def plain(h: Tensor, x: Tensor) -> Tensor:
        s = torch.softmax(h, -1).to(x.dtype) @ x
        return 0.5 * (s * x) + 0.5 * (x - s)

    compiled = torch.compile(plain)
    ways = {
        "tokenmix": lambda: persist(h, x, softmax=True, epilogue=Compose(0.5)),
        "torch.compile": lambda: compiled(h, x),
    }
    return table(ways, [h, x], profile)


def gating(profile: bool) -> dict[str, Any]:
    """u ⊙ (W·z + b), 128 × 512 × (1536 + 1536)."""
    w, b = normal(L, L, scale=0.02, dtype=torch.float32), normal(L, dtype=torch.float32)
    u, z = normal(B, L, 1536), normal(B, L, 1536)

    def plain(w: Tensor, b: Tensor, u: Tensor, z: Tensor) -> Tensor:
        return u * (w.to(z.dtype) @ z + b.to(z.dtype)[:, None])

    compiled = torch.compile(plain)
    ways = {"tokenmix": lambda: persist(w, z, epilogue=Gate(u, b)), "torch.compile": lambda: compiled(w, b, u, z)}
    return table(ways, [w, b, u, z], profile)


def random(profile: bool) -> dict[str, Any]:
    """softmax(R)·V with 12 heads of 64, batch 128, length 512."""
    r, x = normal(H, L, L, scale=0.02, dtype=torch.float32), normal(B, L, H * D)

    def einsum() -> Tensor:
        w = torch.softmax(r, -1).to(BF16)
        return torch.einsum("hij,bjhd->bihd", w, x.unflatten(-1, (H, D))).flatten(-2)

    def matmul() -> Tensor:
        w = torch.softmax(r, -1).to(BF16)
        return (w @ x.unflatten(-1, (H, D)).transpose(1, 2)).transpose(1, 2).flatten(-2)

    return table({"tokenmix": lambda: persist(r, x, softmax=True), "einsum": einsum, "matmul": matmul}, [r, x], profile)


def _qkv(bias: bool) -> tuple[list[Tensor], Tensor | None]:
    leaves = [normal(B, L, H, D, scale=s) for s in (D**-0.5, 1.0, 1.0)]
    return leaves, normal(H, L, L, dtype=torch.float32) if bias else None


def _sdpa(q: Tensor, k: Tensor, v: Tensor, backend: Any, mask: Tensor | None = None) -> Tensor:
    with torch.nn.attention.sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0)


def bias(profile: bool) -> dict[str, Any]:
    """Attention with a learned bias [12, 512, 512], batch 128, heads of 64; q, k, v as projections leave them."""
    from torch.nn.attention import SDPBackend
    from torch.nn.attention.flex_attention import flex_attention

    leaves, r = _qkv(True)
    assert r is not None
    heads = [t.transpose(1, 2) for t in leaves]
    flex = torch.compile(flex_attention)

    def learned(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + r[h, i, j]

    @torch.compile
    def plain(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) + r.to(q.dtype), -1) @ v

    ways = {
        "tokenmix": lambda: attend(*heads, bias=r),
        "FlexAttention": lambda: flex(*heads, score_mod=learned, scale=1.0),
        "torch.compile": lambda: plain(*heads, r),
        "SDPA memory-efficient": lambda: _sdpa(
            *heads, SDPBackend.EFFICIENT_ATTENTION, r.to(BF16)[None].expand(B, -1, -1, -1)
        ),
        "cuDNN without bias": lambda: _sdpa(*heads, SDPBackend.CUDNN_ATTENTION),
    }
    return table(ways, {n: leaves if "without" in n else [*leaves, r] for n in ways}, profile)


def nobias(profile: bool) -> dict[str, Any]:
    """The same without a bias, and with padding: who is fastest, and what the choice in ops/attend.py rests on."""
    from torch.nn.attention import SDPBackend

    import tokenmix.ops.attend  # noqa: F401  the module, not the function
    from tokenmix.ops.kernels.attend import fused_attend

    leaves, _ = _qkv(False)
    heads = [t.transpose(1, 2) for t in leaves]
    mask = torch.arange(L, device="cuda")[None] < torch.randint(L // 2, L + 1, (B, 1), device="cuda")
    import sys

    extra_channel = sys.modules["tokenmix.ops.attend"]._fused
    ways = {
        "tokenmix": lambda: attend_function(*heads),
        "tokenmix kernel": lambda: fused_attend(*heads),
        "flash": lambda: _sdpa(*heads, SDPBackend.FLASH_ATTENTION),
        "cuDNN": lambda: _sdpa(*heads, SDPBackend.CUDNN_ATTENTION),
        "padded: tokenmix": lambda: attend_function(*heads, mask=mask),
        "padded: extra channel": lambda: extra_channel(*heads, None, None, mask, False, 0.0),
        "padded: cuDNN with mask": lambda: _sdpa(
            *heads, SDPBackend.CUDNN_ATTENTION, mask[:, None, None].expand(-1, 1, L, -1)
        ),
    }
    return table(ways, leaves, profile)


def products(profile: bool) -> dict[str, Any]:
    """The products of a layer of T5.1.1-base's encoder, 128 × 512 tokens, by cuBLAS: each for so long that the GPU is at its
    power limit."""
    n, rows = B * L, {}
    shapes = {"Q, K, V": (768, 2304), "O": (768, 768), "W₁, W₂": (768, 4096), "W₃": (2048, 768)}
    for name, (inputs, outputs) in shapes.items():
        x, w = normal(n, inputs), normal(outputs, inputs, scale=inputs**-0.5)
        g = torch.randn(n, outputs, device="cuda", dtype=BF16)
        with torch.no_grad():
            ways = {
                "x Wᵀ": lambda x=x, w=w: x @ w.t(),
                "g W": lambda g=g, w=w: g @ w,
                "gᵀ x": lambda g=g, x=x: g.t() @ x,
            }
            for way, call in ways.items():
                ms = lasting(call)
                rows[f"{name}: {way}"] = {"ms": ms, "tflops": 2 * n * inputs * outputs / ms / 1e9}
                print(f"    {name}: {way}", {k: round(v, 3) for k, v in rows[f"{name}: {way}"].items()}, flush=True)
    return rows


def lasting(call: Callable[[], Any], seconds: float = 0.5) -> float:
    """Milliseconds of a call in the second half of so many seconds of it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    times = int(seconds * 500 / begin.elapsed_time(end)) + 1
    for i in range(2 * times):
        if i == times:
            begin.record()
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def vocabulary(profile: bool) -> dict[str, Any]:
    """Cross-entropy of 128 × 114 tokens over 32,128 words from states of width 768."""
    n, d, v = B * 114, 768, 32128
    states, weight = normal(n, d), normal(v, d, scale=0.03)
    labels = torch.randint(v, (n,), device="cuda")

    def plain() -> Tensor:
        return F.cross_entropy((states @ weight.T).float(), labels)

    ways: dict[str, Callable[[], Tensor]] = {
        "tokenmix": lambda: linear_cross_entropy(states, weight, labels),
        "plain": plain,
        "torch.compile": torch.compile(plain),
    }
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        ways["Liger"] = lambda: liger(weight, states, labels)
    except ImportError:
        print("    Liger-Kernel is not installed")
    return table(ways, [states, weight], profile)


def pointwise(profile: bool) -> dict[str, Any]:
    """RMSNorm of 128 × 512 × 768 and gelu(a) ⊙ b of 128 × 512 × 2048: compiled, as in the models, or Liger's."""
    x, g = normal(B, L, 768), normal(768, dtype=torch.float32)
    a, b = normal(B, L, 2048), normal(B, L, 2048)

    @torch.compile
    def norm(x: Tensor, g: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (768,), g, 1e-6).to(x.dtype)

    @torch.compile
    def geglu(a: Tensor, b: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh") * b

    ways: dict[str, Callable[[], Tensor]] = {
        "RMSNorm torch.compile": lambda: norm(x, g),
        "GEGLU torch.compile": lambda: geglu(a, b),
    }
    leaves = {
        "RMSNorm torch.compile": [x, g],
        "GEGLU torch.compile": [a, b],
        "RMSNorm Liger": [x, g],
        "GEGLU Liger": [a, b],
    }
    try:
        from liger_kernel.ops.geglu import LigerGELUMulFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        ways["RMSNorm Liger"] = lambda: LigerRMSNormFunction.apply(x, g, 1e-6, 0.0, "llama", False)
        ways["GEGLU Liger"] = lambda: LigerGELUMulFunction.apply(a, b)
    except ImportError:
        print("    Liger-Kernel is not installed")
    return table(ways, leaves, profile)


def growth(profile: bool) -> dict[str, Any]:
    """The Toeplitz operator alone on 1536 channels, length 1K … 32K: the matrix (built, then applied) and the FFT."""
    lengths = [1024 << i for i in range(6)]
    rows: dict[str, Any] = {"FFT": {}, "matrix": {}, "FFT both": {}, "matrix both": {}}
    for n in lengths:
        w, x = normal(1, 2 * n - 1, scale=n**-0.5, dtype=torch.float32), normal(1, n, 1536)
        fft = lambda w=w, x=x: torch.ops.tokenmix.toeplitz_fft(w, x, False)  # noqa: E731
        matrix = lambda w=w, x=x, n=n: persist(toeplitz(w, n), x)  # noqa: E731
        rows["FFT"][n], rows["FFT both"][n] = forward(fft), both(fft, [w, x])
        if n <= 16384:
            rows["matrix"][n], rows["matrix both"][n] = forward(matrix), both(matrix, [w, x])
    for times in list(rows.values()):
        first, last = min(times), max(times)
        times["exponent"] = math.log(times[last] / times[first]) / math.log(last / first)
        times["exponent from 8K"] = math.log(times[last] / times[8192]) / math.log(last / 8192)  # free of launch costs
    for name, times in rows.items():
        print(f"    {name:12s}", {k: round(v, 3) for k, v in times.items()}, flush=True)
    return rows


TABLES = (remix, gating, random, bias, nobias, products, vocabulary, pointwise, growth)
BARS = {  # table → (column, milliseconds)
    "remix": {"forward": 0.28, "both": 0.85},
    "gating": {"both": 1.2},
    "bias": {"both": 2.2},
    "random": {"both": 0.6},
}
GROWTH = {"exponent": "1K to 32K", "exponent from 8K": "8K to 32K (free of launch costs)"}
SLOPE = 1.15  #: the most that the FFT's exponent may be


def bars(tables: dict[str, Any]) -> dict[str, Any]:
    """What was asked of each figure that was measured, and whether it is met."""
    found: dict[str, Any] = {}
    for table, columns in BARS.items():
        for column, bar in columns.items() if table in tables else ():
            got = tables[table]["ms"]["tokenmix"].get(column, math.inf)
            found[f"{table} {column}"] = {"bar_ms": bar, "ms": got, "met": got <= bar}
    for key, lengths in GROWTH.items() if "growth" in tables else ():
        got = tables["growth"]["ms"]["FFT"][key]
        found[f"growth exponent of the FFT, {lengths}"] = {"bar": SLOPE, "exponent": got, "met": got <= SLOPE}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [t.__name__ for t in TABLES]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--profile", action="store_true", help="list the GPU kernels of our rows")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    results: dict[str, Any] = {
        "command": "PYTHONPATH=src python -m benchmarks.ops",
        "device": device,
        "versions": {
            "torch": torch.__version__,
            "triton": __import__("triton").__version__,
            "python": platform.python_version(),
            "autotune": os.environ.get("TOKENMIX_AUTOTUNE", "1") != "0",
        },
        "tables": {},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"ops-{device.split()[-1].lower()}.json"
    for make in TABLES:
        if make.__name__ not in options.only:
            continue
        torch.manual_seed(0)
        print(make.__name__, "—", (make.__doc__ or "").strip(), flush=True)
        timing["graph"] = make.__name__ in GRAPHS
        rows = make(options.profile)
        results["tables"][make.__name__] = {"what": make.__doc__, "ms": rows}
        torch.cuda.empty_cache()
        # at once: what comes later may fail
        written = with_earlier(results, file, results["tables"])
        written["bars"] = bars(written["tables"])
        file.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    for what, row in written["bars"].items():
        print(f"    bar {what}: {row}", flush=True)
    print(file)


if __name__ == "__main__":
    main()
