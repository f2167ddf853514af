"""persist against its reference: outputs and every gradient, exact padding, epilogues."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from tokenmix.devices import readable, transformed
from tokenmix.ops import Compose, Gate, persist, reference, toeplitz
from tokenmix.ops.toeplitz import toeplitz_share

BATCH, LENGTH, WIDTH = 3, 13, 12


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def padding():
    return torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 5, 0])[:, None]


def epilogues():
    gate = leaf(BATCH, LENGTH, WIDTH), leaf(LENGTH), leaf(BATCH, LENGTH, WIDTH)
    alpha, vector = leaf(BATCH, LENGTH, WIDTH), leaf(WIDTH)
    return [
        (None, []),
        (Compose(0.3), []),
        (Compose(vector), [vector]),
        (Compose(alpha), [alpha]),
        (Gate(gate[0]), [gate[0]]),
        (Gate(gate[0], gate[1]), [gate[0], gate[1]]),
        (Gate(*gate), list(gate)),
    ]


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_gradients_equal_the_reference(heads, softmax, causal, masked):
    for epilogue, more in epilogues():
        w, x = leaf(heads, LENGTH, LENGTH), leaf(BATCH, LENGTH, WIDTH)
        options = dict(softmax=softmax, causal=causal, mask=padding() if masked else None, epilogue=epilogue)
        out, expected = persist(w, x, **options), reference.persist(w, x, **options)
        assert torch.allclose(out, expected, atol=1e-10)
        weight = torch.randn_like(out)
        got = torch.autograd.grad((out * weight).sum(), [w, x, *more])
        want = torch.autograd.grad((expected * weight).sum(), [w, x, *more])
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=1e-9)


def test_second_derivatives_exist():
    w, x = leaf(1, 4, 4), leaf(2, 4, 3)
    assert torch.autograd.gradgradcheck(lambda w, x: persist(w, x, softmax=True), (w, x))


@pytest.mark.parametrize("epilogue", [Compose(0.3), "gate"], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_are_right_behind_every_epilogue(epilogue, masked):
    w, x, u, bias = leaf(2, 4, 4), leaf(2, 4, 4), leaf(2, 4, 4), leaf(4)
    mask = torch.tensor([[True] * 4, [True, True, False, False]]) if masked else None

    def mixed(w, x, u, bias):
        return persist(w, x, Gate(u, bias) if epilogue == "gate" else epilogue, softmax=True, mask=mask)

    assert torch.autograd.gradgradcheck(mixed, (w, x, u, bias))


def test_functional_transforms_are_noticed():
    """What Python may read and what operators may run, inside of torch.func, of forward mode, and outside."""
    seen = []

    def look(x):
        seen.append((readable(x), transformed()))
        return x.sum()

    x = torch.randn(3)
    look(x)
    grad(look)(x)
    jvp(look, (x,), (x,))
    with forward_ad.dual_level():
        look(forward_ad.make_dual(x, x))
    vmap(look)(x[:, None])
    vmap(grad(look))(x[:, None])
    grad(lambda x: vmap(look)(x[:, None]).sum())(x)
    vmap(lambda _: look(x))(x)
    assert seen == [(True, False)] + [(True, True)] * 3 + [(False, True)] * 3 + [(True, True)]


@pytest.mark.parametrize("causal", [False, True])
def test_under_vmap_extreme_weights_are_right_without_a_question(causal):
    w = torch.zeros(1, 4, 4, dtype=torch.float64)
    w[0, :, 3 if not causal else 0] = 200.0
    masks = torch.tensor([[True] * 4, [True, True, True, False] if not causal else [False, True, True, True]])
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    options = dict(softmax=True, causal=causal)
    out = vmap(lambda x, mask: persist(w, x[None], mask=mask[None], **options)[0])(x, masks)
    assert torch.allclose(out, reference.persist(w, x, mask=masks, **options), atol=1e-6)


def test_some_of_a_gate_may_be_one_of_many():
    """Without gradients the gate is computed in place, which vmap refuses where s is shared and u is not."""
    w, x, u = torch.randn(4, 4), torch.randn(2, 4, 6), torch.randn(5, 2, 4, 6)
    with torch.no_grad():
        out = vmap(lambda u: persist(w, x, Gate(u)))(u)
    for k in range(5):
        assert torch.allclose(out[k], reference.persist(w, x, Gate(u[k])), atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_extreme_weights_fall_back_to_the_reference(causal):
    """A row that sees only tokens 200 below its maximum: exp gives 0 for all of them, the softmax does not."""
    w = torch.zeros(1, 4, 4, dtype=torch.float64)
    w[0, :, 3 if not causal else 0] = 200.0
    mask = torch.tensor([[True, True, True, False]]) if not causal else torch.tensor([[False, True, True, True]])
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    out = persist(w.float(), x.float(), softmax=True, mask=mask, causal=causal)
    expected = reference.persist(w, x, softmax=True, mask=mask, causal=causal)
    assert torch.allclose(out.double(), expected, atol=1e-6)
    assert (expected.abs().sum(-1) > 0).any()


def test_a_row_that_sees_nothing_gives_zero_with_zero_gradient():
    w, x = leaf(1, 4, 4), leaf(1, 4, 2)
    out = persist(w, x, softmax=True, mask=torch.zeros(1, 4, dtype=torch.bool))
    assert (out == 0).all()
    gradients = torch.autograd.grad(out.sum(), [w, x])
    assert all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_low_precision_stays_close(dtype, masked):
    w, x = torch.randn(2, LENGTH, LENGTH), torch.randn(BATCH, LENGTH, WIDTH)
    mask = padding() if masked else None
    out = persist(w, x.to(dtype), softmax=True, mask=mask)
    expected = reference.persist(w.double(), x.double(), softmax=True, mask=mask)
    assert out.dtype == dtype
    assert ((out.double() - expected).norm() / expected.norm()) < {torch.float32: 1e-6}.get(dtype, 2e-2)


def test_autocast_runs_forward_and_backward_in_bf16():
    w, x = torch.randn(1, 8, 8, requires_grad=True), torch.randn(2, 8, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = persist(w, x, softmax=True, mask=torch.ones(2, 8, dtype=torch.bool))
    out.float().sum().backward()
    assert w.grad is not None
    assert x.grad.isfinite().all()


def test_dropout_is_drawn_once_for_the_batch():
    torch.manual_seed(0)
    w, x = torch.zeros(1, 8, 8), torch.randn(1, 8, 4).expand(5, -1, -1).contiguous()
    out = persist(w, x, softmax=True, dropout=0.5)
    assert torch.equal(out[0], out[4])
    assert not torch.allclose(out[0], persist(w, x, softmax=True)[0])


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"\[batch, 4, channels\]"):
        persist(torch.zeros(4, 4), torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match=r"a row of x for each row of W: W is \[4, 1\]"):
        persist(torch.zeros(4, 1), torch.zeros(2, 1, 8), Compose(0.5))
    with pytest.raises(ValueError, match="3 heads do not divide"):
        persist(torch.zeros(3, 4, 4), torch.zeros(2, 4, 8))


def test_toeplitz_is_toeplitz():
    w = leaf(2, 9)
    for length in (1, 3, 5):
        matrix = toeplitz(w, length)
        assert torch.equal(matrix, reference.toeplitz(w, length))
        for i, j in itertools.product(range(length - 1), repeat=2):
            assert torch.equal(matrix[:, i, j], matrix[:, i + 1, j + 1])
    with pytest.raises(ValueError, match="exceeds the 5 positions"):
        toeplitz(w, 6)


def test_toeplitz_share_is_the_explained_variance():
    torch.manual_seed(0)
    free, bound = torch.randn(40, 40), toeplitz(torch.randn(79), 40)
    assert toeplitz_share(bound) == 1.0
    assert toeplitz_share(free) == pytest.approx(79 / 1600, abs=0.02)  # what as many means explain by chance
    assert toeplitz_share(free + 3 * bound) == pytest.approx(0.9, abs=0.04)  # 9 parts of 10
