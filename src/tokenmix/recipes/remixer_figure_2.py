"""Remixer, Figure 2 and Section 4.2: what does H learn?

    tokenmix reproduce remixer-figure-2 --scale bench

Time: about 5 minutes on one H200, one run after another (an estimate). Expect: the paper says so of a figure; here it is
measured in the weights (`tokenmix.evaluation.weights`): how far softmax(H) of the first and of the last encoder layer
looks, how much weight a token gives itself, and how much of H finetuning leaves as it was. The runs are those of the
Remixer of Table 3; `tokenmix inspect RUN` draws the figure.
"""

from dataclasses import replace

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.remixer_table_3 import BENCH_SIZES, CONJNLI, PRETRAINING, SNLI
from tokenmix.recipes.verdicts import above, below, every

_ROW = "Remixer Base"
_MEMORY = {
    "Reach, first layer (%)": "memory_reach_first",
    "Reach, last layer (%)": "memory_reach_last",
    "Growth (points)": "memory_growth",
    "Itself (%)": "memory_self",
}
_KEPT = {"Kept, MNLI (%)": "memory_kept"}

RECIPE = Recipe(
    name="remixer-figure-2",
    place="Remixer, Section 4.2 and Figure 2",
    title="What does H learn?",
    columns=(*_MEMORY, *_KEPT, "Kept, ConjNLI (%)"),
    rows=(Row(_ROW, {}, "remixer-sbase", "dot | remix(heads=4)"),),
    scales={
        "tiny": Scale(
            (
                tiny_text("pretrain", {}),
                tiny("mnli", "toy_pairs", {**_MEMORY, **_KEPT}, after="pretrain", form="text"),
            ),
            sizes={**TINY_SIZES, "layers": 4, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                PRETRAINING,
                replace(SNLI, columns={**_MEMORY, **_KEPT}),
                replace(CONJNLI, columns={"Kept, ConjNLI (%)": "memory_kept"}),
            ),
            seeds=3,
            sizes=BENCH_SIZES,
            body="seq2seq",
            note="the first 32 positions of H in the encoder of Table 3's Remixer, 4 layers; SNLI in the column MNLI",
        ),
        "paper": Scale(
            (
                Stage("pretrain", {"preset": "remixer-pretrain"}, {}),
                Stage(
                    "mnli",
                    {"preset": "remixer-nli", "data": {"task": "mnli"}},
                    {**_MEMORY, **_KEPT},
                    after="pretrain",
                ),
                Stage(
                    "conjnli",
                    {"preset": "remixer-nli", "data": {"task": "conjnli"}},
                    {"Kept, ConjNLI (%)": "memory_kept"},
                    after="pretrain",
                ),
            ),
            note="18 encoder layers; the first 32 positions of H",
        ),
    },
    claims=(
        Claim(
            "the memory begins local and grows to global with depth",
            every(below(_ROW, "Reach, first layer (%)", 100), above(_ROW, "Growth (points)", 0)),
            "a figure",
        ),
        Claim("the memory avoids self-relationships", below(_ROW, "Itself (%)", 100), "a figure"),
        Claim(
            "the memory hardly changes in finetuning, whatever the task (its correlation with itself above 0.9)",
            every(above(_ROW, "Kept, MNLI (%)", 90), above(_ROW, "Kept, ConjNLI (%)", 90)),
            "does not vary greatly",
        ),
    ),
    baseline=_ROW,
    lower=(),
    doc=__doc__,
)
