"""Synthesizer, Table 7: factorized Synthesizers against Linformer on encoding tasks.

    tokenmix reproduce synthesizer-table-7 --scale bench

Time: about 88 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
the paper's own model and budget (6 layers, d 512, 10K steps, batch 128) on inputs cut to 256 tokens. IMDb is
complete; AG News has 12% of its training set here.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, profiled, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, every, within

_NAMES = ("News", "Reviews", "Steps/Sec")
_MODELS = {
    "Transformer": ("transformer-classifier", "dot", (88.83, 81.34, 1.09)),
    "Linformer": ("linformer-classifier", "linformer(k=32)", (86.50, 82.86, 1.09)),
    "Syn (FR)": ("synthesizer-fr-classifier", "factorized_random(k=32)", (86.53, 83.39, 1.10)),
    "Syn (FR+V)": ("synthesizer-frv-classifier", "factorized_random(k=32) + dot", (89.13, 84.61, 0.80)),
}
_SPEED = {"Steps/Sec": "steps_per_second"}
_OPTIONS = {"positions": "sinusoidal", "pool": "mean", "init": "xavier"}


def _stage(name: str, task: str, column: str, length: int = 512) -> Stage:
    settings = {
        "preset": "synthesizer-classification",
        "data": {"task": task, "max_input": length},
        "validation": {"every": 2500},
    }
    return Stage(name, settings, {column: "accuracy"})


RECIPE = Recipe(
    name="synthesizer-table-7",
    place="Synthesizer, Table 7",
    title="Results on encoding only tasks (accuracy)",
    columns=_NAMES,
    rows=tuple(
        Row(name, dict(zip(_NAMES, printed)), preset, f"{term} | mlp", _OPTIONS)
        for name, (preset, term, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (tiny("news", "toy_sentiment", {"News": "accuracy"}, form="classify"), profiled(_SPEED)),
            sizes={**TINY_SIZES, "max_length": 32},
            body="encoder",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                _stage("news", "ag_news", "News", 256),
                _stage("reviews", "imdb", "Reviews", 256),
                profiled(_SPEED, batch=128, length=256, steps=20),
            ),
            seeds=3,
            sizes={"d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6, "max_length": 256, "dropout": 0.1},
            body="encoder",
            note="the paper's model and budget, inputs cut to 256 tokens; AG News: 12% of its training set",
        ),
        "paper": Scale(
            (_stage("news", "ag_news", "News"), _stage("reviews", "imdb", "Reviews"), profiled(_SPEED, 128, 512, 20))
        ),
    },
    claims=(
        Claim(
            "FR is about as good as Linformer on news", within("Syn (FR)", "Linformer", "News", 1.0), "86.53 and 86.50"
        ),
        Claim(
            "FR is about as good as Linformer on reviews",
            within("Syn (FR)", "Linformer", "Reviews", 1.0),
            "83.39 and 82.86",
        ),
        Claim("FR+V beats the Transformer on news", better("Syn (FR+V)", "Transformer", "News"), "89.13 against 88.83"),
        Claim(
            "FR+V beats the Transformer on reviews",
            better("Syn (FR+V)", "Transformer", "Reviews"),
            "84.61 against 81.34",
        ),
        Claim(
            "FR+V beats Linformer on both",
            every(better("Syn (FR+V)", "Linformer", "News"), better("Syn (FR+V)", "Linformer", "Reviews")),
            "89.13 against 86.50, 84.61 against 82.86",
        ),
    ),
    baseline="Transformer",
    doc=__doc__,
)
