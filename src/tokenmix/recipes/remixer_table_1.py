"""Remixer, Table 1: parameters, FLOPs and speed of the models.

    tokenmix reproduce remixer-table-1 --scale bench

Time: about 2 minutes on one H200 (an estimate; counting alone needs no GPU). Expect: parameters within 1% of the
printed ones except Mixer's 212M, which follows from no natural width; the paper does not say for which batch its
FLOPs are, so that only their order is compared; speeds are those of a TPU in the paper.
"""

from tokenmix.recipes.common import TINY_NOTE, TINY_SIZES, profiled
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import better, every, near, worse

_COLUMNS = {"Params (M)": "parameters/1e6", "FLOPS": "flops_forward", "Steps/s": "steps_per_second"}

RECIPE = Recipe(
    name="remixer-table-1",
    place="Remixer, Table 1",
    title="Compute metrics for different models",
    columns=("Params (M)", "FLOPS", "Steps/s"),
    rows=(
        Row("T5.1.1 Base", {"Params (M)": 248, "FLOPS": 3.4e13, "Steps/s": 9}, "t5-v1.1-base", "dot | geglu"),
        Row(
            "Mixer Base",
            {"Params (M)": 212, "FLOPS": 1.2e13, "Steps/s": 11},
            "mixer-base",
            "token_mlp(hidden=768, window=32) | geglu",
            {"positions": "none"},
        ),
        Row(
            "Remixer SBase",
            {"Params (M)": 224, "FLOPS": 1.3e13, "Steps/s": 8},
            "remixer-sbase",
            "dot | remix(heads=4) ; dot | geglu",
            multiples={"layers": 1.5, "decoder_layers": 0.25},
        ),
        Row(
            "Remixer Base",
            {"Params (M)": 324, "FLOPS": 2.1e13, "Steps/s": 6},
            "remixer-base",
            "dot | remix(heads=16) ; dot | remix(heads=8)",
        ),
    ),
    scales={
        "tiny": Scale(
            (profiled(_COLUMNS),), sizes={**TINY_SIZES, "layers": 4, "max_length": 16}, body="seq2seq", note=TINY_NOTE
        ),
        "bench": Scale(
            (profiled(_COLUMNS, batch=64, length=512, target=114, steps=10, original=True),),
            note="the paper's own sizes; span corruption's lengths, 512 and 114; FLOPs of one example",
        ),
        "paper": Scale(
            (profiled(_COLUMNS, batch=128, length=512, target=114, steps=20),), note="batch 128, as in pretraining"
        ),
    },
    claims=(
        Claim(
            "T5.1.1 has 248M, Remixer SBase 224M and Remixer Base 324M parameters",
            every(
                near("T5.1.1 Base", "Params (M)", 248),
                near("Remixer SBase", "Params (M)", 224),
                near("Remixer Base", "Params (M)", 324),
            ),
            "248M, 224M, 324M",
        ),
        Claim("a Mixer is faster than T5.1.1", better("Mixer Base", "T5.1.1 Base", "Steps/s"), "11 against 9 steps/s"),
        Claim(
            "Remixers are slower than T5.1.1 at the same depth, the scaled one less so",
            every(
                worse("Remixer Base", "T5.1.1 Base", "Steps/s"),
                better("Remixer SBase", "Remixer Base", "Steps/s"),
            ),
            "6 and 8 against 9 steps/s",
        ),
    ),
    baseline="T5.1.1 Base",
    doc=__doc__,
)
