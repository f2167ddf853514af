"""Attention's kernels against the float64 reference, output and every gradient; `test_kernels.py` interprets this file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, DTYPES, disagreements, draw, lengths, needs_kernels, permuted, real_and_fake
from torch import Tensor

from tokenmix.ops import attend, reference
from tokenmix.ops.dropout import kept

ATTENTION = {  # batch, heads, queries, keys, q·k width, v width, batch of k
    "square": (3, 2, 21, 21, 8, 8, 3),
    "cross": (3, 2, 17, 37, 24, 8, 3),
    "learned-keys": (3, 2, 21, 21, 8, 20, 1),
    "even": (2, 1, 32, 32, 16, 16, 2),
}


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", ATTENTION)
@pytest.mark.parametrize("terms", ["bias", "bias-key", "key", "bias-packed"])
@pytest.mark.parametrize(("masked", "causal"), [(False, False), (True, True)], ids=["all", "padded-causal"])
def test_attend_equals_reference(sizes: str, terms: str, masked: bool, causal: bool, dtype: torch.dtype) -> None:
    batch, heads, queries, keys, width, value_width, k_batch = ATTENTION[sizes]
    inputs = {
        "q": draw(batch, heads, queries, width, dtype=dtype) / 3,
        "k": draw(k_batch, keys, heads, width, dtype=dtype).transpose(1, 2),
        "v": draw(batch, keys, heads, value_width, dtype=dtype).transpose(1, 2),
    }
    if "bias" in terms:
        inputs["bias"] = draw(heads, queries, keys, dtype=dtype)
    if "key" in terms:
        inputs["key_bias"] = torch.randn(heads, keys, device=DEVICE)
    mask = lengths(batch, keys) if masked else None
    if "packed" in terms:  # [batch, queries, keys], one query of which sees nothing
        mask = torch.rand(batch, queries, keys, device=DEVICE) > 0.4
        mask[0, 1] = False
    assert not disagreements(
        partial(attend, mask=mask, causal=causal), partial(reference.attend, mask=mask, causal=causal), inputs
    )


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("masked", "causal"), [(False, False), (True, True)], ids=["all", "padded-causal"])
def test_attend_with_dropout_equals_the_formulas(
    masked: bool, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tokenmix.ops.kernels.attend as kernels

    batch, heads, length, p = 3, 2, 37, 0.3
    seed = torch.tensor([(1 << 32) - 2, 5], device=DEVICE)
    monkeypatch.setattr(kernels, "new_seed", lambda device: seed)
    inputs = {n: draw(batch, heads, length, 16, dtype=dtype) for n in "qkv"}
    inputs["q"], inputs["bias"] = inputs["q"] / 3, draw(heads, length, length, dtype=dtype)
    mask = lengths(batch, length) if masked else None
    factor = kept(seed, inputs["v"].double(), slice(0, batch), slice(0, length), p)

    def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        seen = reference.visibility(mask, causal, length, length, DEVICE)
        logits = q @ k.transpose(-1, -2) + bias
        logits = logits if seen is None else logits.masked_fill(~seen, -torch.inf)
        return (torch.softmax(logits, -1) * factor.to(q.dtype)) @ v

    assert not disagreements(partial(attend, mask=mask, causal=causal, dropout=p), formula, inputs)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_queries_that_nobody_reads_are_left_out(causal: bool, dtype: torch.dtype) -> None:
    """Those that are read, and all gradients, are as without `lengths`; the others are 0 where whole blocks are."""
    size = (4, 2, 160, 32) if DEVICE == "cuda" else (4, 2, 70, 8)
    inputs = {n: draw(*size, dtype=dtype) for n in "qkv"}
    inputs["q"], inputs["bias"] = inputs["q"] / 3, draw(2, size[2], size[2], dtype=dtype)
    seen = lengths(4, size[2])
    ends = seen.sum(1, dtype=torch.int32)
    mask = None if causal else seen  # a causal query sees no padding behind it

    def read(function: Any, **more: Any) -> Callable[..., Tensor]:
        return lambda **terms: function(**terms, mask=mask, causal=causal, **more) * seen[:, None, :, None]

    assert not disagreements(read(attend, lengths=ends), read(reference.attend), inputs)
    out = attend(**inputs, mask=mask, causal=causal, lengths=ends)
    assert not out[3, :, -1].any()
    assert attend(**inputs, mask=mask, causal=causal)[3, :, -1].all()


@needs_kernels
def test_what_the_batch_shares_may_be_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tokenmix.ops.attend"]
    monkeypatch.setattr(module, "_gains_by_spreading", lambda *tensors: True)
    inputs = {name: draw(b, 2, 21, 8, dtype=torch.float32) for name, b in (("q", 3), ("k", 1), ("v", 3))}
    assert not disagreements(attend, reference.attend, inputs | {"bias": torch.randn(2, 21, 21, device=DEVICE)})


@needs_kernels
@pytest.mark.gpu
@pytest.mark.parametrize("length", [512, 1000])
def test_attend_in_the_sizes_of_models(length: int) -> None:
    dtype = torch.bfloat16
    inputs = {n: draw(4, length, 4, 64, dtype=dtype).transpose(1, 2) for n in "qkv"}
    inputs["q"] = inputs["q"] / 8
    inputs["bias"] = draw(4, length, length, dtype=dtype)
    assert not disagreements(attend, reference.attend, inputs)


@needs_kernels
@pytest.mark.parametrize("workspace", [1, 1 << 30])
def test_the_workspace_of_the_way_back_does_not_change_the_result(
    workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmix.ops.kernels import attend as module

    monkeypatch.setattr(module, "WORKSPACE", workspace)
    inputs = {n: draw(3, 2, 20, 8, dtype=torch.float32) for n in "qkv"}
    assert not disagreements(attend, reference.attend, inputs | {"bias": torch.randn(2, 20, 20, device=DEVICE)})


@needs_kernels
@pytest.mark.parametrize("order", [lambda t: t, permuted], ids=["contiguous", "permuted"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_compiler_is_told_the_truth_about_attend(shared: bool, order: Any) -> None:
    import tokenmix.ops.kernels.attend  # noqa: F401  registers the operators

    q, v = draw(3, 2, 21, 8, dtype=torch.float32), draw(3, 2, 37, 16, dtype=torch.float32)
    k, bias = draw(1 if shared else 3, 2, 37, 8, dtype=torch.float32), draw(2, 21, 37, dtype=torch.float32)
    seed = torch.tensor([7, 1 << 31], device=DEVICE)
    terms = (*map(order, (q, k, v, bias, draw(2, 37, dtype=torch.float32), lengths(3, 37))), None, seed, False, 0.1)
    out, lse = torch.ops.tokenmix.attend(*terms)
    pairs = real_and_fake(torch.ops.tokenmix.attend, *terms)
    pairs += real_and_fake(
        torch.ops.tokenmix.attend_backward, order(torch.randn_like(out)), *terms, out, lse, [True, True]
    )  # fmt: skip
    assert len(pairs) == 7
    assert all(real == fake for real, fake in pairs), pairs
