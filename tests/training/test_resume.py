"""Interrupted at any moment and resumed, a run gives the very same weights."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from small_runs import same, start, tiny, train_in_child, weights

from tokenmix.training import checkpoint, train
from tokenmix.training.checkpoint import CheckpointError, checkpoint_path, newest_valid, steps_saved

# dropout, accumulation, data workers, and an epoch of 5 steps, so that most kills fall inside one
KILLED = {
    "budget__steps": 40,
    "checkpoints__every": 4,
    "checkpoints__keep_last": 3,
    "data__limit": 40,
    "data__workers": 1,
    "device__accumulate": 2,
    "device__threads": 1,
}


def test_killed_at_random_moments_and_resumed_gives_identical_weights(tmp_path: Path) -> None:
    whole = start(train_in_child, tiny(tmp_path / "whole", **KILLED).to_dict())
    whole.join(120)
    assert whole.exitcode == 0
    run = tmp_path / "killed"
    config = tiny(run, **KILLED, resume="auto").to_dict()
    moments = random.Random(7)
    kills = kills_while_saving = 0
    for attempt in range(12):
        process = start(train_in_child, config)
        begun = steps_saved(run)
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
            saving = any((run / "checkpoints").glob(".writing-*"))
            if attempt % 2 == 0 and saving and steps_saved(run) != begun:
                break  # in the middle of a save
            if attempt % 2 == 1 and steps_saved(run) != begun:
                time.sleep(moments.random() * 0.3)  # anywhere
                break
        if process.is_alive() and kills < 5:
            kills += 1
            kills_while_saving += any((run / "checkpoints").glob(".writing-*"))
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        else:
            process.join(120)
            assert process.exitcode == 0
            break
    assert kills >= 3
    assert kills_while_saving >= 1
    assert same(weights(run), weights(tmp_path / "whole"))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [r["step"] for r in records if r["kind"] == "train"]
    assert steps == sorted(set(steps))  # nothing twice


def test_sigterm_saves_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = tiny(run, budget__steps=4000, checkpoints__every=1000, device__threads=1)
    process = start(train_in_child, config.to_dict())
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        time.sleep(0.05)
        assert process.is_alive()
    process.terminate()
    process.join(60)
    assert process.exitcode == 0
    (saved,) = steps_saved(run)
    assert saved % 1000
    assert not (run / "model.safetensors").exists()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    train(tiny(tmp_path / "run"))
    assert steps_saved(tmp_path / "run") == [9, 12]
    return tmp_path / "run"


@pytest.mark.parametrize("harm", ["altered", "truncated", "missing", "no manifest"])
def test_a_damaged_checkpoint_is_detected_and_the_one_before_is_used(
    finished: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = weights(finished)
    file = checkpoint_path(finished, 12) / ("optimizer.safetensors" if harm == "altered" else "model.safetensors")
    content = bytearray(file.read_bytes())
    if harm == "altered":
        content[-5] ^= 1
        file.write_bytes(content)
    elif harm == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "missing":
        file.unlink()
    else:
        (file.parent / "manifest.json").unlink()
    (finished / "model.safetensors").unlink()
    assert newest_valid(finished) == checkpoint_path(finished, 9)
    assert "damaged" in caplog.text
    train(tiny(finished, resume="auto"))
    assert same(weights(finished), expected)


def test_what_is_written_after_a_damaged_checkpoint_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged checkpoint of a later step must not count as one of the last, in place of a new and whole one."""
    run = tmp_path / "run"
    train(tiny(run, checkpoints__every=4))
    assert steps_saved(run) == [8, 12]
    (checkpoint_path(run, 12) / "state.json").write_text("x")
    (run / "model.safetensors").unlink()
    train(tiny(run, resume="auto", budget__steps=11, checkpoints__every=10, checkpoints__keep_last=1))
    assert steps_saved(run) == [11]
    assert newest_valid(run) == checkpoint_path(run, 11)
    assert (run / "checkpoints" / "aside-00000012").is_dir()
    assert "aside" in caplog.text


def test_a_run_without_a_whole_checkpoint_does_not_start_over_unasked(finished: Path) -> None:
    for step in steps_saved(finished):
        (checkpoint_path(finished, step) / "state.json").write_text("x")
    with pytest.raises(
        CheckpointError, match=r"none of the checkpoints in .* is whole; to begin again, choose another"
    ):
        train(tiny(finished, resume="auto"))


def test_a_full_disk_fails_clearly_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = checkpoint.save_file, []

    def full(tensors: dict, path: Path, **options: object) -> None:
        calls.append(path)
        if len(calls) == 4:  # the optimizer of the second checkpoint
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, path, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match=r"step 6 .*the disk is full; the last good one is .*00000003"):
        train(tiny(tmp_path / "run"))
    assert newest_valid(tmp_path / "run") == checkpoint_path(tmp_path / "run", 3)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    monkeypatch.undo()
    train(tiny(tmp_path / "run", resume="auto"))
    train(tiny(tmp_path / "whole"))
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_keeps_the_last_few_and_every_nth(tmp_path: Path) -> None:
    train(tiny(tmp_path / "run", checkpoints__every=1, checkpoints__keep_last=2, checkpoints__keep_every=5))
    assert steps_saved(tmp_path / "run") == [5, 10, 11, 12]


def test_a_folder_with_a_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(ValueError, match="holds a run already; go on with --resume auto"):
        train(tiny(finished))
    with pytest.raises(ValueError, match=r"optimizer.lr: None → 0.1"):
        train(tiny(finished, resume="auto", optimizer__lr=0.1))
    with pytest.raises(ValueError, match="one of the steps saved"):
        train(tiny(finished, resume="11"))


def test_a_run_of_a_version_with_fewer_settings_goes_on(finished: Path) -> None:
    file = finished / "config.yaml"
    text = file.read_text()
    assert "skip_padding" in text
    file.write_text("".join(line for line in text.splitlines(True) if "skip_padding" not in line))
    assert train(tiny(finished, budget__steps=14, resume="auto")).steps == 14
    with pytest.raises(ValueError, match=r"other settings \(device.skip_padding: False → True\)"):
        train(tiny(finished, budget__steps=16, resume="auto", device__skip_padding=True))


def test_a_finished_run_can_be_prolonged(finished: Path) -> None:
    assert train(tiny(finished, resume="auto", budget__steps=15, schedule__name="linear")).steps == 15
