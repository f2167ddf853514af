"""A run, from the first step to the last, killed and resumed. What it leaves on disk: `tokenmix.training.folder`.

>>> result = train(RunConfig.of({"out": "runs/a", "model": {"name": "remixer-tiny"}, "data": {"task": "scan"}}))
>>> result.metrics["exact_match"]
99.2
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tokenmix.devices import chosen_device
from tokenmix.memory import keep_freed_memory
from tokenmix.training import resident
from tokenmix.training.batches import Batches
from tokenmix.training.build import Parts, build
from tokenmix.training.checkpoint import (
    CheckpointError,
    checkpoint_path,
    load_model_tensors,
    load_optimizer_tensors,
    model_tensors,
    optimizer_tensors,
    read_checkpoint,
    set_aside,
    steps_saved,
    tidy,
    write_checkpoint,
)
from tokenmix.training.config import RunConfig
from tokenmix.training.faults import FolderLock
from tokenmix.training.folder import Metrics, device_name, starting_point, write_folder
from tokenmix.training.loop import Counters, Trainer
from tokenmix.training.progress import Callback, clock
from tokenmix.training.resident import Resident


@dataclass
class RunResult:
    """What came of a run."""

    out: Path
    status: str  #: "finished", "stopped early" or "interrupted"
    steps: int
    loss: float
    metrics: dict[str, float]  #: of the last validation
    best: dict[str, Any] = field(default_factory=dict)  #: step and value of the best validation
    seconds: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    parameters: int = 0
    skipped: int = 0
    config: RunConfig = field(default_factory=RunConfig)
    answers: bool = True  #: whether `tokenmix predict` can ask it something

    def _suggestion(self) -> str:
        if self.answers:
            return f'predict {self.out} "…"'
        if self.config.data.task.startswith("shards:"):  # token ids: nothing to evaluate by themselves
            return f"evaluate {self.out} --task file:text.txt"
        return f"evaluate {self.out}"

    def summary(self) -> str:
        """What a user reads at the end: result, and where everything is."""
        shown = [f"{name} {value:.2f}" for name, value in list(self.metrics.items())[:4]]
        head = (
            f"{self.status} after {self.steps} steps, {clock(self.seconds)}: loss {self.loss:.4f}  {'  '.join(shown)}"
        )
        skipped = [f"{self.skipped} steps were left out for a non-finite loss"] if self.skipped else []
        if self.status == "interrupted":
            return "\n".join([head, *skipped, f"saved; go on with the same command and --resume auto → {self.out}"])
        lines = [
            f"model and tokenizer   {self.out}",
            f"metrics               {self.out / 'metrics.jsonl'}, {self.out / 'tensorboard'}",
            f"checkpoints           {self.out / 'checkpoints'}",
            f"try                   tokenmix {self._suggestion()}",
        ]
        return "\n".join([head, *skipped, *lines])


def train(config: RunConfig, callbacks: Sequence[Callback] = ()) -> RunResult:
    """Train as the configuration says. Killed and called again with resume="auto", it goes on to the same result.

    >>> result = train(RunConfig.of({"model": {"name": "gmlp-tiny"}, "data": {"task": "toy"}, "out": "runs/toy"}))
    """
    if not isinstance(config, RunConfig):
        raise ValueError(f"train takes a RunConfig; make one of a {type(config).__name__} with RunConfig.of(…)")
    accelerator, precision = _accelerator(config)
    folder = Path(config.out)
    main = accelerator.is_main_process
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    with contextlib.ExitStack() as stack:
        if folder.is_file():
            raise ValueError(f"{folder} is a file; choose another --out")
        if main and not folder.exists():
            stack.callback(_remove_empty, folder)
        folder.mkdir(parents=True, exist_ok=True)
        if main:
            stack.enter_context(FolderLock(folder))
        start = starting_point(config, folder)
        _set_threads(config, folder, start)
        parts = _build(config, folder, accelerator)
        if main:
            write_folder(config, folder, parts, accelerator, precision)
        accelerator.wait_for_everyone()
        session = Session(config, folder, parts, accelerator, start, callbacks if main else ())
        stack.callback(session.close)
        return session.run()


def _remove_empty(folder: Path) -> None:
    """What failed before it wrote anything leaves no folder behind."""
    if all(file.name == ".lock" for file in folder.iterdir()):
        (folder / ".lock").unlink(missing_ok=True)
        folder.rmdir()


class Session:
    """One process's part in a run."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        parts: Parts,
        accelerator: Any,
        start: Path | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.config, self.folder, self.parts, self.accelerator = config, folder, parts, accelerator
        self.main = accelerator.is_main_process
        world, rank = accelerator.num_processes, accelerator.process_index
        # compiled or recorded, as GPUs do by default: few shapes
        bounded = accelerator.device.type == "cuda" or bool(config.device.compile or config.device.cuda_graphs)
        body = parts.model.config.body
        places = config.device.skip_padding and bounded
        if places and (body != "seq2seq" or world > 1):
            raise ValueError("device.skip_padding is for seq2seq models in one process; leave it at false for others")
        batches = Batches(
            parts.examples, config.data.batch_size, config.seed, buckets=config.data.buckets,
            exact=not bounded, most=None if body == "vision" else parts.model.config.max_length, causal=body == "decoder",
            places=places, rank=rank, world=world,
        )  # fmt: skip
        augment = None
        if config.data.augment:
            from tokenmix.data.augment import Augment

            policy = "imagenet" if parts.model.config.channels == 3 else None
            augment = Augment(parts.model.config.num_labels, policy=policy).to(accelerator.device)
        self.kind = resident.kind_of(config, parts.model, batches)
        taken = resident.take(self.kind, parts.model, fresh=start is None)
        if taken is not None:
            parts.model = taken.model
        self.trainer = Trainer(config, parts.model, batches, accelerator, folder, [], augment, taken)
        self.done = self.trainer.done
        if start is not None:
            self._load(start)
        self.resumed = self.done.step
        self.metrics_file = Metrics(folder, self.done.step, config.tensorboard) if self.main else None
        self.callbacks = [*([self.metrics_file] if self.metrics_file else []), *callbacks]
        self.trainer.callbacks = self.callbacks
        self.last: dict[str, float] = {}
        self.validated_at: int | None = None
        self.status = "finished"
        self.saved_at = self.done.step if start is not None else None
        self.fifth = math.floor(5 * self.trainer.budget.fraction(self.done) + 1e-9)  #: of the budget, so many are used
        self._clock = time.monotonic()

    def run(self) -> RunResult:
        """From the starting point to the end of the budget, or until a signal."""
        trainer, model = self.trainer, self.parts.model
        parameters = sum(p.numel() for p in model.parameters())
        chosen = self.config.model
        name = " with layer ".join(filter(None, (chosen.name or chosen.weights, chosen.layer)))
        about = {
            "out": str(self.folder), "steps": trainer.budget.steps, "parameters": parameters, "model": name,
            "task": self.config.data.task, "device": device_name(trainer.device), "resumed": self.resumed,
        }  # fmt: skip
        for callback in self.callbacks:
            callback.on_start(about)
        with _signals(self._interrupt):  # a second SIGTERM must not reach a run that is saving itself
            if trainer.budget.fraction(self.done) < 1:
                trainer.warm_up()
                trainer.run(self._between_steps)
            known = self.validated_at == self.done.step or (self.saved_at == self.done.step and self.last)
            if not known and self.status != "interrupted":
                self._validate()
            if self.saved_at != self.done.step:
                self._save()
            if self.status != "interrupted":
                self._export()
        if trainer.ready and trainer.graphs is not None:
            resident.keep(Resident(self.kind, model, trainer.optimizer, trainer.replica, trainer.graphs))
        result = RunResult(
            self.folder, self.status, self.done.step, trainer.loss, self.last,
            {"step": self.done.best_step, "value": self.done.best} if self.done.best_step is not None else {},
            self.done.seconds, self.done.tokens, self.done.flops, parameters, self.done.skipped, self.config,
            self.parts.form not in ("document", "image"),
        )  # fmt: skip
        for callback in self.callbacks:
            callback.on_end(result)
        return result

    def close(self) -> None:
        if self.metrics_file is not None:
            self.metrics_file.close()

    # ---------------------------------------------------------------------------------------------- between steps

    def _interrupt(self) -> None:
        self.status = "interrupted"
        self.trainer.stopping = True

    def _between_steps(self) -> None:
        fraction, before = self.trainer.budget.fraction(self.done), self.fifth
        fifth = math.floor(5 * fraction + 1e-9)
        if self.accelerator.num_processes > 1:  # all stop, validate and save, or none
            told = torch.tensor([float(self.trainer.stopping), float(fifth)], device=self.trainer.device)
            stopping, fifths = self.accelerator.reduce(told, "sum").tolist()
            fifth = int(fifths) // self.accelerator.num_processes
            if stopping and not self.trainer.stopping:
                self._interrupt()
        self.fifth = fifth

        def due(every: int | None) -> bool:
            return fifth > before if every is None else bool(every) and self.done.step % every == 0

        improved, over = False, fraction >= 1
        if due(self.config.validation.every) and not over and self.status != "interrupted":
            improved = self._validate()
        if (due(self.config.checkpoints.every) or improved) and not over:
            self._save()

    def _validate(self) -> bool:
        """Loss and metric on the held-out examples; whether they are the best so far."""
        from tokenmix.evaluation.validation import validate

        self.trainer.settle()
        started, self.validated_at = time.perf_counter(), self.done.step
        self.last = validate(self.config, self.parts, self.trainer.precision)
        record = {"kind": "validation", "step": self.done.step, **self.last, "seconds": time.perf_counter() - started}
        for callback in self.callbacks:
            callback.on_validation(record)
        name, higher = headline(self.last)
        if name is None:
            return False
        value, loss = self.last[name], self.last.get("loss")
        better = self.done.best is None or (value > self.done.best if higher else value < self.done.best)
        if value == self.done.best and loss is not None and self.done.best_loss is not None:
            better = loss < self.done.best_loss  # while no answer is right yet, the loss tells
        self.done.without_gain = 0 if better else self.done.without_gain + 1
        if better:
            self.done.best, self.done.best_loss, self.done.best_step = value, loss, self.done.step
        patience = self.config.validation.patience
        if patience is not None and self.done.without_gain >= patience and self.status == "finished":
            self.status, self.trainer.stopping = "stopped early", True
        return better

    # ----------------------------------------------------------------------------------------- saving and loading

    def _save(self) -> None:
        self.trainer.settle()
        model, optimizer = self.parts.model, self.trainer.optimizer
        weights = model_tensors(model)
        tensors, numbers = optimizer_tensors(model, optimizer)
        if self.main:
            state = {
                "counters": dataclasses.asdict(self.done),
                "optimizer_numbers": numbers,
                "seed": self.config.seed,
                "loss": self.trainer.loss,
                "threads": torch.get_num_threads(),
                "processes": self.accelerator.num_processes,
            }
            files = {"model.safetensors": weights, "optimizer.safetensors": tensors}
            texts = {"config.json": model.config.to_json_string(use_diff=False), "state.json": json.dumps(state)}
            write_checkpoint(self.folder, self.done.step, files, texts)
            keep = {self.done.best_step} if self.done.best_step is not None else set()
            tidy(self.folder, self.config.checkpoints.keep_last, self.config.checkpoints.keep_every, keep)
        self.saved_at = self.done.step
        self.accelerator.wait_for_everyone()

    def _load(self, path: Path) -> None:
        weights, tensors, state = read_checkpoint(path)
        load_model_tensors(self.parts.model, weights)
        load_optimizer_tensors(self.parts.model, self.trainer.optimizer, tensors, state["optimizer_numbers"])
        for name, value in state["counters"].items():
            setattr(self.done, name, value)
        self.trainer.loss = state["loss"]
        if self.main:
            set_aside(self.folder, self.done.step)

    def _export(self) -> None:
        """The run folder itself becomes a model."""
        weights = model_tensors(self.parts.model)
        best = self.done.best_step
        if self.config.checkpoints.final == "best" and best is not None and best in steps_saved(self.folder):
            weights = read_checkpoint(checkpoint_path(self.folder, best))[0]
        if not self.main:
            return
        from safetensors.torch import save_file

        aside = self.folder / ".model.safetensors"
        try:
            save_file(weights, aside, metadata={"format": "pt"})
            os.replace(aside, self.folder / "model.safetensors")
        except OSError as error:
            raise CheckpointError(f"cannot write {self.folder / 'model.safetensors'}: {error}") from error


def headline(metrics: dict[str, float]) -> tuple[str | None, bool]:
    """The metric that decides which checkpoint is best, and whether higher is better."""
    names = [name for name in metrics if name != "loss"]
    name = names[0] if names else "loss" if "loss" in metrics else None
    return name, name not in ("loss", "perplexity", "word_perplexity")


# ---------------------------------------------------------------------------------------------------------- set-up


def _accelerator(config: RunConfig) -> tuple[Any, str]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if os.environ.pop("ACCELERATE_USE_FSDP", "").lower() in (
        "1",
        "true",
    ):  # `accelerate launch --use_fsdp` means FSDP2 here
        config.device.sharding = "fsdp"
    on_cpu = chosen_device(config.device.device).type == "cpu"
    precision = config.device.precision if config.device.precision != "auto" else "fp32" if on_cpu else "bf16"
    if not torch.distributed.is_initialized():  # an earlier run of this process does not decide for this one
        AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if precision == "bf16" else "no")
    if config.device.sharding == "fsdp" and accelerator.num_processes == 1 and not torch.distributed.is_initialized():
        raise ValueError("device.sharding=fsdp needs several processes; start it with torchrun or accelerate launch")
    return accelerator, precision


def _set_threads(config: RunConfig, folder: Path, start: Path | None) -> None:
    """The thread count changes the last bits of a sum: a resumed run takes the one it began with."""
    threads = config.device.threads
    if threads is None and start is not None:
        threads = json.loads((start / "state.json").read_text(encoding="utf-8")).get("threads")
    if threads:
        torch.set_num_threads(threads)


def _build(config: RunConfig, folder: Path, accelerator: Any) -> Parts:
    """The main process first: it makes the tokenizer, the others read it."""
    parts = None
    if accelerator.is_main_process:
        parts = build(config, folder)
        if parts.tokenizer is not None and not (folder / "tokenizer.json").exists():
            parts.tokenizer.save_pretrained(folder)
    accelerator.wait_for_everyone()
    return parts if parts is not None else build(config, folder)


@contextlib.contextmanager
def _signals(interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM finish the step, save and stop; a second Ctrl-C stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: Any) -> None:
        interrupt()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Counters", "RunResult", "train"]
