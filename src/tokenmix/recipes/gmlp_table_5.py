"""gMLP, Table 5: the models of the full BERT set-up.

    tokenmix reproduce gmlp-table-5 --scale bench

Time: seconds, on any machine: everything is counted, nothing trained or timed. Expect: parameters within 1% of the
printed ones; FLOPs at length 512 without the masked LM head's output matrix come closest to the printed ones.
"""

from tokenmix.recipes.common import TINY_NOTE, profiled
from tokenmix.recipes.gmlp_mlm import AMLP, GMLP, PLAIN, RELATIVE, TINY
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import every, near

_NAMES = ("Params (M)", "FLOPs (B)", "#L", "d_model", "d_ffn")
_COLUMNS = {"Params (M)": "parameters/1e6", "FLOPs (B)": "flops_forward/1e9"}
_MODELS = {
    "BERT base": ("bert-base", "dot | mlp", 1, 1, (110, 100.8, 12, 768, 3072)),
    "gMLP base": ("gmlp-base", GMLP, 4, 2 / 3, (130, 158.0, 48, 512, 3072)),
    "aMLP base": ("amlp-base", AMLP, 3, 2 / 3, (109, 128.9, 36, 512, 3072)),
    "BERT large": ("bert-large", "dot | mlp", 2, 4 / 3, (336, 341.2, 24, 1024, 4096)),
    "gMLP large": ("gmlp-large", GMLP, 8, 1, (365, 430.1, 96, 768, 3072)),
    "aMLP large": ("amlp-large", AMLP.replace("64", "128"), 6, 1, (316, 370.3, 72, 768, 3072)),
    "gMLP xlarge": ("gmlp-xlarge", GMLP, 12, 4 / 3, (941, 1091.3, 144, 1024, 4096)),
}

RECIPE = Recipe(
    name="gmlp-table-5",
    place="gMLP, Table 5",
    title="Model specifications in the full BERT setup",
    columns=_NAMES,
    rows=tuple(
        Row(
            name,
            dict(zip(_NAMES, printed)),
            preset,
            layer,
            {**RELATIVE, "positions": "absolute", "pooler": True, "segments": 2} if name.startswith("BERT") else PLAIN,
            {"layers": depth, "d_model": width, "d_ff": printed[4] / 3072},
        )
        for name, (preset, layer, depth, width, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (profiled(_COLUMNS),),
            sizes={**TINY, "layers": 1, "d_model": 48, "heads": 4},
            body="encoder",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (profiled(_COLUMNS, batch=8, length=512, steps=0, original=True),),
            note="the paper's own sizes, counted",
        ),
        "paper": Scale((profiled(_COLUMNS, batch=32, length=512, steps=10),)),
    },
    claims=(
        Claim(
            "parameters: 110M, 130M, 109M, 336M, 365M, 316M, 941M",
            every(*(near(name, "Params (M)", printed[0], 0.015) for name, (*_, printed) in _MODELS.items())),
            "as stated",
        ),
    ),
    baseline="BERT base",
    doc=__doc__,
)
