"""Remixer, Table 5: ablations of the composition.

    tokenmix reproduce remixer-table-5 --scale bench

Time: about 14 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
the paper ablates on SuperGLUE after pretraining; here the same ablations are trained from scratch on COGS and on
SNLI, at the size of Table 4's models, whose runs are used again.
"""

from tokenmix.recipes.common import SCRATCH, TINY_NOTE, TINY_SIZES, bench_scratch, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.remixer_table_4 import COGS_SIZES, SCRATCH_COGS
from tokenmix.recipes.verdicts import worse

RECIPE = Recipe(
    name="remixer-table-5",
    place="Remixer, Table 5",
    title="Ablation experiments on SuperGLUE dataset",
    columns=("Avg", "COGS Gen. EM", "SNLI"),
    rows=(
        Row("T5.1.1 Base", {}, "t5-v1.1-base", "dot | geglu"),  # Table 4's, whose size the others take
        Row("Remixer Base", {"Avg": 76.9}, "remixer-base", "dot | remix"),
        Row(
            "(1) w/o comp. remixing",
            {"Avg": 74.8},
            "remixer-base",
            "dot | remix(compose=False)",
            changes={
                "layer": "dot | remix(heads=16, compose=False)",
                "decoder_layer": "dot | remix(heads=8, compose=False)",
            },
        ),
        Row(
            "(2) w gating between X_C and X_s",
            {"Avg": 75.6},
            "remixer-base",
            'dot | remix(compose="gated")',
            changes={
                "layer": 'dot | remix(heads=16, compose="gated")',
                "decoder_layer": 'dot | remix(heads=8, compose="gated")',
            },
        ),
    ),
    scales={
        "tiny": Scale(
            (
                tiny("cogs", "scan", {"COGS Gen. EM": "exact_match"}),
                tiny("snli", "toy_pairs", {"SNLI": "accuracy"}, form="text"),
            ),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                Stage("cogs", SCRATCH_COGS, {"COGS Gen. EM": "exact_match"}, split="gen"),
                bench_scratch("snli", "snli", {"SNLI": "accuracy"}, 4000, lr=2e-4, batch=64, max_input=128),
            ),
            seeds=3,
            sizes=COGS_SIZES,
            body="seq2seq",
            match="params",
            note=f"COGS complete and SNLI (13% of its training set), from scratch; {SCRATCH}",
        ),
        "paper": Scale(
            (
                Stage("pretrain", {"preset": "remixer-pretrain"}, {}),
                Stage("finetune", {"preset": "remixer-superglue"}, {"Avg": "mean"}, after="pretrain"),
            ),
        ),
    },
    claims=(
        Claim(
            "composition matters: without it COGS gets worse",
            worse("(1) w/o comp. remixing", "Remixer Base", "COGS Gen. EM"),
            "74.8 against 76.9 on SuperGLUE",
        ),
        Claim(
            "composition matters: without it entailment gets worse",
            worse("(1) w/o comp. remixing", "Remixer Base", "SNLI"),
            "74.8 against 76.9 on SuperGLUE",
        ),
        Claim(
            "a gate between composed and mixed hurts on COGS",
            worse("(2) w gating between X_C and X_s", "Remixer Base", "COGS Gen. EM"),
            "75.6 against 76.9 on SuperGLUE",
        ),
        Claim(
            "a gate between composed and mixed hurts on entailment",
            worse("(2) w gating between X_C and X_s", "Remixer Base", "SNLI"),
            "75.6 against 76.9 on SuperGLUE",
        ),
    ),
    baseline="T5.1.1 Base",
    doc=__doc__,
)
