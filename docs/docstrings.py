"""For `make docs`: docstrings as Markdown. Doctests become code, and `:class:` before a name is left out."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(
    r"(?:^ *>>> .*\n(?:^ *\S.*\n?)*\n?)+", flags=re.M
)  # up to the next empty line, and on if it goes on


class AsMarkdown(griffe.Extension):
    """Applied to every object that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring."""
        if obj.docstring is not None:
            text = re.sub(r":(?:class|func|meth|mod):`~?([^`]+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n\n", text + "\n"
            ).rstrip()
