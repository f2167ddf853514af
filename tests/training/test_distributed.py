"""Two processes learn what one learns, replicated and sharded."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from small_runs import distributed_child, start, tiny, weights

from tokenmix.training import train
from tokenmix.training.checkpoint import steps_saved

# Adam divides by the gradient's size; a large ε keeps rounding of tiny gradients from growing
SETTINGS = {"model__options__dropout": 0.0, "optimizer__eps": 1e-4, "device__accumulate": 2, "budget__steps": 6}


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    run = tmp_path / "alone"
    train(tiny(run, **SETTINGS))
    return run


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_equal_one_and_their_checkpoint_loads_in_one(tmp_path: Path, alone: Path, sharding: str) -> None:
    run, report = tmp_path / "run", tmp_path / "report.json"
    config = tiny(run, **SETTINGS, device__sharding=sharding).to_dict()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(distributed_child, config, rank, 2, port, str(report)) for rank in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    seen = json.loads(report.read_text())
    assert seen["world"] == 2
    assert (seen["kinds"] == ["DTensor"]) == (sharding == "fsdp")
    assert (seen["replica"] == "DistributedDataParallel") == (sharding == "none")
    one, two = weights(alone), weights(run)
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-5

    # what two processes wrote, one goes on from, optimizer included: as a run that was never distributed
    assert steps_saved(run)[-1] == 6
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("sharding: fsdp", "sharding: none"))
    longer = {**SETTINGS, "budget__steps": 9}
    train(tiny(run, **longer, resume="auto"))
    train(tiny(alone, **longer, resume="auto"))
    one, two = weights(alone), weights(run)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-5
