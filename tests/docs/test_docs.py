"""Code in the documentation runs, and the documentation names every mixer and option there is."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tokenmix.mixers import REGISTRY
from tokenmix.mixers.expression import REGISTRY as KNOWN

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
EXECUTED = [README, DOCS / "layers.md", DOCS / "models.md"]


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


def test_every_mixer_and_option_is_documented():
    text = (DOCS / "layers.md").read_text()
    for name, kind in REGISTRY.items():
        assert f"`{name}`" in text, name
        for option in fields(kind):
            assert f"`{option.name}=" in text, f"{name}({option.name})"
