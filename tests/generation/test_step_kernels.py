"""The kernels of a decoding step against plain torch: interpreted on a CPU, and as they are where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import gelu, linear

from tokenmix.ops.kernels import INSTALLED, INTERPRETING

interpreted = pytest.mark.skipif(not INTERPRETING, reason="runs inside test_kernels_agree_with_torch_when_interpreted")


@pytest.mark.skipif(not INSTALLED or INTERPRETING, reason="needs Triton")
def test_kernels_agree_with_torch_when_interpreted() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "7 passed" in done.stdout


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@interpreted
def test_linear_with_norm_gate_and_residual() -> None:
    from tokenmix.generation import kernels

    x, w, residual = torch.randn(5, 40), torch.randn(48, 40), torch.randn(5, 48)
    squares = kernels.squares(x)
    y, sums = kernels.linear(x, w, squares=squares, eps=1e-6, residual=residual)
    torch.testing.assert_close(y, linear(rms(x), w) + residual, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sums.sum(1), y.square().sum(1), atol=1e-3, rtol=1e-4)
    a, b = linear(rms(x), w).chunk(2, -1)
    y, _ = kernels.linear(x, w, squares=squares, eps=1e-6, gate=True)
    torch.testing.assert_close(y, gelu(a, approximate="tanh") * b, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kernels.gated(a.contiguous(), b.contiguous()), y, atol=1e-4, rtol=1e-4)
    gain = torch.rand(40)
    torch.testing.assert_close(kernels.rms_norm(x, gain, 1e-6), rms(x) * gain, atol=1e-5, rtol=1e-5)


@interpreted
def test_attention_of_new_tokens_over_pasts_that_changed_places() -> None:
    from tokenmix.generation import kernels

    rows, capacity, heads, size = 6, 70, 2, 24
    width = heads * size
    keys, values = torch.randn(2, rows, capacity, width)
    qkv, bias = torch.randn(rows, 3 * width), torch.randn(heads, capacity)
    positions = torch.tensor([0, 0, 40, 40, 69, 69])  # three examples of two beams
    own = torch.arange(rows)
    source = own[:, None] // 2 * 2 + torch.randint(0, 2, (rows, capacity))
    source[own, positions] = own
    q, k, v = qkv.chunk(3, -1)
    all_keys, all_values = keys.clone(), values.clone()
    all_keys[own, positions], all_values[own, positions] = k, v
    out = kernels.attend_new(
        qkv, keys, values, positions, torch.zeros(3, dtype=torch.bool), heads=heads, scale=0.5, bias=bias, source=source
    )
    assert torch.equal(keys, all_keys)
    assert torch.equal(values, all_values)
    places = torch.arange(capacity)
    k, v = (t[source, places].view(rows, capacity, heads, size).transpose(1, 2) for t in (all_keys, all_values))
    distance = (positions[:, None] - places).clamp(min=0)
    logits = 0.5 * q.view(rows, heads, 1, size) @ k.mT + bias[:, distance].transpose(0, 1)[:, :, None]
    logits = logits.masked_fill((places > positions[:, None])[:, None, None], float("-inf"))
    expected = (logits.softmax(-1) @ v).transpose(1, 2).reshape(rows, width)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


@interpreted
def test_beams_ask_one_memory() -> None:
    from tokenmix.generation import kernels

    examples, length, heads, size, beams = 3, 100, 2, 24, 2
    width = heads * size
    memory, lengths = torch.randn(examples, length, 2 * width), torch.tensor([100, 1, 37])
    q = torch.randn(examples * beams, width)
    ended = torch.zeros(examples, dtype=torch.bool)
    out = kernels.attend_memory(q, memory, lengths, ended, heads=heads, scale=1.0)
    k, v = (t.view(examples, length, heads, size).transpose(1, 2) for t in memory.chunk(2, -1))
    logits = q.view(examples, beams, heads, size).transpose(1, 2) @ k.mT
    logits = logits.masked_fill((torch.arange(length) >= lengths[:, None])[:, None, None], float("-inf"))
    expected = (logits.softmax(-1) @ v).transpose(1, 2).reshape(-1, width)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


@interpreted
def test_rows_that_have_ended_are_numbers() -> None:
    from tokenmix.generation import kernels

    rubbish = [torch.full((4, 48), torch.nan) for _ in range(20)]
    del rubbish  # what `torch.empty` may find
    ended = torch.tensor([True, False, True, False])
    past = torch.zeros(2, 4, 8, 48)
    positions = torch.zeros(4, dtype=torch.long)
    options = {"heads": 2, "scale": 1.0}
    new = kernels.attend_new(torch.randn(4, 144), *past, positions, ended, bias=None, source=None, **options)
    memory = kernels.attend_memory(torch.randn(4, 48), torch.randn(4, 5, 96), positions + 5, ended, **options)
    for out in (new, memory):
        assert torch.equal(out[ended], torch.zeros(2, 48))
        assert out[~ended].abs().min() > 0


@interpreted
def test_a_mask_with_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmix.generation import engine, fused, generate, search
    from tokenmix.models import TokenmixConfig, create_model

    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "vocab_size": 40, "max_length": 8}
    model = create_model(TokenmixConfig(body="seq2seq", layer="dot | geglu", **sizes)).eval()
    ids, mask = torch.randint(2, 40, (2, 8)), torch.ones(2, 8)
    mask[0, 2:5] = mask[1, 1:6] = 0
    original = engine.Session.__init__
    monkeypatch.setattr(engine.Session, "__init__", lambda *a, static, **k: original(*a, static=True, **k))
    options = {"max_new_tokens": 3, "eos_token_id": (), "return_scores": True}
    with_kernels = generate(model, ids, mask, **options).scores
    for module in (fused, search):
        monkeypatch.setattr(module, "usable", lambda x: False)
    torch.testing.assert_close(with_kernels, generate(model, ids, mask, **options).scores, atol=1e-4, rtol=1e-4)


@interpreted
@pytest.mark.parametrize("body", ["seq2seq", "decoder"])
def test_a_model_generates_the_same_with_kernels_and_without(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmix.generation import engine, fused, generate, search
    from tokenmix.models import TokenmixConfig, create_model

    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "layers": 1, "vocab_size": 40, "max_length": 8}
    model = create_model(TokenmixConfig(body=body, layer="dot | geglu", **sizes)).eval()
    ids, mask = torch.randint(2, 40, (2, 4)), torch.ones(2, 4)
    mask[0, :2] = 0

    def outputs() -> list[torch.Tensor]:
        options = {"max_new_tokens": 4, "eos_token_id": [3, 7, 9, 12]}
        return [generate(model, ids, mask, num_beams=beams, **options).sequences for beams in (1, 2)]

    original = engine.Session.__init__
    monkeypatch.setattr(engine.Session, "__init__", lambda *a, static, **k: original(*a, static=True, **k))
    with_kernels = outputs()
    for module in (fused, search):
        monkeypatch.setattr(module, "usable", lambda x: False)
    for a, b in zip(with_kernels, outputs(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["t5-v1.1-tiny", "remixer-tiny", "synthesizer-d-tiny", "lightconv-tiny", "mixer-tiny", "lm-tiny"]
)
@pytest.mark.parametrize("beams", [1, 4])
def test_a_gpu_generates_what_a_cpu_does(name: str, beams: int) -> None:
    import copy

    from tokenmix.generation import generate
    from tokenmix.models import create_model

    model = create_model(name).eval()
    there = copy.deepcopy(model).cuda()
    ids = torch.randint(3, 500, (3, 10))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    options = {
        "max_new_tokens": 20,
        "num_beams": beams,
        "eos_token_id": [1, *range(100, 110)],
        "return_scores": beams > 1,
    }
    here = generate(model, ids, mask, **options)
    for _ in range(2):  # captured, and replayed
        out = generate(there, ids.cuda(), mask.cuda(), **options)
        assert torch.equal(out.sequences.cpu(), here.sequences)
        if beams > 1:
            torch.testing.assert_close(out.scores.cpu(), here.scores, atol=1e-4, rtol=1e-4)
    for parameter in there.parameters():
        parameter.data.mul_(-0.9)
    for parameter in model.parameters():
        parameter.data.mul_(-0.9)
    out = generate(there, ids.cuda(), mask.cuda(), **options)  # new weights in an old graph
    assert torch.equal(out.sequences.cpu(), generate(model, ids, mask, **options).sequences)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", ["dot | geglu", "dot | remix", "random + dot | geglu", "dot | remix(toeplitz=True)"])
def test_what_a_gpu_generates_is_what_it_finds_most_likely(layer: str) -> None:
    """A batch as evaluation makes it, in bf16: greedy tokens are the best of a forward pass over all of them."""
    from tokenmix.generation import generate
    from tokenmix.models import TokenmixConfig, create_model

    torch.manual_seed(0)
    sizes = {"d_model": 256, "d_ff": 872, "heads": 4, "layers": 2, "vocab_size": 834, "max_length": 488}
    model = create_model(TokenmixConfig(body="seq2seq", layer=layer, tie_embeddings=True, **sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".h", "relative.weight")) or "random" in name:
                parameter.normal_()  # far from uniform
    model = model.to("cuda", torch.bfloat16).eval()
    for longest in (13, 9):  # the second batch goes through the graph that was captured for the first
        ids, ends = torch.randint(3, 834, (128, longest)), torch.linspace(longest, 2, 128).int()
        mask = (torch.arange(longest) < ends[:, None]).long()
        inputs = {"input_ids": (ids * mask).cuda(), "attention_mask": mask.cuda()}
        with torch.no_grad():
            tokens = generate(model, *inputs.values(), max_new_tokens=150, eos_token_id=[1]).tokens
            start = tokens.new_full((128, 1), model.config.decoder_start_token_id)
            logits = model(**inputs, decoder_input_ids=torch.cat([start, tokens[:, :-1]], 1)).logits.float()
        said = logits.gather(-1, tokens[..., None])[..., 0]
        going = (tokens == 1).cumsum(1) <= (tokens == 1).long()  # up to the first end mark
        short = (logits.max(-1).values - said)[going]
        assert short.max() < 0.1 * logits.std(), (longest, float(short.max()))
