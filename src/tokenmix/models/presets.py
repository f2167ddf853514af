"""Every model of the papers' tables by name: a layer expression, a body and sizes, with the paper's count beside.

`tokenmix models` prints this table with our own counts. Where a printed count follows from no reading of the text, the
preset's note shows the arithmetic.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from tokenmix.models.config import TokenmixConfig
from tokenmix.naming import unknown


@dataclass(frozen=True)
class Preset:
    """A named model: where it is from, its options, the paper's parameter count in millions, and what to know about it."""

    name: str
    source: str
    options: dict[str, Any]
    millions: float | None = None
    note: str = ""


PRESETS: dict[str, Preset] = {}


def list_presets(pattern: str = "*") -> list[str]:
    """Names of all presets, or of those that match a pattern.

    >>> list_presets("gmlp-*16-224")
    ['gmlp-ti16-224', 'gmlp-s16-224', 'gmlp-b16-224']
    """
    return fnmatch.filter(PRESETS, pattern)


def preset_config(name: str, **overrides: Any) -> TokenmixConfig:
    """The configuration of a preset, some options changed."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return TokenmixConfig(**{**PRESETS[name].options, **overrides})


def _add(name: str, source: str, millions: float | None = None, note: str = "", **options: Any) -> None:
    PRESETS[name] = Preset(name, source, options, millions, note)


# ------------------------------------------------------------------------------------------------ T5, the seq2seq body

T5_1_1: dict[str, Any] = dict(body="seq2seq", layer="dot | geglu", vocab_size=32128, max_length=512, dropout=0.1)
T5_1_0: dict[str, Any] = dict(T5_1_1, layer='dot | mlp(activation="relu")', tie_embeddings=True)
SMALL: dict[str, Any] = dict(d_model=512, heads=6, head_dim=64, layers=8)
BASE: dict[str, Any] = dict(d_model=768, heads=12, head_dim=64, layers=12)
LARGE: dict[str, Any] = dict(d_model=1024, heads=16, head_dim=64, layers=24)

_add("t5-v1.1-small", "T5.1.1", 77, **T5_1_1, **SMALL, d_ff=1024)
_add("t5-v1.1-base", "Remixer Table 1", 248, **T5_1_1, **BASE, d_ff=2048)
_add("t5-v1.1-large", "Remixer Table 4", 738, "783M; the printed 738M is T5 v1.0 large", **T5_1_1, **LARGE, d_ff=2816)
_add("t5-small", "T5 v1.0", 60.5, **T5_1_0, d_model=512, heads=8, head_dim=64, layers=6, d_ff=2048)
_add("t5-base", "Synthesizer Table 6 (Transformer)", 223, **T5_1_0, **BASE, d_ff=3072)
_add("t5-large", "T5 v1.0", 738, **T5_1_0, **LARGE, d_ff=4096)

# ---------------------------------------------------------------------------------------------------------- Remixer

_add(
    "remixer-base",
    "Remixer Table 1",
    324,
    "288 matrices H of 512×512; 12 heads do not divide d_ff = 2048, so 16 in the encoder and 8 in the decoder. "
    "Table 4 prints 302M for the same name; no single shape of H fits all printed counts",
    **{**T5_1_1, "layer": "dot | remix(heads=16)"},
    decoder_layer="dot | remix(heads=8)",
    **BASE,
    d_ff=2048,
)
_add(
    "remixer-sbase",
    "Remixer Table 1",
    224,
    "ℓ'_E = 12 + 12/2 = 18, ℓ'_D = 12/4 = 3; H in the encoder only",
    **{**T5_1_1, "layer": "dot | remix(heads=4)"},
    decoder_layer="dot | geglu",
    **{**BASE, "layers": 18},
    decoder_layers=3,
    d_ff=2048,
)
_MIXER = "the printed 212M follows from no natural width: 191.0M without self-attention + 12·2·512·h for hidden h"
_add(
    "mixer-base", "Remixer Table 1", 212, _MIXER,
    **{**T5_1_1, "layer": "token_mlp(hidden=768, window=32) | geglu"}, **BASE, d_ff=2048, positions="none",
)  # fmt: skip
_add(
    "mixer-enc-base", "Remixer Table 4", 212, _MIXER + " + 28.3M of the decoder's attention",
    **{**T5_1_1, "layer": "token_mlp(hidden=768) | geglu"}, decoder_layer="dot | geglu", **BASE, d_ff=2048,
)  # fmt: skip
_add(
    "cbow-base", "Remixer Table 2", None, "neural bag of words: embeddings, one feed-forward layer, mean",
    body="encoder", layer="bag_of_words | mlp", d_model=768, d_ff=3072, heads=12, layers=1, vocab_size=32128,
    max_length=512, positions="none", pool="mean",
)  # fmt: skip

# ------------------------------------------------------------------------------- Synthesizer, Table 6 (and Tables 3–5)

SYNTH: dict[str, Any] = {
    **T5_1_0,
    **BASE,
    "heads": 8,
    "head_dim": 128,
    "cross_heads": 12,
    "cross_head_dim": 64,
    "d_ff": 3072,
}
_WIDE = (
    "self-attention 8 × 128 = 1024 wide against the Transformer's 768, as the published runs; '-matched' has 12 × 64"
)
for _name, _term, _millions in (
    ("r", "random", 254),
    ("rv", 'mix(random, dot, alpha="sum")', 292),
    ("d", "dense(shared=True, bias=False)", 224),
    ("dv", 'mix(dense(shared=True, query="dot", bias=False), dot, alpha="sum")', 243),
):
    _layer = f'{_term} | mlp(activation="relu")'
    _add(f"synthesizer-{_name}-base", "Synthesizer Table 6", _millions, _WIDE, **{**SYNTH, "layer": _layer})
    _add(
        f"synthesizer-{_name}-base-matched", "Synthesizer Table 6 at equal width", None, "12 heads × 64, as the Transformer",
        **{**SYNTH, "layer": _layer, "heads": 12, "head_dim": 64},
    )  # fmt: skip
_add(
    "lightconv-base",
    "Synthesizer Table 6",
    224,
    **{**T5_1_0, "layer": 'lightconv | mlp(activation="relu")'},
    **BASE,
    d_ff=3072,
)
_add(
    "dynamicconv-base", "Synthesizer Table 6", 257, "9·d² parameters a layer predict the kernels; d_ff is cut to 512",
    **{**T5_1_0, "layer": 'dynamicconv | mlp(activation="relu")'}, **BASE, d_ff=512,
)  # fmt: skip

# --------------------------------------------------------------- Synthesizer, Table 2 (translation and language models)

T2T: dict[str, Any] = dict(
    d_model=512, d_ff=2048, heads=8, layers=6, max_length=256, positions="sinusoidal", norm="layer", bias=True, scale=True,
    init="xavier", tie_embeddings=True, scale_output=False, scale_embeddings=True, dropout=0.1, label_smoothing=0.1,
)  # fmt: skip
MT: dict[str, Any] = dict(T2T, body="seq2seq", vocab_size=44800)
LM: dict[str, Any] = dict(T2T, body="decoder", vocab_size=32000, label_smoothing=0.0)
_TERMS = {
    "transformer": "dot",
    "fix": "random(fixed=True)",
    "r": "random",
    "fr": "factorized_random",
    "d": "dense",
    "fd": "factorized_dense",
    "rd": "random + dense",
    "dv": "dense + dot",
    "rv": "random + dot",
}
_MT_COUNTS = dict(transformer=67, fix=61, r=67, fr=61, d=62, fd=61, rd=67, dv=74, rv=73)
_LM_COUNTS = dict(transformer=70, fix=53, r=58, fr=53, d=53, fd=53, rd=58, dv=70, rv=70)
_MT_NOTE = "22.9M of embeddings, 18.9M encoder, 25.2M decoder for the Transformer; fixed matrices are not counted"
_MT_NOTES = {  # 60.8M is the Transformer without queries and keys, 67.1M − 12·2·512²
    "d": "60.8M + 12·(512² + 512·256) = 65.5M; without W₁ it were the printed 62M: 60.8M + 12·512·256",
    "fd": "60.8M + 12·(512² + 512·32) = 64.1M; without the first layer it were the printed 61M: 60.8M + 12·512·32",
    "rd": "67.1M for R + 12·(512² + 512·256) = 71.8M; the printed 67M is the count of R alone",
    "dv": "67.1M + 12·(512² + 512·256) = 71.8M; the 2.2M more of the printed 74M follow from no term",
}
_LM_NOTE = (
    "16.4M of embeddings + 6·(4·512² + 3·512·2048 + 512·2048) = 48M for the Transformer; the printed counts differ by more "
    "than all attention weights together (6·4·512² = 6.3M), so no reading of the text meets them all"
)
for _name, _term in _TERMS.items():
    _prefix = "transformer" if _name == "transformer" else f"synthesizer-{_name}"
    _add(
        f"{_prefix}-mt",
        "Synthesizer Table 2 (MT)",
        _MT_COUNTS[_name],
        _MT_NOTES.get(_name, _MT_NOTE),
        **MT,
        layer=f'{_term} | mlp(activation="relu")',
    )
    _add(f"{_prefix}-lm", "Synthesizer Table 2 (LM)", _LM_COUNTS[_name], _LM_NOTE, **LM, layer=f"{_term} | conv_relu")

# ------------------------------------------------------------------------------------ Synthesizer, Tables 7, 8 and 9

CLASSIFY: dict[str, Any] = dict(
    body="encoder", d_model=512, d_ff=2048, heads=8, layers=6, vocab_size=32000, max_length=512, dropout=0.1, pool="mean",
    positions="sinusoidal", init="xavier", tie_embeddings=True,
)  # fmt: skip
for _name, _term in (
    ("transformer", "dot"),
    ("linformer", "linformer"),
    ("synthesizer-fr", "factorized_random(k=32)"),
    ("synthesizer-frv", "factorized_random(k=32) + dot"),
):
    _add(f"{_name}-classifier", "Synthesizer Table 7", None, "k = 32", **CLASSIFY, layer=f"{_term} | mlp")
for _name, _term in (
    ("conv", 'dense(f="conv")'),
    ("crc-3", 'dense(f="conv_relu_conv")'),
    ("crc-5", 'dense(f="conv_relu_conv", width=5)'),
    ("crc-3-5", 'dense(f="conv_relu_conv", width=(3, 5))'),
    ("bottleneck", 'dense(f="bottleneck")'),
    ("bottleneck-crc", 'dense(f="bottleneck_conv")'),
    ("glu", 'dense(f="glu")'),
):
    _add(f"synthesizer-{_name}-mt", "Synthesizer Table 8", None, "", **MT, layer=f'{_term} | mlp(activation="relu")')
for _heads in (2, 4, 8, 16, 32):
    _add(
        f"synthesizer-r-h{_heads}", "Synthesizer Table 9", None, "T5 small without pretraining; equal width, more heads",
        **{**T5_1_0, "layer": 'random | mlp(activation="relu")'}, d_model=512, heads=_heads, head_dim=512 // _heads,
        cross_heads=8, cross_head_dim=64, layers=6, d_ff=2048,
    )  # fmt: skip

# ------------------------------------------------------------------------------------------- gMLP on text, and BERT

BERT: dict[str, Any] = dict(
    body="encoder", layer="dot | mlp", norm_position="post", norm_eps=1e-12, segments=2, embedding_norm=True,
    head_transform=True, pooler=True, vocab_size=30522, max_length=512, dropout=0.1, classifier_dropout=0.1,
)  # fmt: skip
_add("bert-base", "gMLP Tables 3, 5", 110, **BERT, d_model=768, d_ff=3072, heads=12, layers=12)
_add("bert-large", "gMLP Table 5", 336, **BERT, d_model=1024, d_ff=4096, heads=16, layers=24)
ABLATION = {
    **BERT,
    "vocab_size": 32000,
    "max_length": 128,
    "dropout": 0.0,
    "classifier_dropout": 0.0,
    "positions": "relative_per_layer",
}
_SIX = "32000·768 + 6·(4·768² + 2·768·3072) = 67.0M as printed; the masked LM head's own 768² and biases make it 67.7M"
for _layers, _millions in ((6, 67), (12, 110), (24, 195), (48, 365)):
    _name = "bert-base-relative" if _layers == 12 else f"bert-{_layers}-relative"
    _add(
        _name,
        "gMLP Tables 3, 4",
        _millions,
        f"{_layers} + {_layers} blocks" + ("" if _layers > 6 else f"; {_SIX}"),
        **ABLATION,
        d_model=768,
        d_ff=3072,
        heads=12,
        layers=_layers,
    )
_add(
    "bert-base-no-attention", "gMLP Table 3 (rel pos − attn)", 96,
    **{**ABLATION, "layer": "relative | mlp", "positions": "none"}, d_model=768, d_ff=3072, heads=12, layers=12,
)  # fmt: skip
for _layers, _width, _heads, _millions in ((24, 512, 8, 92), (48, 384, 12, 98), (96, 256, 8, 84)):
    _add(
        f"bert-{_layers}-thin", "gMLP Table 10", _millions, f"{_layers} + {_layers} blocks",
        **ABLATION, d_model=_width, d_ff=4 * _width, heads=_heads, layers=_layers,
    )  # fmt: skip
GMLP: dict[str, Any] = dict(body="encoder", positions="none", vocab_size=32000, d_model=512, d_ff=3072, heads=1)
for _layers, _millions in ((18, 59), (36, 102), (72, 187), (144, 357)):
    _add(
        f"gmlp-{_layers}",
        "gMLP Tables 3, 4",
        _millions,
        **GMLP,
        max_length=128,
        layer="gmlp(toeplitz=True)",
        layers=_layers,
    )
for _gate in ("linear", "additive", "multiplicative"):
    _add(
        f"gmlp-36-{_gate}", "gMLP Table 3", 92, "without a split, 92M means d_ffn = 2048",
        **{**GMLP, "d_ff": 2048}, max_length=128, layer=f'gmlp(gate="{_gate}", toeplitz=True)', layers=36,
    )  # fmt: skip
_add(
    "mixer-24", "gMLP Table 3 (MLP-Mixer)", 112,
    "as captioned it is 140M; the printed 112M equals 24·(1.5·768·3072 + 2·128·384) + 32000·768, a split feed-forward",
    **{**GMLP, "d_model": 768}, max_length=128, layer="token_mlp(hidden=384) | mlp", layers=24,
)  # fmt: skip
_add("gmlp-base", "gMLP Table 5", 130, **GMLP, max_length=512, layer="gmlp(toeplitz=True)", layers=48)
_add("amlp-base", "gMLP Table 5", 109, **GMLP, max_length=512, layer="gmlp(toeplitz=True, attention=64)", layers=36)
GMLP_LARGE: dict[str, Any] = {**GMLP, "d_model": 768, "max_length": 512}
_add("gmlp-large", "gMLP Table 5", 365, **GMLP_LARGE, layer="gmlp(toeplitz=True)", layers=96)
_add("amlp-large", "gMLP Table 5", 316, **GMLP_LARGE, layer="gmlp(toeplitz=True, attention=128)", layers=72)
_add(
    "gmlp-xlarge",
    "gMLP Table 5",
    941,
    **{**GMLP_LARGE, "d_model": 1024, "d_ff": 4096},
    layer="gmlp(toeplitz=True)",
    layers=144,
)
_add(
    "fnet-base", "FNet", 83, **{**BERT, "layer": 'fourier(padding="include") | mlp(activation="gelu_tanh")', "segments": 4},
    d_model=768, d_ff=3072, heads=12, layers=12, positions="absolute", embedding_projection=True,
)  # fmt: skip
PRESETS["fnet-base"].options["vocab_size"] = 32000

# ------------------------------------------------------------------------------------------------------------- vision

VISION: dict[str, Any] = dict(body="vision", num_labels=1000, heads=1)
for _name, _width, _count, _drop in (("ti", 128, 5.9, 0.0), ("s", 256, 19.5, 0.05), ("b", 512, 73.4, 0.2)):
    _add(
        f"gmlp-{_name}16-224", "gMLP Table 1", _count, f"survival probability {1 - _drop:.2f}",
        **VISION, layer="gmlp", d_model=_width, d_ff=6 * _width, layers=30, drop_path=_drop,
    )  # fmt: skip
_add(
    "mixer-b16-224",
    "gMLP Table 2",
    59,
    "768² + 12·(2·196·384 + 2·768·3072) = 59.0M as printed; with the classifier's 0.77M and biases 59.9M",
    **VISION,
    layer="token_mlp(hidden=384) | mlp",
    d_model=768,
    d_ff=3072,
    layers=12,
)
_add(
    "mixer-l16-224",
    "gMLP Table 2",
    207,
    **VISION,
    layer="token_mlp(hidden=512) | mlp",
    d_model=1024,
    d_ff=4096,
    layers=24,
)
_NOTES = {
    "deit-ti16-224": "12·12·192² + 768·192 + 192·1000 = 5.6M of matrices, 5.7M in all; the printed 5M is cut off",
    "vit-b16-384": "12·12·768² + 768² + 577·768 = 86.0M as printed; with the classifier's 0.77M and biases 86.9M",
}
VIT: dict[str, Any] = dict(body="vision", num_labels=1000, layer="dot | mlp", positions="absolute", pool="cls")
for _name, _width, _heads, _layers, _size, _millions in (
    ("deit-ti16-224", 192, 3, 12, 224, 5),
    ("deit-s16-224", 384, 6, 12, 224, 22),
    ("deit-b16-224", 768, 12, 12, 224, 86),
    ("vit-b16-384", 768, 12, 12, 384, 86),
    ("vit-l16-384", 1024, 16, 24, 384, 307),
):
    _add(
        _name, "gMLP Table 2", _millions, _NOTES.get(_name, ""),
        **VIT, d_model=_width, d_ff=4 * _width, heads=_heads, layers=_layers, image_size=_size,
    )  # fmt: skip

# ------------------------------------------------------------------------------- a tiny one of each family, for trials

TINY: dict[str, Any] = dict(d_model=64, d_ff=128, heads=4, layers=2, max_length=128, vocab_size=512, dropout=0.0)
for _name, _layer in (
    ("t5-v1.1", "dot | geglu"),
    ("synthesizer-r", "random | geglu"),
    ("synthesizer-d", "dense | geglu"),
    ("synthesizer-fr", "factorized_random | geglu"),
    ("synthesizer-rv", "random + dot | geglu"),
    ("remixer", "dot | remix"),
    ("lightconv", "lightconv | mlp"),
    ("dynamicconv", "dynamicconv | mlp"),
    ("mixer", "token_mlp(hidden=32, window=16) | mlp"),
):
    _add(f"{_name}-tiny", "for trials", None, "", body="seq2seq", layer=_layer, **TINY)
for _name, _layer, _positions in (
    ("bert", "dot | mlp", "absolute"),
    ("gmlp", "gmlp", "none"),
    ("amlp", "gmlp(attention=16)", "none"),
    ("fnet", "fourier | mlp", "absolute"),
    ("linformer", "linformer(k=8) | mlp", "absolute"),
    ("cbow", "bag_of_words | mlp", "none"),
):
    _add(
        f"{_name}-tiny", "for trials", None, "", body="encoder", layer=_layer, positions=_positions, segments=2, **TINY
    )
_add("lm-tiny", "for trials", None, "", body="decoder", layer="dot | geglu", **TINY)
TINY_VISION: dict[str, Any] = dict(
    body="vision", num_labels=10, image_size=28, patch_size=7, channels=1, d_model=64, d_ff=128, layers=2
)
_add("gmlp-vision-tiny", "for trials", None, "", layer="gmlp", heads=1, **TINY_VISION)
_add("mixer-vision-tiny", "for trials", None, "", layer="token_mlp(hidden=32) | mlp", heads=1, **TINY_VISION)
_add("vit-tiny", "for trials", None, "", layer="dot | mlp", heads=4, positions="absolute", pool="cls", **TINY_VISION)
