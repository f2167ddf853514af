"""What goes wrong is said clearly: NaN, memory, two runs in one folder, a dying worker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from small_runs import same, start, tiny, weights

from tokenmix.training import TrainingFault, train
from tokenmix.training.batches import Batches, naming_the_dead
from tokenmix.training.faults import FolderLock
from tokenmix.training.loop import Trainer


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A NaN in the output of the decoder's second sublayer at one step."""
    original = Trainer.step

    def step(self: Trainer, batch: Any) -> Any:
        module = self.model.model.decoder.layers[0][1]
        handle = module.register_forward_hook(lambda m, i, out: out * torch.nan) if batch.number == at else None
        try:
            return original(self, batch)
        finally:
            if handle:
                handle.remove()

    monkeypatch.setattr(Trainer, "step", step)


def test_nan_stops_with_a_report_of_the_layer_and_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, at=5)
    with pytest.raises(TrainingFault, match=r"loss is nan at step 5; the first layer .* model\.decoder\.layers\.0\.1"):
        train(tiny(tmp_path / "run"))
    report = json.loads((tmp_path / "run/faults/step-00000005/report.json").read_text())
    assert report["first_nonfinite_layer"] == "model.decoder.layers.0.1"
    from safetensors.torch import load_file

    assert load_file(tmp_path / "run/faults/step-00000005/batch.safetensors")["input_ids"].shape[0] == 8


def test_nan_can_be_skipped_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, at=5)
    result = train(tiny(tmp_path / "run", on_nonfinite="skip"))
    assert (result.steps, result.skipped) == (12, 1)
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())


def exhaust(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    original = Trainer._loss

    def loss(self: Trainer, tensors: dict[str, torch.Tensor], *rest: Any) -> torch.Tensor:
        if len(tensors["input_ids"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")
        return original(self, tensors, *rest)

    monkeypatch.setattr(Trainer, "_loss", loss)


def test_out_of_memory_names_batch_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exhaust(monkeypatch, most=2)
    with pytest.raises(
        TrainingFault, match=r"8 examples per micro-batch .* length \d+ and targets of \d+; take --auto-batch"
    ):
        train(tiny(tmp_path / "run"))


def test_auto_batch_halves_until_it_fits_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(tmp_path / "whole", model__options__dropout=0.0))
    exhaust(monkeypatch, most=2)
    result = train(tiny(tmp_path / "run", device__auto_batch=True, model__options__dropout=0.0))
    assert result.steps == 12
    state = json.loads((tmp_path / "run/checkpoints/00000012/state.json").read_text())
    assert state["counters"]["accumulate"] == 4
    a, b = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)


def hold(folder: str, ready: str, done: str) -> None:
    import time

    with FolderLock(Path(folder)):
        if os.fork() == 0:  # a child, as data workers are: it outlives its parent and must not keep the lock
            Path(ready).touch()
            while not Path(done).exists():
                time.sleep(0.02)
            os._exit(0)
        time.sleep(60)


def test_two_runs_in_one_folder_are_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    import time

    run, ready, done = tmp_path / "run", tmp_path / "ready", tmp_path / "done"
    process = start(hold, str(run), str(ready), str(done))
    while not ready.exists():
        time.sleep(0.02)
    with pytest.raises(TrainingFault, match=rf"in use by another run \(process {process.pid}\)"):
        train(tiny(run))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with FolderLock(run), pytest.raises(TrainingFault, match="in use by another run of this process"), FolderLock(run):
        pass
    done.touch()


class Failing(Batches):
    """Fails in its worker."""

    def __getitem__(self, number: int) -> Any:
        if number == 3:
            if self.seed == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("the worker's own trouble")
        return super().__getitem__(number)


def train_with_a_failing_worker(config: dict[str, Any], report: str) -> None:
    from tokenmix.training import RunConfig, run

    torch.set_num_threads(1)
    run.Batches = Failing  # type: ignore[misc]
    try:
        train(RunConfig.of(config))
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # torch's signal handler may tell it once more
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Path(report).write_text(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(0, r"KeyError: .*the worker's own trouble"), (1, r"RuntimeError: .*worker.*(killed|exited unexpectedly)")],
    ids=["raises", "killed"],
)
def test_a_data_worker_that_dies_is_named(tmp_path: Path, seed: int, expected: str) -> None:
    """In a process of its own: torch says that a worker was killed from a signal handler, wherever Python then is."""
    report = tmp_path / "report"
    config = tiny(tmp_path / "run", data__workers=1, seed=seed).to_dict()
    process = start(train_with_a_failing_worker, config, str(report))
    process.join(120)
    told = report.read_text() if report.exists() else "nothing was told"
    assert re.search(expected, told, re.DOTALL), (process.exitcode, told)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        EOFError(),
        FileNotFoundError(2),
        UnpicklingError("pickle data was truncated"),
        RuntimeError("received 0 items of ancdata"),
    ],
)
def test_a_data_worker_that_dies_while_it_hands_over_a_batch_is_named(error: Exception) -> None:
    def batches() -> Iterator[int]:
        yield 7
        raise error

    named = naming_the_dead(batches())  # type: ignore[arg-type]
    assert next(named) == 7
    with pytest.raises(RuntimeError, match="worker was killed") as caught:
        next(named)
    assert caught.value.__cause__ is error


def test_what_a_data_worker_says_itself_is_left_as_it_is() -> None:
    own = FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0: no shard 3")

    def batches() -> Iterator[int]:
        raise own
        yield

    with pytest.raises(FileNotFoundError, match="no shard 3"):
        next(naming_the_dead(batches()))  # type: ignore[arg-type]


def test_weights_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    train(tiny(tmp_path / "none", data__workers=0))
    train(tiny(tmp_path / "two", data__workers=2))
    assert same(weights(tmp_path / "none"), weights(tmp_path / "two"))
