"""The training loop: one for a laptop's CPU, a GPU, several (DDP, FSDP2) and several machines.

Everything random in step s (dropout, augmentation) is drawn from a generator seeded with (seed, s, process), and batch
s is a function of (seed, s); so a run's whole state is weights, optimizer and a few counters, and it continues from any
checkpoint as if it had never stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tokenmix.data.randomness import key
from tokenmix.mixers.residual import Residual
from tokenmix.training.batches import PLACES, Batch, Batches, split_rows
from tokenmix.training.config import BudgetConfig, RunConfig
from tokenmix.training.faults import TrainingFault, is_out_of_memory, memory_message, nonfinite_report
from tokenmix.training.flops import StepFlops, peak_flops
from tokenmix.training.graphs import GraphedSteps
from tokenmix.training.optimizers import build_optimizer, clip
from tokenmix.training.progress import Callback
from tokenmix.training.resident import Resident
from tokenmix.training.schedules import learning_rate

TOKEN_LOSSES = ("ConditionalGeneration", "CausalLM", "MaskedLM")  # heads whose loss is a mean over tokens
DEFAULT_STEPS = 3000
LARGE_VOCABULARY = 8192
GRAPHED = 400e6  # parameters: launched from Python, T5.1.1-base kept an H200 busy 77% of the time; recorded, 97%


@dataclass
class Counters:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    skipped: int = 0  #: steps left out for a non-finite loss
    accumulate: int = 1
    best: float | None = None
    best_loss: float | None = None  #: beside it
    best_step: int | None = None
    without_gain: int = 0  #: validations since the best one


class Budget:
    """How much of a run is done. Limits may be given in steps, epochs, tokens, FLOPs or minutes; the first one counts.

    >>> Budget(BudgetConfig(tokens=1000), per_epoch=10).fraction(Counters(step=5, tokens=250))
    0.25
    """

    def __init__(self, config: BudgetConfig, per_epoch: float) -> None:
        steps = [] if config.steps is None else [config.steps]
        if config.epochs is not None:
            steps.append(max(1, round(config.epochs * per_epoch)))
        others = (config.tokens, config.flops, config.minutes)
        self.steps = min(steps) if steps else (DEFAULT_STEPS if others == (None, None, None) else None)
        self.tokens, self.flops = config.tokens, config.flops
        self.seconds = None if config.minutes is None else config.minutes * 60

    def fraction(self, done: Counters) -> float:
        """Share of the budget that is used."""
        pairs = (
            (done.step, self.steps),
            (done.tokens, self.tokens),
            (done.flops, self.flops),
            (done.seconds, self.seconds),
        )
        return max(spent / limit for spent, limit in pairs if limit is not None)

    def total(self, done: Counters) -> float:
        """Steps of the whole run: known, or estimated from what was used so far."""
        share = self.fraction(done)
        estimate = done.step / share if share > 0 and done.step else math.inf
        return (
            min(self.steps or math.inf, estimate) if self.steps is None or estimate < 0.999 * self.steps else self.steps
        )


class Trainer:
    """Trains a model on batches.

    Args:
        config: the run's configuration.
        model: a Hugging Face model that computes its own loss.
        batches: what to learn from.
        accelerator: of Hugging Face Accelerate; it says which process this is.
        folder: where reports of faults go.
        callbacks: who is told.
        augment: applied to images and labels on the device, in training.
        resident: what an earlier run of this kind left, whose model ``model`` then is.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Any,
        batches: Batches,
        accelerator: Any,
        folder: Path,
        callbacks: list[Callback],
        augment: nn.Module | None = None,
        resident: Resident | None = None,
    ) -> None:
        self.config, self.batches, self.accelerator, self.folder, self.callbacks = (
            config,
            batches,
            accelerator,
            folder,
            callbacks,
        )
        self.device: torch.device = accelerator.device
        self.world, self.rank = accelerator.num_processes, accelerator.process_index
        self.precision = accelerator.mixed_precision if accelerator.mixed_precision != "no" else "fp32"
        self.augment = augment
        self.token_loss = type(model).__name__.endswith(TOKEN_LOSSES)
        self.model = model.to(self.device)  # itself: for validation and saving
        self.lr = config.optimizer.lr if config.optimizer.lr is not None else default_lr(config, model)
        if config.device.sharding == "fsdp":
            shard(self.model)
        self.optimizer = resident.optimizer if resident else build_optimizer(self.model, config.optimizer, self.lr)
        self.replica = self.model  # what is called in a step: replicated and compiled
        if self.world > 1 and config.device.sharding == "none":
            self.replica = accelerator.prepare_model(self.model)
        # a fused optimizer can leave out a step on the device, so that nobody waits for the loss
        self.deferred = self.device.type == "cuda" and bool(self.optimizer.defaults.get("fused"))
        # packed documents are unpacked by their number, which varies: no fixed shapes
        self.packed = "document_ids" in batches[0].tensors
        self.compiled = self._compiles()
        self.graphs: GraphedSteps | None = None
        if resident is not None:
            self.replica, self.graphs = resident.replica, resident.graphs
        else:
            if self.compiled:
                torch._dynamo.config.recompile_limit = max(16, 4 * len(batches.shapes))
                self.replica = torch.compile(self.replica, dynamic=False)
            if self._wants_graphs():
                self.graphs = GraphedSteps(self._graphed, self.optimizer)
        self.ready = resident is not None  #: every shape is compiled and recorded
        self.pending: tuple[Batch, Tensor, Any] | None = None
        self.done = Counters(accumulate=config.device.accumulate)
        self.budget = Budget(config.budget, batches.per_epoch)
        self.step_flops = StepFlops(model)
        self.stopping = False
        self.loss = math.nan

    # ------------------------------------------------------------------------------------------------- set-up

    def _compiles(self) -> bool:
        wanted = self.config.device.compile
        if self.packed:
            if wanted:
                raise ValueError(
                    "packed causal LM batches vary in shape; compile them with data.objective=joined_causal_lm"
                )
            return False
        return self.device.type == "cuda" if wanted is None else wanted

    def _wants_graphs(self) -> bool:
        """CUDA graphs: where a small model would wait for launches, not for arithmetic."""
        wanted = self.config.device.cuda_graphs
        alone = self.world == 1 and self.config.device.accumulate == 1 and self.augment is None
        possible = self.deferred and alone and self.config.device.sharding == "none" and not self.packed
        if wanted and not possible:
            raise ValueError(
                "device.cuda_graphs needs one GPU, optimizer.name=adamw, device.accumulate=1, no augmentation and no "
                "packed documents"
            )
        small = sum(p.numel() for p in self.model.parameters()) < GRAPHED
        return possible and (small if wanted is None else wanted)

    def warm_up(self) -> None:
        """Compile, and record, the step of every shape before the first one, so that no later step stops for it."""
        if self.ready or (not self.compiled and self.graphs is None):
            return
        start = time.perf_counter()
        self.model.train()
        share = self.batches.batch_size // self.world
        some = np.arange(min(len(self.batches.examples), 4096))
        sizes = self.batches.examples.sizes(some)
        shortest = np.resize(some[np.argsort(sizes.sum(1), kind="stable")][:share], share)
        for shape in self.batches.shapes:
            fitting = some[(sizes <= np.array(shape)).all(1)]
            rows = np.resize(fitting, share) if len(fitting) else shortest
            tensors = self.batches.examples.batch(rows, np.zeros(share, dtype=np.int64), shape)
            if self.batches.room:
                tensors |= self.batches.places(np.ones_like(sizes[rows]), shape)
            batch = Batch(0, self._to_device(tensors), 0, share, shape)
            items = self._items(batch)
            with contextlib.nullcontext() if self.graphs is None else self.graphs.own_stream():
                self._gradients(batch, items, seed=0)
                if self.graphs is not None:  # its state must be there: a step that is left out makes it
                    self.optimizer.found_inf = torch.ones_like(items)  # type: ignore[attr-defined]
                    self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self._record(batch, items)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.ready = self.graphs is not None
        seconds = time.perf_counter() - start
        made = "recorded" if self.graphs is not None else "compiled" if self.compiled else "tried"
        shapes = ", ".join(map(str, self.batches.shapes))
        self._say(f"{made} {len(self.batches.shapes)} shapes in {seconds:.0f} s: {shapes}")

    def _record(self, batch: Batch, items: Tensor) -> None:
        """Record the step of a shape; a step that asks the device something cannot be, and is launched instead."""
        if self.graphs is None:
            return
        try:
            self.graphs.record(batch.tensors, items)
        except RuntimeError as error:
            if self.config.device.cuda_graphs or is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
            self._say(f"the steps of this model cannot be recorded and are launched one by one: {reason}")
            self.graphs = None
            self.optimizer.zero_grad(set_to_none=True)

    # --------------------------------------------------------------------------------------------------- a step

    def run(self, on_step: Callable[[], None]) -> None:
        """Steps until the budget is used or someone sets `stopping`; ``on_step`` validates and saves."""
        workers = self.config.data.workers
        workers = (2 if self.device.type == "cuda" else 0) if workers is None else workers
        loader = self.batches.loader(self.done.step, workers, pin=self.device.type == "cuda")
        upcoming = self._fetch(loader)
        self._since: dict[str, float] = {
            "time": time.perf_counter(),
            "step": self.done.step,
            "tokens": self.done.tokens,
            "flops": 0.0,
        }
        while self.budget.fraction(self.done) < 1 and not self.stopping:
            started = time.perf_counter()
            batch = upcoming
            loss = self.step(batch)
            upcoming = self._fetch(loader)  # while the device works
            self._settle(batch, loss)
            self.done.step += 1
            self.done.tokens += batch.tokens
            flops = self._flops(batch)
            self.done.flops += flops
            self._since["flops"] += flops
            self.done.seconds += time.perf_counter() - started
            fraction = self.budget.fraction(self.done)
            for callback in self.callbacks:
                callback.on_step(self.done.step, fraction)
            if self.done.step % self.config.log_every == 0 or fraction >= 1:
                self._log(fraction)
            paused = time.perf_counter()
            on_step()
            self._since["time"] += time.perf_counter() - paused
        self.settle()

    def step(self, batch: Batch) -> Tensor:
        """Forward, backward and update for one batch; the answer is the loss, on the device."""
        seed = int(key(self.config.seed, 2, self.done.step, self.rank)[0] >> np.uint64(1))
        self.rate = learning_rate(self.config.schedule, self.lr, self.done.step, self.budget.total(self.done))
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.rate)
            else:
                group["lr"] = self.rate
        items = self._items(batch)
        if self.graphs is not None and batch.tensors in self.graphs:
            torch.manual_seed(seed)
            return self.graphs.replay(batch.tensors, items)
        self.model.train()
        loss = self._gradients(batch, items, seed)
        healthy = self._clipped(loss)
        if self.deferred:
            self._update(healthy)
        elif math.isfinite(float(healthy)):
            self.optimizer.step()
        else:
            self._nonfinite(batch, float(loss))
        self.optimizer.zero_grad(set_to_none=True)
        return healthy

    def _gradients(self, batch: Batch, items: Tensor, seed: int) -> Tensor:
        """`_backward`, in more micro-batches where memory does not suffice and the user allows it."""
        while True:
            torch.manual_seed(seed)
            try:
                return self._backward(batch.tensors, items)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._make_room(batch, error)

    def _graphed(self, tensors: dict[str, Tensor], items: Tensor) -> Tensor:
        """A whole step that never waits for the device."""
        healthy = self._clipped(self._backward(tensors, items))
        self._update(healthy)
        self.optimizer.zero_grad(set_to_none=True)
        return healthy

    def _clipped(self, loss: Tensor) -> Tensor:
        """Clip the gradients. The loss, made non-finite where they are."""
        if self.config.optimizer.clip <= 0:
            return loss.detach()
        norm = clip(self.optimizer, self.config.optimizer.clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return loss.detach() + 0 * norm

    def _update(self, healthy: Tensor) -> None:
        """Update the weights, or leave them as they are where the loss is not finite; the device decides."""
        self.optimizer.found_inf = (~torch.isfinite(healthy)).float()  # type: ignore[attr-defined]
        self.optimizer.step()

    def _items(self, batch: Batch) -> Tensor:
        """The number of labels of the batch (the mean over processes), on the device: compiled code must not know it."""
        items = torch.full((), float(batch.items), device=self.device)
        return self.accelerator.reduce(items, "sum") / self.world if self.token_loss and self.world > 1 else items

    def _backward(self, tensors: dict[str, Tensor], items: Tensor) -> Tensor:
        """Gradients of the batch, in micro-batches; the loss is the mean over all tokens (or rows) of all processes."""
        if self.done.accumulate > 1:  # places are those of the whole batch
            tensors = {name: value for name, value in tensors.items() if name not in PLACES}
        micro = split_rows(tensors, self.done.accumulate)
        rows = len(next(iter(tensors.values())))
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(micro):
            last = number == len(micro) - 1
            with self._syncing(last), self.accelerator.autocast():
                loss = self._loss(part, items, len(next(iter(part.values()))) / rows)
            loss.backward()
            total += loss.detach()
        return self.accelerator.reduce(total, "mean") if self.world > 1 else total

    def _loss(self, tensors: dict[str, Tensor], items: Tensor, share: float) -> Tensor:
        if self.augment is not None:
            pixels, targets = self.augment(tensors["pixel_values"], tensors["labels"])
            tensors = {"pixel_values": pixels * 2 - 1, "labels": targets}
        if self.token_loss:
            # the logits of a large vocabulary are never stored whole; a CPU, asked for the loss alone, skips padding
            small = self.model.config.vocab_size <= LARGE_VOCABULARY and self.device.type != "cpu"
            logits = small and "predicted_positions" not in tensors
            return self.replica(**tensors, num_items_in_batch=items, return_logits=logits).loss
        return self.replica(**tensors).loss * share

    @contextlib.contextmanager
    def _syncing(self, last: bool) -> Iterator[None]:
        """Processes exchange gradients with the last micro-batch only."""
        if self.config.device.sharding == "fsdp":
            self.model.set_requires_gradient_sync(last)
            yield
        elif self.world > 1 and not last:
            with self.accelerator.no_sync(self.replica):
                yield
        else:
            yield

    # ------------------------------------------------------------------------------------------- what goes wrong

    def _settle(self, batch: Batch, loss: Tensor) -> None:
        """Take note of the loss: at once on a CPU; on a GPU that of the step before, so that nobody waits."""
        if not self.deferred:
            self.loss = float(loss)
            return
        previous = self.pending
        host = torch.empty((), pin_memory=True).copy_(loss, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self.pending = (batch, host, arrived)
        if previous is not None:
            self._take(previous)

    def settle(self) -> None:
        """Take note of the last loss that is still under way."""
        previous, self.pending = self.pending, None
        if previous is not None:
            self._take(previous)

    def _take(self, pending: tuple[Batch, Tensor, Any]) -> None:
        batch, host, arrived = pending
        arrived.synchronize()
        self.loss = float(host)
        if not math.isfinite(self.loss):
            self._nonfinite(batch, self.loss)

    def _nonfinite(self, batch: Batch, loss: float) -> None:
        """The weights were not touched by this batch: report it and stop, or leave it out and count."""
        self.done.skipped += 1
        folder = self.folder / "faults" / f"step-{batch.number:08d}"
        inputs = {"num_items_in_batch": float(batch.items)} if self.token_loss else {}
        torch.manual_seed(int(key(self.config.seed, 2, batch.number, self.rank)[0] >> np.uint64(1)))
        message = nonfinite_report(self.model, batch.tensors, batch.number, loss, folder, **inputs)
        if self.config.on_nonfinite == "stop":
            raise TrainingFault(f"{message}. To leave such steps out and go on: --on-nonfinite skip")
        self._say(f"{message}. The step is left out ({self.done.skipped} so far)")

    def _make_room(self, batch: Batch, error: BaseException) -> None:
        rows = len(next(iter(batch.tensors.values())))
        micro = split_rows(batch.tensors, self.done.accumulate)[0]
        message = memory_message(micro, self.done.accumulate)
        if not self.config.device.auto_batch or self.done.accumulate >= rows or self.world > 1:
            raise TrainingFault(message) from error
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.done.accumulate = min(rows, 2 * self.done.accumulate)
        self.graphs = None
        self._say(f"{message.split(';')[0]}; going on with {self.done.accumulate} micro-batches per step")

    # --------------------------------------------------------------------------------------------------- book-keeping

    def _fetch(self, loader: Iterator[Batch]) -> Batch:
        batch = next(loader)
        return dataclasses.replace(batch, tensors=self._to_device(batch.tensors))

    def _to_device(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device, non_blocking=True) for name, value in tensors.items()}

    def _flops(self, batch: Batch) -> float:
        where = batch.tensors.get("predicted_positions")
        return self.step_flops(self.batches.batch_size, batch.shape, None if where is None else where.shape[1])

    def _log(self, fraction: float) -> None:
        if math.isnan(self.loss):  # the first step's is still under way
            self.settle()
        now = time.perf_counter()
        seconds = max(now - self._since["time"], 1e-9)
        steps = self.done.step - self._since["step"]
        peak = peak_flops(self.device, self.precision) * self.world
        record = {
            "kind": "train",
            "step": self.done.step,
            "loss": self.loss,
            "lr": self.rate,
            "epoch": self.done.step / self.batches.per_epoch,
            "tokens": self.done.tokens,
            "flops": self.done.flops,
            "seconds": self.done.seconds,
            "examples/s": steps * self.batches.batch_size / seconds,
            "tokens/s": (self.done.tokens - self._since["tokens"]) / seconds,
            "mfu": self._since["flops"] / seconds / peak,
            "memory_gb": memory_used(self.device),
            "skipped": self.done.skipped,
            "seconds_left": self.done.seconds * (1 - fraction) / fraction if fraction > 0 else None,
        }
        self._since = {"time": now, "step": self.done.step, "tokens": self.done.tokens, "flops": 0.0}
        for callback in self.callbacks:
            callback.on_log(record)

    def _say(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_message(text)


def default_lr(config: RunConfig, model: Any) -> float:
    """Wider models take smaller steps: 2e-3 at width 64, 2.5e-4 at 512."""
    return 1e-3 if config.optimizer.name == "adafactor" else 0.128 / model.config.d_model


def memory_used(device: torch.device) -> float:
    """The most memory used so far, in GB: the device's, or this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def shard(model: Any) -> None:
    """FSDP2: parameters split over the processes, sublayer by sublayer (torch's `fully_shard`)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (torch.distributed.get_world_size(),))
    for module in [m for m in model.modules() if isinstance(m, Residual)]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
