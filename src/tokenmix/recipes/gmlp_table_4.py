"""gMLP, Table 4: Transformers and gMLPs of growing depth, pretrained and finetuned.

    tokenmix reproduce gmlp-table-4 --scale bench

Time: about 73 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
gMLP ahead on SST-2 and behind on sentence pairs at every size; depths 0.5, 1, 2 and 4 times 4 + 4 blocks.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_mlm import (
    GLUE_NOTE,
    SIZES,
    TINY,
    bench_glue,
    bert,
    gmlp,
    paper_glue,
    paper_mlm,
    pretrain,
    tiny_stages,
)
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import better, every, worse

_NAMES = ("Params (M)", "Perplexity", "SST-2", "MNLI-m")
# depth, blocks of the Transformer and of the gMLP, their printed numbers
DEPTHS = (
    (0.5, "6+6", (67, 4.91, 90.4, 81.5), "bert-6-relative", "18", (59, 5.25, 91.2, 77.7)),
    (1, "12+12", (110, 4.26, 91.3, 83.3), "bert-base-relative", "36", (102, 4.35, 92.3, 80.9)),
    (2, "24+24", (195, 3.83, 92.1, 85.2), "bert-24-relative", "72", (187, 3.79, 93.5, 82.8)),
    (4, "48+48", (365, 3.47, 92.8, 86.3), "bert-48-relative", "144", (357, 3.43, 95.1, 84.6)),
)


def depth_rows() -> tuple[Row, ...]:
    """Both families at every depth."""
    rows = []
    for depth, blocks, transformer, preset, layers, other in DEPTHS:
        rows.append(bert(f"Transformer {blocks}", dict(zip(_NAMES, transformer)), preset, depth))
        rows.append(gmlp(f"gMLP {layers}", dict(zip(_NAMES, other)), f"gmlp-{layers}", depth))
    return tuple(rows)


TRANSFORMERS = tuple(f"Transformer {blocks}" for _, blocks, *_ in DEPTHS)
GMLPS = tuple(f"gMLP {layers}" for *_, layers, _ in DEPTHS)
PAPER = (paper_mlm(), paper_glue("sst2", "sst2", "SST-2"), paper_glue("mnli", "mnli", "MNLI-m"))

RECIPE = Recipe(
    name="gmlp-table-4",
    place="gMLP, Table 4",
    title="Pretraining and dev-set finetuning results over increased model capacity",
    columns=_NAMES,
    rows=depth_rows(),
    scales={
        "tiny": Scale(
            tiny_stages(("toy_sentiment", "SST-2", "classify"), ("toy_pairs", "MNLI-m", "classify")),
            sizes=TINY,
            body="encoder",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (pretrain(), *bench_glue()), seeds=3, sizes=SIZES, body="encoder", note=f"{WIKIPEDIA}; {GLUE_NOTE}"
        ),
        "paper": Scale(PAPER),
    },
    claims=(
        Claim(
            "gMLP beats the Transformer on SST-2 at every size",
            every(*(better(g, t, "SST-2") for g, t in zip(GMLPS, TRANSFORMERS))),
            "91.2, 92.3, 93.5, 95.1 against 90.4, 91.3, 92.1, 92.8",
        ),
        Claim(
            "gMLP is behind the Transformer on sentence pairs at every size",
            every(*(worse(g, t, "MNLI-m") for g, t in zip(GMLPS, TRANSFORMERS))),
            "77.7, 80.9, 82.8, 84.6 against 81.5, 83.3, 85.2, 86.3",
        ),
        Claim(
            "a deep enough gMLP reaches the Transformer's perplexity",
            better(GMLPS[-1], TRANSFORMERS[-1], "Perplexity"),
            "3.43 against 3.47 at the largest size",
        ),
    ),
    baseline="Transformer 12+12",
    lower=("Perplexity",),
    doc=__doc__,
)
