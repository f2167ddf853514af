"""gMLP, Table 10 (Appendix B): deeper and thinner Transformers at fixed capacity.

    tokenmix reproduce gmlp-table-10 --scale bench

Time: about 7 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect: with
2 layers as the starting point, 4 thinner ones are better (`recipes/results/gmlp-table-10.json`); the paper starts at 12 + 12.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA, tiny_text
from tokenmix.recipes.gmlp_mlm import ABLATION, BERT, MLM, RELATIVE, SIZES, TINY, paper_mlm, pretrain
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import every, not_worse, worse

_MODELS = {
    "12 + 12": ("bert-base-relative", 1, 1, (4.83, 768, 12, 110)),
    "24 + 24": ("bert-24-thin", 2, 3 / 4, (5.08, 512, 8, 92)),
    "48 + 48": ("bert-48-thin", 4, 7 / 12, (4.99, 384, 12, 98)),
    "96 + 96": ("bert-96-thin", 8, 5 / 12, (5.30, 256, 8, 84)),
}

RECIPE = Recipe(
    name="gmlp-table-10",
    place="gMLP, Table 10",
    title="MLM results with increasingly deeper & thinner Transformers",
    columns=("Perplexity", "d_model", "#heads", "Params (M)"),
    rows=tuple(
        Row(
            f"#L {name}",
            dict(zip(("Perplexity", "d_model", "#heads", "Params (M)"), printed)),
            preset,
            BERT,
            {**RELATIVE, "heads": 4},
            {"layers": depth, "d_model": width, "d_ff": width},
        )
        for name, (preset, depth, width, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (tiny_text("mlm", MLM),), sizes={**TINY, "d_model": 48, "layers": 1}, body="encoder", note=TINY_NOTE
        ),
        "bench": Scale(
            (pretrain(ABLATION),),
            seeds=3,
            sizes={**SIZES, "d_model": 384, "d_ff": 1536, "layers": 2},
            body="encoder",
            match="params",
            note=f"{WIKIPEDIA}; length 128; 2, 4, 8 and 16 layers",
        ),
        "paper": Scale((paper_mlm(),), note="the paper used a similar yet different set-up for this table"),
    },
    claims=(
        Claim(
            "deeper and thinner Transformers do not help",
            every(*(not_worse("#L 12 + 12", f"#L {n}", "Perplexity", 2, percent=True) for n in ("24 + 24", "48 + 48"))),
            "4.83 against 5.08 and 4.99",
        ),
        Claim("the deepest is worse", worse("#L 96 + 96", "#L 12 + 12", "Perplexity"), "5.30 against 4.83"),
    ),
    baseline="#L 12 + 12",
    lower=("Perplexity",),
    doc=__doc__,
)
