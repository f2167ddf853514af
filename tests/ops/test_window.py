"""The windowed network of an MLP-Mixer decoder: some rows at a time as all at once, compiled and in half precision too."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import real_and_fake
from torch import Tensor

from tokenmix.ops import window
from tokenmix.ops.window import window_mlp


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = (3, 4 + 9, 5), (7, 5), (7,), (7,)
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def run(given: tuple[Tensor, ...], function=window_mlp) -> list[Tensor]:  # type: ignore[no-untyped-def]
    y = function(*given)
    assert y.shape == (3, 9, 5)
    factor = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * factor).sum(), given)]


@pytest.mark.parametrize("rows", [1, 2, 14])
def test_some_rows_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    whole = run(inputs())
    monkeypatch.setitem(window.CHUNK, "cpu", rows * 9 * 7)
    called = []
    forward = window._forward
    monkeypatch.setattr(window, "_forward", lambda *given: called.append(1) or forward(*given))
    for found, expected in zip(run(inputs()), whole, strict=True):
        assert torch.allclose(found, expected)
    assert called


def test_operator_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(window.CHUNK, "cpu", 1)
    found = torch.library.opcheck(window._forward, inputs())  # schema, fake tensors, autograd, compiled
    assert len(found) >= 4
    assert set(found.values()) == {"SUCCESS"}


def test_compiled_without_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(window.CHUNK, "cpu", 4 * 9 * 7)
    compiled = torch.compile(window_mlp, fullgraph=True, backend="aot_eager")
    for found, expected in zip(run(inputs(), compiled), run(inputs()), strict=True):
        assert torch.allclose(found, expected)


def test_half_precision_sums_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = run(inputs())
    monkeypatch.setitem(window.CHUNK, "cpu", 1)
    x, *weights = inputs()
    half = x.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = run((half, *(w.detach().float().requires_grad_() for w in weights)))
    assert [t.dtype for t in found] == [torch.bfloat16] * 2 + [torch.float32] * 3
    for mine, expected in zip(found, exact, strict=True):
        assert (mine - expected).norm() < 0.02 * expected.norm()


def test_the_compiler_is_told_the_truth() -> None:
    """Compiled code on a GPU checks the strides of what an operator gives back."""
    x, w, b, a = torch.randn(2, 12, 3), torch.randn(8, 4), torch.randn(8), torch.randn(8)
    pairs = real_and_fake(window._backward, torch.randn(2, 9, 3), x, w, b, a)
    assert len(pairs) == 4
    assert all(real == fake for real, fake in pairs), pairs
