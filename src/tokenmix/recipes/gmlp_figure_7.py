"""gMLP, Figure 7: how pretraining perplexity carries over to finetuning.

    tokenmix reproduce gmlp-figure-7 --scale bench

Time: about 65 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
at equal perplexity gMLP and aMLP are ahead on SST-2; on sentence pairs gMLP is behind and aMLP is not. The paper also
varies the data (1, 2, 4 and 8 times); here the depth alone. The figure's points are not printed.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_mlm import AMLP, GLUE_NOTE, SIZES, TINY, bench_glue, bert, gmlp, pretrain, tiny_stages
from tokenmix.recipes.gmlp_table_4 import PAPER
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import better, every, not_worse, worse

_DEPTHS = ((0.5, "6+6", "18"), (1, "12+12", "36"), (2, "24+24", "72"))
_AMLP = {"layer": AMLP}


def triples(depths: tuple[tuple[float, str, str], ...]) -> tuple[Row, ...]:
    """A Transformer, a gMLP and an aMLP at each depth."""
    presets = {
        "6+6": "bert-6-relative",
        "12+12": "bert-base-relative",
        "24+24": "bert-24-relative",
        "48+48": "bert-48-relative",
    }
    rows = []
    for depth, blocks, layers in depths:
        rows += [
            bert(f"Transformer {blocks}", {}, presets[blocks], depth),
            gmlp(f"gMLP {layers}", {}, f"gmlp-{layers}", depth),
            gmlp(f"aMLP {layers}", {}, f"gmlp-{layers}", depth, AMLP, _AMLP),
        ]
    return tuple(rows)


RECIPE = Recipe(
    name="gmlp-figure-7",
    place="gMLP, Figure 7",
    title="Transferability from MLM pretraining perplexity to finetuning accuracies on GLUE",
    columns=("Params (M)", "Perplexity", "SST-2", "MNLI-m"),
    rows=triples(_DEPTHS),
    scales={
        "tiny": Scale(tiny_stages(("toy_pairs", "MNLI-m", "classify")), sizes=TINY, body="encoder", note=TINY_NOTE),
        "bench": Scale(
            (pretrain(), *bench_glue()), seeds=3, sizes=SIZES, body="encoder", note=f"{WIKIPEDIA}; {GLUE_NOTE}"
        ),
        "paper": Scale(PAPER, note="depth is varied; the paper also varies the data"),
    },
    claims=(
        Claim(
            "gMLP carries over to SST-2 better than Transformers",
            every(*(better(f"gMLP {layers}", f"Transformer {blocks}", "SST-2") for _, blocks, layers in _DEPTHS)),
            "a figure",
        ),
        Claim(
            "gMLP carries over to sentence pairs worse than Transformers",
            every(*(worse(f"gMLP {layers}", f"Transformer {blocks}", "MNLI-m") for _, blocks, layers in _DEPTHS)),
            "a figure",
        ),
        Claim(
            "tiny attention closes the gap on sentence pairs",
            every(
                *(not_worse(f"aMLP {layers}", f"Transformer {blocks}", "MNLI-m", 0.5) for _, blocks, layers in _DEPTHS)
            ),
            "a figure",
        ),
    ),
    baseline="Transformer 12+12",
    lower=("Perplexity",),
    doc=__doc__,
)
