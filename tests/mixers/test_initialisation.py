"""What the papers say about the start of training holds."""

import math

import pytest
import torch

from tokenmix.mixers import parse

SIZES = dict(d_model=32, d_ff=64, heads=4, max_length=64)


def tokens(length=64):
    torch.manual_seed(0)
    return torch.randn(3, length, 32)


@pytest.mark.parametrize("gate", ["split", "multiplicative", "additive"])
@pytest.mark.parametrize("toeplitz", [False, True])
def test_gmlp_starts_as_a_plain_feed_forward_network(gate, toeplitz):
    """W ≈ 0 and b = 1 (0 for the additive gate): s(Z) ≈ Z, and no token hears of another."""
    m = parse(f'gmlp(gate="{gate}", toeplitz={toeplitz})').build(**SIZES)
    z = torch.nn.functional.gelu(m.u(tokens()))
    s = z.chunk(2, -1)[0] if gate == "split" else z
    assert torch.allclose(m(tokens()), m.v(s), atol=1e-3)
    assert m.weight.abs().max() < 1e-5
    assert (m.bias == (0.0 if gate == "additive" else 1.0)).all()


def test_linear_gate_has_an_ordinary_fan_in_start():
    m = parse('gmlp(gate="linear")').build(**SIZES)
    assert m.weight.detach().std() == pytest.approx(64**-0.5, rel=0.1)
    assert (m.bias == 0).all()


def test_toeplitz_really_is_toeplitz():
    for text in ("gmlp(toeplitz=True)", "remix(toeplitz=True)"):
        m = parse(text).build(**SIZES)
        w = m.matrix(20)
        w = w[0] if w.dim() == 3 else w
        assert torch.equal(w[1:, 1:], w[:-1, :-1])
        assert sum(p.numel() for n, p in m.named_parameters() if n in ("weight", "h")) == 2 * 64 - 1


def test_random_starts_near_uniform_and_fixed_does_not():
    m = parse("random").build(**{**SIZES, "max_length": 512, "heads": 8})
    limit = math.sqrt(6 / (512 * (512 + 8)))
    assert limit == pytest.approx(0.0047, abs=1e-4)
    assert m.terms[0].matrix.abs().max() <= limit
    fixed = parse("random(fixed=True)").build(**SIZES).terms[0]
    assert fixed.matrix.std() == pytest.approx(1, rel=0.05)
    assert not list(fixed.parameters())
    assert "matrix" in fixed.state_dict()


def test_t5_folds_the_scale_into_the_queries():
    t5 = parse("dot").build(**{**SIZES, "d_model": 256}, scale=False, init="t5").terms[0]
    assert t5.query.weight.detach().std() == pytest.approx((256 * 64) ** -0.5, rel=0.05)
    assert t5.key.weight.detach().std() == pytest.approx(256**-0.5, rel=0.05)
    bert = parse("dot").build(**SIZES, init="bert").terms[0]
    assert bert.query.weight.detach().std() == pytest.approx(0.02, rel=0.1)


def test_mixture_weights_start_equal():
    m = parse("random + dense + dot").build(**SIZES)
    assert torch.allclose(torch.stack(m.weights()), torch.full((3,), 1 / 3))


def test_remix_alpha_starts_at_one_half():
    for alpha in ("scalar", "vector"):
        m = parse(f'remix(alpha="{alpha}")').build(**SIZES)
        assert (torch.sigmoid(m.alpha) == 0.5).all()


def test_parameter_counts_of_synthesizer_table_1():
    """Additional parameters |θ| of each synthesizing function, without value and output projections and biases."""
    d, n, h = 32, 64, 4
    expected = {
        "dot": 2 * d * d,
        "random": h * n * n,
        "factorized_random(k=8)": 2 * h * n * 8,
        "dense(bias=False)": d * d + d * n,
        "factorized_dense(bias=False)": d * d + d * (8 + 8),
    }
    for text, count in expected.items():
        assert sum(p.numel() for p in parse(text).build(**SIZES).terms.parameters()) == count, text
