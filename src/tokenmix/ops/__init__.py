"""Two pure functions carry all arithmetic between tokens: `attend` and `persist`.

`reference` holds both as the papers write them; `attend` and `persist` choose the fastest backend for the device.
"""

from tokenmix.ops import reference
from tokenmix.ops.attend import attend, attend_packed
from tokenmix.ops.cross_entropy import linear_cross_entropy
from tokenmix.ops.epilogue import Compose, Epilogue, Gate
from tokenmix.ops.geglu import geglu
from tokenmix.ops.persist import persist
from tokenmix.ops.toeplitz import persist_toeplitz, toeplitz

__all__ = [
    "Compose",
    "Epilogue",
    "Gate",
    "attend",
    "attend_packed",
    "geglu",
    "linear_cross_entropy",
    "persist",
    "persist_toeplitz",
    "reference",
    "toeplitz",
]
