"""Synthesizer, Table 6: perplexity, speed and size against lightweight and dynamic convolutions.

    tokenmix reproduce synthesizer-table-6 --scale bench

Time: about 11 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
the published +V rows have self-attention 8 × 128 wide against the baseline's 12 × 64 (cross-attention stays 12 × 64);
here the perplexities are those of small models of one width, and cost is counted and timed at the paper's own sizes
(`synthesizer-*-base-matched` are the presets of equal width). Speeds are those of a TPU in the paper. After 2,000 steps
(16 million tokens) D has the lowest perplexity, R, R+V and lightweight convolution follow close together; at the paper's budget
the mixtures with dot products are first.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, WIKIPEDIA, bench_text, profiled, tiny_text
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, every, near, ratio_above, within

_NAMES = ("Log PPL", "Steps/Sec", "Params (M)", "FLOPS")
_COST = {"Steps/Sec": "steps_per_second", "Params (M)": "parameters/1e6", "FLOPS": "flops_forward"}
_MODELS = {
    "Transformer": ("t5-base", "dot", (1.865, 3.90, 223, 3.70e12)),
    "Dynamic Conv": ("dynamicconv-base", "dynamicconv", (2.040, 2.65, 257, 3.93e12)),
    "Lightweight Conv": ("lightconv-base", "lightconv", (1.972, 4.05, 224, 3.50e12)),
    "Synthesizer (D)": ("synthesizer-d-base", "dense(shared=True, bias=False)", (1.965, 3.61, 224, 3.80e12)),
    "Synthesizer (R)": ("synthesizer-r-base", "random", (1.972, 4.26, 254, 3.36e12)),
    "Synthesizer (R+V)": ("synthesizer-rv-base", 'mix(random, dot, alpha="sum")', (1.849, 3.79, 292, 4.03e12)),
    "Synthesizer (D+V)": (
        "synthesizer-dv-base",
        'mix(dense(shared=True, query="dot", bias=False), dot, alpha="sum")',
        (1.832, 3.34, 243, 4.20e12),
    ),
}
_OPTIONS = {"tie_embeddings": True}
TERMS = {name.removeprefix("Synthesizer (").removesuffix(")"): term for name, (_, term, _) in _MODELS.items()}

RECIPE = Recipe(
    name="synthesizer-table-6",
    place="Synthesizer, Table 6",
    title="Validation perplexity scores on C4",
    columns=_NAMES,
    rows=tuple(
        Row(
            name,
            dict(zip(_NAMES, printed)),
            preset,
            f'{term} | mlp(activation="relu")',
            _OPTIONS,
            multiples={"d_ff": 1 / 6} if term == "dynamicconv" else {},
        )
        for name, (preset, term, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (tiny_text("c4", {"Log PPL": "loss"}), profiled(_COST)),
            sizes={**TINY_SIZES, "d_ff": 96, "max_length": 32},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (
                bench_text("c4", {"Log PPL": "loss"}, 2000, length=256, batch=32, lr=1e-3, objective="span_corruption"),
                profiled(_COST, batch=64, length=512, target=114, steps=10, original=True),
            ),
            seeds=3,
            sizes={"d_model": 256, "d_ff": 1024, "heads": 4, "layers": 3, "max_length": 256},
            body="seq2seq",
            note=f"{WIKIPEDIA}; perplexities of small models of one width, cost at the paper's own sizes",
        ),
        "paper": Scale(
            (
                Stage("c4", {"preset": "synthesizer-c4"}, {"Log PPL": "loss"}),
                profiled(_COST, batch=128, length=512, target=114, steps=20),
            ),
        ),
    },
    claims=(
        Claim(
            "parameters at the original size: 223M, 257M, 224M, 224M, 254M, 292M, 243M",
            every(*(near(name, "Params (M)", printed[2]) for name, (_, _, printed) in _MODELS.items())),
            "as stated",
        ),
        Claim(
            "R has a lower perplexity than dynamic convolution",
            better("Synthesizer (R)", "Dynamic Conv", "Log PPL"),
            "1.972 against 2.040",
        ),
        Claim(
            "R takes fewer FLOPs than both convolutions",
            every(*(better("Synthesizer (R)", f"{kind} Conv", "FLOPS") for kind in ("Dynamic", "Lightweight"))),
            "3.36e12 against 3.93e12 and 3.50e12",
        ),
        Claim(
            "R is 60% faster than dynamic convolution",
            ratio_above("Synthesizer (R)", "Dynamic Conv", "Steps/Sec", 1.6),
            "4.26 against 2.65 steps/s",
        ),
        Claim(
            "R matches lightweight convolution in perplexity",
            within("Synthesizer (R)", "Lightweight Conv", "Log PPL", 0.02),
            "1.972 and 1.972",
        ),
        Claim(
            "R is 5% faster than lightweight convolution",
            ratio_above("Synthesizer (R)", "Lightweight Conv", "Steps/Sec", 1.05),
            "4.26 against 4.05 steps/s",
        ),
        Claim(
            "R+V and D+V have a lower perplexity than the Transformer",
            every(
                better("Synthesizer (R+V)", "Transformer", "Log PPL"),
                better("Synthesizer (D+V)", "Transformer", "Log PPL"),
            ),
            "1.849 and 1.832 against 1.865",
        ),
    ),
    baseline="Transformer",
    lower=("Log PPL", "FLOPS"),
    doc=__doc__,
)
