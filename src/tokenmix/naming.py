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
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")
