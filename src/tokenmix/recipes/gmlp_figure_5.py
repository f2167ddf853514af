"""gMLP, Figure 5: scaling laws of pretraining and finetuning.

    tokenmix reproduce gmlp-figure-5 --scale bench

Time: about 33 minutes on one H200, one run after another (an estimate), 11 of them for pretraining alone (`--part mlm`);
`--jobs 4` runs four side by side. Expect: log perplexity falls with log parameters along one line for both families, and
finetuning accuracies rise equally fast. Transformers of 1, 2, 4 and 8 layers of width 128, gMLPs of 3, 6, 12 and 24 of
width 88: half of Table 4's in depth and width.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_mlm import ABLATION, GLUE_NOTE, SIZES, TINY, bench_glue, pretrain, tiny_stages
from tokenmix.recipes.gmlp_table_4 import GMLPS, PAPER, TRANSFORMERS, depth_rows
from tokenmix.recipes.recipe import Claim, Recipe, Scale
from tokenmix.recipes.verdicts import same_slope

RECIPE = Recipe(
    name="gmlp-figure-5",
    place="gMLP, Figure 5",
    title="Scaling properties with respect to perplexity and finetuning accuracies",
    columns=("Params (M)", "Perplexity", "SST-2", "MNLI-m"),
    rows=depth_rows(),
    scales={
        "tiny": Scale(tiny_stages(("toy_sentiment", "SST-2", "classify")), sizes=TINY, body="encoder", note=TINY_NOTE),
        "bench": Scale(
            (pretrain(ABLATION, batch=64), *bench_glue()),
            seeds=3,
            sizes={**SIZES, "d_model": 128, "d_ff": 512, "layers": 2},
            body="encoder",
            note=f"{WIKIPEDIA}; length 128, 33 million tokens; 1, 2, 4 and 8 layers of width 128, gMLPs 3 times as many of 88; "
            f"{GLUE_NOTE}",
        ),
        "paper": Scale(PAPER),
    },
    claims=(
        Claim(
            "equal slopes in pretraining: perplexity over parameters is the same power law",
            same_slope(GMLPS, TRANSFORMERS, "Params (M)", "Perplexity", 0.03),
            "a figure; −0.23 for gMLP and −0.20 for Transformers by Table 4",
        ),
        Claim(
            "equal slopes in finetuning on sentence pairs",
            same_slope(GMLPS, TRANSFORMERS, "Params (M)", "MNLI-m", 1.5, logarithmic=False),
            "a figure; 3.7 and 2.9 points per factor e of parameters by Table 4",
        ),
        Claim(
            "equal slopes in finetuning on SST-2",
            same_slope(GMLPS, TRANSFORMERS, "Params (M)", "SST-2", 1.5, logarithmic=False),
            "a figure; 2.2 and 1.4 points per factor e of parameters by Table 4",
        ),
    ),
    baseline="Transformer 12+12",
    lower=("Perplexity",),
    families={"Transformer": TRANSFORMERS, "gMLP": GMLPS},
    doc=__doc__,
)
