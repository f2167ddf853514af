"""The CPU's RMSNorm against PyTorch's, with gradients of first and second order."""

import torch
from torch import nn

from tokenmix.ops.norm import RMSNorm


def test_output_and_gradients_equal_pytorchs():
    ours, theirs = RMSNorm(12, eps=1e-6).double(), nn.RMSNorm(12, eps=1e-6).double()
    with torch.no_grad():
        ours.weight.normal_()
        theirs.weight.copy_(ours.weight)
    x = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(x)
    out, expected = ours(x), theirs(x)
    assert torch.allclose(out, expected)
    got = torch.autograd.grad((out * weight).sum(), [x, ours.weight])
    want = torch.autograd.grad((expected * weight).sum(), [x, theirs.weight])
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))


def test_zero_rows_and_empty_batches_are_finite():
    norm = RMSNorm(4, eps=1e-6)
    x = torch.zeros(2, 4, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    assert norm(torch.zeros(0, 4, requires_grad=True)).shape == (0, 4)


def test_gradients_are_right_by_finite_differences():
    norm = RMSNorm(5, eps=1e-6).double()
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))
