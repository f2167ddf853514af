"""Queries, keys and values from one projection: the same as from three; `test_kernels.py` interprets this file."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, DTYPES, disagreements, draw, lengths, needs_kernels, permuted, real_and_fake
from torch import Tensor, nn

import tokenmix
from tokenmix.mixers import attention
from tokenmix.models import TokenmixConfig, create_model
from tokenmix.ops import reference
from tokenmix.ops.attend import attend_packed


def together(x: Tensor, bias: Tensor, **more: Any) -> Tensor:
    return attend_packed(x, bias=bias, **more)


def separate(x: Tensor, bias: Tensor, **more: Any) -> Tensor:
    return reference.attend(*(t.transpose(1, 2) for t in x.unbind(2)), bias=bias, **more)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("masked", "causal"), [(False, False), (True, True)], ids=["all", "padded-causal"])
def test_one_projection_gives_what_three_give(masked: bool, causal: bool, dtype: torch.dtype) -> None:
    more: dict[str, Any] = {"mask": lengths(3, 21) if masked else None, "causal": causal}
    inputs = {"x": draw(3, 21, 3, 2, 8, dtype=dtype) / 2, "bias": draw(2, 21, 21, dtype=dtype)}
    assert not disagreements(partial(together, **more), partial(separate, **more), inputs)


@needs_kernels
@pytest.mark.parametrize("order", [lambda t: t, permuted], ids=["contiguous", "permuted"])
def test_the_compiler_is_told_the_truth(order: Any) -> None:
    import tokenmix.ops.kernels.attend_packed  # noqa: F401  registers the operators

    qkv, bias = draw(3, 21, 3, 2, 8, dtype=torch.float32), draw(2, 21, 21, dtype=torch.float32)
    given = (None, order(qkv), order(bias), order(lengths(3, 21)), None, None, True, 0.0)
    out, lse = torch.ops.tokenmix.attend_packed(*given)
    pairs = real_and_fake(torch.ops.tokenmix.attend_packed, *given)
    for asked in (True, False):
        backward = torch.ops.tokenmix.attend_packed_backward
        pairs += real_and_fake(backward, torch.randn_like(out), *given, out, lse, asked)
    assert len(pairs) == 5
    assert all(real == fake for real, fake in pairs), pairs


@needs_kernels
def test_keys_and_values_of_one_projection() -> None:
    def ours(x: Tensor, q: Tensor, bias: Tensor) -> Tensor:
        return attend_packed(x, q, bias=bias)

    def exact(x: Tensor, q: Tensor, bias: Tensor) -> Tensor:
        return reference.attend(q, *(t.transpose(1, 2) for t in x.unbind(2)), bias=bias)

    shapes = {"x": (3, 37, 2, 2, 8), "q": (3, 2, 21, 8), "bias": (2, 21, 37)}
    assert not disagreements(ours, exact, {n: draw(*shape, dtype=torch.float32) for n, shape in shapes.items()})
    with pytest.raises(ValueError, match=r"packed must be \[batch, length, 2, heads, width\]; got \[3, 37, 3, 2, 8\]"):
        attend_packed(torch.zeros(3, 37, 3, 2, 8), torch.zeros(3, 2, 21, 8))


@needs_kernels
@pytest.mark.parametrize("sizes", [(3, 7), (1, 21), (3, 7, 21)])
def test_a_mask_of_other_sizes_is_an_error(sizes: tuple[int, ...]) -> None:
    mask = torch.ones(sizes, dtype=torch.bool, device=DEVICE)
    x, bias = draw(3, 21, 3, 2, 8, dtype=torch.float32), draw(2, 21, 21, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"mask must be \[batch, keys\] = \[3, 21\]"):
        attend_packed(x, bias=bias, mask=mask)


@needs_kernels
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layer", ["dot", 'mix(random, dot, alpha="sum")'])
@pytest.mark.parametrize("options", [{"scale": True, "bias": True}, {"causal": True}], ids=["scaled", "causal"])
def test_a_layer_computes_the_same_with_one_product(
    layer: str, options: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module: Any = tokenmix.parse(layer).build(d_model=16, heads=2, max_length=24, relative=True, **options).to(DEVICE)
    x, mask = torch.randn(3, 21, 16, device=DEVICE), lengths(3, 21)
    called = []
    monkeypatch.setattr(attention, "attend_packed", lambda *a, **k: called.append(1) or attend_packed(*a, **k))
    results = []
    for one in (True, False):
        module.packs = one
        module.zero_grad()
        call = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
        y = call(x, mask)
        (y * mask[..., None]).square().sum().backward()
        results.append([y * mask[..., None], *(p.grad for p in module.parameters())])
    assert len(called) == 1
    for ours, right in zip(*results, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_keys_and_values_of_a_memory_are_the_same_from_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a whole model, with padding in the memory; where it pays is for Hopper GPUs to say."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "heads": 2, "layers": 1, "max_length": 40, "vocab_size": 50}
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | geglu", **sizes)).to(DEVICE).train()
    ids, labels = (torch.randint(2, 50, (3, n), device=DEVICE) for n in (33, 20))
    called, results = [], []
    monkeypatch.setattr(attention, "attend_packed", lambda *a, **k: called.append(len(a)) or attend_packed(*a, **k))
    for pays in (True, False):
        monkeypatch.setattr(attention, "crossing", lambda *given, pays=pays: pays)
        model.zero_grad()
        loss = model(input_ids=ids, attention_mask=lengths(3, 33), labels=labels).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
        assert len(called) == (3 if pays else 5)  # self-attention of both stacks packs either way
    for ours, right in zip(*results, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6)


@needs_kernels
def test_an_adapted_projection_is_called_as_it_is() -> None:
    class Adapted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    module: Any = tokenmix.parse("dot").build(d_model=16, heads=2, max_length=24, relative=True).to(DEVICE)
    x = torch.randn(2, 21, 16, device=DEVICE)
    before = module(x)
    adapted = Adapted(16, 16, bias=False, device=DEVICE)
    adapted.load_state_dict(module.value.state_dict())
    module.value = adapted
    assert not torch.allclose(before, module(x))


def own_forward(module: Any, called: list[int]) -> None:
    module.value.forward = lambda x: called.append(1) or nn.functional.linear(x, module.value.weight)


def own_weight(module: Any, called: list[int]) -> None:
    class Weight(nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, *given: Any) -> Any:
            called.extend([1] * (function is nn.functional.linear and len(given[1][1]) == 16))
            return super().__torch_function__(function, *given)

    module.value.weight = Weight(module.value.weight.detach())


TOUCHES = {
    "hook": lambda module, called: module.value.register_forward_hook(lambda *_: called.append(1)),
    "backward hook": lambda module, called: module.value.register_full_backward_hook(lambda *_: called.append(1)),
    "forward": own_forward,
    "weight": own_weight,
}


@needs_kernels
@pytest.mark.parametrize("touch", TOUCHES)
def test_a_projection_with_something_of_the_users_is_called(touch: str) -> None:
    module: Any = tokenmix.parse("dot").build(d_model=16, heads=2, max_length=24, relative=True).to(DEVICE)
    called: list[int] = []
    TOUCHES[touch](module, called)
    module(torch.randn(2, 21, 16, device=DEVICE, requires_grad=True)).sum().backward()
    assert called


@needs_kernels
def test_some_projections_may_have_a_bias_and_others_none() -> None:
    module: Any = tokenmix.parse("dot").build(d_model=16, heads=2, max_length=24, relative=True, bias=True).to(DEVICE)
    x = torch.randn(2, 21, 16, device=DEVICE)
    before = module(x)
    module.terms[0].key.bias = None  # adds the same to all logits of a query
    torch.testing.assert_close(module(x), before)
    module.value.bias.data += 1
    assert not torch.allclose(module(x), before)
