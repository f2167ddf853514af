"""Attention's gradient of keys and values for Hopper GPUs: it compiles without one, and there it is right."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton.experimental.gluon")
from kernel_cases import DEVICE, on_hopper
from test_hopper_kernels import SHARED, block, compiled

from tokenmix.ops.kernels import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="Gluon has no interpreter")


@pytest.mark.parametrize(
    ("bias", "mask", "causal", "even", "ones"),
    [
        (True, False, False, (True, True), ()),
        (True, True, False, (True, True), ("smj",)),
        (False, False, False, (False, True), ()),
        (True, False, True, (False, False), ("heads", "key_tiles", "blocks")),
        (True, True, True, (False, False), ("smj",)),
        (False, False, False, (False, False), ()),
    ],
)
def test_it_compiles_for_hopper(
    bias: bool, mask: bool, causal: bool, even: tuple[bool, bool], ones: tuple[str, ...]
) -> None:
    from tokenmix.ops.kernels.attention_hopper import _attention_keys_hopper

    names = ("smb", "smj", "b_first", "tiles", "heads", "key_tiles", "blocks", "queries", "keys")
    numbers = [name for name in names if name not in ones]
    blocks = dict.fromkeys(("q", "k", "v", "bias", "do", "dk", "dv", "ds"), block(1, 64, 64))
    constants = {"BIAS": bias, "MASK": mask, "CAUSAL": causal, "EVEN_I": even[0], "EVEN_J": even[1]}
    constants |= {"SLOTS": 4, "PLACES": 3, "num_warps": 4}
    made = compiled(
        _attention_keys_hopper,
        {**blocks, "mask": "*i1", "lse": "*fp32", "delta": "*fp32", **dict.fromkeys(numbers, "i32")},
        {**constants, **dict.fromkeys(ones, 1)},  # Triton takes an argument of 1 as a constant
    )
    assert re.search(r"wgmma\.mma_async\S*m64n64k16", made.asm["ptx"])
    assert made.metadata.shared <= SHARED


def draw(batch: int, heads: int, length: int, dtype: torch.dtype, parts: int = 1, scale: float = 1.0) -> list[Tensor]:
    """[batch, heads, length, 64] views of one packed projection."""
    x = (torch.randn(batch, length, parts * heads * 64, device=DEVICE) * scale).to(dtype)
    return [t.unflatten(2, (heads, 64)).transpose(1, 2) for t in x.chunk(parts, 2)]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "first", "causal"),
    [
        (2, 3, 128, 128, 0, False),
        (20, 4, 512, 384, 0, False),
        (4, 1, 64, 640, 1, False),
        (3, 2, 114, 512, 0, False),
        (3, 5, 100, 300, 1, False),
        (5, 3, 114, 114, 0, True),
        (2, 2, 37, 37, 0, True),
        (2, 3, 384, 384, 0, True),
    ],
)
def test_it_is_right(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    first: int,
    causal: bool,
    masked: bool,
    bias: bool,
    dtype: torch.dtype,
) -> None:
    from tokenmix.ops.kernels.attend import _apart, rows_first
    from tokenmix.ops.kernels.attention_hopper import fits_keys_hopper, launch_keys_hopper

    (q,), (k, v) = draw(batch, heads, queries, dtype, 1, 0.5), draw(batch, heads, keys, dtype, 2, 0.5)
    (do,) = draw(batch, heads, queries, dtype)
    added = _apart(q, (heads, queries, keys)).normal_() if bias else None
    mask = torch.rand(batch, keys, device=DEVICE) < 0.7 if masked else None
    if mask is not None:
        mask[-1] = False
    wide_q, wide_k, wide_v, wide_do = (t.double() for t in (q, k, v, do))
    logits = wide_k @ wide_q.mT  # [keys, queries]
    if added is not None:
        logits += added.double().mT
    if mask is not None:
        logits.masked_fill_(~mask[:, None, :, None], -math.inf)
    if causal:
        logits.masked_fill_(torch.ones(keys, queries, dtype=torch.bool, device=DEVICE).tril(-1), -math.inf)
    lse = logits.logsumexp(2)
    p = (logits - lse[:, :, None]).exp().nan_to_num(0)
    delta = ((p.mT @ wide_v) * wide_do).sum(-1).float()
    ds = p * (wide_v @ wide_do.mT - delta[:, :, None])
    right = [t[first:] for t in (ds @ wide_q, p @ wide_do, ds)]
    lse = (lse / math.log(2)).where(lse > -math.inf, math.inf).float()  # of a query that sees nothing

    assert fits_keys_hopper(q, k, v, added, None, mask, None, None, do)
    dk, dv, ds = rows_first(k), rows_first(v), _apart(v, (batch - first, heads, keys, queries))
    for t in (dk, dv, ds):
        t.fill_(math.nan)
    launch_keys_hopper(q, k, v, added, mask, causal, do, lse, delta, dk, dv, ds, first, batch - first)
    for made, want in zip((dk[first:], dv[first:], ds), right, strict=True):
        error = (made.double() - want).flatten(1).norm(dim=1)
        assert (error <= 1e-2 * want.flatten(1).norm(dim=1)).all()
    assert dk[:first].isnan().all()
    assert dv[:first].isnan().all()


def test_which_tensors_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What projections make, and nothing that the copy engine would read wrongly."""
    from tokenmix.ops.kernels import mix, tune
    from tokenmix.ops.kernels.attention_hopper import fits_keys_hopper

    monkeypatch.setattr(tune, "gluon", lambda: True)
    monkeypatch.setattr(mix, "has_tma", lambda: True)

    def fits(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, **other: Tensor | None) -> bool:
        rest = {"key_bias": None, "mask": None, "lengths": None, "seed": None, "do": q}
        return fits_keys_hopper(q, k, v, bias, **{**rest, **other})

    (q,), (k, v) = draw(2, 3, 100, torch.bfloat16), draw(2, 3, 300, torch.bfloat16, 2)
    bias = q.new_zeros(3, 100, 304)[..., :300]
    mask = torch.ones(2, 300, dtype=torch.bool)
    assert fits(q, k, v, bias, mask=mask)
    assert not fits(q, k, v, bias.contiguous())  # rows of 300 numbers: not multiples of 16 bytes
    assert not fits(q, k, v, bias.float())
    assert not fits(q, k, v, mask=mask[:, None])
    assert not fits(q, k.contiguous(), v)  # a head's keys together, not a position's heads
    assert not fits(q, k, v, do=q.contiguous())
    assert not fits(q[:1], k, v)  # learned, shared by the batch
    assert not fits(q, k[..., :32], v)
    assert not fits(*(t.float() for t in (q, k, v)))
    assert not any(fits(q, k, v, **{name: torch.ones(2)}) for name in ("key_bias", "lengths", "seed"))
    monkeypatch.setattr(tune, "gluon", lambda: False)
    assert not fits(q, k, v)
