"""`tokenmix models` lists every preset, is quick the second time, and is never cut in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenmix import list_presets
from tokenmix.cli import app, load_commands, models
from tokenmix.models.presets import PRESETS

load_commands()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of its own, filled once."""
    folder = tmp_path_factory.mktemp("cache")
    CliRunner().invoke(app, ["models"], env={"TOKENMIX_CACHE": str(folder)}, catch_exceptions=False)
    return folder


def run(cache: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments], env={"TOKENMIX_CACHE": str(cache)}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_table_holds_every_preset_uncut(cache: Path) -> None:
    text = run(cache)
    assert "…" not in text
    lines = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    names = [line[1].strip() for line in lines]
    assert names == list_presets()
    for line, preset in zip(lines, PRESETS.values(), strict=True):
        assert line[-2].strip() in ("", preset.note)


def test_a_narrow_terminal_shows_fewer_columns(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENMIX_CACHE", str(cache))
    for width, columns in ((80, 4), (models.WIDE, len(models.COLUMNS))):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        models.models("remixer", as_json=False)
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "remixer-tiny" in line)
        assert len(line.split("│")) == columns + 2
        assert "dot | remix" in line


def test_json_holds_the_same_as_numbers(cache: Path) -> None:
    entries = json.loads(run(cache, "gmlp-*16-224", "--json"))
    assert {entry["name"]: entry["parameters"] for entry in entries} == {
        "gmlp-ti16-224": 5_867_328,
        "gmlp-s16-224": 19_422_656,
        "gmlp-b16-224": 73_075_392,
    }
    for entry in entries:
        assert entry["within_1_percent"] is True
        assert sum(entry["parameters_by_part"].values()) == 2 * entry["parameters"]
        assert sum(entry["forward_flops_by_part"].values()) == 2 * entry["forward_flops"]


def test_a_part_of_a_name_is_enough_and_an_unknown_one_is_an_error(cache: Path) -> None:
    assert all("remixer" in entry["name"] for entry in json.loads(run(cache, "remixer", "--json")))
    with pytest.raises(ValueError, match="unknown preset 'remixr-base'; did you mean 'remixer-base'"):
        run(cache, "remixr-base")


def test_the_second_time_is_quick_because_no_model_is_built(cache: Path) -> None:
    program = """
import sys
sys.argv = ["tokenmix", "models"]
from tokenmix.cli import main
try:
    main()
finally:
    print("loaded:", [name for name in ("torch", "transformers") if name in sys.modules])
"""
    environment = {**os.environ, "TOKENMIX_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "gmlp-xlarge" in done.stdout
    assert "loaded: []" in done.stdout


@pytest.mark.parametrize("trouble", ["half written", "not a folder"])
def test_a_broken_cache_only_costs_time(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmix.models.presets.list_presets", lambda: ["gmlp-tiny"])
    if trouble == "not a folder":
        (tmp_path / "file").write_text("")
        tmp_path = tmp_path / "file"
    monkeypatch.setenv("TOKENMIX_CACHE", str(tmp_path))
    if trouble == "half written":
        models._memory().write_text("[", encoding="utf-8")
    assert [entry["name"] for entry in models.entries()] == ["gmlp-tiny"]
    assert [entry["name"] for entry in models.entries()] == ["gmlp-tiny"]
