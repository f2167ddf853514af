"""Carries out the runs of a comparison: in this process, side by side in several, or on a Ray cluster.

Whichever it is, a run's result is a function of its configuration alone, so that the table is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenmix.compare.plan import RunSpec
from tokenmix.compare.worker import GRACE, Interrupted, _empty, execute, finished, record_path
from tokenmix.naming import unknown

logger = logging.getLogger(__name__)
ENGINES = ("local", "ray")
Record = dict[str, Any]
OnRecord = Callable[[Record], None]


def run_all(
    runs: Sequence[RunSpec],
    *,
    engine: str = "local",
    jobs: int = 1,
    collect: bool = False,
    on_record: OnRecord = lambda record: None,
) -> list[Record]:
    """The record of every run, in the order given; those that are finished are read from their folders.

    With ``collect`` these alone, and nothing is run. ``on_record`` is told of each as it comes. Ctrl-C and SIGTERM stop the
    runs, save them and raise `Interrupted`.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1; got {jobs}")
    found: dict[str, Record] = {}

    def keep(record: Record) -> None:
        found[record["folder"]] = record
        on_record(record)

    todo = []
    for spec in runs:
        known = finished(spec)
        if known is not None:
            keep({**known, "reused": True})
        else:
            todo.append(spec)
    if todo and not collect:
        with _sigterm_as_ctrl_c():
            if engine == "ray":
                _on_ray(todo, jobs, keep)
            elif jobs > 1:
                _side_by_side(todo, jobs, keep)
            else:
                _here([spec for kin in _kin(todo, jobs) for spec in kin], keep)
    return [found[spec.folder] for spec in runs if spec.folder in found]


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """`timeout` and a cluster's scheduler end a command by SIGTERM: its runs then have time to save themselves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _here(runs: Iterable[RunSpec], keep: OnRecord) -> None:
    """One after another in this process."""
    import torch

    threads = torch.get_num_threads()
    try:
        for spec in runs:
            keep(execute(spec))
    finally:
        torch.set_num_threads(threads)


# ----------------------------------------------------------------------------------------------------- side by side


def _side_by_side(runs: Sequence[RunSpec], jobs: int, keep: OnRecord) -> None:
    """Several processes at a time. What runs out of memory beside others is tried again alone."""
    waiting, running = _kin(runs, jobs), dict[int, Group]()
    crowded: list[RunSpec] = []

    def keep_records(group: Group) -> None:
        for spec in [spec for spec in group.runs if record_path(spec.folder, os.getpid()).exists()]:
            group.runs.remove(spec)
            record = _record(spec)
            if _starved(record) and len(runs) > 1:
                crowded.append(spec)
            else:
                keep(record)

    try:
        while waiting or running:
            for slot in range(jobs):
                if slot not in running and waiting:
                    running[slot] = _start(waiting.pop(0), slot)
            for slot, group in list(running.items()):
                code = group.process.poll()
                keep_records(group)
                if code is None:
                    continue
                del running[slot]
                if code == 130:
                    raise Interrupted(group.runs[0].label if group.runs else "side by side")
                if group.runs and code != 0:  # else it stopped after one that failed
                    keep(_died(group.runs.pop(0), code, group.log))
                if group.runs:
                    waiting.insert(0, group.runs)
            time.sleep(0.2)
        for spec in crowded:
            logger.info("%s ran out of memory beside other runs; trying it alone", spec.label)
            group = running[0] = _start([spec], 0)
            code = group.process.wait()
            del running[0]
            done = record_path(spec.folder, os.getpid()).exists()
            keep(_record(spec) if done else _died(spec, code, group.log))
    except KeyboardInterrupt:
        raise Interrupted("side by side") from None
    finally:
        _stop([group.process for group in running.values()])


@dataclasses.dataclass
class Group:
    """A worker process and what it has still to run."""

    process: subprocess.Popen[bytes]
    runs: list[RunSpec]
    log: Path


def _kin(runs: Sequence[RunSpec], jobs: int) -> list[list[RunSpec]]:
    """What one process runs: on a GPU the seeds of a model, which then compile it once, as long as that leaves no job
    idle; elsewhere a run."""
    import torch

    on_cpu = [spec for spec in runs if spec.config["device"]["device"] == "cpu"]
    if on_cpu or not torch.cuda.is_available():
        return [[spec] for spec in runs]
    kin: dict[str, list[RunSpec]] = {}
    for spec in runs:
        kin.setdefault(spec.model, []).append(spec)
    groups = list(kin.values())
    while len(groups) < min(jobs, len(runs)):
        largest = max(groups, key=len)
        half = -(-len(largest) // 2)
        groups[groups.index(largest) : groups.index(largest) + 1] = [largest[:half], largest[half:]]
    return groups


def _start(runs: list[RunSpec], slot: int) -> Group:
    import torch

    paths = []
    for spec in runs:
        folder = Path(spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        record_path(folder, os.getpid()).unlink(missing_ok=True)
        paths.append(folder / "spec.json")
        paths[-1].write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
    environment = dict(os.environ)
    if threads := runs[0].config["device"]["threads"]:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    gpus = torch.cuda.device_count()
    if gpus > 1 and "CUDA_VISIBLE_DEVICES" not in environment:
        environment["CUDA_VISIBLE_DEVICES"] = str(slot % gpus)
    log_path = paths[0].with_name("log.txt")
    with open(log_path, "ab") as log:
        command = [sys.executable, "-m", "tokenmix.compare.worker", str(os.getpid()), *map(str, paths)]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    return Group(process, list(runs), log_path)


def _record(spec: RunSpec) -> Record:
    """What a process left of a run."""
    path = record_path(spec.folder, os.getpid())
    record = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return record


def _starved(record: Record) -> bool:
    return record["status"] == "failed" and "out of memory" in record["error"].lower()


def _died(spec: RunSpec, code: int, log: Path) -> Record:
    """A process left nothing of a run: what killed it."""
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return _failed(spec, f"the process was ended by {name}{hint}")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return _failed(spec, f"the process ended with {code}: {lines[-1] if lines else 'no message'}")


def _failed(spec: RunSpec, message: str) -> Record:
    base = {"model": spec.model, "seed": spec.seed, "folder": spec.folder}
    return {**base, **_empty(), "status": "failed", "error": message}


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM lets a run save itself; what takes too long is killed (and goes on from its last checkpoint)."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --------------------------------------------------------------------------------------------------------------- Ray


def _on_ray(runs: Sequence[RunSpec], jobs: int, keep: OnRecord) -> None:
    """Models × seeds over a cluster ($RAY_ADDRESS, or one that is started here); folders lie on a shared disk.

    A GPU is shared by ``jobs`` runs; on CPUs each run takes as many as it has threads.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs the package ray: pip install 'tokenmix[ray]'") from None
    mine = not ray.is_initialized()
    if mine:
        address = os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = (
            {} if address else {"num_cpus": max(os.cpu_count() or 1, _cpus(runs[0])), "include_dashboard": False}
        )
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        task = ray.remote(max_retries=0)(_execute_remotely)
        pending = {}
        for spec in runs:
            options: dict[str, Any] = {"num_cpus": _cpus(spec)}
            if gpus:
                options |= {"num_gpus": 1 / jobs, "num_cpus": 1}
            pending[
                task.options(**options).remote(dataclasses.replace(spec, folder=str(Path(spec.folder).resolve())))
            ] = spec
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1)
            spec = pending.pop(done[0])
            try:
                record = ray.get(done[0])
            except Exception as error:  # the worker died, or its machine
                record = _failed(spec, " ".join(str(error).split()))
            keep({**record, "folder": spec.folder})
    except KeyboardInterrupt:
        raise Interrupted("on Ray") from None
    finally:
        if mine:
            ray.shutdown()


def _cpus(spec: RunSpec) -> int:
    return int(spec.config["device"]["threads"] or 1)


def _execute_remotely(spec: RunSpec) -> Record:
    config = {**spec.config, "out": spec.folder}
    try:
        return execute(dataclasses.replace(spec, config=config))
    except Interrupted:
        return _failed(spec, "the run was stopped")
