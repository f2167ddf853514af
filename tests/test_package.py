"""The package as a user meets it: version, types, public interface, wheel, command line, and quiet tests."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tokenmix

ROOT = Path(__file__).parents[1]

# The stated public interface of the top level. More may be there; these stay.
PUBLIC = ["TokenmixConfig", "create_model", "figures", "parse", "list_presets", "from_transformers", "from_timm"]


def run(command: list[str], **options: Any) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_version_is_the_installed_one() -> None:
    assert importlib.metadata.version("tokenmix") == tokenmix.__version__


def test_types_are_shipped() -> None:
    assert importlib.resources.files("tokenmix").joinpath("py.typed").is_file()


def test_public_interface_is_stated_and_importable() -> None:
    assert set(PUBLIC) <= set(tokenmix.__all__)
    assert len(tokenmix.__all__) == len(set(tokenmix.__all__))
    for name in tokenmix.__all__:
        assert getattr(tokenmix, name) is not None
    assert set(tokenmix.__all__) <= set(dir(tokenmix))


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    packages = {"data", "evaluation", "generation", "mixers", "models", "ops", "report", "training"}
    shown = {name for name in dir(tokenmix) if not name.startswith("__")}
    assert {"mixers", "models", "ops"} <= shown <= set(tokenmix.__all__) | packages
    assert {"__all__", "__doc__", "__version__"} <= set(dir(tokenmix))
    assert all(hasattr(tokenmix, name) for name in dir(tokenmix))


def test_figures_are_not_imported_before_they_are_asked_for() -> None:
    code = "import sys, tokenmix; print([m for m in ('plotly', 'tokenmix.figures', 'tokenmix.report') if m in sys.modules])"
    assert run([sys.executable, "-c", code]).strip() == "[]"


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        tokenmix.no_such_name  # noqa: B018


@pytest.mark.parametrize("command", [["-m", "tokenmix"], ["-c", "from tokenmix.cli import main; main()"]])
def test_command_line_helps(command: list[str]) -> None:
    assert "Usage" in run([sys.executable, *command, "--help"])


def test_command_is_installed() -> None:
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="tokenmix")
    assert command.value == "tokenmix.cli:main"
    assert callable(command.load())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_wheel_builds_installs_and_holds_every_file(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy, so that no build folder is left in the working tree
    source.mkdir()
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)

    pip = [sys.executable, "-m", "pip", "-q", "--isolated"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path), str(source)])
    (wheel,) = tmp_path.glob("tokenmix-*.whl")
    assert wheel.name == f"tokenmix-{tokenmix.__version__}-py3-none-any.whl"
    files = {p.relative_to(source / "src").as_posix() for p in (source / "src/tokenmix").rglob("*") if p.is_file()}
    assert "tokenmix/py.typed" in files
    assert files <= set(zipfile.ZipFile(wheel).namelist())

    site = tmp_path / "site"
    run([*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)])
    code = "import tokenmix; print(tokenmix.__file__, tokenmix.__version__)"
    said = run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)})
    assert said.split() == [str(site / "tokenmix/__init__.py"), tokenmix.__version__]


def test_tests_cannot_reach_the_network() -> None:
    with pytest.raises(RuntimeError, match="no network"):
        socket.create_connection(("huggingface.co", 443), timeout=1)
    with socket.socket() as sock, pytest.raises(RuntimeError, match="no network"):
        sock.connect(("192.0.2.1", 80))


def test_tests_can_reach_localhost() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as client,
        server.accept()[0] as other_end,
    ):
        assert other_end.getpeername() == client.getsockname()
