"""Every kernel against the float64 reference, output and every gradient: interpreted on a CPU, compiled on a GPU.

Triton decides at import whether it interprets, so on a CPU one test runs this file, and those of attention, of gelu and
norm, and of the windowed network, again in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import (
    DEVICE,
    DTYPES,
    RUNS,
    disagreements,
    draw,
    lengths,
    needs_kernels,
    on_hopper,
    permuted,
    real_and_fake,
)
from torch import Tensor

from tokenmix.ops import Compose, Gate, attend, persist, reference
from tokenmix.ops.kernels import INSTALLED, usable
from tokenmix.ops.linear import Linear
from tokenmix.ops.norm import LayerNorm, gelu_norm
from tokenmix.ops.window import window_mlp


@pytest.mark.skipif(not INSTALLED, reason="needs triton (extra: kernels)")
@pytest.mark.skipif(RUNS, reason="the kernels run in this process")
@pytest.mark.parametrize("name", ["kernels", "attention_kernels", "attend_packed", "gelu_norm_kernels", "window"])
def test_in_the_interpreter(name: str) -> None:
    file = str(Path(__file__).with_name(f"test_{name}.py"))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", file],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


EPILOGUES: dict[str, Callable[[int, int, int, torch.dtype], dict[str, Tensor]]] = {
    "plain": lambda b, n, c, t: {},
    "number": lambda b, n, c, t: {},
    "scalar": lambda b, n, c, t: {"alpha": torch.rand(1, device=DEVICE)},
    "vector": lambda b, n, c, t: {"alpha": torch.rand(c, device=DEVICE)},
    "tensor": lambda b, n, c, t: {"alpha": torch.rand(b, n, c, device=DEVICE).to(t)},
    "gate": lambda b, n, c, t: {"u": draw(b, n, c, dtype=t), "bias": torch.randn(n, device=DEVICE)},
    "tiny": lambda b, n, c, t: {
        "u": draw(b, n, c, dtype=t),
        "bias": torch.randn(n, device=DEVICE),
        "addend": draw(b, n, c, dtype=t),
    },
}


def persisted(function: Any, kind: str, w: Tensor, x: Tensor, *, options: dict[str, Any], **extra: Tensor) -> Tensor:
    match kind:
        case "plain":
            epilogue: Any = None
        case "number":
            epilogue = Compose(0.3)
        case "gate" | "tiny":
            epilogue = Gate(extra["u"], extra["bias"], extra.get("addend"))
        case _:
            epilogue = Compose(extra["alpha"])
    return function(w, x, epilogue=epilogue, **options)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("softmax", "masked", "causal"),
    [(False, True, True), (True, True, True), *([(True, False, False)] if DEVICE == "cuda" else [])],
)
@pytest.mark.parametrize("kind", EPILOGUES)
def test_persist_equals_reference(kind: str, softmax: bool, masked: bool, causal: bool, dtype: torch.dtype) -> None:
    batch, length, channels, heads = 3, 21, 24, 2
    inputs = {"w": torch.randn(heads, length, length, device=DEVICE), "x": draw(batch, length, channels, dtype=dtype)}
    inputs |= EPILOGUES[kind](batch, length, channels, dtype)
    options = {"softmax": softmax, "mask": lengths(batch, length) if masked else None, "causal": causal}
    assert usable(inputs["x"])
    call = partial(persisted, kind=kind, options=options)
    assert not disagreements(lambda **t: call(persist, **t), lambda **t: call(reference.persist, **t), inputs)


@needs_kernels
def test_persist_takes_any_strides_and_a_matrix_that_is_not_square() -> None:
    inputs = {"w": torch.randn(11, 19, device=DEVICE), "x": torch.randn(2, 32, 19, device=DEVICE)}
    assert not disagreements(
        lambda w, x: persist(w, x[:, ::2].transpose(1, 2)),
        lambda w, x: reference.persist(w, x[:, ::2].transpose(1, 2)),
        inputs,
    )


@needs_kernels
def test_a_gate_takes_a_bias_of_any_strides() -> None:
    inputs = {"w": torch.randn(16, 16, device=DEVICE), "x": torch.randn(2, 16, 24, device=DEVICE)}
    inputs |= {"u": torch.randn(2, 16, 24, device=DEVICE), "bias": torch.randn(16, 3, device=DEVICE)}
    for column in (lambda bias: bias[:, 1], lambda bias: bias[0, :1].expand(16)):
        assert not disagreements(
            lambda w, x, u, bias, column=column: persist(w, x, epilogue=Gate(u, column(bias))),
            lambda w, x, u, bias, column=column: reference.persist(w, x, epilogue=Gate(u, column(bias))),
            inputs,
        )


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "number", "gate", "tiny"])
@pytest.mark.parametrize("heads", [1, 4])
def test_persist_in_the_sizes_of_models(
    kind: str, heads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Large enough for the tiles and the copy engine that real models use; all candidates compute the same."""
    from tokenmix.ops.kernels import tune

    monkeypatch.setattr(tune, "_chosen", {})
    monkeypatch.setenv("TOKENMIX_CACHE", str(tmp_path))
    monkeypatch.setenv("TOKENMIX_AUTOTUNE", "1")
    dtype = torch.bfloat16
    inputs = {"w": torch.randn(heads, 512, 512, device=DEVICE), "x": draw(4, 512, 1024, dtype=dtype)}
    inputs |= EPILOGUES[kind](4, 512, 1024, dtype)
    call = partial(persisted, kind=kind, options={"softmax": True})
    assert not disagreements(lambda **t: call(persist, **t), lambda **t: call(reference.persist, **t), inputs)
    assert list(tmp_path.iterdir())
    assert "something else" not in caplog.text


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("channels", [872, 1024])
@pytest.mark.parametrize(("length", "causal"), [(16, False), (24, False), (64, False), (88, True), (160, True)])
def test_persist_in_the_sizes_of_small_models(length: int, causal: bool, channels: int) -> None:
    """Many short examples: every program makes several tiles. An encoder's are padded, a decoder's are not."""
    batch, dtype = 128, torch.bfloat16
    inputs = {"w": torch.randn(1, 488, 488, device=DEVICE), "x": draw(batch, length, channels, dtype=dtype)}
    options = {"softmax": True, "mask": None if causal else lengths(batch, length), "causal": causal}

    def call(function: Any, w: Tensor, x: Tensor) -> Tensor:
        return function(w[:, :length, :length], x, epilogue=Compose(0.5), **options)

    assert not disagreements(lambda w, x: call(persist, w, x), lambda w, x: call(reference.persist, w, x), inputs)
    with torch.no_grad():  # without anything kept for the way back; example by example, so that none hides in the norm
        x = inputs["x"]
        got, right = call(persist, inputs["w"], x).double(), call(reference.persist, inputs["w"].double(), x.double())
        assert ((got - right).flatten(1).norm(dim=1) / right.flatten(1).norm(dim=1)).max() < 2e-2


@needs_kernels
@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("kind", ["plain", "number", "gate"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_persist_on_the_kernels_for_hopper(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than programs; the output and all gradients by the Gluon kernels, whatever tuning would choose."""
    from tokenmix.ops.kernels import mix, outer

    for module in (mix, outer):
        monkeypatch.setattr(module, "HALF_PRECISION", [c for c in module.HALF_PRECISION if c["gluon"]])
    inputs = {"w": torch.randn(1, 512, 512, device=DEVICE), "x": draw(24, 512, 1024, dtype=dtype)}
    inputs |= EPILOGUES[kind](24, 512, 1024, dtype)
    call = partial(persisted, kind=kind, options={"softmax": True})
    assert not disagreements(lambda **t: call(persist, **t), lambda **t: call(reference.persist, **t), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [128, 196, 384, 512])
@pytest.mark.parametrize("mode", ["plain", "compose", "compose_grad", "gate", "gate_grad"])
def test_every_configuration_of_mix_agrees(mode: str, length: int) -> None:
    """All that can run on these tensors, not only the one that tuning chooses; halves of a wider tensor, as in gMLP."""
    from tokenmix.ops.kernels import mix as module

    w = draw(1, length, length, dtype=torch.bfloat16) / length**0.5
    x, own, other = (draw(7, length, 768, dtype=torch.bfloat16)[..., :384] for _ in range(3))
    bias = torch.randn(length, device=DEVICE)
    s, a = w.double()[0] @ x.double(), 0.3
    f, o, t = s + bias.double()[:, None], own.double(), other.double()
    expected = {
        "plain": (s,), "compose": (a * s * o + (1 - a) * (o - s), s), "compose_grad": (s + o * (a * t + 1 - a),),
        "gate": (o * f, f), "gate_grad": (s, o * t),
    }[mode]  # fmt: skip
    given: dict[str, Any] = {"own": None if mode == "plain" else own, "bias": bias if mode == "gate" else None}
    given["other"] = other if mode.endswith("grad") else None
    if mode == "compose":  # composes x with itself
        expected = (a * s * x.double() + (1 - a) * (x.double() - s), s)
        given["own"] = x
    ready = module.prepare(w, x.dtype)
    configs = module.candidates(ready, x, False, True, simple=length != 196)
    assert len(configs) >= 5
    assert any(config["gluon"] for config in configs) == (module.gluon() and length != 196)
    for config in configs:
        got = [torch.full((7, length, 384), torch.nan, device=DEVICE, dtype=x.dtype) for _ in expected]
        module.mix(
            ready, x, got[0], keys=length, mode=mode, extra=got[1] if len(got) > 1 else None, alpha_value=a,
            configs=[config], **given,
        )  # fmt: skip
        for ours, right in zip(got, expected, strict=True):
            assert (ours.double() - right).norm() / right.norm() < 1e-2, config


@needs_kernels
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(21, 21), (12, 37), (37, 12), *(pytest.param(*at, marks=pytest.mark.gpu) for at in
     [(196, 196), (100, 100), (130, 130), (257, 257), (130, 257), (257, 130), (50, 300), (512, 512)])],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["plain", "compose", "gate"])
def test_every_configuration_of_outer_agrees(mode: str, queries: int, keys: int) -> None:
    """All that can run on these tensors, not only the one that tuning chooses; halves of a wider tensor, as in gMLP."""
    from tokenmix.ops.kernels import outer as module

    batch, width, dtype = (2, 20, torch.float32) if queries < 50 else (7, 384, torch.bfloat16)
    keys = queries if mode == "compose" else keys  # composes x with itself
    g, u, x = (draw(batch, length, 2 * width, dtype=dtype)[..., :width] for length in (queries, queries, keys))
    own = x if mode == "compose" else u
    factor = {"plain": 1.0, "compose": 0.3 * x.double() - 0.7, "gate": u.double()}[mode]
    right = g.double() * factor
    configs = [(c, total) for total in (True, False) for c in module.candidates(g, own, x, 1, False, True, total)]
    assert len(configs) >= 3
    for config, wanted_total in configs:
        dw, ds, total = module.outer(g, x, 1, mode=mode, own=own, alpha_value=0.3, total=wanted_total, configs=[config])
        assert (total is not None) == wanted_total
        for ours, wanted in ((dw[0], torch.einsum("bic,bjc->ij", right, x.double())), (ds, right)):
            assert (ours.double() - wanted).norm() / wanted.norm() < 1e-2, config
        if total is not None:
            assert (total.double() - right.sum((0, 2))).norm() / right.sum((0, 2)).norm() < 1e-2, config


@needs_kernels
@pytest.mark.parametrize("order", [lambda t: t, permuted], ids=["contiguous", "permuted"])
@pytest.mark.parametrize(
    ("mode", "softmax"), [("plain", False), ("plain", True), ("compose", False), ("compose", True), ("gate", False)]
)
def test_the_compiler_is_told_the_truth_about_persist(mode: str, softmax: bool, order: Any) -> None:
    import tokenmix.ops.kernels.persist  # noqa: F401  registers the operators

    w, x, row = torch.randn(2, 21, 21, device=DEVICE), draw(3, 21, 16, dtype=torch.float32), torch.rand(3, 21, 2)
    gate = mode == "gate"
    u, addend = (draw(3, 21, 16, dtype=torch.float32) if gate else None for _ in range(2))
    bias = torch.randn(21, device=DEVICE) if gate else None
    alpha = torch.rand(16, device=DEVICE) if mode == "compose" else None
    w, x, addend, alpha = map(order, (w, x, addend, alpha))
    given = (order(row.to(DEVICE)), order(lengths(3, 21)), softmax, False, mode, order(u), bias)
    y, kept = torch.ops.tokenmix.persist(w, x, *given, addend, alpha, 0.0, True)
    needs = [True, True, True, gate, gate, gate, mode == "compose"]
    pairs = real_and_fake(torch.ops.tokenmix.persist, w, x, *given, addend, alpha, 0.0, True)
    pairs += real_and_fake(
        torch.ops.tokenmix.persist_backward, order(torch.randn_like(y)), w, x, y, kept, *given, alpha, 0.0, needs
    )  # fmt: skip
    assert len(pairs) == (1 if mode == "plain" else 2) + sum(needs)
    assert all(real == fake for real, fake in pairs), pairs


class _GeluNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = Linear(24, 24, device=DEVICE), LayerNorm(12, device=DEVICE)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return gelu_norm(x, self.layer, self.norm)


GELU_NORM = _GeluNorm()  # its parameters are not used


def mixed_by(name: str, x: Tensor, p: Tensor) -> Tensor:
    """Something that each of the kernels makes of x [2, 19, 24] and parameters p [24, 24]."""
    mask = torch.arange(19, device=DEVICE) < torch.tensor([[19], [7]], device=DEVICE)
    heads = x.unflatten(-1, (2, 12)).transpose(1, 2)
    match name:
        case "persist":
            return persist(p[:19, :19], x, softmax=True, mask=mask)
        case "compose":
            return persist(p[:19, :19], x, Compose(p[0]))
        case "gate":
            return persist(p[:19, :19], x, Gate(x.flip(-1), p[0, :19]), causal=True)
        case "attend":
            return attend(heads, heads * p[0, :12], heads, p[:19, :19].expand(2, -1, -1), mask)
        case "gelu_norm":
            given = {"layer.weight": p, "layer.bias": p[2], "norm.weight": p[0, :12], "norm.bias": p[1, :12]}
            return torch.cat(torch.func.functional_call(GELU_NORM, given, x), -1)
        case _:
            return window_mlp(x, p[:, :4], p[0], p[1])


@needs_kernels
@pytest.mark.parametrize("name", ["persist", "compose", "gate", "attend", "gelu_norm", "window"])
def test_kernels_stand_back_for_functional_transforms_and_refuse_second_derivatives(name: str) -> None:
    x, p = torch.randn(2, 19, 24, device=DEVICE), torch.randn(24, 24, device=DEVICE)

    def loss(x: Tensor, p: Tensor) -> Tensor:
        return mixed_by(name, x, p).square().mean()

    leaves = [t.clone().requires_grad_() for t in (x, p)]
    right = torch.autograd.grad(loss(*leaves), leaves)
    found = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
    for first in found:
        with pytest.raises(RuntimeError, match="no gradients of gradients through tokenmix::"):
            torch.autograd.grad(first.square().sum(), leaves, allow_unused=True, retain_graph=True)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    close(torch.func.grad(loss, (0, 1))(x, p), right)
    slope = sum((g * g).sum() for g in right)
    close(torch.func.jvp(loss, (x, p), right)[1], slope)
    along = torch.func.grad(
        lambda x, p: sum((a * b).sum() for a, b in zip(torch.func.grad(loss, (0, 1))(x, p), right)), (0, 1)
    )
    close(torch.func.jvp(torch.func.grad(loss, (0, 1)), (x, p), right)[1], along(x, p))
    each = torch.func.vmap(torch.func.grad(loss), (0, None))(torch.stack([x, 2 * x]), p)
    close(each, torch.stack([torch.func.grad(loss)(x, p), torch.func.grad(loss)(2 * x, p)]))


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("length", [196, 512])
@pytest.mark.parametrize("kind", ["number", "gate"])
def test_gradient_of_the_matrix_has_the_same_bits_every_time(kind: str, length: int) -> None:
    w, x = torch.randn(length, length, device=DEVICE, requires_grad=True), draw(32, length, 1024, dtype=torch.bfloat16)
    extra = {name: t.requires_grad_() for name, t in EPILOGUES[kind](32, length, 1024, torch.bfloat16).items()}
    leaves, grads = [w, *extra.values()], []
    for _ in range(3):
        y = persisted(persist, kind, w, x, options={"softmax": True}, **extra)
        grads.append(torch.autograd.grad(y.float().square().sum(), leaves))
    assert all(torch.equal(a, b) for again in grads[1:] for a, b in zip(grads[0], again, strict=True))


@needs_kernels
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 1e-2)])
def test_vocabulary_loss_equals_the_plain_formula(smoothing: float, z: float) -> None:
    from tokenmix.ops.kernels.vocabulary import vocabulary_loss

    logits = (3 * torch.randn(5, 77, device=DEVICE)).requires_grad_()
    labels = torch.tensor([3, 76, -100, 0, 20], device=DEVICE)
    exact = logits.detach().double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="none")
    loss = loss + z * torch.logsumexp(exact, -1).square() * (labels != -100)
    (grad,) = torch.autograd.grad(loss.sum(), exact)
    place = logits.detach().clone()
    got = vocabulary_loss(place, labels, -100, smoothing, z, True)
    torch.testing.assert_close(got.double(), loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(place.double(), grad, rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.gpu
def test_the_operators_can_be_captured_in_a_graph() -> None:
    h = torch.randn(256, 256, device=DEVICE, requires_grad=True)
    x = draw(4, 256, 512, dtype=torch.bfloat16).requires_grad_()
    q, k, v = (draw(4, 4, 256, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    bias = torch.randn(4, 256, 256, device=DEVICE, requires_grad=True)
    leaves = [h, x, q, k, v, bias]

    def step() -> tuple[Tensor, ...]:
        total = persist(h, x, softmax=True, epilogue=Compose(0.5)).sum() + attend(q / 8, k, v, bias=bias).sum()
        return torch.autograd.grad(total, leaves)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # measures the configurations, which a capture must not
        right = step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))


@needs_kernels
@pytest.mark.parametrize("layer", ["random + dot | remix(alpha='vector')", "gmlp(attention=8)"])
def test_a_model_on_kernels_is_one_graph(layer: str) -> None:
    """`torch.compile` sees the kernels as operators it need not look into, on the way back, too."""
    from tokenmix.models import TokenmixConfig, create_model

    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "max_length": 16, "vocab_size": 40}
    model = create_model(TokenmixConfig(body="encoder", layer=layer, **sizes)).to(DEVICE)
    ids = torch.randint(1, 40, (2, 16), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    model(**given).loss.backward()
    eager = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend="aot_eager")(**given).loss.backward()
    for name, grad in eager.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, grad, rtol=1e-4, atol=1e-5)
