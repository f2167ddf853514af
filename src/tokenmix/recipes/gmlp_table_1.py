"""gMLP, Table 1: the vision models.

    tokenmix reproduce gmlp-table-1 --scale bench

Time: seconds, on any machine: everything is counted, nothing trained or timed. Expect: parameters as printed, exactly
those of timm's models; FLOPs here count two operations per multiply-add, as Table 1 does (Table 2's MAdds are half of
that).
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_VISION, profiled
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import every, near

_COLUMNS = {"Params (M)": "parameters/1e6", "FLOPs (B)": "flops_forward/1e9", "Steps/s": "steps_per_second"}
_PRINTED = {
    "gMLP-Ti": ("gmlp-ti16-224", 0.5, (30, 128, 768, 5.9, 2.7, 1.00)),
    "gMLP-S": ("gmlp-s16-224", 1, (30, 256, 1536, 19.5, 8.9, 0.95)),
    "gMLP-B": ("gmlp-b16-224", 2, (30, 512, 3072, 73.4, 31.6, 0.80)),
}
_NAMES = ("#L", "d_model", "d_ffn", "Params (M)", "FLOPs (B)", "Survival Prob")

RECIPE = Recipe(
    name="gmlp-table-1",
    place="gMLP, Table 1",
    title="Architecture specifications of gMLP models for vision",
    columns=(*_NAMES, "Steps/s"),
    rows=tuple(
        Row(name, dict(zip(_NAMES, printed)), preset, "gmlp", {"heads": 1}, {"d_model": width, "d_ff": width})
        for name, (preset, width, printed) in _PRINTED.items()
    ),
    scales={
        "tiny": Scale((profiled(_COLUMNS),), sizes=TINY_VISION, body="vision", note=TINY_NOTE),
        "bench": Scale(
            (profiled(_COLUMNS, batch=256, steps=0, original=True),),
            note="the paper's own sizes, counted",
        ),
        "paper": Scale((profiled(_COLUMNS, batch=256, steps=20),)),
    },
    claims=(
        Claim(
            "5.9M, 19.5M and 73.4M parameters",
            every(*(near(name, "Params (M)", printed[3]) for name, (_, _, printed) in _PRINTED.items())),
            "5.9, 19.5, 73.4",
        ),
        Claim(
            "2.7B, 8.9B and 31.6B FLOPs",
            every(*(near(name, "FLOPs (B)", printed[4], 0.03) for name, (_, _, printed) in _PRINTED.items())),
            "2.7, 8.9, 31.6",
        ),
    ),
    baseline="gMLP-Ti",
    doc=__doc__,
)
