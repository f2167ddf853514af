"""Remixer, Table 3: entailment.

    tokenmix reproduce remixer-table-3 --scale bench

Time: about 26 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
MNLI here is a 4% subset and QNLI and adversarial NLI have no training set here; SNLI (a 13% subset) stands in the
column MNLI, and ConjNLI and abductive NLI are trained as they are.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_finetune, bench_text, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, every, worse

_NAMES = ("MNLI m", "MNLI mm", "AdvNLI R1", "AdvNLI R2", "AdvNLI R3", "ConjNLI", "AbNLI", "QNLI")


def _printed(*values: float | None) -> dict[str, float | None]:
    return dict(zip(_NAMES, values, strict=True))


def _paper(name: str, task: str, columns: dict[str, str], split: str | None = None) -> Stage:
    return Stage(name, {"preset": "remixer-nli", "data": {"task": task}}, columns, after="pretrain", split=split)


def _finetuned(name: str, task: str, column: str, steps: int) -> Stage:
    return bench_finetune(name, task, {column: "accuracy"}, steps, after="pretrain", lr=5e-4, batch=64, max_input=128)


BENCH_SIZES = {"d_model": 256, "d_ff": 512, "heads": 4, "layers": 4, "max_length": 256}
PRETRAINING = bench_text("pretrain", {}, 8000, length=256, batch=64, lr=1e-3, objective="span_corruption")
SNLI = _finetuned("snli", "snli", "MNLI m", 4000)
CONJNLI = _finetuned("conjnli", "conjnli", "ConjNLI", 2000)

RECIPE = Recipe(
    name="remixer-table-3",
    place="Remixer, Table 3",
    title="Experimental results on entailment (natural language inference)",
    columns=_NAMES,
    rows=(
        Row("BERT Base", _printed(84.6, 84.8, None, None, None, 58.1, None, 88.4)),
        Row("BERT Large", _printed(86.6, None, 57.2, 49.0, 43.5, None, None, 92.3)),
        Row("T5.1.1 Base", _printed(86.1, 86.0, 59.5, 48.3, 48.0, 67.4, 67.8, 91.6), "t5-v1.1-base", "dot | geglu"),
        Row(
            "Mixer Base",
            _printed(59.2, 58.2, 45.9, 43.5, 43.6, 62.6, 51.1, 59.3),
            "mixer-base",
            "token_mlp(hidden=384, window=32) | geglu",
            {"positions": "none"},
        ),
        Row(
            "Remixer SBase",
            _printed(86.6, 86.9, 60.3, 48.4, 48.8, 67.4, 66.8, 92.3),
            "remixer-sbase",
            "dot | remix(heads=4) ; dot | geglu",
            multiples={"layers": 1.5, "decoder_layers": 0.25},
        ),
        Row(
            "Remixer Base",
            _printed(87.4, 87.2, 60.7, 49.5, 48.2, 68.5, 69.6, 92.4),
            "remixer-base",
            "dot | remix(heads=4)",
        ),
    ),
    scales={
        "tiny": Scale(
            (
                tiny_text("pretrain", {}),
                tiny("mnli", "toy_pairs", {"MNLI m": "accuracy"}, after="pretrain", form="text"),
            ),
            sizes={**TINY_SIZES, "layers": 4, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                PRETRAINING,
                SNLI,
                CONJNLI,
                _finetuned("abductive", "anli_abductive", "AbNLI", 2000),
            ),
            seeds=3,
            sizes=BENCH_SIZES,
            body="seq2seq",
            note=f"{WIKIPEDIA}; SNLI (13% of its training set) in the column MNLI m; abductive NLI is a subset",
        ),
        "paper": Scale(
            (
                Stage("pretrain", {"preset": "remixer-pretrain"}, {}),
                _paper("mnli", "mnli", {"MNLI m": "accuracy"}),
                _paper("anli-r1", "anli_r1", {"AdvNLI R1": "accuracy"}),
                _paper("anli-r2", "anli_r2", {"AdvNLI R2": "accuracy"}),
                _paper("anli-r3", "anli_r3", {"AdvNLI R3": "accuracy"}),
                _paper("conjnli", "conjnli", {"ConjNLI": "accuracy"}),
                _paper("abductive", "anli_abductive", {"AbNLI": "accuracy"}),
                _paper("qnli", "qnli", {"QNLI": "accuracy"}),
            ),
        ),
    },
    claims=(
        Claim(
            "Remixer beats T5.1.1 on entailment",
            every(*(better("Remixer Base", "T5.1.1 Base", name) for name in ("MNLI m", "ConjNLI", "AbNLI"))),
            "87.4 against 86.1 on MNLI, 68.5 against 67.4 on ConjNLI, 69.6 against 67.8 on abductive NLI",
        ),
        Claim(
            "Mixers cannot do sentence pairs",
            worse("Mixer Base", "T5.1.1 Base", "MNLI m", 10.0),
            "59.2 against 86.1",
        ),
    ),
    baseline="T5.1.1 Base",
    doc=__doc__,
)
