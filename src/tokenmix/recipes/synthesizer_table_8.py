"""Synthesizer, Table 8 (appendix): other synthesizing functions.

    tokenmix reproduce synthesizer-table-8 --scale bench

Time: about 11 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
all within half a BLEU point of each other, as in the paper.
"""

from tokenmix.recipes.common import T2T, TINY_NOTE, TINY_SIZES, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.synthesizer_table_2 import _mt, _paper_mt
from tokenmix.recipes.verdicts import better, every, within

_MODELS = {
    "Transformer": ("transformer-mt", "dot", 27.67),
    "Random": ("synthesizer-r-mt", "random", 27.27),
    "Dense": ("synthesizer-d-mt", "dense", 27.43),
    "Conv (f = 3) Linear": ("synthesizer-conv-mt", 'dense(f="conv")', 27.43),
    "ConvReluConv (f = 3)": ("synthesizer-crc-3-mt", 'dense(f="conv_relu_conv")', 27.51),
    "ConvReluConv (f = 5)": ("synthesizer-crc-5-mt", 'dense(f="conv_relu_conv", width=5)', 27.56),
    "ConvReluConv (f = 3, 5)": ("synthesizer-crc-3-5-mt", 'dense(f="conv_relu_conv", width=(3, 5))', 27.49),
    "Bottleneck + Dense": ("synthesizer-bottleneck-mt", 'dense(f="bottleneck")', 27.43),
    "Bottleneck + ConvReluConv": ("synthesizer-bottleneck-crc-mt", 'dense(f="bottleneck_conv")', 27.72),
    "GLU": ("synthesizer-glu-mt", 'dense(f="glu")', 27.43),
}
_VARIANTS = [name for name in _MODELS if name not in ("Transformer", "Random", "Dense")]

RECIPE = Recipe(
    name="synthesizer-table-8",
    place="Synthesizer, Table 8",
    title="Additional Synthesizer variants on WMT EnDe (BLEU scores)",
    columns=("BLEU",),
    rows=tuple(
        Row(name, {"BLEU": printed}, preset, f'{term} | mlp(activation="relu")')
        for name, (preset, term, printed) in _MODELS.items()
    ),
    scales={
        "tiny": Scale(
            (tiny("bleu", "scan", {"BLEU": "exact_match"}),),
            sizes={**TINY_SIZES, "max_length": 64},
            body="seq2seq",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (_mt("multi30k_en_de", "BLEU"),),
            seeds=3,
            sizes={**T2T, "d_model": 256, "d_ff": 1024, "heads": 8, "layers": 3},
            body="seq2seq",
            note="Multi30k (29,000 sentences) in place of WMT'14",
        ),
        "paper": Scale((_paper_mt("wmt14_en_de", "BLEU"),)),
    },
    claims=(
        Claim(
            "other synthesizing functions are marginal: each within 0.5 BLEU of Dense",
            every(*(within(name, "Dense", "BLEU", 0.5) for name in _VARIANTS)),
            "27.43 to 27.72 against 27.43",
        ),
        Claim(
            "a bottleneck with convolutions is the best of them",
            every(
                *(better("Bottleneck + ConvReluConv", name, "BLEU") for name in ("Dense", "GLU", "Conv (f = 3) Linear"))
            ),
            "27.72",
        ),
    ),
    baseline="Transformer",
    doc=__doc__,
)
