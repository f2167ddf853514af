"""How the fastest form of a kernel is chosen, without a GPU: what a form takes and makes is made up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tuner as on a GPU, where a candidate takes the milliseconds that it names; `stored` is its file."""
    from tokenmix.ops.kernels import tune

    stored: dict[str, int] = {}
    monkeypatch.setattr(tune, "stored", stored, raising=False)
    monkeypatch.setattr(tune, "INTERPRETING", False)
    monkeypatch.setattr(tune, "_chosen", {})
    monkeypatch.setattr(tune, "_read", lambda: stored)
    monkeypatch.setattr(tune, "_write", stored.__setitem__)
    monkeypatch.setattr(tune, "_machine", lambda: "here")
    monkeypatch.setattr(tune, "milliseconds", lambda call: call.args[0]["ms"])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv("TOKENMIX_AUTOTUNE", "1")
    return tune


def test_a_choice_is_remembered_for_tensors_it_can_serve(tuning: Any) -> None:
    special, *rest = [{"ms": n} for n in range(3)]
    assert tuning.choose("outer", ("compose",), [special, *rest], print) is special
    assert tuning.choose("outer", ("compose",), rest, print) is rest[0]
    assert tuning.choose("outer", ("compose",), [*rest, special], print) is rest[0]


def test_a_candidate_that_computes_something_else_is_not_used(tuning: Any, caplog: pytest.LogCaptureFixture) -> None:
    right = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(right)
    ran = []

    def launch(config: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
        ran.append(config["name"])
        match config["name"]:
            case "wrong in a row":
                out.copy_(right.index_fill(0, torch.tensor(1), 0.0))
            case "not a number":
                out.copy_(right.index_fill(0, torch.tensor(1), float("nan")))
            case "leaves a row out":
                out[[0, 2, 3]] = right[[0, 2, 3]]
            case "does not run":
                raise RuntimeError("too much shared memory")
            case "rounded":
                out.copy_(right.bfloat16())
            case "plain":
                out.copy_(right)
        return out, None

    names = ["wrong in a row", "not a number", "leaves a row out", "does not run", "rounded", "plain"]
    configs = [{"name": name, "ms": n} for n, name in enumerate(names)]
    assert tuning.choose("outer", (1,), configs, launch)["name"] == "rounded"
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [name for name in names if any(name in line for line in told)] == names[:3]
    assert len(tuning.stored) == 1
    ran.clear()
    assert tuning.choose("outer", (1,), configs, launch)["name"] == "rounded"
    assert not ran  # it was remembered
    assert tuning.choose("outer", (2,), [*configs, {"name": "does not run", "ms": 9}], launch)["name"] == "rounded"
    with pytest.raises(RuntimeError, match="no configuration of outer"):
        tuning.choose("outer", (3,), [configs[3], configs[3] | {"ms": 7}], launch)


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_from_zeros_and_infinite_numbers_nothing_is_remembered(value: float, tuning: Any) -> None:
    configs = [{"ms": 1}, {"ms": 2}]
    assert tuning.choose("outer", (1,), configs, lambda config: (torch.full((4, 50), value),)) == {"ms": 2}
    assert not tuning.stored
    assert tuning.choose("outer", (1,), configs, lambda config: (torch.ones(4, 50),)) == {"ms": 1}


def test_the_last_candidate_is_the_plainest() -> None:
    from tokenmix.ops.kernels import mix, outer

    for last in (mix.HALF_PRECISION[-1], outer.HALF_PRECISION[-1]):
        assert not last["gluon"]
        assert not last["TMA"]
