"""gMLP, Figure 8: scaling of Transformers, gMLPs and aMLPs.

    tokenmix reproduce gmlp-figure-8 --scale bench

Time: about 122 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Runs of
Figure 7 in the same --out are reused. Expect: aMLP ahead of the Transformer on both tasks at every size. The figure's
points are not printed.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_figure_7 import triples
from tokenmix.recipes.gmlp_mlm import GLUE_NOTE, SIZES, TINY, bench_glue, pretrain, tiny_stages
from tokenmix.recipes.gmlp_table_4 import DEPTHS, PAPER
from tokenmix.recipes.recipe import Claim, Recipe, Scale
from tokenmix.recipes.verdicts import better, every, same_slope

_DEPTHS = tuple((depth, blocks, layers) for depth, blocks, _, _, layers, _ in DEPTHS)

RECIPE = Recipe(
    name="gmlp-figure-8",
    place="gMLP, Figure 8",
    title="Comparing the scaling properties of Transformers, gMLPs and aMLPs",
    columns=("Params (M)", "Perplexity", "SST-2", "MNLI-m"),
    rows=triples(_DEPTHS),
    scales={
        "tiny": Scale(tiny_stages(("toy_sentiment", "SST-2", "classify")), sizes=TINY, body="encoder", note=TINY_NOTE),
        "bench": Scale(
            (pretrain(), *bench_glue()), seeds=3, sizes=SIZES, body="encoder", note=f"{WIKIPEDIA}; {GLUE_NOTE}"
        ),
        "paper": Scale(PAPER),
    },
    claims=(
        Claim(
            "aMLP beats the Transformer on SST-2 at every size",
            every(*(better(f"aMLP {layers}", f"Transformer {blocks}", "SST-2") for _, blocks, layers in _DEPTHS)),
            "a figure",
        ),
        Claim(
            "aMLP beats the Transformer on sentence pairs at every size",
            every(*(better(f"aMLP {layers}", f"Transformer {blocks}", "MNLI-m") for _, blocks, layers in _DEPTHS)),
            "a figure",
        ),
        Claim(
            "aMLP and Transformer grow equally fast on sentence pairs",
            same_slope(
                [f"aMLP {layers}" for _, _, layers in _DEPTHS],
                [f"Transformer {blocks}" for _, blocks, _ in _DEPTHS],
                "Params (M)",
                "MNLI-m",
                1.5,
                logarithmic=False,
            ),
            "a figure",
        ),
    ),
    baseline="Transformer 12+12",
    lower=("Perplexity",),
    families={
        "Transformer": tuple(f"Transformer {blocks}" for _, blocks, _ in _DEPTHS),
        **{kind: tuple(f"{kind} {layers}" for _, _, layers in _DEPTHS) for kind in ("gMLP", "aMLP")},
    },
    doc=__doc__,
)
