"""tokenmix: models that mix tokens by other means than plain attention.

The public interface is what stands in `__all__`, here and in the packages `mixers`, `ops`, `models`, `data`, `training`,
`generation`, `evaluation` and `report`. Importing tokenmix registers its models with the Auto classes of transformers, so
that `AutoModel.from_pretrained` opens what tokenmix saved. The command `tokenmix` does without that until it needs a model.

>>> import tokenmix
>>> model = tokenmix.create_model("remixer-tiny")
>>> layer = tokenmix.parse("random + dot | remix").build(d_model=256, heads=8, max_length=128)
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tokenmix import figures
    from tokenmix.mixers import mix, parse
    from tokenmix.models import TokenmixConfig, create_model, list_presets
    from tokenmix.models.convert import from_timm, from_transformers, to_transformers

_HOME = {
    "TokenmixConfig": "tokenmix.models",
    "create_model": "tokenmix.models",
    "from_timm": "tokenmix.models.convert",
    "from_transformers": "tokenmix.models.convert",
    "list_presets": "tokenmix.models",
    "mix": "tokenmix.mixers",
    "parse": "tokenmix.mixers",
    "to_transformers": "tokenmix.models.convert",
}

__all__ = [
    "TokenmixConfig",
    "create_model",
    "figures",
    "from_timm",
    "from_transformers",
    "list_presets",
    "mix",
    "parse",
    "to_transformers",
]

_PACKAGES = ("data", "evaluation", "generation", "mixers", "models", "ops", "report", "training")


def __getattr__(name: str) -> Any:
    if name == "figures":  # a module: tokenmix.figures.remixer_memory(model, …)
        return importlib.import_module("tokenmix.figures")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tokenmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public: `__all__`, the packages that are loaded, and the module's own attributes."""
    return sorted({*__all__, *(name for name in globals() if name in _PACKAGES or name.startswith("__"))})


def _is_the_command() -> bool:
    as_module = sys.orig_argv[1:3] == ["-m", "tokenmix"]
    return as_module or os.path.basename(sys.argv[0] if sys.argv else "") in ("tokenmix", "tokenmix.exe")


if not _is_the_command():
    importlib.import_module("tokenmix.models")
