"""Remixer, Table 2: SuperGLUE after pretraining, all tasks in one model.

    tokenmix reproduce remixer-table-2 --scale bench

Time: about 21 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
the tasks that are present here (BoolQ's training set and ReCoRD are not), small models pretrained on Wikipedia;
differences of a point are inside the noise, the distance of the Mixer and of the bag of words to the others is not.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_finetune, bench_text, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, every, within, worse

_NAMES = ("BQ", "CB F1", "CB acc", "CP", "MultiRC F1a", "MultiRC EM", "ReC F1", "ReC EM", "RTE", "WiC", "WSC", "Avg")


def _printed(*values: float | None) -> dict[str, float | None]:
    return dict(zip(_NAMES, values, strict=True))


_TASKS = {
    "BQ": "boolq/accuracy",
    "CB F1": "cb/mean_f1",
    "CB acc": "cb/accuracy",
    "CP": "copa/accuracy",
    "MultiRC F1a": "multirc/f1a",
    "MultiRC EM": "multirc/exact_match",
    "ReC F1": "record/f1",
    "ReC EM": "record/exact_match",
    "RTE": "rte/accuracy",
    "WiC": "wic/accuracy",
    "WSC": "wsc/accuracy",
    "Avg": "mean",
}

RECIPE = Recipe(
    name="remixer-table-2",
    place="Remixer, Table 2",
    title="Results on SuperGLUE dev set for base models",
    columns=_NAMES,
    rows=(
        Row("CBoW", _printed(62.4, 71.4, 49.6, 63, 20.3, 0.3, 14.4, 13.8, 54.2, 55.3, 61.5, 47.7)),
        Row("BERT Large", _printed(77.7, 94.6, 93.7, 69, 70.5, 24.7, 70.6, 69.8, 75.8, 74.9, 68.3, 72.2)),
        Row("BERT+ Large", _printed(80.1, 96.4, 95.0, 78, 70.5, 24.7, 70.6, 69.8, 82.3, 74.9, 68.3, 74.6)),
        Row(
            "Mixer Enc",
            _printed(67.9, 65.7, 66.1, 59, 56.6, 9.7, 53.8, 52.4, 54.5, 56.4, 64.4, 56.8),
            "mixer-enc-base",
            "token_mlp(hidden=384) | geglu ; dot | geglu",
        ),
        Row(
            "Mixer EncDec",
            _printed(62.2, 79.9, 80.4, 56, 53.3, 0.3, 52.7, 48.7, 49.1, 50.0, 64.4, 54.9),
            "mixer-base",
            "token_mlp(hidden=384, window=32) | geglu",
            {"positions": "none"},
        ),
        Row("T5 Base", _printed(77.8, 92.4, 92.9, 75, 72.2, 30.4, 73.7, 72.8, 75.8, 69.7, 82.7, 74.8), "t5-base"),
        Row(
            "T5.1.1 Base",
            _printed(79.3, 92.4, 92.9, 72, 74.2, 32.8, 74.9, 73.9, 79.8, 70.2, 81.7, 75.4),
            "t5-v1.1-base",
            "dot | geglu",
        ),
        Row("T5.1.1 Base, MT", _printed(82.8, 89.2, 92.9, 65, 78.6, 44.2, 77.9, 77.1, 84.1, 68.3, 79.8, 76.2)),
        Row(
            "Remixer SBase",
            _printed(80.2, 98.7, 98.2, 65, 76.0, 35.9, 75.6, 74.8, 81.6, 69.1, 82.7, 76.0),
            "remixer-sbase",
            "dot | remix(heads=4) ; dot | geglu",
            multiples={"layers": 1.5, "decoder_layers": 0.25},
        ),
        Row(
            "Remixer Base",
            _printed(80.5, 96.4, 98.1, 68, 74.4, 32.7, 77.8, 77.0, 81.2, 72.3, 84.6, 76.9),
            "remixer-base",
            "dot | remix(heads=4)",
        ),
        Row("Remixer Base, MT", _printed(81.4, 94.3, 96.4, 77, 77.5, 42.6, 78.1, 77.2, 85.2, 69.4, 88.5, 79.3)),
    ),
    scales={
        "tiny": Scale(
            (
                tiny_text("pretrain", {}),
                tiny("finetune", "toy_pairs", {"Avg": "accuracy"}, after="pretrain", form="text"),
            ),
            sizes={**TINY_SIZES, "d_ff": 32, "layers": 4, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                bench_text("pretrain", {}, 8000, length=256, batch=64, lr=1e-3, objective="span_corruption"),
                bench_finetune(
                    "finetune", "superglue", _TASKS, 3000, after="pretrain", lr=5e-4, batch=64, max_input=256
                ),
            ),
            seeds=3,
            sizes={"d_model": 256, "d_ff": 512, "heads": 4, "layers": 4, "max_length": 256},
            body="seq2seq",
            note=f"{WIKIPEDIA}; equal width, not size; SuperGLUE without BoolQ's training set and ReCoRD: mean over the others",
        ),
        "paper": Scale(
            (
                Stage("pretrain", {"preset": "remixer-pretrain"}, {}),
                Stage("finetune", {"preset": "remixer-superglue"}, _TASKS, after="pretrain"),
            ),
            note="rows with MT (multi-task pretraining, 1M steps) use the preset remixer-mt and are quoted here",
        ),
    },
    claims=(
        Claim("Remixer beats T5.1.1 on SuperGLUE", better("Remixer Base", "T5.1.1 Base", "Avg"), "76.9 against 75.4"),
        Claim(
            "the scaled Remixer, at the paper's size smaller than T5.1.1, beats it too",
            better("Remixer SBase", "T5.1.1 Base", "Avg"),
            "76.0 against 75.4",
        ),
        Claim(
            "Mixers are far behind, encoder only or both stacks",
            every(
                worse("Mixer Enc", "T5.1.1 Base", "Avg", 2.0),
                worse("Mixer EncDec", "T5.1.1 Base", "Avg", 2.0),
            ),
            "56.8 and 54.9 against 75.4",
        ),
        Claim(
            "a Mixer in the encoder and one in both stacks are about equal",
            within("Mixer Enc", "Mixer EncDec", "Avg", 3.0),
            "56.8 and 54.9",
        ),
    ),
    baseline="T5.1.1 Base",
    doc=__doc__,
)
