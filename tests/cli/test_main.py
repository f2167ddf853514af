"""What every command has in common: the version, errors in one line, colours only where they are wanted."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from tokenmix import __version__, cli

cli.load_commands()


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tokenmix {__version__}\n")


def test_help_says_what_is_trained_on_by_default() -> None:
    result = CliRunner().invoke(cli.app, ["train", "--help"], env={"COLUMNS": "200"})
    assert "shards:FOLDER (default scan)" in result.output


@pytest.mark.parametrize(("no_color", "colour"), [("1", False), ("", None)])
def test_errors_have_no_colour_where_none_is_wanted(
    no_color: str, colour: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake() -> None:
        raise ValueError("no such thing")

    said: list[tuple[str, bool | None]] = []
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.argv", ["tokenmix"])
    monkeypatch.setattr(cli, "app", mistake)
    monkeypatch.setattr(typer, "secho", lambda text, fg, err, color: said.append((text, color)))
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert said == [("error: no such thing", colour)]
