"""Whole models on one GPU, each beside its peer in the same run.

    PYTHONPATH=src python -m benchmarks.train                      # about 9 minutes on one H200, compilation included
    PYTHONPATH=src python -m benchmarks.train --only t5 gmlp       # some tables

Writes benchmarks/results/train-<device>.json. A training step is forward, backward, AdamW (fused) in bf16 autocast with
float32 weights, compiled; the figure is the median over steps after warm-up. FLOPs are counted by torch's flop counter on
the uncompiled model, so that every model is counted the same way. Ours is captured as one CUDA graph, optimizer included,
as the training loop does it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tokenmix
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.models.heads import TokenmixLM

MATMUL_PEAK = 789e12  # bf16 matrix product measured on one H200 (see METHOD: 8192³ on random data)
RESULTS = Path(__file__).parent / "results"


def measure(step: Callable[[], Any], steps: int = 20, warm: int = 5) -> dict[str, float]:
    """Median milliseconds of a step, peak memory, seconds to warm up (compilation included)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - start
    times = []
    for _ in range(steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return {
        "ms": statistics.median(times),
        "spread_ms": max(times) - min(times),
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "warm_up_s": warm_up,
    }


def trainer(
    model: nn.Module, inputs: dict[str, torch.Tensor], *, compiled: bool = True, mode: str | None = None
) -> Callable[[], Any]:
    """One training step of a model, compiled."""
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model, mode=mode) if compiled else model
    inputs = for_training(model, inputs)

    def step() -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def for_training(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Our language models need not hand out logits while they train."""
    return {**inputs, "return_logits": False} if isinstance(model, TokenmixLM) else inputs


def step_flops(model: nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """Three times the forward pass, counted on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter, torch.no_grad():
        twin = type(model)(model.config)
        given = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in inputs.items() if name != "labels"}
        if "labels" in inputs and model.config.is_encoder_decoder:
            given["decoder_input_ids"] = torch.empty(inputs["labels"].shape, dtype=torch.long)
        twin.eval()(**given)
    return 3.0 * counter.get_total_flops()


def seq2seq_inputs(batch: int, source: int, target: int, vocabulary: int = 32000) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "input_ids": torch.randint(2, vocabulary, (batch, source), device="cuda"),
        "labels": torch.randint(2, vocabulary, (batch, target), device="cuda"),
    }


def hugging_face_t5(**sizes: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(feed_forward_proj="gated-gelu", dropout_rate=0.0, **sizes)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def row(name: str, step: Callable[[], Any], flops: float | None = None, **more: Any) -> dict[str, Any]:
    """Measure and print one row."""
    found: dict[str, Any] = {"name": name, **measure(step), **more}
    if flops:
        found["tflops"] = flops / found["ms"] / 1e9
        found["share_of_matmul_peak"] = found["tflops"] * 1e12 / MATMUL_PEAK
    print(json.dumps(found), flush=True)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return found


def t5() -> list[dict[str, Any]]:
    """T5.1.1-base, batch 128, 512/114: Hugging Face, ours, and ours with other mixers at equal width."""
    inputs = seq2seq_inputs(128, 512, 114)
    ours = create_model("t5-v1.1-base", dropout=0.0)
    flops = step_flops(ours, inputs)
    rows = [row("T5.1.1-base, ours", graphed(ours, inputs), flops)]
    base = rows[0]["ms"]
    for name, options in (
        ("Remixer-base, heads=1", dict(layer="dot | remix")),
        ("Synthesizer R", dict(layer="random | geglu")),
        ("Synthesizer D", dict(layer="dense(shared=True, bias=False) | geglu")),
        ("Synthesizer R+V", dict(layer='mix(random, dot, alpha="sum") | geglu')),
    ):
        rows.append(row(name, graphed(create_model("t5-v1.1-base", dropout=0.0, **options), inputs)))
        rows[-1]["steps_relative_to_ours"] = base / rows[-1]["ms"]
    peer = hugging_face_t5(vocab_size=32128, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12)
    rows.append(row("T5.1.1-base, Hugging Face compiled", trainer(peer, inputs), flops))
    rows[0]["times_hugging_face"] = rows[-1]["ms"] / base
    return rows


def cogs() -> list[dict[str, Any]]:
    """2 + 2 layers, d 512, batch 128, padded 24/160, captured as a CUDA graph; and Hugging Face's, compiled."""
    sizes = dict(d_model=512, d_ff=1024, heads=8, head_dim=64, layers=2, vocab_size=896, max_length=512)
    inputs = seq2seq_inputs(128, 24, 160, 890)
    ours = create_model(TokenmixConfig(body="seq2seq", layer="dot | geglu", **sizes))
    rows = [row("COGS-sized, ours, CUDA graph", graphed(ours, inputs))]
    short = seq2seq_inputs(128, 16, 64, 890)
    rows.append(row("COGS-sized, ours, CUDA graph, typical bucket 16/64", graphed(create_model(ours.config), short)))
    peer = hugging_face_t5(vocab_size=896, d_model=512, d_kv=64, d_ff=1024, num_layers=2, num_heads=8)
    rows.append(row("COGS-sized, Hugging Face compiled", trainer(peer, inputs)))
    for found in rows:
        found["steps_per_second"] = 1000 / found["ms"]
    return rows


def graphed(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """A whole training step, optimizer included, compiled and captured as one CUDA graph."""
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4, device="cuda"), fused=True, capturable=True)
    run = torch.compile(model)
    inputs = for_training(model, inputs)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def gmlp() -> list[dict[str, Any]]:
    """gMLP-S/16, batch 256, training and inference; timm's beside it. gMLP-base on masked LM."""
    torch.manual_seed(0)
    images = {
        "pixel_values": torch.randn(256, 3, 224, 224, device="cuda"),
        "labels": torch.randint(0, 1000, (256,), device="cuda"),
    }
    ours = create_model("gmlp-s16-224", drop_path=0.0)
    rows = [row("gMLP-S/16 training, ours", graphed(ours, images))]
    rows.append(row("gMLP-S/16 inference, ours", inference(create_model("gmlp-s16-224"), images["pixel_values"])))
    try:
        import timm
    except ImportError:
        timm = None
    if timm is not None:
        peer = Labelled(timm.create_model("gmlp_s16_224"))
        rows.append(row("gMLP-S/16 training, timm compiled", trainer(peer, images)))
        rows.append(
            row(
                "gMLP-S/16 inference, timm compiled",
                inference(timm.create_model("gmlp_s16_224"), images["pixel_values"]),
            )
        )
    for found in rows:
        found["images_per_second"] = 256_000 / found["ms"]
    ids = torch.randint(5, 32000, (256, 512), device="cuda")
    labels = torch.where(torch.rand(256, 512, device="cuda") < 0.15, ids, -100)
    model = create_model("gmlp-base")
    inputs = {"input_ids": ids, "labels": labels}
    rows.append(row("gMLP-base masked LM, 256×512", graphed(model, inputs), step_flops(model, inputs)))
    return rows


class Labelled(nn.Module):
    """A timm model with the call and the loss of a Hugging Face one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(loss=nn.functional.cross_entropy(self.model(pixel_values).float(), labels))


def inference(model: nn.Module, images: torch.Tensor) -> Callable[[], Any]:
    model = model.cuda().eval().to(torch.bfloat16)
    run = torch.compile(model)
    images = images.to(torch.bfloat16)

    def step() -> Any:
        with torch.inference_mode():
            return run(images)

    return step


TABLES = {"t5": t5, "cogs": cogs, "gmlp": gmlp}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.train measures on a GPU; benchmarks.train_cpu is the CPU's")
    torch.set_float32_matmul_precision("high")
    device = torch.cuda.get_device_name().split()[-1].lower()
    result: dict[str, Any] = {
        "command": "python -m benchmarks.train --only " + " ".join(options.only),
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "tokenmix": tokenmix.__version__},
        "tables": {},
    }
    path = options.out / f"train-{device}.json"
    for name in options.only:
        try:
            result["tables"][name] = TABLES[name]()
        except Exception as error:  # one table's failure must not lose the others
            result["tables"][name] = [{"name": name, "error": f"{type(error).__name__}: {error}"[:500]}]
            print(result["tables"][name], flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
