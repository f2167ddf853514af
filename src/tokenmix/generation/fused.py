"""Sublayers as a decoding step runs them: rows [rows, d_model] in and out, norm and residual inside.

The pieces a Transformer decoder is made of (self-attention, cross-attention and the gated feed-forward network, behind an
RMS norm and without biases) have a form of their own, of few and large operations. Every other sublayer runs through its
own module. On a GPU weights that read the same input are packed side by side, the norm's gain folded in; the copy is made
anew for every call of `generate`, so that it is never out of date.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from tokenmix.mixers.attention import Attention
from tokenmix.mixers.channel import _Geglu
from tokenmix.mixers.relative import RelativeBias
from tokenmix.mixers.residual import Residual
from tokenmix.models.cache import MixingCache
from tokenmix.ops.kernels import INSTALLED, usable

if INSTALLED:
    from tokenmix.generation import kernels

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
MANY = 8  # rows from which on it pays to bring a weight into oneDNN's own layout once for all steps
LARGE = 1 << 22  # numbers in a weight from which on oneDNN is worth its longer call for a single row too


class Step:
    """What is known to every sublayer of one decoding step."""

    def __init__(self, cache: MixingCache, ended: Tensor, rows: int) -> None:
        self.cache = cache
        self.rows = rows  #: how many there are at first
        self.ended = ended  #: [examples] whose rows need no work any more
        self.even = True  #: all rows stand at the same position, which the host knows
        self.memory: Tensor | None = None  #: [examples, length, d_model] the encoder's states
        self.memory_mask: Tensor | None = None
        self.memory_lengths: Tensor | None = None  #: [examples]
        self.bias: Tensor | None = None  #: the position bias that all layers share, for sublayers that ask for it
        self.squares: Tensor | None = None  #: Σ x² of the rows by parts, where the kernel that made x gave it


class Projection:
    """Linear maps of one input side by side, after the input's RMS norm where there is one."""

    def __init__(self, maps: Sequence[nn.Linear], norm: Any = None, *, gate: bool = False) -> None:
        self.maps, self.norm, self.gate = maps, norm, gate
        self.eps = None if norm is None else float(norm.eps)
        self.packed: Tensor | None = None  #: for our kernels: all maps in one, the norm's gain folded in
        self.weights: list[Tensor] = []  #: elsewhere: one each
        self.onednn = False  #: multiply by oneDNN

    def load(self, rows: int) -> None:
        """Make ready the weights as they are now, for steps of so many rows."""
        weight = self.maps[0].weight
        if not usable(weight):
            self.weights = [m.weight for m in self.maps]
            exact = ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32
            self.onednn = exact and (rows > 1 or weight.numel() >= LARGE)
            if exact and rows >= MANY:
                with torch.inference_mode(False), torch.no_grad():
                    self.weights = [torch.ops.mkldnn._reorder_linear_weight(w.detach(), rows) for w in self.weights]
            return
        if self.norm is None and len(self.maps) == 1:  # nothing to pack
            self.packed = weight
            return
        if self.packed is None:
            outputs = sum(m.out_features for m in self.maps)
            self.packed = torch.empty(outputs, weight.shape[1], dtype=weight.dtype, device=weight.device)
        together = torch.cat([m.weight for m in self.maps])
        self.packed.copy_(together if self.norm is None else together * self.norm.weight.float())

    def __call__(self, x: Tensor, step: Step, residual: Tensor | None = None) -> Tensor:
        """x [rows, inputs] → [rows, outputs], added to `residual`."""
        if self.packed is not None:
            known = None
            if self.eps is not None:
                known = kernels.squares(x) if step.squares is None else step.squares
            y, sums = kernels.linear(
                x, self.packed, squares=known, eps=self.eps or 0.0, gate=self.gate, residual=residual
            )
            step.squares = sums if residual is not None else step.squares
            return y
        x = x if self.norm is None else rms_norm(x, self.norm.weight, self.norm.eps)
        if self.onednn:  # faster than the product that `linear` takes, by a tenth to a factor of two
            outs = [torch.ops.mkldnn._linear_pointwise.default(x, w, None, "none", [], "") for w in self.weights]
        else:
            outs = [linear(x, w) for w in self.weights]
        y = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
        if self.gate:
            y = gelu(outs[0], approximate="tanh").mul_(outs[1])
        return y if residual is None else y.add_(residual)


def rms_norm(x: Tensor, gain: Tensor, eps: float | None) -> Tensor:
    """x / √(mean x² + ε) ⊙ gain."""
    if usable(x):
        return kernels.rms_norm(x, gain, torch.finfo(x.dtype).eps if eps is None else eps)
    return torch.nn.functional.rms_norm(x, gain.shape, gain, eps)


class SelfAttention:
    """softmax(q·kᵀ + bias by distance)·v over the rows' own past."""

    def __init__(self, residual: Residual, name: str, relative: RelativeBias | None) -> None:
        mixer: Any = residual.mixer
        dot = mixer.terms[0]
        self.name, self.heads, self.relative = name, mixer.site.heads, relative
        self.scale = mixer.site.head_dim**-0.5 if mixer.site.scale else 1.0
        self.inward = Projection([dot.query, dot.key, mixer.value], residual.norm)
        self.outward = Projection([mixer.out])
        self.bias: Tensor | None = None

    def load(self, step: Step) -> None:
        """Weights, and the bias of every distance [heads, capacity]."""
        self.inward.load(step.rows)
        self.outward.load(step.rows)
        if self.relative is not None:
            bias = self.relative.by_distance(step.cache.capacity)
            if self.bias is None:
                self.bias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
            self.bias.copy_(bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        slot = step.cache.slot(self.name)
        qkv = self.inward(x, step)
        width = qkv.shape[-1] // 3
        for key in ("0.key", "value"):
            if key not in slot.tensors:
                slot.tensors[key] = qkv.new_zeros(x.shape[0], slot.capacity, width)
        keys, values = slot.tensors["0.key"], slot.tensors["value"]
        if usable(x):
            mixed = kernels.attend_new(
                qkv, keys, values, slot.positions, step.ended,
                heads=self.heads, scale=self.scale, bias=self.bias, source=slot.source,
            )  # fmt: skip
        else:
            mixed = self._attend(qkv, keys, values, step)
        return self.outward(mixed, step, residual=x)

    def _attend(self, qkv: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        slot = step.cache.slot(self.name)
        q, k, v = qkv.chunk(3, -1)
        rows, span = q.shape[0], slot.span
        if step.even:
            keys[:, span - 1], values[:, span - 1] = k, v
        else:
            index = torch.arange(rows, device=q.device), slot.positions[:, 0].clamp(max=slot.capacity - 1)
            keys[index], values[index] = k, v
        if slot.source is None:
            keys, values = keys[:, :span], values[:, :span]
        else:
            place = slot.source[:, :span], torch.arange(span, device=q.device)
            keys, values = keys[place], values[place]
        added = None
        if step.even:
            added = None if self.bias is None else self.bias[None, :, None, :span].flip(-1)
        else:
            distance = slot.positions - torch.arange(span, device=q.device)  # [rows, span]
            added = (
                q.new_zeros(rows, 1, span) if self.bias is None else self.bias[:, distance.clamp(min=0)].transpose(0, 1)
            )
            added = added.masked_fill((distance < 0)[:, None], float("-inf"))[:, :, None]
        q, k, v = (t.view(rows, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2) for t in (q, keys, values))
        return scaled_dot_product_attention(q, k, v, added, scale=self.scale).transpose(1, 2).reshape(rows, -1)


def _in_front(memory: Tensor, real: Tensor) -> Tensor:
    """Real tokens before all others, in their order; a mask may have holes. (No sorting: this is captured.)"""
    behind = real.sum(1, keepdim=True) + (~real).cumsum(1)
    place = torch.where(real, real.cumsum(1), behind) - 1
    return torch.empty_like(memory).scatter_(1, place[..., None].expand_as(memory), memory)


class CrossAttention:
    """The beams of an example ask its memory as so many queries; keys and values are made once."""

    def __init__(self, residual: Residual, name: str) -> None:
        mixer: Any = residual.mixer
        dot = mixer.terms[0]
        self.name, self.heads = name, mixer.site.heads
        self.scale = mixer.site.head_dim**-0.5 if mixer.site.scale else 1.0
        self.ask = Projection([dot.query], residual.norm)
        self.answer = Projection([dot.key, mixer.value])
        self.outward = Projection([mixer.out])

    def load(self, step: Step) -> None:
        """Weights, and keys and values side by side [examples, length, 2 · width]."""
        self.ask.load(step.rows)
        self.outward.load(step.rows)
        memory, slot = step.memory, step.cache.slot(self.name)
        assert memory is not None
        if usable(memory) and step.memory_mask is not None:
            memory = _in_front(memory, step.memory_mask.bool())  # the kernel reads the first so many
        weight = torch.cat([m.weight for m in self.answer.maps])
        if "memory" not in slot.memory:
            slot.memory["memory"] = memory.new_zeros(*memory.shape[:2], weight.shape[0])
        held = slot.memory["memory"]
        torch.mm(memory.flatten(0, 1), weight.t(), out=held.view(-1, weight.shape[0]))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        memory = step.cache.slot(self.name).memory["memory"]
        q = self.ask(x, step)
        if usable(x):
            assert step.memory_lengths is not None
            mixed = kernels.attend_memory(
                q, memory, step.memory_lengths, step.ended, heads=self.heads, scale=self.scale
            )
        else:
            examples, _, both = memory.shape
            keys, values = memory.split(both // 2, -1)
            q, k, v = (
                t.view(examples, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2) for t in (q, keys, values)
            )
            added = None if step.memory_mask is None else step.memory_mask[:, None, None]
            mixed = (
                scaled_dot_product_attention(q, k, v, added, scale=self.scale).transpose(1, 2).reshape(x.shape[0], -1)
            )
        return self.outward(mixed, step, residual=x)


class FeedForward:
    """(gelu(x W₁) ⊙ x W₂) W₃."""

    def __init__(self, residual: Residual) -> None:
        mixer: Any = residual.mixer
        self.inward = Projection([mixer.w1, mixer.w2], residual.norm, gate=True)
        self.outward = Projection([mixer.w3])

    def load(self, step: Step) -> None:
        """Weights."""
        self.inward.load(step.rows)
        self.outward.load(step.rows)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.outward(self.inward(x, step), step, residual=x)


class AsItIs:
    """Any other sublayer, through its own module."""

    def __init__(self, residual: Residual, name: str, *, cross: bool) -> None:
        self.residual, self.name, self.cross = residual, name, cross

    def load(self, step: Step) -> None:
        """Clear the past: this batch gives what is left of the last one the weight 0, and 0 · NaN is NaN."""
        if (slot := step.cache.slots.get(self.name)) is not None:
            for past in slot.tensors.values():
                past.zero_()

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        slot = step.cache.slot(self.name)
        step.squares = None
        if self.cross:
            return self.residual(x[:, None], step.memory_mask, memory=step.memory, slot=slot)[:, 0]
        return self.residual(x[:, None], None, bias=step.bias, slot=slot)[:, 0]


def fuse(residual: Residual, name: str, *, cross: bool, relative: RelativeBias | None) -> Any:
    """The leanest form of a sublayer."""
    mixer, norm = residual.mixer, residual.norm
    plain = isinstance(norm, nn.RMSNorm) and not residual.post_norm
    if isinstance(mixer, Attention) and plain and mixer.value.bias is None and [t.kind for t in mixer.terms] == ["dot"]:
        if cross:
            return CrossAttention(residual, name)
        return SelfAttention(residual, name, mixer.relative if mixer.relative is not None else relative)
    if isinstance(mixer, _Geglu) and plain and mixer.w1.bias is None:
        return FeedForward(residual)
    return AsItIs(residual, name, cross=cross)


def lean(stack: Any) -> bool:
    """Is this encoder made of dot-product attention and gated feed-forward networks behind RMS norms, without biases?"""
    return isinstance(stack.final_norm, nn.RMSNorm) and all(
        isinstance(residual.norm, nn.RMSNorm)
        and (
            (isinstance(residual.mixer, _Geglu) and residual.mixer.w1.bias is None)
            or (isinstance(residual.mixer, Attention) and [term.kind for term in residual.mixer.terms] == ["dot"])
        )
        for layer in stack.layers
        for residual in layer
    )


def encode(model: Any, input_ids: Tensor, mask: Tensor | None) -> Tensor:
    """The encoder's states [batch, length, d_model], as of `model.encode`, in fewer operations where a GPU has kernels.

    `mask` is right-padded, or None.
    """
    stack = model.encoder
    if not usable(model.embed.tokens.weight) or not lean(stack):
        return model.encode(input_ids, mask)
    x = model.embed(input_ids, None, None, None)
    bias = None if stack.relative is None else stack.relative(x.shape[1])
    for layer in stack.layers:
        for residual in layer:
            mixer, norm = residual.mixer, residual.norm
            y = rms_norm(x, norm.weight, norm.eps)
            if isinstance(mixer, _Geglu):
                hidden = kernels.gated(mixer.w1(y), mixer.w2(y))
                x = torch.addmm(x.flatten(0, 1), hidden.flatten(0, 1), mixer.w3.weight.t()).view(x.shape)
            else:
                x = x + mixer(y, mask, bias=bias)
    return rms_norm(x, stack.final_norm.weight, stack.final_norm.eps)
