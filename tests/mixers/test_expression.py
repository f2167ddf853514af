"""The language of layers: reading, printing, comparing, and every mistake answered by a ValueError that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenmix
from tokenmix.mixers import (
    REGISTRY,
    Dense,
    Dot,
    Gmlp,
    Layer,
    Mix,
    Mlp,
    Random,
    Remix,
    Term,
    mix,
    parse,
)

TABLE = [  # the design's table, and what no paper tried
    "dot | geglu",
    "random | geglu",
    "factorized_random(k=16) | geglu",
    "random + dot | geglu",
    "dot | remix",
    "gmlp",
    "gmlp(attention=64)",
    "token_mlp(hidden=256) | mlp",
    "linformer(k=64) | mlp",
    "relative | mlp",
    "random + dot | remix",
    "dot | gmlp",
    'mix(random, dot, alpha="sum") | mlp(activation="relu")',
    'dense(f="conv_relu_conv", width=(3, 5)) | mlp',
]


def test_text_and_objects_are_the_same_sentence():
    assert parse("random + dot | remix(alpha=0.3)") == (Random() + Dot() | Remix(alpha=0.3))
    assert tokenmix.parse("gmlp") == Gmlp()
    assert parse("dot | mlp | dot") == Layer((Dot(), Mlp(), Dot()))
    assert parse("random + (dense + dot)") == Mix((Random(), Dense(), Dot()))
    assert parse('mix(random, dot, alpha="sum")') == mix(Random(), Dot(), alpha="sum")
    assert parse("mix(random, dot)") == Random() + Dot()


@pytest.mark.parametrize("text", TABLE)
def test_printing_gives_the_text_back(text):
    assert str(parse(text)) == text
    assert hash(parse(text)) == hash(parse(str(parse(text))))


def test_printing_is_canonical():
    assert str(parse("  remix( heads = 1,alpha=.3 )\n|mlp")) == "remix(alpha=0.3) | mlp"
    assert str(parse("remix(alpha=1)")) == "remix(alpha=1.0)"
    assert parse("remix(alpha=1)") == parse("remix(alpha=1.0)")
    assert str(parse("dot()")) == "dot"


options = st.sampled_from(
    ["dot", "random", "random(fixed=True)", "dense(shared=True)", "factorized_random(k=3)", "relative"]
)
others = st.sampled_from(
    ["mlp", "geglu", "remix(alpha=0.25, heads=2)", "gmlp(toeplitz=True)", "fourier", "lightconv(width=5)"]
)
sums = st.lists(options, min_size=1, max_size=4).map(" + ".join)


@given(st.lists(sums | others, min_size=1, max_size=5).map(" | ".join))
def test_every_sentence_survives_a_round_trip(text):
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_name_is_read_and_printed(name):
    assert str(parse(name)) == name
    assert isinstance(parse(name), REGISTRY[name])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("randm | mlp", "did you mean 'random'"),
        ("", "empty layer expression"),
        ("   ", "empty layer expression"),
        ("remix(alhpa=0.3)", "did you mean 'alpha'"),
        ("remix(alpha=1.5)", r"alpha must be a number in \[0, 1\]"),
        ("remix(alpha=-0.1)", r"alpha must be a number in \[0, 1\]"),
        ('remix(alpha="gates")', "gate"),
        ("remix(alpha=1e999)", "finite number"),
        ("remix(alpha=True)", "alpha must be"),
        ("remix(heads=True)", "heads must be a whole number >= 1"),
        ("remix(heads=0)", "heads must be a whole number >= 1"),
        ("remix(heads=1.0)", "heads must be a whole number"),
        ("remix(0.3)", r"remix\(alpha=0.3\)"),
        ("remix(alpha=0.1, alpha=0.2)", "given twice"),
        ("dense(**{})", "one by one"),
        ("gmlp + dot", "'gmlp' is none"),
        ("dot + gmlp", "'gmlp' is none"),
        ("(dot | mlp) + random", "attention terms"),
        ('mix(random, dot, alpha="sum") + dense', "rule of its own"),
        ("mix(random)", "at least two"),
        ('mix(random, dot, dense, alpha="sigmoid")', "exactly two"),
        ('mix(random, dot, alpha="mean")', "Known: sigmoid, softmax, sum"),
        ("mix", "in brackets"),
        ("dot |", "cannot read"),
        ("| dot", "cannot read"),
        ("dot mlp", "cannot read"),
        ("dot & mlp", "cannot read"),
        ("dot - mlp", "cannot read"),
        ("dot.x", "cannot read"),
        ("dot[0]", "cannot read"),
        ("__import__('os').system('true')", "cannot read"),
        ("lambda: dot", "cannot read"),
        ("(dot := mlp)", "cannot read"),
        ("dot(x=1)", "has no options"),
        ("remix(alpha=dot)", "no value"),
        ("remix(alpha=[0.1])", "alpha must be"),
        ("ｄot", "no place"),
        ("dot\0", "no place"),
        ("dot # mlp", "no place"),
        ("dot | " * 2000 + "dot", "at most"),
        ("(" * 1500 + "dot" + ")" * 1500, "cannot read|nests too deeply"),
        ('dense(query="dot", f="glu")', "does not go with"),
        ("dense(width=2)", "odd width"),
    ],
)
def test_every_mistake_is_a_value_error_that_helps(text, says):
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_not_text_is_a_value_error():
    with pytest.raises(ValueError, match="got int"):
        parse(3)


def test_errors_list_what_exists():
    with pytest.raises(ValueError) as error:
        parse("attention")
    assert all(name in str(error.value) for name in REGISTRY)


def test_objects_refuse_what_text_refuses():
    with pytest.raises(ValueError, match="is none"):
        Gmlp() + Dot()
    with pytest.raises(ValueError, match="alpha must be"):
        Remix(alpha=2)


def test_nothing_is_evaluated(monkeypatch):
    monkeypatch.setattr("builtins.eval", None)
    monkeypatch.setattr("builtins.exec", None)
    assert str(parse("random + dot | remix")) == "random + dot | remix"


def test_expressions_are_frozen_and_usable_as_keys():
    table = {parse("random + dot"): 1}
    assert table[Random() + Dot()] == 1
    with pytest.raises(AttributeError):
        Remix().alpha = 0.1


def test_a_sum_is_made_of_terms():
    assert {name for name, kind in REGISTRY.items() if issubclass(kind, Term)} == {
        "dot",
        "random",
        "factorized_random",
        "dense",
        "factorized_dense",
        "relative",
    }
