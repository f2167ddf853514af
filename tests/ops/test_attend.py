"""attend against its reference: outputs and every gradient, on every path."""

import importlib
import itertools
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch

import tokenmix
from tokenmix.ops import attend, chunked, reference  # chunked: the module
from tokenmix.ops.dropout import kept, new_seed

module = importlib.import_module("tokenmix.ops.attend")
BATCH, HEADS, LENGTH, WIDTH, VALUES = 3, 4, 13, 8, 5


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def make_mask(kind):
    if kind == "padding":  # one row without padding, one with, one of nothing else
        return torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 5, 0])[:, None]
    return torch.rand(BATCH, LENGTH, LENGTH) > 0.5 if kind == "any" else None


def assert_same_with_gradients(fast, plain, leaves):
    out, expected = fast(), plain()
    weight = torch.randn_like(out)
    assert torch.allclose(out, expected, atol=1e-10)
    got = torch.autograd.grad((out * weight).sum(), leaves)
    want = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("path", ["held", "blocks"])
@pytest.mark.parametrize("mask", [None, "padding", "any"])
@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_equal_the_reference(monkeypatch, path, mask, causal):
    if path == "blocks":
        monkeypatch.setattr(module, "SMALL", 0)
        monkeypatch.setattr(chunked, "BLOCK", 70)
    for shared_q, shared_k, with_bias, with_key, with_tile in itertools.product([False, True], repeat=5):
        q = leaf(1 if shared_q else BATCH, HEADS, LENGTH, WIDTH)
        k = leaf(1 if shared_k else BATCH, HEADS, LENGTH, WIDTH)
        v = leaf(BATCH, HEADS, LENGTH, VALUES)
        options = dict(
            bias=leaf(HEADS, LENGTH, LENGTH) if with_bias else None,
            key_bias=leaf(HEADS, LENGTH) if with_key else None,
            tile=(leaf(BATCH, HEADS, LENGTH, 4), leaf(BATCH, HEADS, LENGTH, 4)) if with_tile else None,
            mask=make_mask(mask),
            causal=causal,
        )
        leaves = [t for t in (q, k, v, options["bias"], options["key_bias"], *(options["tile"] or ())) if t is not None]
        assert_same_with_gradients(
            partial(attend, q, k, v, **options),
            partial(reference.attend, q, k, v, **options),
            leaves,
        )


def test_fixed_bias_without_gradient_takes_the_fused_path(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "chunked", None)  # would fail if it were called
    q, k, v = leaf(BATCH, HEADS, LENGTH, WIDTH), leaf(BATCH, HEADS, LENGTH, WIDTH), leaf(BATCH, HEADS, LENGTH, VALUES)
    bias = torch.randn(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for mask, causal in itertools.product([None, "padding"], [False, True]):
        options = dict(bias=bias, mask=make_mask(mask), causal=causal)
        assert_same_with_gradients(
            partial(attend, q, k, v, **options),
            partial(reference.attend, q, k, v, **options),
            [q, k, v],
        )


def test_logits_from_the_bias_alone():
    bias, v = leaf(HEADS, 6, LENGTH), leaf(BATCH, HEADS, LENGTH, VALUES)
    assert_same_with_gradients(
        lambda: attend(None, None, v, bias=bias), lambda: reference.attend(None, None, v, bias=bias), [bias, v]
    )


def test_no_logits_is_an_error():
    v = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match="attend needs logits"):
        attend(None, None, v)
    with pytest.raises(ValueError, match="together"):
        attend(v, None, v)
    with pytest.raises(ValueError, match="mask must be"):
        attend(v, v, v, None, torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(v=(4, 6, 5)), r"v must be \[batch, heads, keys, width\]; got \[4, 6, 5\]"),
        (dict(q=(4, 7, 8)), r"q must be \[batch=2 or 1, heads=4, queries, width\]; got \[4, 7, 8\]"),
        (dict(q=(3, 4, 7, 8)), "q must be .*batch=2 or 1"),
        (dict(q=(2, 2, 7, 8)), "q must be .*heads=4"),
        (dict(k=(2, 4, 8)), "k must be"),
        (dict(k=(2, 4, 5, 8)), r"k must be \[batch=2 or 1, heads=4, keys=6, width=8\]; got \[2, 4, 5, 8\]"),
        (dict(k=(2, 4, 6, 9)), "k must be .*width=8"),
        (dict(bias=(7, 6)), r"bias must be \[heads=4, queries=7, keys=6\]; got \[7, 6\]"),
        (dict(bias=(4, 6, 7)), "bias must be .*queries=7, keys=6"),
        (dict(bias=(3, 4, 7, 6)), "bias must be .*batch=2 or 1"),
        (dict(q=None, k=None, bias=(6,)), "bias must be .*queries, keys=6"),
        (dict(key_bias=(6,)), r"key_bias must be \[heads=4, keys=6\]"),
        (dict(a=(2, 4, 6, 3), b=(2, 4, 7, 2)), "A of the tile must be .*queries=7, a"),
        (dict(a=(2, 4, 7, 3), b=(2, 4, 6, 2)), "B of the tile must be .*queries=7, b"),
        (dict(a=(2, 4, 7, 2), b=(2, 4, 7, 2)), "a=2 times b=2 does not cover 6 keys"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change, says):
    shapes = {**dict(q=(2, 4, 7, 8), k=(2, 4, 6, 8), v=(2, 4, 6, 5)), **change}
    given = {name: None if shape is None else torch.zeros(shape) for name, shape in shapes.items()}
    tile = (given.pop("a"), given.pop("b")) if "a" in given else None
    with pytest.raises(ValueError, match=says):
        attend(**given, tile=tile)


def test_arguments_stand_in_the_designs_order():
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    bias, mask = torch.randn(2, 5, 5), torch.ones(2, 5, dtype=torch.bool)
    by_name = attend(q, k, v, bias=bias, mask=mask, causal=True)
    assert torch.equal(attend(q, k, v, bias, mask, True), by_name)
    assert torch.allclose(reference.attend(q, k, v, bias, mask, True), by_name, atol=1e-6)


@pytest.mark.parametrize("queries", [3, 9])
def test_causal_padding_with_other_numbers_of_queries_and_keys(queries):
    q, k, v = leaf(2, 2, queries, 4), leaf(2, 2, 6, 4), leaf(2, 2, 6, 4)
    mask = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    assert torch.allclose(attend(q, k, v, None, mask, True), reference.attend(q, k, v, None, mask, True))


def test_softmax_rows_sum_to_one_or_zero():
    q, k = (torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(2))
    weights = reference.attention_weights(q, k, torch.Size([BATCH, HEADS, LENGTH, 1]), mask=make_mask("padding"))
    sums = weights.sum(-1)
    assert torch.allclose(sums[:2], torch.ones(2, HEADS, LENGTH))
    assert (sums[2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_stays_close(dtype):
    q, k, v = (torch.randn(2, 2, 32, 16, dtype=dtype) for _ in range(3))
    out = attend(q / 4, k, v, causal=True)
    expected = reference.attend(q.double() / 4, k.double(), v.double(), causal=True)
    assert out.dtype == dtype
    assert ((out.double() - expected).norm() / expected.norm()) < {torch.float32: 1e-6}.get(dtype, 1e-2)


def test_dropout_keeps_the_mean_and_drops():
    torch.manual_seed(0)
    v = torch.ones(64, 2, 16, 1)
    q = torch.zeros(64, 2, 16, 4)
    out = attend(q, q, v, dropout=0.5)
    assert out.std() > 0.05
    assert abs(out.mean() - 1) < 0.05


@pytest.mark.parametrize("small", [0, 1 << 22], ids=["blocks", "held"])
def test_dropout_follows_from_its_seed(monkeypatch, small: int):
    seed = torch.tensor([3, (1 << 32) - 5])
    monkeypatch.setattr(module, "SMALL", small)
    monkeypatch.setattr(chunked, "BLOCK", 200)
    monkeypatch.setattr(chunked, "new_seed", lambda device: seed)
    monkeypatch.setattr(module, "new_seed", lambda device: seed)
    q, k, v = (torch.randn(3, 2, 16, 4, dtype=torch.double, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 16, 16, dtype=torch.double, requires_grad=True)
    factor = kept(seed, v, slice(0, 3), slice(0, 16), 0.3)
    assert set(factor.flatten().tolist()) == {0.0, 1 / 0.7}
    want = (torch.softmax(q @ k.transpose(-1, -2) + bias, -1) * factor) @ v
    got = attend(q, k, v, bias=bias, dropout=0.3)
    assert torch.allclose(got, want)
    both = [torch.autograd.grad(out.square().sum(), [q, k, v, bias]) for out in (got, want)]
    assert all(torch.allclose(a, b) for a, b in zip(*both, strict=True))


def test_what_is_dropped_is_independent_of_the_cut():
    seed = new_seed(torch.device("cpu"))
    v = torch.empty(3, 2, 40, 1)
    whole = kept(seed, v, slice(0, 3), slice(0, 24), 0.25)
    part = kept(seed, v, slice(1, 3), slice(8, 20), 0.25)
    assert torch.equal(part, whole[1:, :, 8:20])
    assert not kept(seed, v, slice(0, 3), slice(0, 24), 1.0).any()
    drops = (kept(seed, torch.empty(8, 4, 128, 1), slice(0, 8), slice(0, 128), 0.25) == 0).double()
    assert abs(drops.mean() - 0.25) < 0.005
    for dimension in range(4):  # neighbours in every direction know nothing of each other
        n = drops.shape[dimension]
        together = (drops.narrow(dimension, 0, n - 1) * drops.narrow(dimension, 1, n - 1)).mean()
        assert abs(together - 0.0625) < 0.003


def test_dropout_in_blocks_draws_the_same_on_the_way_back(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(chunked, "BLOCK", 200)
    q, k, v = (torch.randn(2, 2, 16, 4, requires_grad=True) for _ in range(3))
    torch.manual_seed(3)
    out = attend(q, k, v, dropout=0.5)
    (gradient,) = torch.autograd.grad(out.sum(), v)
    # out is linear in v: its gradient at any other v is the same, and out = <gradient, v> summed over channels
    assert torch.allclose((gradient * v).sum(), out.sum(), atol=1e-4)


def test_blocks_compile_without_graph_breaks(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    q, k, v = (torch.randn(2, 2, 16, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 16, 16, requires_grad=True)
    compiled = torch.compile(lambda *a: attend(*a[:3], bias=a[3], causal=True), fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(q, k, v, bias).square().sum(), [q, k, v, bias])
    want = torch.autograd.grad(attend(q, k, v, bias=bias, causal=True).square().sum(), [q, k, v, bias])
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    dropped = torch.compile(lambda *a: attend(*a[:3], bias=a[3], dropout=0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(dropped(q, k, v, bias), dropped(q, k, v, bias))  # drawn anew, compiled once


PEAK = """
import resource, sys, torch
torch.set_num_threads(1)
from tokenmix.mixers import parse
expression, length, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layer = parse(expression).build(d_model=32, heads=2, max_length=length)
x = torch.randn(batch, length, 32, requires_grad=True)
mask = torch.ones(batch, length, dtype=torch.bool); mask[0, length // 2:] = False
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
layer(x, mask).square().sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    "expression",
    ["dense", "factorized_random", "dense + dot", "factorized_random + dot", "random + dot", "factorized_dense"],
)
def test_peak_memory_does_not_grow_with_length_squared_times_batch(expression):
    """Forward and backward with padding at length 2048: all scores of 16 more examples are 16·2·2048² floats = 537 MB."""

    def peak(batch):
        command = [sys.executable, "-c", textwrap.dedent(PEAK), expression, "2048", str(batch)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024

    small, large = peak(4), peak(20)
    assert large - small < 100, f"{small:.0f} MiB at batch 4, {large:.0f} MiB at batch 20"


@pytest.mark.parametrize("layer", ["dense + factorized_dense", "factorized_random + factorized_dense"])
def test_learned_keys_are_narrowed_with_the_queries(layer: str) -> None:
    """Under autocast, in blocks: what is learned is float32, what is computed bf16."""
    block = tokenmix.parse(f"{layer} | geglu").build(d_model=32, heads=8, max_length=640)
    with torch.autocast("cpu", torch.bfloat16):
        out = block(torch.randn(2, 640, 32).bfloat16())
    out.float().sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())
