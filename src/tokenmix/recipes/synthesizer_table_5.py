"""Synthesizer, Table 5: SuperGLUE, co-trained with GLUE; and whether cross-attention can be replaced.

    tokenmix reproduce synthesizer-table-5 --scale bench

Time: about 30 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect: as
in Table 4. The two rows with another cross-attention test the paper's remark that it cannot be replaced; they have no
number there.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_finetune, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.synthesizer_table_4 import PAPER_PRETRAIN, PRETRAIN, SIZES
from tokenmix.recipes.synthesizer_table_6 import TERMS
from tokenmix.recipes.verdicts import better, every, worse

_NAMES = (
    "SGlue",
    "BoolQ",
    "CB F1",
    "CB acc",
    "CoPA",
    "MultiRC F1a",
    "MultiRC EM",
    "ReCoRD F1",
    "ReCoRD EM",
    "RTE",
    "WiC",
    "WSC",
)
_TASKS = {
    "SGlue": "mean",
    "BoolQ": "boolq/accuracy",
    "CB F1": "cb/mean_f1",
    "CB acc": "cb/accuracy",
    "CoPA": "copa/accuracy",
    "MultiRC F1a": "multirc/f1a",
    "MultiRC EM": "multirc/exact_match",
    "ReCoRD F1": "record/f1",
    "ReCoRD EM": "record/exact_match",
    "RTE": "rte/accuracy",
    "WiC": "wic/accuracy",
    "WSC": "wsc/accuracy",
}
_MODELS = {
    "T5 (Base)": ("t5-base", "dot", (70.3, 78.2, 72.1, 83.9, 59.0, 73.1, 32.1, 71.1, 70.3, 77.3, 65.8, 80.8)),
    "Syn (R)": (
        "synthesizer-r-base",
        "random",
        (61.1, 69.5, 54.6, 73.2, 60.0, 63.0, 15.7, 58.4, 57.4, 67.5, 64.4, 66.3),
    ),
    "Syn (D)": (
        "synthesizer-d-base",
        TERMS["D"],
        (58.5, 69.5, 51.7, 71.4, 51.0, 66.0, 15.8, 54.1, 53.0, 67.5, 65.2, 58.7),
    ),
    "Syn (D+V)": (
        "synthesizer-dv-base",
        TERMS["D+V"],
        (69.7, 79.3, 74.3, 85.7, 64.0, 73.8, 33.7, 69.9, 69.2, 78.7, 64.3, 68.3),
    ),
    "Syn (R+V)": (
        "synthesizer-rv-base",
        TERMS["R+V"],
        (72.2, 79.3, 82.7, 91.1, 64.0, 74.3, 34.9, 70.8, 69.9, 82.7, 64.6, 75.0),
    ),
}

RECIPE = Recipe(
    name="synthesizer-table-5",
    place="Synthesizer, Table 5",
    title="Multi-task language understanding (SuperGLUE benchmark), dev scores",
    columns=_NAMES,
    rows=(
        *(
            Row(name, dict(zip(_NAMES, printed)), preset, f'{term} | mlp(activation="relu")', {"tie_embeddings": True})
            for name, (preset, term, printed) in _MODELS.items()
        ),
        Row("T5, cross-attention random", {}, None, 'dot | mlp(activation="relu")', {"cross": "random"}),
        Row("T5, cross-attention dense", {}, None, 'dot | mlp(activation="relu")', {"cross": "dense"}),
    ),
    scales={
        "tiny": Scale(
            (
                tiny_text("pretrain", {}),
                tiny("cotrain", "toy_pairs", {"RTE": "accuracy", "SGlue": "accuracy"}, after="pretrain", form="text"),
            ),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                PRETRAIN,
                bench_finetune(
                    "cotrain", "superglue", _TASKS, 3000, after="pretrain", lr=5e-4, batch=64, max_input=256
                ),
            ),
            seeds=3,
            sizes=SIZES,
            body="seq2seq",
            note=f"{WIKIPEDIA}; SuperGLUE without BoolQ's training set and ReCoRD: the mean is over what is present",
        ),
        "paper": Scale((PAPER_PRETRAIN, Stage("cotrain", {"preset": "synthesizer-cotrain"}, _TASKS, after="pretrain"))),
    },
    claims=(
        Claim("R+V beats T5 on SuperGLUE", better("Syn (R+V)", "T5 (Base)", "SGlue"), "72.2 against 70.3"),
        Claim(
            "R and D fail on SuperGLUE, whose tasks pair sentences",
            every(worse("Syn (R)", "T5 (Base)", "SGlue", 2.0), worse("Syn (D)", "T5 (Base)", "SGlue", 2.0)),
            "61.1 and 58.5 against 70.3",
        ),
        Claim(
            "cross-attention cannot be replaced",
            every(*(worse(f"T5, cross-attention {name}", "T5 (Base)", "SGlue", 2.0) for name in ("random", "dense"))),
            "a remark without numbers",
        ),
    ),
    baseline="T5 (Base)",
    doc=__doc__,
)
