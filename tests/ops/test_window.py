"""The windowed network of an MLP-Mixer decoder: some rows at a time as all at once, compiled and in half precision too."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, TOLERANCE, disagreements, draw, needs_kernels, real_and_fake
from torch import Tensor
from torch.nn.functional import gelu

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


# The kernel, interpreted on a CPU (whose tl.dot gets bfloat16 wrong) and compiled on a GPU.
KERNEL_DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
SHAPES = [  # batch, length, channels, hidden, window
    (1, 1, 1, 1, 1), (2, 16, 8, 16, 4), (3, 21, 40, 7, 5), (2, 33, 35, 20, 16), (2, 37, 33, 5, 17), (2, 40, 33, 3, 32),
    (1, 20, 5, 64, 3),
    *(pytest.param(*shape, marks=pytest.mark.gpu) for shape in [(128, 64, 512, 16, 16), (9, 250, 300, 64, 33)]),
]  # fmt: skip


def plain(x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """The formula, token by token."""
    window = w.shape[1]
    tokens = [
        x[:, t - window + 1 : t + 1].flip(1) for t in range(window - 1, x.shape[1])
    ]  # x_{t−s}, s = 0 … window − 1
    return torch.stack([gelu(torch.einsum("bsc,hs->bch", part, w) + b) @ a for part in tokens], 1)


def case(batch: int, length: int, channels: int, hidden: int, window: int, dtype: torch.dtype) -> dict[str, Tensor]:
    w = torch.randn(hidden, window, device=DEVICE) / window**0.5
    x = draw(batch, window - 1 + length, channels, dtype=dtype)
    return {"x": x, "w": w, "b": torch.randn(hidden, device=DEVICE), "a": torch.randn(hidden, device=DEVICE)}


@needs_kernels
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("batch", "length", "channels", "hidden", "window"), SHAPES)
def test_kernel_equals_the_formula(
    batch: int, length: int, channels: int, hidden: int, window: int, dtype: torch.dtype
) -> None:
    from tokenmix.ops.kernels.window import fused_window_mlp

    given = case(batch, length, channels, hidden, window, dtype)
    assert not disagreements(fused_window_mlp, plain, given)


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [16, 17])
def test_every_configuration_of_the_kernel_agrees(
    window: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmix.ops.kernels import window as module

    given = case(5, 70, 200, 16, window, dtype)
    for name in ("FORWARD", "BACKWARD"):
        for config in getattr(module, name):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, [config])
                assert not disagreements(module.fused_window_mlp, plain, given), config


@needs_kernels
def test_kernel_is_chosen_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmix.ops.kernels import window as module

    called = []
    fused = module.fused_window_mlp
    monkeypatch.setattr(module, "fused_window_mlp", lambda *given: called.append(1) or fused(*given))
    given = case(2, 20, 5, 7, 4, torch.float32)
    y = window_mlp(**given)
    assert len(called) == 1
    assert torch.allclose(y, plain(**given), atol=1e-5)
    for other in (
        {name: t.double() for name, t in given.items()},
        case(2, 15, 5, 7, 4, torch.float32),
        case(2, 20, 5, 7, 18, torch.float32),
        case(2, 20, 5, 65, 4, torch.float32),
        case(0, 20, 5, 7, 4, torch.float32),
    ):
        window_mlp(**other)
    assert len(called) == 1


@needs_kernels
def test_kernel_takes_any_strides() -> None:
    given = case(2, 2 * 24, 6, 5, 4, torch.float32)
    given["x"], given["w"] = given["x"].transpose(1, 2).contiguous(), given["w"].T.contiguous()

    def strided(function):  # type: ignore[no-untyped-def]
        return lambda x, w, b, a: function(x.transpose(1, 2)[:, ::2, 1:], w.T, b.flip(0)[:1].expand(5), a).transpose(
            1, 2
        )

    assert not disagreements(strided(window_mlp), strided(plain), given)


@needs_kernels
def test_kernel_sees_no_later_token() -> None:
    given = case(1, 40, 3, 4, 6, torch.float32)
    before = window_mlp(**given)
    given["x"][:, 5 + 21 :] += 1  # tokens from 21 on
    after = window_mlp(**given)
    assert torch.equal(before[:, :21], after[:, :21])
    assert not torch.equal(before[:, 21], after[:, 21])


@needs_kernels
def test_kernel_under_autocast_computes_in_its_dtype() -> None:
    given = case(2, 20, 5, 7, 4, torch.float32)
    with torch.autocast(DEVICE, torch.float16):
        y = window_mlp(**given)
    assert y.dtype == torch.float16
    exact = plain(**given)
    assert (y - exact).norm() < TOLERANCE[torch.float16] * exact.norm()


@needs_kernels
def test_operators_of_the_kernel_keep_their_promises() -> None:
    from tokenmix.ops.kernels.window import fused_window_mlp, fused_window_mlp_backward

    given = tuple(t.requires_grad_() for t in case(2, 20, 5, 7, 4, torch.float32).values())
    found = torch.library.opcheck(fused_window_mlp, given)
    assert len(found) >= 4
    assert set(found.values()) == {"SUCCESS"}
    pairs = real_and_fake(fused_window_mlp_backward, draw(2, 20, 5, dtype=torch.float32), *(t.detach() for t in given))
    assert len(pairs) == 4
    assert all(real == fake for real, fake in pairs), pairs


@needs_kernels
def test_kernel_is_part_of_one_graph() -> None:
    given = case(2, 20, 5, 7, 4, torch.float32)
    assert not disagreements(torch.compile(window_mlp, fullgraph=True, backend="aot_eager"), plain, given)


@needs_kernels
@pytest.mark.gpu
def test_gradients_of_the_kernel_have_the_same_bits_every_time() -> None:
    leaves = [t.requires_grad_() for t in case(64, 100, 512, 16, 16, torch.bfloat16).values()]
    first, *others = (torch.autograd.grad(window_mlp(*leaves).float().square().sum(), leaves) for _ in range(3))
    for other in others:
        assert all(torch.equal(mine, right) for mine, right in zip(other, first, strict=True))
