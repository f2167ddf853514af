"""Code in the documentation runs, and the documentation names every mixer and option there is."""

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
from benchmarks import readme

from tokenmix.mixers import REGISTRY
from tokenmix.mixers.expression import REGISTRY as KNOWN

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
EXECUTED = [README, DOCS / "layers.md", DOCS / "models.md", DOCS / "speed.md"]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.name)
def test_python_in_the_documentation_runs(path):
    before = dict(KNOWN)
    space = {"__name__": "documentation"}
    try:
        for block in blocks(path):
            exec(compile(block, str(path), "exec"), space)
    finally:
        KNOWN.clear()
        KNOWN.update(before)
    assert blocks(path)


def test_every_page_is_in_the_navigation_and_every_name_of_the_interface_exists():
    listed = re.findall(r": ([\w-]+\.md)$", (README.parent / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), flags=re.M)
    assert len(names) == len(set(names)) > 30
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_the_tables_of_figures_are_those_of_the_result_files():
    for page, (mark, lines) in readme.pages().items():
        text = page.read_text(encoding="utf-8")
        assert len(lines) > 10
        assert readme.written(text, mark, lines) == text, f"{page}: run `python -m benchmarks.readme`"


def test_every_mixer_and_option_is_documented():
    text = (DOCS / "layers.md").read_text()
    for name, kind in REGISTRY.items():
        assert f"`{name}`" in text, name
        for option in fields(kind):
            assert f"`{option.name}=" in text, f"{name}({option.name})"
