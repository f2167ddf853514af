"""Calling `tokenmix` as a person does."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from tokenmix import cli

cli.load_commands()
TINY = ["--d-model", "16", "--d-ff", "32", "--heads", "2", "--layers", "1", "--steps", "2", "--batch-size", "4"]
TINY += ["--threads", "1", "--set", "data.limit=16", "--set", "validation.examples=4", "--examples", "4"]


def call(*arguments: str) -> str:
    found = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a person reads: one line, and no traceback."""
    monkeypatch.setattr(sys, "argv", ["tokenmix", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert error.startswith("error: ")
    return error
