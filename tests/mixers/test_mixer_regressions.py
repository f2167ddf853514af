"""Mistakes that were found once, each with the case that showed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tokenmix.mixers import Dot, Gmlp, Layer, Mix, Random, Remix, mix, parse
from tokenmix.mixers.expression import Sublayer
from tokenmix.mixers.site import Site
from tokenmix.models.stack import Stack
from tokenmix.ops import attend, reference
from tokenmix.ops.norm import RMSNorm


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('gmlp(gate="splt")', 'did you mean "split"'),
        ('remix(alpha="scaler")', 'did you mean "scalar"'),
        ("remix(alpha=1.5)", "did you mean 1"),
        ("linformer(k=0)", "did you mean 1"),
        ("DOT", "did you mean 'dot'"),
    ],
)
def test_wrong_values_get_the_nearest_right_one(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)


@pytest.mark.parametrize("text", ["", "dot |", "dot ++ mlp", "dot; mlp", "dot.x", 3, None])
def test_whatever_cannot_be_read_lists_what_exists(text: Any) -> None:
    with pytest.raises(ValueError, match="Known mixers: bag_of_words, conv_relu, dense, dot"):
        parse(text)


def test_equal_expressions_print_alike_and_hash() -> None:
    assert str(parse("remix(alpha=-0.0)")) == str(Remix(alpha=0)) == "remix(alpha=0.0)"
    listed = Mix([Random(), Dot()])  # type: ignore[arg-type]
    assert listed == Random() + Dot()
    assert hash(listed) == hash(Random() + Dot())


@pytest.mark.parametrize("parts", [(), (3,), (Dot() | Dot(),)])
def test_a_layer_is_made_of_sublayers(parts: Any) -> None:
    with pytest.raises(ValueError, match="sublayer"):
        Layer(parts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_of_large_half_precision_values(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(4, 7, 64) * 200).to(dtype).requires_grad_()
    y = RMSNorm(64, eps=1e-6).to(dtype)(x)
    exact = torch.nn.RMSNorm(64, eps=1e-6).double()(x.double())
    assert torch.allclose(y.double(), exact, atol=0, rtol=2 * torch.finfo(dtype).eps)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_rms_norm_of_one_vector_and_its_second_derivative() -> None:
    norm, x = RMSNorm(8, eps=1e-6), torch.randn(8, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    rows = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    seconds = []
    for of in (norm.double(), lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()):
        (slope,) = torch.autograd.grad((of(rows) ** 3).sum(), rows, create_graph=True)
        seconds += torch.autograd.grad(slope.square().sum(), rows)
    torch.testing.assert_close(*seconds)


@pytest.mark.parametrize("alpha", ['"scalar"', '"vector"', '"gate"'])
def test_remix_without_composition_has_no_weights_that_do_nothing(alpha: str) -> None:
    block = parse(f"remix(alpha={alpha}, compose=False)").build(d_model=8, max_length=6)
    block(torch.randn(2, 5, 8)).sum().backward()
    assert [name for name, p in block.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("scale", [1e5, -1e5])
def test_padding_stays_hidden_beneath_huge_logits(scale: float) -> None:
    torch.manual_seed(0)
    v, bias = torch.randn(2, 3, 6, 4, dtype=torch.float64), torch.rand(3, 6, 6, dtype=torch.float64) * scale
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()
    out = attend(None, None, v, bias=bias, mask=mask)
    assert torch.allclose(out, reference.attend(None, None, v, bias=bias, mask=mask))


def test_windows_of_a_compiled_mixer_have_the_right_gradient() -> None:
    torch.manual_seed(0)
    mixer = parse("token_mlp(hidden=8, window=16)").build(d_model=8, max_length=20, causal=True)
    x = torch.randn(2, 20, 8, requires_grad=True)
    (plain,) = torch.autograd.grad(mixer(x).square().sum(), x)
    (compiled,) = torch.autograd.grad(torch.compile(mixer, fullgraph=True)(x).square().sum(), x)
    assert torch.allclose(plain, compiled, atol=1e-5)


@pytest.mark.parametrize("text", ["linformer", "fourier | mlp", "bag_of_words | fourier"])
def test_what_sees_the_future_is_built_in_no_decoder(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be causal"):
        parse(text).build(d_model=8, heads=2, max_length=6, causal=True)
    assert parse(text).build(d_model=8, heads=2, max_length=6)(torch.randn(2, 6, 8)).shape == (2, 6, 8)


def test_ones_own_mixer_that_says_it_is_not_causal_is_built_in_no_decoder() -> None:
    @dataclass(frozen=True)
    class Whole(Sublayer):
        name = "whole"
        causal = False

        def make(self, site: Any) -> torch.nn.Module:
            return torch.nn.Identity()

    with pytest.raises(ValueError, match="whole cannot be causal: it sees the tokens that follow"):
        (Whole() | Dot()).build(d_model=8, causal=True)
    with pytest.raises(ValueError, match="whole cannot be causal"):
        Stack("decoder", Whole(), Site(8, causal=True), 1)


def test_a_layer_without_cross_attention_refuses_a_memory() -> None:
    x, memory = torch.randn(4, 5, 16), torch.randn(2, 5, 16)
    for text in ("dot", "dot | mlp"):
        layer: Any = parse(text).build(d_model=16, heads=2, max_length=8)
        with pytest.raises(ValueError, match="body seq2seq"):
            layer(x, memory=memory)
    with pytest.raises(ValueError, match="unknown option of build 'memory_length'"):
        parse("dot").build(d_model=16, memory_length=8)


def test_options_that_act_around_a_sublayer_are_refused_where_nothing_is_around_it() -> None:
    with pytest.raises(ValueError, match="dropout belongs to the norm and residual around a sublayer"):
        parse("gmlp").build(d_model=8, dropout=0.1)
    assert Layer((Gmlp(),)).build(d_model=8, dropout=0.1)(torch.randn(1, 3, 8)).shape == (1, 3, 8)


@pytest.mark.parametrize("text", ["dot", "lightconv", "fourier", "gmlp", "dot | mlp"])
@pytest.mark.parametrize("shape", [(2, 1), (1, 5), (2, 4)])
def test_a_mask_of_another_shape_is_an_error(text: str, shape: tuple[int, int]) -> None:
    layer: Any = parse(text).build(d_model=8, heads=2, max_length=6)
    with pytest.raises(ValueError, match=r"mask must be \[batch, length\] = \[2, 5\] like x"):
        layer(torch.randn(2, 5, 8), torch.ones(shape, dtype=torch.bool))


def test_mix_reads_text() -> None:
    assert (
        mix("random", "dot", alpha="sum") == mix(Random(), Dot(), alpha="sum") == parse('mix(random, dot, alpha="sum")')
    )
    with pytest.raises(ValueError, match="a layer expression is text such as"):
        mix(Random, Dot)  # type: ignore[arg-type]
