"""Synthesizer, Table 9 (appendix): more heads help the random Synthesizer.

    tokenmix reproduce synthesizer-table-9 --scale bench

Time: about 11 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
BLEU grows with the heads at equal width (each head brings a matrix R of its own, so that the parameters grow too).
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.synthesizer_table_2 import _mt
from tokenmix.recipes.verdicts import better

_NAMES = ("EnDe", "EnFr", "EnRo")
_PRINTED = {
    2: (19.43, 34.12, 18.67),
    4: (20.42, 35.26, 19.78),
    8: (20.88, 34.92, 20.28),
    16: (21.71, 35.26, 20.43),
    32: (21.72, 36.01, 20.52),
}


def _paper(task: str, column: str) -> Stage:
    settings = {
        "data": {"task": task, "batch_size": 128, "max_input": 512, "max_target": 512, "vocab_size": 32_000},
        "budget": {"steps": 262_144},
        "optimizer": {"name": "adafactor", "lr": 1.0, "clip": 0.0},
        "schedule": {"name": "inverse_sqrt", "warmup": 10_000, "ramp": False},
    }
    return Stage(column.lower(), settings, {column: "bleu"}, split="validation")


RECIPE = Recipe(
    name="synthesizer-table-9",
    place="Synthesizer, Table 9",
    title="Effect of number of heads on multi-task MT",
    columns=_NAMES,
    rows=tuple(
        Row(
            f"Syn h={heads}",
            dict(zip(_NAMES, printed)),
            f"synthesizer-r-h{heads}",
            'random | mlp(activation="relu")',
            {"heads": heads, "head_dim": None, "cross_heads": 2},
        )
        for heads, printed in _PRINTED.items()
    ),
    scales={
        "tiny": Scale(
            (tiny("ende", "scan", {"EnDe": "exact_match"}),),
            sizes={**TINY_SIZES, "d_model": 32, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (_mt("multi30k_en_de", "EnDe"), _mt("multi30k_en_fr", "EnFr")),
            seeds=3,
            sizes={"d_model": 256, "d_ff": 1024, "layers": 3, "tie_embeddings": True},
            body="seq2seq",
            note="Multi30k in place of WMT; one model per language pair",
        ),
        "paper": Scale(
            (_paper("wmt14_en_de", "EnDe"), _paper("wmt14_en_fr", "EnFr"), _paper("wmt16_en_ro", "EnRo")),
            note="the paper trains the three pairs in one model and does not print its steps; T5's 262,144 stand here",
        ),
    },
    claims=(
        Claim("more heads help R: 32 against 2 (En-De)", better("Syn h=32", "Syn h=2", "EnDe"), "21.72 against 19.43"),
        Claim("more heads help R: 32 against 2 (En-Fr)", better("Syn h=32", "Syn h=2", "EnFr"), "36.01 against 34.12"),
        Claim("more heads help R: 8 against 2 (En-De)", better("Syn h=8", "Syn h=2", "EnDe"), "20.88 against 19.43"),
    ),
    baseline="Syn h=8",
    doc=__doc__,
)
