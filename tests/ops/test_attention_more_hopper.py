"""Attention's forward kernel for Hopper GPUs and the one for dq and the bias compile, and compute what they should."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")
import triton
from kernel_cases import DEVICE, disagreements, on_hopper
from test_hopper_kernels import HOPPER, SHARED, block, compiled
from torch import Tensor
from triton.compiler import ASTSource

from tokenmix.ops import attend, reference
from tokenmix.ops.kernels import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="Gluon has no interpreter")


@pytest.mark.parametrize(
    ("sums", "blocks", "ones"), [(True, 4, ()), (True, 1, ("first", "count", "heads")), (False, 4, ())]
)
def test_the_gradient_of_queries_compiles_for_hopper(sums: bool, blocks: int, ones: tuple[str, ...]) -> None:
    """ones: arguments of 1, which Triton takes as constants."""
    from tokenmix.ops.kernels.attention_queries_hopper import _queries_hopper

    integers = dict.fromkeys({"pairs", "heads", "first", "count", "share", "queries"} - set(ones), "i32")
    types = {"ds": block(1, 128, 64), "k": block(1, 128, 64), "dq": block(1, 64, 64), "parts": "*fp32", **integers}
    constants = {"SUMS": sums, "BLOCKS": blocks, "SLOTS": 6, "num_warps": 4, **dict.fromkeys(ones, 1)}
    made = compiled(_queries_hopper, types, constants)
    assert "wgmma.mma_async.sync.aligned.m64n64k16" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize("constants", [{}, {"count": 1}, {"share": 1}])
def test_the_sum_of_the_parts_compiles(constants: dict[str, int]) -> None:
    from tokenmix.ops.kernels.attention_queries_hopper import _total

    types = {"parts": "*fp32", "sums": "*fp32"}
    types |= {name: "constexpr" if name in constants else "i32" for name in ("count", "share", "size")}
    constants = {**constants, "BLOCK": 2048}
    values = {(_total.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=_total, signature={**types, "BLOCK": "constexpr"}, constexprs=values)
    assert "st.global" in triton.compile(source, target=HOPPER).asm["ptx"]


@pytest.mark.parametrize(
    ("terms", "even", "blocks", "slots", "ones"),
    [
        ("bias", (True, True), 4, 2, ()),
        ("bias mask", (True, True), 4, 2, ("smj",)),
        ("bias mask", (True, True), 3, 3, ("smj",)),
        ("", (True, True), 4, 3, ()),
        ("bias", (True, True), 1, 2, ("pairs", "share", "batch", "heads")),
        ("", (False, True), 4, 3, ()),
        ("bias causal", (False, False), 1, 2, ()),
        ("bias mask causal", (False, False), 3, 3, ("smj",)),
        ("mask", (False, False), 2, 3, ("smj",)),
        ("", (False, False), 1, 3, ("queries",)),
    ],
)
def test_attention_compiles_for_hopper(
    terms: str, even: tuple[bool, bool], blocks: int, slots: int, ones: tuple[str, ...]
) -> None:
    from tokenmix.ops.kernels.attention_forward_hopper import _forward_hopper

    bias = "bias" in terms
    integers = dict.fromkeys({"pairs", "share", "batch", "heads", "queries", "keys", "smb", "smj"} - set(ones), "i32")
    tiles = dict.fromkeys(("q", "out"), block(1, 64, 64)) | dict.fromkeys(("k", "v"), block(1, 128, 64))
    types = {**tiles, "bias": block(64, 128) if bias else tiles["q"], "mask": "*i1", "lse": "*fp32", **integers}
    constants: dict[str, Any] = {name.upper(): name in terms for name in ("bias", "mask", "causal")}
    constants |= {"EVEN_I": even[0], "EVEN_J": even[1], "BLOCKS": blocks, "SLOTS": slots, "num_warps": 4}
    made = compiled(_forward_hopper, types, {**constants, **dict.fromkeys(ones, 1)})
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


def side_by_side(batch: int, heads: int, length: int, dtype: torch.dtype, packed: bool = False) -> Tensor:
    """[batch, heads, length, 64] as projections make it: random, perhaps a slice of three that lie side by side."""
    t = torch.randn(batch, length, (3 if packed else 1) * heads * 64, device=DEVICE, dtype=dtype)
    return t[..., -heads * 64 :].unflatten(-1, (heads, 64)).transpose(1, 2)


def poisoned(like: Tensor) -> Tensor:
    return torch.full_like(like.transpose(1, 2).contiguous(), float("nan")).transpose(1, 2)


def differ(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


SOME = [  # batch, heads, keys, queries, from the first of how many examples
    (2, 3, 128, 128, 0, 2),
    (4, 2, 256, 384, 1, 2),
    (40, 12, 512, 512, 1, 39),
    (3, 5, 512, 114, 0, 3),
    (70, 3, 114, 114, 2, 68),
    (4, 2, 300, 37, 0, 3),
]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SOME)
def test_the_gradient_of_queries_and_the_sum_of_the_batch(
    sizes: tuple[int, int, int, int, int, int], dtype: torch.dtype, wanted: bool
) -> None:
    """Of some of the examples: the others, and what is left in the workspace, have no part in it."""
    from tokenmix.ops.kernels.attend import _apart
    from tokenmix.ops.kernels.attention_queries_hopper import fits_queries_hopper, launch_queries_hopper

    batch, heads, keys, queries, first, count = sizes
    whole = _apart(torch.empty(0, device=DEVICE, dtype=dtype), (count + 1, heads, keys, -(-queries // 8) * 8))
    ds = whole.fill_(float("nan"))[..., :queries]
    ds[:count].normal_()
    k = side_by_side(batch, heads, keys, dtype, packed=True)
    dq = poisoned(side_by_side(batch, heads, queries, dtype))
    assert fits_queries_hopper(ds, k, dq)
    sums = launch_queries_hopper(ds, k, dq, first, count, wanted)
    inside = slice(first, first + count)
    assert differ(dq[inside], ds[:count].double().transpose(2, 3) @ k[inside].double()) < 5e-3
    assert dq[:first].isnan().all()
    assert dq[first + count :].isnan().all()
    assert (sums is not None) == wanted
    if sums is not None:
        assert differ(sums, ds[:count].double().sum(0)) < 1e-5


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("biased", "masked"), [(True, False), (True, True), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("sizes", "causal"),
    [
        ((2, 3, 128, 128), False),
        ((4, 2, 384, 256), False),
        ((5, 3, 256, 384), False),
        ((40, 12, 512, 512), False),
        ((70, 7, 128, 128), False),
        ((3, 2, 114, 512), False),
        ((5, 3, 100, 300), False),
        ((70, 7, 114, 114), True),
        ((2, 2, 37, 37), True),
        ((5, 3, 512, 512), True),
        ((3, 2, 200, 100), True),
    ],
)
def test_attention_on_the_kernel_for_hopper(
    sizes: tuple[int, int, int, int], causal: bool, dtype: torch.dtype, biased: bool, masked: bool
) -> None:
    """Less than a team's share, several heads in one, and an example that sees nothing."""
    from tokenmix.ops.kernels.attention_forward_hopper import fits_forward_hopper, launch_forward_hopper

    batch, heads, queries, keys = sizes
    q = side_by_side(batch, heads, queries, dtype) * 0.25
    k, v = (side_by_side(batch, heads, keys, dtype, packed=True) for _ in range(2))
    bias = torch.randn(heads, queries, keys, device=DEVICE, dtype=dtype) if biased else None
    mask = torch.rand(batch, keys, device=DEVICE) < 0.7 if masked else None
    s: Any = q.double() @ k.double().transpose(2, 3)
    if bias is not None:
        s = s + bias.double()
    if mask is not None:
        mask[-1] = False
        s = s.masked_fill(~mask[:, None, None], -math.inf)
    if causal:
        s = s.masked_fill(torch.ones(queries, keys, dtype=torch.bool, device=DEVICE).triu(1), -math.inf)
    right = s.logsumexp(-1) / math.log(2)
    right = right.masked_fill(right == -math.inf, math.inf)
    out, lse = poisoned(q), torch.full((batch, heads, queries), float("nan"), device=DEVICE)
    assert fits_forward_hopper(q, k, v, bias, mask, out, lse)
    launch_forward_hopper(q, k, v, bias, mask, out, lse, causal)
    assert differ(out, s.softmax(-1).nan_to_num(0) @ v.double()) < 6e-3
    torch.testing.assert_close(lse.double(), right, atol=2e-3, rtol=0)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("workspace", [1, 1 << 30])
@pytest.mark.parametrize(
    ("sizes", "terms"),
    [
        ((3, 2, 114, 512), ""),
        ((3, 2, 114, 512), "mask"),
        ((3, 4, 114, 114), "bias causal"),
        ((2, 3, 100, 300), "bias mask"),
        ((2, 2, 37, 37), "bias mask causal"),
    ],
)
def test_attention_of_any_lengths_runs_on_the_kernels_for_hopper(
    sizes: tuple[int, int, int, int], terms: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradients of the whole operator; attention from fewer queries to more keys comes here in training."""
    from tokenmix.ops.kernels import attend as module
    from tokenmix.ops.kernels import attention

    monkeypatch.setenv("TOKENMIX_AUTOTUNE", "0")
    monkeypatch.setattr(module, "WORKSPACE", workspace)
    for name in ("attention_forward", "attention_backward_keys", "attention_backward_queries"):
        monkeypatch.setattr(attention, name, None)  # would fail if it were called
    batch, heads, queries, keys = sizes
    inputs = {"q": side_by_side(batch, heads, queries, torch.bfloat16) / 4}
    inputs |= {name: side_by_side(batch, heads, keys, torch.bfloat16) for name in "kv"}
    if "bias" in terms:
        inputs["bias"] = torch.randn(heads, queries, keys, device=DEVICE, dtype=torch.bfloat16)
    mask = torch.rand(batch, keys, device=DEVICE) < 0.7 if "mask" in terms else None
    if mask is not None:
        mask[-1] = False

    def mixed(function: Callable[..., Tensor], **given: Tensor) -> Tensor:
        """As an output projection takes it, whose gradient lies in memory like the output."""
        return function(**given, mask=mask, causal="causal" in terms).transpose(1, 2).flatten(-2)

    assert not disagreements(*(partial(mixed, function) for function in (attend, reference.attend)), inputs)
