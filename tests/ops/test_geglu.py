"""The gated feed-forward network as one operator against the formula: output, every gradient, and how it is wired."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import disagreements, on_hopper, real_and_fake
from torch import Tensor

from tokenmix.mixers import channel
from tokenmix.mixers.site import Site
from tokenmix.ops import geglu, reference
from tokenmix.ops.geglu import fits_geglu, geglu_backward, geglu_op


def case(*shape: int, width: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> dict[str, Tensor]:
    channels = shape[-1]
    sizes = {"x": shape, "w1": (width, channels), "w2": (width, channels), "w3": (channels, width)}
    drawn = {name: torch.randn(size, device=device) for name, size in sizes.items()}
    return {name: (t if name == "x" else t * t.shape[1] ** -0.5).to(dtype) for name, t in drawn.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 5, 16), (7, 16), (2, 3, 1, 16)])
def test_output_and_gradients_equal_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = case(*shape, width=24, dtype=torch.float32 if dtype == torch.float64 else dtype)
    assert not disagreements(geglu, reference.geglu, given)
    if dtype == torch.float64:
        exact = {name: t.double().requires_grad_() for name, t in given.items()}
        assert torch.autograd.gradcheck(geglu, tuple(exact.values()))


def test_some_inputs_alone_get_gradients() -> None:
    given = case(2, 5, 16, width=24)
    for name in given:
        leaves = {key: t.clone().requires_grad_(key == name) for key, t in given.items()}
        found = torch.autograd.grad(geglu(**leaves).square().sum(), leaves[name])
        right = torch.autograd.grad(reference.geglu(**leaves).square().sum(), leaves[name])
        torch.testing.assert_close(found, right)


def test_a_compiled_graph_holds_the_operator_whole() -> None:
    given = {name: t.requires_grad_() for name, t in case(2, 5, 16, width=24).items()}
    compiled = torch.compile(geglu, fullgraph=True, backend="aot_eager")
    assert not disagreements(compiled, reference.geglu, given)


def test_autocast_multiplies_in_its_type_and_gives_weights_their_own() -> None:
    given = {name: t.requires_grad_() for name, t in case(2, 64, 32, width=48).items()}
    compiled = torch.compile(geglu, fullgraph=True, backend="aot_eager")
    right = torch.autograd.grad(reference.geglu(**given).square().sum(), list(given.values()))
    for function in (geglu, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(**given)
        assert y.dtype == torch.bfloat16
        found = torch.autograd.grad(y.float().square().sum(), list(given.values()))
        for mine, exact in zip(found, right, strict=True):
            assert mine.dtype == exact.dtype
            assert mine.is_contiguous()
            assert (mine - exact).norm() < 0.03 * exact.norm()


def test_operators_keep_their_promises() -> None:
    x, w1, w2, w3 = case(5, 16, width=24).values()
    given = [t.contiguous().requires_grad_() for t in (x, torch.cat([w1, w2]), w3)]
    found = torch.library.opcheck(geglu_op, tuple(given))  # schema, fake tensors, autograd, compiled
    assert len(found) >= 4
    assert set(found.values()) == {"SUCCESS"}
    x, w, w3 = (t.detach() for t in given)
    y, both = geglu_op(x, w, w3)
    pairs = real_and_fake(geglu_backward, torch.randn_like(y), x, both, w, w3)
    assert len(pairs) == 3
    assert all(real == fake for real, fake in pairs), pairs


def test_gradients_of_gradients_are_refused() -> None:
    given = [t.requires_grad_() for t in case(5, 16, width=24).values()]
    (dx,) = torch.autograd.grad(geglu(*given).square().sum(), given[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="tokenmix::geglu"):
        torch.autograd.grad(dx.sum(), given)


def test_function_transforms_go_through_plain_operators() -> None:
    x, *weights = case(2, 5, 16, width=24).values()
    found = torch.func.grad(lambda x: geglu(x, *weights).square().sum())(x)
    right = torch.func.grad(lambda x: reference.geglu(x, *weights).square().sum())(x)
    torch.testing.assert_close(found, right)


def layer(*, dropout: float = 0.0, bias: bool = False, width: int = 512, channels: int = 128) -> channel._Geglu:
    site = Site(d_model=channels, d_ff=width, heads=2, max_length=8192, inner_dropout=dropout, bias=bias)
    return channel._Geglu(site)


def test_the_sublayer_takes_the_operator_where_there_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(channel, "fits_geglu", lambda x, w1: True)
    monkeypatch.setattr(channel, "geglu", lambda *given: taken.append(given) or geglu(*given))
    x = torch.randn(2, 3, 16)
    for options, training, expected in [
        ({}, True, True),
        ({"dropout": 0.1}, True, False),
        ({"dropout": 0.1}, False, True),
        ({"bias": True}, True, False),
    ]:
        taken.clear()
        module = layer(width=24, channels=16, **options).train(training)
        if module.dropout.p == 0 or not training:
            plain = module.w3(torch.nn.functional.gelu(module.w1(x), approximate="tanh") * module.w2(x))
            torch.testing.assert_close(module(x), plain)
        else:
            module(x)
        assert bool(taken) == expected, options


def test_the_sublayer_takes_it_for_the_formula_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beside a bias that somebody added, nor another dropout, nor one that drops in evaluation."""
    taken = []
    monkeypatch.setattr(channel, "fits_geglu", lambda x, w1: True)
    monkeypatch.setattr(channel, "geglu", lambda *given: taken.append(1) or geglu(*given))
    x = torch.randn(2, 3, 16)

    def takes(module: channel._Geglu) -> bool:
        taken.clear()
        module(x)
        return bool(taken)

    module = layer(width=24, channels=16)
    assert takes(module)
    module.w3.bias = torch.nn.Parameter(torch.ones(16))
    assert not takes(module)
    module.w3.bias = None
    module.dropout = torch.nn.Identity()
    assert not takes(module)
    module.dropout = torch.nn.Dropout(0.5)
    module.eval()
    assert takes(module)
    module.dropout.train()
    assert not takes(module)


def test_the_sublayer_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "fits_geglu", lambda x, w1: True)
    module, x = layer(width=24, channels=16), torch.randn(2, 3, 16)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))


def test_the_copy_engine_gets_rows_that_it_can_read() -> None:
    from tokenmix.ops.geglu import _aligned

    for t in (torch.randn(64, 64), torch.randn(64 * 64 + 1)[1:].view(64, 64), torch.randn(64, 64).t()):
        read = _aligned(t)
        assert torch.equal(read, t)
        assert read.is_contiguous()
        assert read.data_ptr() % 16 == 0


def test_without_kernels_the_sublayer_is_as_before() -> None:
    module = layer()
    x = torch.randn(4096, 128)
    assert not fits_geglu(x, module.w1.weight)
    assert not fits_geglu(x.to("meta"), module.w1.weight)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "channels", "width"),
    [(1000, 128, 256), (129, 64, 512), (4096, 768, 2048), (14592, 768, 2048), (5000, 1024, 2816), (70, 192, 256)],
)
def test_kernels_equal_the_formula(tokens: int, channels: int, width: int, dtype: torch.dtype) -> None:
    assert not disagreements(geglu, reference.geglu, case(tokens, channels, width=width, dtype=dtype, device="cuda"))


@pytest.mark.gpu
@on_hopper
def test_every_configuration_gives_the_same() -> None:
    from tokenmix.ops.kernels import geglu_hopper as kernels

    for tokens, channels, width in [(1000, 128, 512), (4096, 768, 2048)]:
        x, w1, w2, w3 = case(tokens, channels, width=width, dtype=torch.bfloat16, device="cuda").values()
        w, w3t, g = torch.cat([w1, w2]), w3.t().contiguous(), torch.randn_like(x)
        both, h = kernels.expand(x, w, kernels.FORWARD[:1])
        d_both, again = kernels.contract(g, both, w3t, kernels.BACKWARD[:1])
        found = [(again, h)]
        for config in kernels.FORWARD:
            found += zip(kernels.expand(x, w, [config]), (both, h), strict=True)
        for config in kernels.BACKWARD:
            found += zip(kernels.contract(g, both, w3t, [config]), (d_both, again), strict=True)
        assert all((mine.double() - right.double()).norm() < 5e-3 * right.double().norm() for mine, right in found)


@pytest.mark.gpu
@on_hopper
def test_the_compiled_sublayer_takes_the_kernels_under_autocast() -> None:
    module, x = layer().cuda(), torch.randn(8, 1024, 128, device="cuda", requires_grad=True)
    leaves = [x, *module.parameters()]
    right = torch.autograd.grad(reference.geglu(x, *module.parameters()).square().sum(), leaves)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert fits_geglu(x, module.w1.weight)
        y = torch.compile(module, fullgraph=True)(x)
    found = torch.autograd.grad(y.float().square().sum(), leaves)
    for mine, exact in zip(found, right, strict=True):
        assert (mine - exact).norm() < 0.02 * exact.norm()


@pytest.mark.gpu
@on_hopper
def test_a_recorded_graph_gives_the_same_bits() -> None:
    given = case(8192, 128, width=512, dtype=torch.bfloat16, device="cuda")
    leaves = [t.requires_grad_() for t in given.values()]

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(geglu(*leaves).square().sum(), leaves)

    right = step()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(map(torch.equal, found, right))
