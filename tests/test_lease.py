"""The queue of GPU measurements, with commands that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JOBS = [
    {"name": "fails", "command": "echo to the log; exit 3"},
    {"name": "measures", "command": "{python} -c \"open('benchmarks/results/new.json', 'w').write('[1]')\""},
    {
        "name": "trains",
        "command": "trap 'echo [2] > runs.json; exit 0' TERM; sleep 100 & wait",
        "minutes": 0.02,
        "alone": False,
        "after": "cp runs.json recipes/results/new.json",
    },
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the command printed, and the folder of its packed results, unpacked."""
    folder = tmp_path_factory.mktemp("lease")
    (folder / "queue.json").write_text(json.dumps(JOBS))
    command = [sys.executable, "-m", "benchmarks.lease", "--queue", folder / "queue.json", "--state", folder / "state"]
    command += ["--out", folder / "out", "--minutes", "5", "--wait", "1"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    with tarfile.open(folder / "out" / "results.tar.gz") as archive:
        archive.extractall(folder / "unpacked", filter="data")
    return told, folder / "unpacked"


def test_what_became_of_every_job_is_told(finished: tuple[str, Path]) -> None:
    lines = {line.split()[0]: line for line in finished[0].splitlines()}
    assert "failed with 3" in lines["fails"]
    assert "done" in lines["measures"]
    assert "ended" in lines["trains"]


def test_new_results_and_logs_are_packed(finished: tuple[str, Path]) -> None:
    unpacked = finished[1]
    assert (unpacked / "benchmarks/results/new.json").read_text() == "[1]"
    assert (unpacked / "runs/lease/fails.log").read_text() == "to the log\n"
    assert [path.name for path in (unpacked / "benchmarks/results").iterdir()] == ["new.json"]


def test_a_training_that_is_ended_saves_itself_and_is_collected(finished: tuple[str, Path]) -> None:
    assert json.loads((finished[1] / "recipes/results/new.json").read_text()) == [2]


def test_the_checkout_is_left_as_it_was(finished: tuple[str, Path]) -> None:
    assert not (ROOT / "benchmarks/results/new.json").exists()
    assert not (ROOT / "recipes/results/new.json").exists()


def test_results_of_tables_that_are_not_measured_again_are_kept(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks import with_earlier

    file = tmp_path / "train.json"
    file.write_text(json.dumps({"versions": {"torch": "1"}, "tables": {"a": {"ms": 1}, "b": {"ms": 2}}}))
    found = with_earlier({"versions": {"torch": "2"}, "tables": {"b": {}}}, file, ["b"])
    assert found["tables"] == {"a": {"ms": 1}, "b": {}}
    assert found["made"]["a"] == {"torch": "1"}
    assert found["made"]["b"]["torch"] == "2"
