"""Synthesizer, Table 2: translation and language modeling with every variant.

    tokenmix reproduce synthesizer-table-2 --scale bench

Time: about 29 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
(`recipes/results/synthesizer-table-2.json`) on Multi30k the five that were run lie within two points, R+V and R+D first,
then the Transformer, then R, then Fix; in language modeling the three with dot products have perplexities of 78 and 79, all
others, Fix among them, of 98 to 102. FD has no kernel of its own and takes about four times as long as the others.
The printed parameters of the language models follow from no reading of the text (see `tokenmix models`).
"""

from tokenmix.recipes.common import T2T, TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_scratch, bench_text, tiny, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import Check, better, every, not_worse, worse

_NAMES = ("Params MT (M)", "EnDe", "EnFr", "Params LM (M)", "LM")
_TERMS = {
    "Trans.": ("transformer", "dot", (67, 27.67, 41.57, 70, 38.21)),
    "Fix": ("synthesizer-fix", "random(fixed=True)", (61, 23.89, 38.31, 53, 50.52)),
    "R": ("synthesizer-r", "random", (67, 27.27, 41.12, 58, 40.60)),
    "FR": ("synthesizer-fr", "factorized_random", (61, 27.30, 41.12, 53, 42.40)),
    "D": ("synthesizer-d", "dense", (62, 27.43, 41.39, 53, 40.88)),
    "FD": ("synthesizer-fd", "factorized_dense", (61, 27.32, 41.57, 53, 41.20)),
    "R+D": ("synthesizer-rd", "random + dense", (67, 27.68, 41.21, 58, 42.35)),
    "D+V": ("synthesizer-dv", "dense + dot", (74, 27.57, 41.38, 70, 37.27)),
    "R+V": ("synthesizer-rv", "random + dot", (73, 28.47, 41.85, 70, 40.05)),
}


def _mt(task: str, column: str) -> Stage:
    return bench_scratch(
        column.lower(),
        task,
        {column: "bleu", "Params MT (M)": "parameters/1e6"},
        2500,
        lr=1e-3,
        batch=128,
        beams=4,
        # 29,000 sentences ask for much dropout; a mask of R is drawn once for the whole batch, so not there
        options={"dropout": 0.3, "attention_dropout": 0.1, "label_smoothing": 0.1},
        tokenizer="bpe",
        vocab_size=8000,
    )


def _close(row: str, column: str) -> Check:
    return not_worse(row, "Trans.", column, 0.5)


def _paper_mt(task: str, column: str) -> Stage:
    settings = {
        "preset": "synthesizer-mt",
        "data": {"task": task, "tokenizer": "bpe", "vocab_size": 44_800, "batch_size": 512},
    }
    return Stage(column.lower(), settings, {column: "bleu", "Params MT (M)": "parameters/1e6"}, beams=4)


RECIPE = Recipe(
    name="synthesizer-table-2",
    place="Synthesizer, Table 2",
    title="WMT'14 English-German, English-French machine translation and language modeling (LM1B)",
    columns=_NAMES,
    rows=(
        Row("Trans. (Vaswani et al.)", dict(zip(_NAMES, (67, 27.30, 38.10, None, None)))),
        *(
            Row(name, dict(zip(_NAMES, printed)), f"{preset}-mt", f'{term} | mlp(activation="relu")')
            for name, (preset, term, printed) in _TERMS.items()
        ),
    ),
    scales={
        "tiny": Scale(
            (
                tiny("ende", "scan", {"EnDe": "exact_match", "Params MT (M)": "parameters/1e6"}),
                tiny_text("lm", {"LM": "perplexity", "Params LM (M)": "parameters/1e6"}, body="decoder"),
            ),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                _mt("multi30k_en_de", "EnDe"),
                _mt("multi30k_en_fr", "EnFr"),
                bench_text(
                    "lm",
                    {"LM": "perplexity", "Params LM (M)": "parameters/1e6"},
                    2000,
                    length=256,
                    batch=32,
                    lr=1e-3,
                    objective="joined_causal_lm",
                    body="decoder",
                    feed_forward="conv_relu",
                ),
            ),
            seeds=3,
            sizes={**T2T, "d_model": 256, "d_ff": 1024, "heads": 8, "layers": 3},
            body="seq2seq",
            note=f"Multi30k (29,000 sentences) in place of WMT'14, beam 4, penalty 0.6; {WIKIPEDIA}",
        ),
        "paper": Scale(
            (
                _paper_mt("wmt14_en_de", "EnDe"),
                _paper_mt("wmt14_en_fr", "EnFr"),
                Stage(
                    "lm",
                    {"preset": "synthesizer-lm", "data": {"batch_size": 256}},
                    {"LM": "perplexity", "Params LM (M)": "parameters/1e6"},
                    split="test",
                    presets={name: f"{preset}-lm" for name, (preset, _, _) in _TERMS.items()},
                ),
            ),
        ),
    },
    claims=(
        Claim("R no more than 0.5 BLEU behind the Transformer (En-De)", _close("R", "EnDe"), "27.27 and 27.67"),
        Claim("R no more than 0.5 BLEU behind the Transformer (En-Fr)", _close("R", "EnFr"), "41.12 and 41.57"),
        Claim("R+V above the Transformer (En-De)", better("R+V", "Trans.", "EnDe"), "28.47 against 27.67"),
        Claim("R+V above the Transformer (En-Fr)", better("R+V", "Trans.", "EnFr"), "41.85 against 41.57"),
        Claim(
            "fixed random matrices are far below the learned ones, in translation",
            every(worse("Fix", "R", "EnDe", 2.0), worse("Fix", "R", "EnFr", 2.0)),
            "23.89 against 27.27, 38.31 against 41.12",
        ),
        Claim(
            "fixed random matrices are far below the learned ones, in language modeling",
            worse("Fix", "R", "LM", 5, percent=True),
            "50.52 against 40.60",
        ),
        Claim("R+D comparable to the Transformer (En-De)", _close("R+D", "EnDe"), "27.68 and 27.67"),
        Claim(
            "no Synthesizer without dot products reaches the Transformer's perplexity",
            every(*(worse(name, "Trans.", "LM") for name in ("R", "FR", "D", "FD", "R+D"))),
            "40.60, 42.40, 40.88, 41.20 and 42.35 against 38.21",
        ),
        Claim(
            "D+V is the best language model", every(*(better("D+V", n, "LM") for n in ("Trans.", "R+V", "D"))), "37.27"
        ),
        Claim(
            "R+V is a worse language model than the Transformer", worse("R+V", "Trans.", "LM"), "40.05 against 38.21"
        ),
    ),
    baseline="Trans.",
    lower=("LM",),
    doc=__doc__,
)
