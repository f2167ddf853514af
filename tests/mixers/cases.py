"""Every registered mixer with its default options, found by itself, and the variants worth a test of their own."""

from tokenmix.mixers import REGISTRY, parse

VARIANTS = [
    "random(fixed=True)",
    "factorized_random(k=3)",
    "dense(shared=True, bias=False)",
    'dense(f="conv")',
    'dense(f="conv_relu_conv", width=(3, 5))',
    'dense(f="bottleneck", bottleneck=5)',
    'dense(f="bottleneck_conv", bottleneck=5)',
    'dense(f="glu")',
    "factorized_dense(a=5)",
    "random + dot",
    "dense + dot",
    'dense(query="dot") + dot',
    "random + dense + factorized_random",
    "factorized_dense + dot + relative",
    "random + relative",
    'mix(random, dot, alpha="sum")',
    'mix(dot, random, alpha="sigmoid")',
    "dot + dot",
    'gmlp(gate="multiplicative")',
    'gmlp(gate="additive")',
    'gmlp(gate="linear")',
    "gmlp(toeplitz=True)",
    "gmlp(attention=5)",
    'gmlp(gate="linear", attention=5, toeplitz=True)',
    "remix(alpha=0.2, heads=4)",
    'remix(alpha="scalar")',
    'remix(alpha="vector", heads=2)',
    'remix(alpha="gate")',
    "remix(compose=False)",
    'remix(compose="gated")',
    "remix(literal=True)",
    "remix(toeplitz=True, heads=2)",
    'mlp(activation="relu")',
    "lightconv(width=3)",
    "dynamicconv(width=4)",
    "token_mlp(hidden=6, window=3)",
    "linformer(k=4)",
]

ALL = sorted(REGISTRY) + VARIANTS


def can_be_causal(text: str) -> bool:
    return all(sublayer.causal for sublayer in parse(text).sublayers)


CAUSAL = [text for text in ALL if can_be_causal(text)]
BOTH = [(text, False) for text in ALL] + [(text, True) for text in CAUSAL]
