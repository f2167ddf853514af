"""Whole models on one GPU, each beside its peer in the same run.

    PYTHONPATH=src python -m benchmarks.train                      # about 6 minutes on one H200, compilation included
    PYTHONPATH=src python -m benchmarks.train --only t5 gmlp       # some tables; the file keeps the others

Writes benchmarks/results/train-<device>.json. A training step is forward, backward, AdamW (fused) in bf16 autocast with
float32 weights, compiled; the figure is the median over steps after warm-up. Ours is captured as one CUDA graph,
optimizer included, as the training loop does it; a peer is launched from Python, as its users do. FLOPs are those of the
matrix products, three times the forward pass. Memory is the most that was allocated at a time. Each row has a process of
its own: all compile at once, then they measure one after the other on a quiet machine. --profile lists the GPU kernels, with
the time between them, and the clock and the power that the GPU had during the timed steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import tokenmix
from benchmarks import with_earlier
from tokenmix.compare.profile import compiled
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.heads import TokenmixLM
from tokenmix.training.flops import StepFlops

MATMUL_PEAK = 789e12  # bf16 matrix product measured on one H200: 8192³ on random data
RESULTS = Path(__file__).parent / "results"
Inputs: TypeAlias = dict[str, Any]
Row: TypeAlias = tuple[Callable[[], Any], float | None]  #: a step, and its FLOPs where they are counted


# ------------------------------------------------------------------------------------------------------- a step


@functools.cache
def my_turn() -> None:
    """Tell the parent that this row is compiled, and wait until the machine is quiet."""
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        raise SystemExit("the run was given up")


def stepper(model: nn.Module, inputs: Inputs) -> Callable[[], Any]:
    """One training step of a model, compiled."""
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4, device="cuda"), fused=True, capturable=True)
    run = compiled(model, my_turn)
    if isinstance(model, TokenmixLM):  # ours need not hand out logits while they train
        inputs = {**inputs, "return_logits": False}

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()

    return step


def graphed(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as one CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    return graph.replay


def inference(model: nn.Module, images: Tensor) -> Callable[[], Any]:
    """The forward pass in bf16, compiled."""
    run, images = compiled(model.cuda().eval().to(torch.bfloat16), my_turn), images.to(torch.bfloat16)

    def step() -> Any:
        with torch.inference_mode():
            return run(images)

    return step


def measure(make: Callable[[], Row], profile: bool, steps: int = 40) -> dict[str, Any]:
    """Median milliseconds of a step, its spread, peak memory; with `profile`, the milliseconds of each kind of kernel."""
    step, flops = make()
    for _ in range(20):  # the clock settles under load, too
        step()
    my_turn()
    torch.cuda.synchronize()
    times = []
    with watched() if profile else nullcontext({}) as state:
        for _ in range(steps):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    found: dict[str, Any] = {
        "ms": round(statistics.median(times), 4),
        "spread_ms": round(max(times) - min(times), 4),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
    }
    if flops:
        found["tflops"] = round(flops / found["ms"] / 1e9, 1)
        found["share_of_matmul_peak"] = round(found["tflops"] * 1e12 / MATMUL_PEAK, 3)
    if profile:
        found |= state | kernels(step)
    return found


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """The medians of the GPU's clock and power, and what its clock is held down by, every tenth of a second."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,clocks_event_reasons.sw_power_cap", "-lms", "100"]
    watcher = subprocess.Popen([*query, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = {}
    try:
        yield found
    finally:
        watcher.terminate()
        samples = [line.split(", ") for line in watcher.communicate()[0].splitlines() if line.count(",") == 2]
        samples = samples[len(samples) // 4 :]  # the power is a mean over a while
        if samples:
            found["sm_mhz"] = statistics.median(float(clock) for clock, _, _ in samples)
            found["watts"] = statistics.median(float(power) for _, power, _ in samples)
            capped = sum(reason.strip() == "Active" for _, _, reason in samples)
            found["share_of_time_at_the_power_limit"] = round(capped / len(samples), 2)


def kernels(step: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds and launches of the kernels of one step, the longest first, and of all others together; and the
    milliseconds in which none ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in profiler.profiler.kineto_results.events()
        if e.device_type() == torch.autograd.DeviceType.CUDA
    )
    idle, reached = 0, spans[0][0]
    for start, end in spans:
        idle += max(0, start - reached)
        reached = max(reached, end)
    events = [e for e in profiler.key_averages() if e.device_time_total > 0]
    events.sort(key=lambda e: -e.device_time_total)
    listed = {e.key[:90]: [round(e.device_time_total / 3e3, 3), e.count // 3] for e in events[:20]}
    rest = events[20:]
    listed["all others"] = [round(sum(e.device_time_total for e in rest) / 3e3, 3), sum(e.count for e in rest) // 3]
    return {"kernels_ms": listed, "idle_ms": round(idle / 3e6, 3)}


# ------------------------------------------------------------------------------------------------------ the rows


def text(batch: int, source: int, target: int, vocabulary: int) -> Inputs:
    torch.manual_seed(0)
    ids = functools.partial(torch.randint, 2, vocabulary, device="cuda")
    return {"input_ids": ids((batch, source)), "labels": ids((batch, target))}


def t5_base(**options: Any) -> Row:
    """Ours, batch 128, 512/114; with other mixers at equal width."""
    model = create_model("t5-v1.1-base", dropout=0.0, **options)
    return graphed(stepper(model, text(128, 512, 114, 32000))), StepFlops(model)(128, (512, 114))


def hugging_face_t5(inputs: Inputs, **sizes: Any) -> Callable[[], Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(feed_forward_proj="gated-gelu", dropout_rate=0.0, d_kv=64, decoder_start_token_id=0, **sizes)
    return stepper(T5ForConditionalGeneration(config), inputs)


def hugging_face_base() -> Row:
    sizes = dict(vocab_size=32128, d_model=768, d_ff=2048, num_layers=12, num_heads=12)
    ours = create_model("t5-v1.1-base", dropout=0.0)
    return hugging_face_t5(text(128, 512, 114, 32000), **sizes), StepFlops(ours)(128, (512, 114))


def cogs_sized() -> Row:
    """2 + 2 layers, d 512, batch 128, padded 24/160."""
    sizes = dict(d_model=512, d_ff=1024, heads=8, head_dim=64, layers=2, vocab_size=896, max_length=512)
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | geglu", **sizes))
    return graphed(stepper(model, text(128, 24, 160, 890))), None


def hugging_face_cogs() -> Row:
    sizes = dict(vocab_size=896, d_model=512, d_ff=1024, num_layers=2, num_heads=8)
    return hugging_face_t5(text(128, 24, 160, 890), **sizes), None


def images() -> Inputs:
    torch.manual_seed(0)
    labels = torch.randint(0, 1000, (256,), device="cuda")
    return {"pixel_values": torch.randn(256, 3, 224, 224, device="cuda"), "labels": labels}


def gmlp_training() -> Row:
    return graphed(stepper(create_model("gmlp-s16-224", drop_path=0.0), images())), None


def gmlp_inference() -> Row:
    step = inference(create_model("gmlp-s16-224"), images()["pixel_values"])
    return graphed(step), None


class Labelled(nn.Module):
    """A timm model with the call and the loss of a Hugging Face one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.model(pixel_values).float(), labels))


def timm_training() -> Row:
    import timm

    return stepper(Labelled(timm.create_model("gmlp_s16_224")), images()), None


def timm_inference() -> Row:
    import timm

    return inference(timm.create_model("gmlp_s16_224"), images()["pixel_values"]), None


def gmlp_base() -> Row:
    """Masked LM, 15% of the tokens, batch 256 × 512."""
    torch.manual_seed(0)
    ids = torch.randint(5, 32000, (256, 512), device="cuda")
    labels = torch.where(torch.rand(256, 512, device="cuda") < 0.15, ids, -100)
    model = create_model("gmlp-base")
    return graphed(stepper(model, {"input_ids": ids, "labels": labels})), StepFlops(model)(256, (512, 0))


TABLES: dict[str, dict[str, Callable[[], Row]]] = {
    "t5": {
        "T5.1.1-base": t5_base,
        "Remixer-base, heads=1": functools.partial(t5_base, layer="dot | remix"),
        "Synthesizer R": functools.partial(t5_base, layer="random | geglu"),
        "Synthesizer D": functools.partial(t5_base, layer="dense(shared=True, bias=False) | geglu"),
        "Synthesizer R+V": functools.partial(t5_base, layer='mix(random, dot, alpha="sum") | geglu'),
        "Hugging Face T5.1.1-base": hugging_face_base,
    },
    "cogs": {"COGS-sized": cogs_sized, "Hugging Face COGS-sized": hugging_face_cogs},
    "gmlp": {
        "gMLP-S/16 training": gmlp_training,
        "gMLP-S/16 inference": gmlp_inference,
        "timm gMLP-S/16 training": timm_training,
        "timm gMLP-S/16 inference": timm_inference,
        "gMLP-base masked LM": gmlp_base,  # last: it needs most of the memory
    },
}


def derived(table: str, rows: dict[str, Any]) -> None:
    """What the bars speak of, beside the milliseconds."""
    for name, row in rows.items():
        if "ms" not in row:
            continue
        if table == "gmlp" and "masked" not in name:
            row["images_per_second"] = round(256_000 / row["ms"])
        if table == "cogs":
            row["steps_per_second"] = round(1000 / row["ms"], 1)
        if table == "t5" and "ms" in rows["T5.1.1-base"]:
            row["steps_relative_to_our_t5"] = round(rows["T5.1.1-base"]["ms"] / row["ms"], 3)


BARS: tuple[tuple[str, str, str, str, float], ...] = (  # table, row, figure, what is asked of it
    ("t5", "T5.1.1-base", "ms", "at most", 115),
    ("t5", "T5.1.1-base", "memory_gb", "at most", 30),
    ("t5", "Remixer-base, heads=1", "steps_relative_to_our_t5", "at least", 1 / 1.15),
    ("t5", "Synthesizer R", "steps_relative_to_our_t5", "at least", 1.15),
    ("t5", "Synthesizer D", "steps_relative_to_our_t5", "at least", 1.0),
    ("t5", "Synthesizer R+V", "steps_relative_to_our_t5", "at least", 0.95),
    ("cogs", "COGS-sized", "steps_per_second", "at least", 140),
    ("gmlp", "gMLP-S/16 training", "images_per_second", "at least", 8000),
    ("gmlp", "gMLP-S/16 inference", "images_per_second", "at least", 24000),
    ("gmlp", "gMLP-base masked LM", "share_of_matmul_peak", "at least", 0.40),
)


def bars(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was asked of each figure that was measured, and whether it is met."""
    found = {}
    for table, row, figure, asked, bar in BARS:
        value = tables.get(table, {}).get(row, {}).get(figure)
        if value is not None:
            met = value <= bar if asked == "at most" else value >= bar
            found[f"{row}: {figure}"] = {"measured": value, "asked": f"{asked} {round(bar, 3):g}", "met": met}
    return found


# ------------------------------------------------------------------------------------------------------- the run


def launch(table: str, name: str, profile: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.train", "--row", table, name, *(["--profile"] if profile else [])]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def answer(child: subprocess.Popen[str], wanted: str) -> str | None:
    """The rest of the next line that begins with `wanted`; None when the process ends before."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(wanted):
            return line.removeprefix(wanted)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--profile", action="store_true", help="list the GPU kernels of every row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--row", nargs=2, metavar=("TABLE", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.train measures on a GPU; benchmarks.train_cpu is the CPU's")
    torch.set_float32_matmul_precision("high")
    if options.row:
        table, name = options.row
        print("result" + json.dumps(measure(TABLES[table][name], options.profile)), flush=True)
        return
    device = torch.cuda.get_device_name().split()[-1].lower()
    result: dict[str, Any] = {
        "command": "PYTHONPATH=src python -m benchmarks.train" + " --profile" * options.profile,
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "tokenmix": tokenmix.__version__,
            "autotune": os.environ.get("TOKENMIX_AUTOTUNE", "1") != "0",
        },
        "tables": {table: {} for table in options.only},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"train-{device}.json"
    result = with_earlier(result, file, options.only)
    children = {(table, name): launch(table, name, options.profile) for table in options.only for name in TABLES[table]}
    ready = {key: answer(child, "ready") is not None for key, child in children.items()}
    for (table, name), child in children.items():
        found = None
        if ready[table, name]:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            found = answer(child, "result")
        code = child.wait()
        row = json.loads(found) if found else {"error": f"the process ended with {code}; its message is above"}
        result["tables"][table][name] = row
        derived(table, result["tables"][table])
        result["bars"] = bars(result["tables"])
        print(name, {k: v for k, v in row.items() if k != "kernels_ms"}, flush=True)
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
