"""Synthesizer, Table 4: GLUE, co-trained with SuperGLUE.

    tokenmix reproduce synthesizer-table-4 --scale bench

Time: about 24 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect: R
and D fall behind on sentence pairs and hold on SST; MNLI is a 4% subset here, QQP and QNLI have no training set.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_finetune, bench_text, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.synthesizer_table_6 import TERMS
from tokenmix.recipes.verdicts import better, every, not_worse, worse

_NAMES = (
    "Glue",
    "CoLA",
    "SST",
    "MRPC F1",
    "MRPC acc",
    "STSB P",
    "STSB S",
    "QQP F1",
    "QQP acc",
    "MNLI m",
    "MNLI mm",
    "QNLI",
    "RTE",
)
_TASKS = {
    "Glue": "mean",
    "CoLA": "cola/matthews",
    "SST": "sst2/accuracy",
    "MRPC F1": "mrpc/f1",
    "MRPC acc": "mrpc/accuracy",
    "STSB P": "stsb/pearson",
    "STSB S": "stsb/spearman",
    "QQP F1": "qqp/f1",
    "QQP acc": "qqp/accuracy",
    "MNLI m": "mnli/accuracy",
    "QNLI": "qnli/accuracy",
    "RTE": "glue_rte/accuracy",
}
_MODELS = {
    "T5 (Base)": ("t5-base", "dot", (83.5, 53.1, 92.2, 92.0, 88.7, 89.1, 88.9, 88.2, 91.2, 84.7, 85.0, 91.7, 76.9)),
    "Syn (R)": (
        "synthesizer-r-base",
        "random",
        (75.1, 41.2, 91.2, 85.9, 79.4, 74.0, 74.3, 85.5, 89.0, 77.6, 78.1, 87.6, 59.2),
    ),
    "Syn (D)": (
        "synthesizer-d-base",
        TERMS["D"],
        (72.0, 18.9, 89.9, 86.4, 79.4, 75.3, 75.5, 85.2, 88.3, 77.4, 78.1, 86.9, 57.4),
    ),
    "Syn (D+V)": (
        "synthesizer-dv-base",
        TERMS["D+V"],
        (82.6, 48.6, 92.4, 91.2, 87.7, 88.9, 89.0, 88.6, 91.5, 84.3, 84.8, 91.7, 75.1),
    ),
    "Syn (R+V)": (
        "synthesizer-rv-base",
        TERMS["R+V"],
        (84.1, 53.3, 92.2, 91.2, 87.7, 89.3, 88.9, 88.6, 91.4, 85.0, 84.6, 92.3, 81.2),
    ),
}
SIZES = {"d_model": 256, "d_ff": 1024, "heads": 8, "layers": 4, "max_length": 256}
PRETRAIN = bench_text("pretrain", {}, 8000, length=256, batch=64, lr=1e-3, objective="span_corruption")
PAPER_PRETRAIN = Stage("pretrain", {"preset": "synthesizer-c4"}, {})

RECIPE = Recipe(
    name="synthesizer-table-4",
    place="Synthesizer, Table 4",
    title="Multi-task language understanding (GLUE benchmark), dev scores",
    columns=_NAMES,
    rows=tuple(
        Row(name, dict(zip(_NAMES, printed)), preset, f'{term} | mlp(activation="relu")', {"tie_embeddings": True})
        for name, (preset, term, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (
                tiny_text("pretrain", {}),
                tiny("cotrain", "toy_pairs", {"RTE": "accuracy"}, after="pretrain", form="text"),
                tiny("sst", "toy_sentiment", {"SST": "accuracy"}, after="pretrain", form="text"),
            ),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                PRETRAIN,
                bench_finetune("cotrain", "glue", _TASKS, 6000, after="pretrain", lr=5e-4, batch=64, max_input=128),
            ),
            seeds=3,
            sizes=SIZES,
            body="seq2seq",
            note=f"{WIKIPEDIA}; GLUE without QQP and QNLI, MNLI a 4% subset: the mean is over what is present",
        ),
        "paper": Scale((PAPER_PRETRAIN, Stage("cotrain", {"preset": "synthesizer-cotrain"}, _TASKS, after="pretrain"))),
    },
    claims=(
        Claim("R+V beats T5 on GLUE", better("Syn (R+V)", "T5 (Base)", "Glue"), "84.1 against 83.5"),
        Claim(
            "R and D fail on sentence pairs",
            every(
                *(worse(name, "T5 (Base)", task, 2.0) for name in ("Syn (R)", "Syn (D)") for task in ("RTE", "STSB P"))
            ),
            "59.2 and 57.4 against 76.9 on RTE, 74.0 and 75.3 against 89.1 on STS-B",
        ),
        Claim(
            "R and D hold on SST",
            every(not_worse("Syn (R)", "T5 (Base)", "SST", 2.5), not_worse("Syn (D)", "T5 (Base)", "SST", 2.5)),
            "91.2 and 89.9 against 92.2",
        ),
    ),
    baseline="T5 (Base)",
    doc=__doc__,
)
