"""Synthesizer, Table 3: summaries and dialogue.

    tokenmix reproduce synthesizer-table-3 --scale bench

Time: about 18 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
SAMSum's summaries and replies stand for CNN/DailyMail and PersonaChat; small models from scratch write poor
summaries, so that differences are small and may stay undecided.
"""

from tokenmix.recipes.common import SCRATCH, TINY_NOTE, TINY_SIZES, bench_finetune, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.synthesizer_table_6 import TERMS
from tokenmix.recipes.verdicts import better, every, worse

_NAMES = ("Sum. RL", "Dialogue B4", "Dialogue RL", "Dialogue Met.", "Dialogue CIDr")
_DIALOGUE = {
    "Dialogue B4": "bleu4",
    "Dialogue RL": "rougeL",
    "Dialogue Met.": "meteor",
    "Dialogue CIDr": "cider",
}
_MODELS = {
    "Trans.": ("t5-base", "dot", (35.77, 3.20, 13.38, 5.89, 18.94)),
    "R": ("synthesizer-r-base", "random", (33.10, 2.25, 15.00, 6.42, 19.57)),
    "D": ("synthesizer-d-base", TERMS["D"], (33.70, 4.02, 15.22, 6.61, 20.54)),
    "D+V": ("synthesizer-dv-base", TERMS["D+V"], (36.02, 3.57, 14.22, 6.32, 18.87)),
    "R+V": ("synthesizer-rv-base", TERMS["R+V"], (35.95, 2.28, 14.79, 6.39, 19.09)),
}


def _bench(name: str, task: str, columns: dict[str, str], target: int) -> Stage:
    return bench_finetune(name, task, columns, 6000, after=None, lr=1e-3, batch=64, max_input=256, max_target=target)


RECIPE = Recipe(
    name="synthesizer-table-3",
    place="Synthesizer, Table 3",
    title="Abstractive summarization (CNN/Dailymail) and dialogue generation (PersonaChat)",
    columns=_NAMES,
    rows=tuple(
        Row(name, dict(zip(_NAMES, printed)), preset, f'{term} | mlp(activation="relu")', {"tie_embeddings": True})
        for name, (preset, term, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (
                tiny("summaries", "scan", {"Sum. RL": "exact_match"}),
                tiny("dialogue", "toy_pairs", {"Dialogue RL": "accuracy"}, form="text"),
            ),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                _bench("summaries", "samsum", {"Sum. RL": "rougeL"}, 96),
                _bench("dialogue", "samsum_reply", _DIALOGUE, 64),
            ),
            seeds=3,
            sizes={"d_model": 256, "d_ff": 1024, "heads": 8, "layers": 3, "max_length": 256},
            body="seq2seq",
            note=f"SAMSum summaries and replies in place of CNN/DailyMail and PersonaChat; {SCRATCH}",
        ),
        "paper": Scale(
            (
                Stage(
                    "summaries",
                    {
                        "preset": "synthesizer-summarization",
                        "data": {"task": "cnn_dailymail", "max_input": 512, "max_target": 512},
                    },
                    {"Sum. RL": "rougeL"},
                ),
                Stage(
                    "dialogue",
                    {
                        "preset": "synthesizer-dialogue",
                        "data": {"task": "personachat", "batch_size": 128, "max_input": 256, "max_target": 256},
                    },
                    _DIALOGUE,
                    split="validation",
                ),
            ),
            note="the paper trains a small model on dialogue; its sizes are not printed",
        ),
    },
    claims=(
        Claim(
            "dot products help in summaries: R and D are behind the Transformer",
            every(worse("R", "Trans.", "Sum. RL"), worse("D", "Trans.", "Sum. RL")),
            "33.10 and 33.70 against 35.77",
        ),
        Claim(
            "mixtures with dot products beat the Transformer in summaries",
            every(better("D+V", "Trans.", "Sum. RL"), better("R+V", "Trans.", "Sum. RL")),
            "36.02 and 35.95 against 35.77",
        ),
        Claim(
            "dot products hurt in dialogue: R and D beat the Transformer",
            every(better("R", "Trans.", "Dialogue RL"), better("D", "Trans.", "Dialogue RL")),
            "15.00 and 15.22 against 13.38",
        ),
        Claim(
            "in dialogue, D is better without dot products than with them",
            better("D", "D+V", "Dialogue RL"),
            "15.22 against 14.22",
        ),
    ),
    baseline="Trans.",
    doc=__doc__,
)
