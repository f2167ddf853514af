"""Every GPU figure of this repository that is missing or out of date, as one queue for a machine that is held for minutes.

    python -m benchmarks.lease --minutes 27 --wait 9 --out OUT       # the same command again waits on, for 9 minutes more

The first call copies the checkout aside and starts the queue in a session of its own, so that it goes on between calls: work
that must have the GPU to itself comes first, one after another; then trainings side by side, which are ended in time to
save what they have. Every call packs all results so far, and the end of every log, into OUT/results.tar.gz, to be
unpacked in the checkout: `tar xzf results.tar.gz`. `--plan` lists the queue, `--only` takes some of it, `--queue FILE` another.

A machine without a network brings what it needs along, in folders that git ignores: data in .carry/data, unless
$TOKENMIX_DATA names another folder, and in .carry/site what its Python lacks:

    pip install --no-deps --target .carry/site pytest pluggy iniconfig pytest-timeout pytest-xdist execnet hypothesis \\
        sortedcontainers
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).parents[1]
STATE = Path("/tmp/tokenmix-lease")
RESULTS = ("benchmarks/results", "recipes/results")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "site-packages", ".*_cache")
SAVING = 45  #: seconds a training has to save itself
COLLECTING = 45  #: and seconds to put together what is finished


@dataclass(frozen=True)
class Job:
    """A command of the queue. `{python}` in it is this interpreter."""

    name: str
    command: str
    minutes: float = 5.0  #: at most
    alone: bool = True  #: on a quiet GPU
    after: str = ""  #: when it was ended early: puts together what it has


def _recipe(name: str, options: str, minutes: float = 30.0, alone: bool = False) -> Job:
    """A recipe, its trainings saved on the way; block sizes are not searched for, which short runs do not earn back."""
    command = f"{{python}} -m tokenmix reproduce {name} --save recipes/results --out runs/lease {options}"
    tuned = "" if alone else "TOKENMIX_AUTOTUNE=0 "
    return Job(name, tuned + command, minutes, alone, "" if alone else f"{command} --collect")


QUEUE = (
    Job("train", "{python} -m benchmarks.train --only t5 cogs --profile", 5),
    Job("ops", "{python} -m benchmarks.ops --only bias nobias products", 2),
    Job("tests", "{python} -m pytest -q -n 8 -m gpu tests/ops tests/training/test_compiled.py", 5),
    Job("kernels", "{python} -m benchmarks.kernels", 4),
    Job("window", "{python} -m benchmarks.window_trial", 1),
    _recipe("remixer-table-1", "--part profile --jobs 4", 3, alone=True),
    _recipe("synthesizer-table-6", "--part profile --jobs 6", 4, alone=True),
    _recipe("remixer-table-4", '--only "Mixer EncDec, Base" --only "Remixer, Toeplitz H (ours)" --jobs 2'),
    _recipe("remixer-table-5", '--only "(1) w/o comp. remixing" --jobs 2'),
    _recipe("synthesizer-table-9", "--jobs 3"),
    _recipe("synthesizer-table-8", "--jobs 3"),
)


class Lease:
    """The queue's folder: the copied checkout in `tree`, a log per job, and `status.json`."""

    def __init__(self, state: Path) -> None:
        self.state, self.tree, self.file = state, state / "tree", state / "status.json"
        self.status: dict[str, str] = {}
        self.lock = Lock()

    def start(self, jobs: list[Job], minutes: float) -> None:
        """Copy the checkout and start the queue, which outlives the caller."""
        self.state.mkdir(parents=True)
        shutil.copytree(ROOT, self.tree, ignore=LEFT_OUT, symlinks=True)
        asked = {"jobs": [asdict(job) for job in jobs], "until": time.time() + 60 * minutes}
        (self.state / "asked.json").write_text(json.dumps(asked))
        self.tell(**{job.name: "waits" for job in jobs})
        run = [sys.executable, "-m", "benchmarks.lease", "--run", str(self.state)]
        with open(self.state / "queue.log", "w") as log:
            subprocess.Popen(
                run, cwd=self.tree, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(self) -> None:
        """All jobs: those that want the GPU for themselves, then the others side by side."""
        asked = json.loads((self.state / "asked.json").read_text())
        jobs, until = [Job(**job) for job in asked["jobs"]], float(asked["until"])
        self.tell(**{job.name: "waits" for job in jobs})
        for job in jobs:
            if job.alone:
                self.carry_out(job, until)
        others = [job for job in jobs if not job.alone]
        if others and shutil.which("nvidia-cuda-mps-control"):  # many small models share the GPU at once
            subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
        with ThreadPoolExecutor(max(1, len(others))) as pool:
            list(pool.map(lambda job: self.carry_out(job, until - SAVING - COLLECTING), others))
        self.tell(finished=True)

    def carry_out(self, job: Job, until: float) -> None:
        """Run it; one that is not done in time is asked to save itself, and what it has is put together."""
        began = time.time()
        if began >= until:
            self.tell(**{job.name: "no time was left"})
            return
        self.tell(**{job.name: "runs"})
        child = self.launch(job, job.command)
        if ended(child, min(until - began, 60 * job.minutes)):
            made = "done" if child.returncode == 0 else f"failed with {child.returncode}"
        else:
            made = "ended"
            send(child, signal.SIGTERM)
            if not ended(child, SAVING):
                send(child, signal.SIGKILL)
            if job.after:
                collecting = self.launch(job, job.after)
                if not ended(collecting, COLLECTING):
                    send(collecting, signal.SIGKILL)
        self.tell(**{job.name: f"{made} after {time.time() - began:.0f} s"})

    def launch(self, job: Job, command: str) -> subprocess.Popen[bytes]:
        paths = ["src", *([".carry/site"] if (self.tree / ".carry/site").is_dir() else [])]
        data = os.environ.get("TOKENMIX_DATA") or str(self.tree / ".carry/data")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENMIX_DATA": data}
        text = command.replace("{python}", shlex.quote(sys.executable))
        with open(self.state / f"{job.name.replace(' ', '-')}.log", "a") as log:
            return subprocess.Popen(
                ["bash", "-c", text], cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def tell(self, finished: bool = False, **status: str) -> None:
        """Write down what has become of jobs."""
        with self.lock:
            self.status |= status
            aside = self.file.with_suffix(".tmp")
            aside.write_text(json.dumps({"finished": finished, "jobs": self.status}))
            aside.replace(self.file)

    def wait(self, minutes: float) -> dict[str, str]:
        """Until the queue is finished or the minutes have passed; what has become of each job."""
        last = time.time() + 60 * minutes
        while True:
            found = json.loads(self.file.read_text())
            if found["finished"] or time.time() >= last:
                return found["jobs"]
            time.sleep(1)

    def pack(self, out: Path) -> Path:
        """Result files that are not as they were in the checkout, and the end of every log."""
        out.mkdir(parents=True, exist_ok=True)
        packed = out / "results.tar.gz"
        with tarfile.open(packed, "w:gz") as archive:
            for folder in RESULTS:
                for file in sorted((self.tree / folder).glob("*.json")):
                    before = ROOT / folder / file.name
                    if not before.exists() or before.read_bytes() != file.read_bytes():
                        archive.add(file, f"{folder}/{file.name}")
            for log in sorted(self.state.glob("*.log")):
                tail = self.state / f"{log.name}.tail"
                tail.write_bytes(log.read_bytes()[-200_000:])
                archive.add(tail, f"runs/lease/{log.name}")
        return packed


def ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends within the seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    return child.returncode is not None


def send(child: subprocess.Popen[bytes], number: int) -> None:
    """A signal to a job and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=27.0, help="from the first call on, all is to be over (27)")
    parser.add_argument("--wait", type=float, default=9.0, help="how long this call waits (9 minutes)")
    parser.add_argument("--out", type=Path, default=Path("runs/lease"), help="folder for results.tar.gz (runs/lease)")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="some jobs of the queue; --plan names them")
    parser.add_argument("--queue", type=Path, metavar="FILE", help="another queue: JSON, a list of jobs")
    parser.add_argument("--state", type=Path, default=STATE, help=f"folder of the queue ({STATE})")
    parser.add_argument("--plan", action="store_true", help="only list the queue")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        Lease(given.run).run()
        return
    jobs = list(QUEUE) if given.queue is None else [Job(**job) for job in json.loads(given.queue.read_text())]
    if given.only:
        known = {job.name: job for job in jobs}
        if missing := [name for name in given.only if name not in known]:
            parser.error(f"no job {missing[0]!r}; the queue has {', '.join(known)}")
        jobs = [known[name] for name in given.only]
    if given.plan:
        for job in jobs:
            print(f"{job.name:20} {'alone' if job.alone else 'beside others':14} {job.minutes:4g} min  {job.command}")
        return
    lease = Lease(given.state)
    if not lease.state.exists():
        lease.start(jobs, given.minutes)
    for name, text in lease.wait(given.wait).items():
        print(f"{name:20} {text}")
    print(lease.pack(given.out))


if __name__ == "__main__":
    main()
