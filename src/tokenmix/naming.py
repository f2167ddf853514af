"""How tokenmix says that a name is not known: the culprit, the nearest known name, and the whole list.

Every registry (mixers, presets, tasks, configuration keys, …) answers a misspelt name through this one function.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for ``name`` where a ``kind`` was expected.

    >>> str(unknown("mixer", "randm", ["dot", "random"]))
    "unknown mixer 'randm'; did you mean 'random'? Known: dot, random"
    """
    known = sorted(known)
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near is not None else "."
    listed = ", ".join(repr(choice) if "," in choice else choice for choice in known)
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {listed}")


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be, whatever its case; None where none is near."""
    by_case = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(str(name).lower(), by_case, n=1, cutoff=0.5)
    return by_case[near[0]] if near else None
