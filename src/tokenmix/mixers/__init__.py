"""Mixers: modules that own parameters, one file per idea, and the language that names them.

Importing this package registers every mixer. A new one is a new file here that calls `@register("name")`; all files of
this folder are imported, and the tests that run over the registry pick it up.
"""

import importlib
import pkgutil

from tokenmix.mixers.expression import REGISTRY, Expression, Layer, Mix, Sublayer, Term, mix, parse, register
from tokenmix.mixers.site import Site

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

globals().update({kind.__name__: kind for kind in REGISTRY.values()})

__all__ = ["REGISTRY", "Expression", "Layer", "Mix", "Site", "Sublayer", "Term", "mix", "parse", "register"]
__all__ += [kind.__name__ for kind in REGISTRY.values()]
