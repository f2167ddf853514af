"""`attend` with a bias as one custom operator on the kernels of `attention`, forward and backward.

`torch.ops.tokenmix.attend(q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout)` gives the output and the
logarithm of each row's sum. q and k may have a batch of 1 (learned, shared), their width may differ from v's. Outputs and
gradients lie in memory as [batch, length, heads, width], so that projections before and after need no copies. On Hopper GPUs
the common case, heads of 64 and up to 512 keys, has kernels of its own in the three `attention_…hopper` modules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from tokenmix.ops.dropout import new_seed
from tokenmix.ops.kernels import INTERPRETING, attention
from tokenmix.ops.kernels.mix import describe, tma_ready
from tokenmix.ops.kernels.tune import Config, choose, gluon, precision
from tokenmix.ops.once import once

WORKSPACE = 1 << 30  # bytes of dS that exist at once on the way back


def _config(BI: int, BJ: int, warps: int, stages: int) -> Config:
    return {"BI": BI, "BJ": BJ, "num_warps": warps, "num_stages": stages}


HOPPER: Config = {"gluon": True}  #: the kernels written in Gluon
FORWARD = [_config(128, 64, 8, 3), _config(64, 64, 4, 3), _config(128, 64, 8, 4), _config(128, 32, 8, 4)]
KEYS = [_config(32, 64, 4, 3), _config(64, 64, 4, 2), _config(32, 64, 4, 4), _config(32, 128, 8, 3)]
QUERIES = [_config(128, 64, 4, 3), _config(64, 64, 4, 3), _config(128, 64, 8, 4), _config(128, 128, 8, 2)]
SINGLE = [_config(32, 32, 4, 2), _config(64, 32, 4, 2)]
SMALL = [_config(16, 16, 1, 1)]


def _pick(configs: list[Config], t: Tensor, queries: int, hopper: bool) -> list[Config]:
    """Candidates, the likeliest first: the best for 512 queries, or one of small blocks where there are fewer."""
    if INTERPRETING or t.dtype == torch.float32:
        return SMALL if INTERPRETING else SINGLE
    blocks = configs if queries > 256 else sorted(configs, key=lambda c: c["BI"])
    return [HOPPER, *blocks] if hopper else blocks


def _terms(
    bias: Tensor | None,
    key_bias: Tensor | None,
    mask_kind: int,
    lengths: Tensor | None,
    seed: Tensor | None,
    causal: bool,
) -> tuple[Any, ...]:
    """What a measured choice of configuration depends on, besides sizes."""
    more = [name for name, t in (("drops", seed), ("lengths", lengths)) if t is not None]
    return (bias is not None, key_bias is not None, mask_kind, causal, *more)


def _power(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


def _strides(t: Tensor) -> tuple[int, int, int]:
    """(batch, heads, length); a batch of 1 is shared by all."""
    return (t.stride(0) if t.shape[0] > 1 else 0, t.stride(1), t.stride(2))


def rows_first(t: Tensor, shape: tuple[int, ...] | torch.Size | None = None) -> Tensor:
    """An empty [batch, heads, length, width] that lies in memory as [batch, length, heads, width]."""
    b, h, n, d = shape if shape is not None else t.shape
    return t.new_empty(b, n, h, d).transpose(1, 2)


def turned_like(t: Tensor) -> Tensor:
    """An empty [heads, queries, keys] that lies in memory as [heads, keys, queries]."""
    heads, queries, keys = t.shape
    return t.new_empty(heads, keys, queries).transpose(1, 2)


def _dense(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _mask_of(mask: Tensor | None, like: Tensor) -> tuple[Tensor, tuple[int, int, int], int]:
    if mask is None:
        return like, (0, 0, 0), 0
    if mask.dim() == 2:
        return mask, (mask.stride(0), 0, mask.stride(1)), 1
    return mask, (mask.stride(0), mask.stride(1), mask.stride(2)), 2


@torch.library.custom_op("tokenmix::attend", mutates_args=())
def attend_op(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_bias: Tensor | None, mask: Tensor | None,
    lengths: Tensor | None, seed: Tensor | None, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(o [batch, heads, queries, value width], log₂ of each row's sum [batch, heads, queries])."""
    q, k, v = map(_dense, (q, k, v))
    batch, heads, keys, value_width = v.shape
    queries, width = q.shape[2:]
    out = rows_first(v, (batch, heads, queries, value_width))
    lse = v.new_empty(batch, heads, queries, dtype=torch.float32)
    mask_, mask_strides, mask_kind = _mask_of(mask, v)
    key_ = key_bias.contiguous() if key_bias is not None else v
    tma = bias is not None and tma_ready(bias)
    hopper = gluon() and key_bias is None and lengths is None and seed is None
    if hopper:
        from tokenmix.ops.kernels.attention_forward_hopper import fits_forward_hopper, launch_forward_hopper

        hopper = fits_forward_hopper(q, k, v, bias, mask, out, lse)

    def launch(c: Config) -> tuple[Tensor, ...]:
        if c == HOPPER:
            launch_forward_hopper(q, k, v, bias, mask, out, lse, causal)
            return (out,)
        bias_ = v if bias is None else describe(bias, c["BI"], c["BJ"]) if tma else bias
        attention.attention_forward[(triton.cdiv(queries, c["BI"]), batch * heads)](
            q, k, v, bias_, key_, mask_, *(v if t is None else t for t in (lengths, seed)), dropout, out, lse,
            *_strides(q), *_strides(k), *_strides(v), *(bias.stride() if bias is not None else (0, 0, 0)),
            *mask_strides, *_strides(out), heads, queries, keys, width, value_width,
            BIAS=bias is not None, KEY_BIAS=key_bias is not None, MASK=mask_kind, CAUSAL=causal,
            LENGTHS=lengths is not None, DROPS=seed is not None, PRECISION=precision(v.dtype),
            EVEN_I=queries % c["BI"] == 0, EVEN_J=keys % c["BJ"] == 0, DQ=_power(width), DV=_power(value_width),
            TMA=tma, STAGES=c["num_stages"], **c,
        )  # fmt: skip
        return (out,)

    terms = _terms(bias, key_bias, mask_kind, lengths, seed, causal)
    key = (v.dtype, batch, heads, queries, keys, width, value_width, hopper, *terms)
    launch(choose("attend", key, _pick(FORWARD, v, queries, hopper), launch))
    return out, lse


@attend_op.register_fake
def _(q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout):
    batch, heads, _, value_width = v.shape
    out = rows_first(v, (batch, heads, q.shape[2], value_width))
    return out, v.new_empty(batch, heads, q.shape[2], dtype=torch.float32)


@torch.library.custom_op("tokenmix::attend_backward", mutates_args=())
def attend_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    dropout: float,
    out: Tensor,
    lse: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, bias, key_bias; the last two empty where `needs` says that nobody asks.

    The bias's lies in memory as [heads, keys, queries].
    """
    dq, dk = (rows_first(t, (v.shape[0], *t.shape[1:])) for t in (q, k))
    dv = rows_first(v)
    given = (q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout)
    dbias, dkey = gradients(g, *given, out, lse, needs, dq, dk, dv)
    return _shared(dq, q), _shared(dk, k), dv, dbias, dkey


def gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_bias: Tensor | None, mask: Tensor | None,
    lengths: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, out: Tensor, lse: Tensor,
    needs: list[bool], dq: Tensor, dk: Tensor, dv: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill dq, dk and dv [batch, heads, length, width]; the gradients of bias and key_bias, empty where not needed."""
    g, q, k, v = map(_dense, (g, q, k, v))
    batch, heads, keys, value_width = v.shape
    queries = q.shape[2]
    need_bias, need_key_bias = needs
    delta = torch.empty_like(lse)
    attention.attention_delta[(triton.cdiv(queries, 64), batch * heads)](
        out, g, delta, *_strides(out), *_strides(g), heads, queries, value_width, BI=64, DV=_power(value_width)
    )
    examples = max(1, min(batch, WORKSPACE // (heads * queries * keys * v.element_size())))
    ds = _apart(v, (examples, heads, keys, queries))
    sums = None
    for first in range(0, batch, examples):
        count = min(examples, batch - first)
        _keys_pass(
            q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout, g, lse, delta, dk, dv, ds, first, count
        )
        part = _queries_pass(ds, k, dq, lengths, causal, first, count, need_bias or need_key_bias)
        sums = part if sums is None else sums + part if part is not None else None
    dbias, dkey = v.new_empty(0), v.new_empty(0)
    if need_bias and bias is not None and sums is not None:
        dbias = sums.to(bias.dtype).contiguous().transpose(1, 2)
    if need_key_bias and key_bias is not None and sums is not None:
        dkey = sums.sum(2).to(key_bias.dtype)
    return dbias, dkey


def _apart(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor whose rows lie a multiple of 8 numbers apart, as the bulk copy engine wants 16-bit types."""
    *outer, length = shape
    return like.new_empty(*outer, triton.cdiv(length, 8) * 8)[..., :length]


def _shared(grad: Tensor, t: Tensor) -> Tensor:
    """The gradient of a tensor that the batch shares is a sum."""
    if t.shape[0] == grad.shape[0]:
        return grad
    return grad.sum(0, keepdim=True, dtype=torch.float32).to(grad.dtype).contiguous()


def _keys_pass(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_bias: Tensor | None, mask: Tensor | None,
    lengths: Tensor | None, seed: Tensor | None, causal: bool, dropout: float, g: Tensor, lse: Tensor, delta: Tensor,
    dk: Tensor, dv: Tensor, ds: Tensor, first: int, count: int,
) -> None:  # fmt: skip
    heads, keys, value_width = v.shape[1:]
    queries, width = q.shape[2:]
    mask_, mask_strides, mask_kind = _mask_of(mask, v)
    key_ = key_bias.contiguous() if key_bias is not None else v
    flat = ds.flatten(0, 1)
    hopper = gluon()
    if hopper:
        from tokenmix.ops.kernels.attention_hopper import fits_keys_hopper, launch_keys_hopper

        even = bias if bias is None or tma_ready(bias) else _apart(bias, bias.shape).copy_(bias)
        hopper = fits_keys_hopper(q, k, v, even, key_bias, mask, lengths, seed, g)

    @cache
    def turned() -> Tensor | None:
        return None if bias is None else _apart(bias, (heads, keys, queries)).copy_(bias.transpose(1, 2))

    filled = (dk[first : first + count], dv[first : first + count], ds[:count])

    def launch(c: Config) -> tuple[Tensor, ...]:
        if c == HOPPER:
            launch_keys_hopper(q, k, v, even, mask, causal, g, lse, delta, dk, dv, ds, first, count)
            return filled
        added = turned()
        tma = tma_ready(flat) and (added is None or tma_ready(added))
        bias_ = v if added is None else describe(added, c["BJ"], c["BI"]) if tma else added
        attention.attention_backward_keys[(triton.cdiv(keys, c["BJ"]), count * heads)](
            q, k, v, bias_, key_, mask_, *(v if t is None else t for t in (lengths, seed)), dropout, g, lse, delta, dk, dv,
            describe(flat, c["BJ"], c["BI"]) if tma else ds,
            *_strides(q), *_strides(k), *_strides(v), *((0, 0, 0) if added is None else added.stride()),
            *mask_strides, *_strides(g), *_strides(dk), *_strides(dv), ds.stride(2), first, heads, queries, keys, width,
            value_width, BIAS=bias is not None, KEY_BIAS=key_bias is not None, MASK=mask_kind, CAUSAL=causal,
            LENGTHS=lengths is not None, DROPS=seed is not None, PRECISION=precision(v.dtype),
            EVEN_I=queries % c["BI"] == 0, EVEN_J=keys % c["BJ"] == 0, DQ=_power(width), DV=_power(value_width),
            TMA=tma, STAGES=c["num_stages"], **c,
        )  # fmt: skip
        return filled

    terms = _terms(bias, key_bias, mask_kind, lengths, seed, causal)
    key = (v.dtype, count, heads, queries, keys, width, value_width, hopper, *terms)
    launch(choose("attend_keys", key, _pick(KEYS, v, queries, hopper), launch))


def _queries_pass(
    ds: Tensor, k: Tensor, dq: Tensor, lengths: Tensor | None, causal: bool, first: int, count: int, wanted: bool
) -> Tensor | None:
    """Fills dq of `count` examples; returns Σ dSᵀ over them, [heads, keys, queries] in float32, if `wanted`."""
    heads, keys, width = k.shape[1:]
    queries = dq.shape[2]
    hopper = gluon() and lengths is None
    if hopper:
        from tokenmix.ops.kernels.attention_queries_hopper import fits_queries_hopper, launch_queries_hopper

        hopper = fits_queries_hopper(ds, k, dq)

    def launch(c: Config) -> tuple[Tensor, Tensor | None]:
        if c == HOPPER:
            return dq[first : first + count], launch_queries_hopper(ds, k, dq, first, count, wanted)
        attention.attention_backward_queries[(triton.cdiv(queries, c["BI"]), heads * count)](
            ds, k, dq, k if lengths is None else lengths, ds.stride(2), *_strides(k), *_strides(dq), first, heads, queries,
            keys, width, CAUSAL=causal, LENGTHS=lengths is not None, PRECISION=precision(ds.dtype),
            EVEN_I=queries % c["BI"] == 0, EVEN_J=keys % c["BJ"] == 0, DQ=_power(width), **c,
        )  # fmt: skip
        return dq[first : first + count], ds[:count].sum(0, dtype=torch.float32) if wanted else None

    key = (ds.dtype, count, heads, queries, keys, width, causal, wanted, hopper, lengths is not None)
    return launch(choose("attend_queries", key, _pick(QUERIES, ds, queries, hopper), launch))[1]


@attend_backward.register_fake
def _(g, q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout, out, lse, needs):
    dbias = turned_like(bias) if needs[0] else v.new_empty(0)
    dkey = v.new_empty(key_bias.shape, dtype=key_bias.dtype) if needs[1] else v.new_empty(0)
    dq, dk = (rows_first(t) if t.shape[0] == v.shape[0] else t.new_empty(t.shape) for t in (q, k))
    return dq, dk, rows_first(v), dbias, dkey


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, g: Tensor | None, _: Tensor | None, back: Any = attend_backward) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 10
    *terms, out, lse = ctx.saved_tensors
    asked = ctx.needs_input_grad
    needs = [asked[3], asked[4]]
    grads = back(g, *terms, ctx.causal, ctx.dropout, out, lse, needs)
    return *(t if need else None for t, need in zip(grads, asked[:5], strict=True)), *(None,) * 5


attend_op.register_autograd(_backward, setup_context=_setup)
once(attend_backward)


def fused_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """See :func:`tokenmix.ops.attend`; a query that sees nothing gives 0, with gradient 0."""
    q, k = q.to(v.dtype), k.to(v.dtype)
    bias = bias if bias is None else bias.to(v.dtype)  # half the bytes; its gradient is summed in float32
    if mask is not None:
        mask = mask.bool().expand(v.shape[0], *mask.shape[1:])
    seed = new_seed(v.device) if dropout else None
    if torch.compiler.is_compiling():
        return torch.ops.tokenmix.attend(q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout)[0]
    return _Eager.apply(q, k, v, bias, key_bias, mask, lengths, seed, causal, dropout)


class _Eager(torch.autograd.Function):
    """The same operator without the dispatcher's way around Python, which costs as much as small kernels run."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = attend_op._init_fn(*inputs)
        _setup(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        # the dispatcher keeps a record, for those who ask for gradients of gradients and are to hear that there are none
        return _backward(ctx, g, None, attend_backward if torch.is_grad_enabled() else attend_backward._init_fn)
