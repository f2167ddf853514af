"""What the tests of figures and pages share: one saved comparison, and a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_comparison as made
import pytest

from tokenmix.report import write_report

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`report.html` of a made-up comparison of five models, names and categories hostile."""
    folder = tmp_path_factory.mktemp("comparison")
    made.comparison(folder)
    return write_report(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium under Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="notice: playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("notice: no chromium here (Debian: apt-get install chromium); pages are not tested in a browser")
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield started
        started.close()
