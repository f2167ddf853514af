"""Each mixer against its paper's equation, written out naively in float64 from the module's own parameters."""

import importlib
import math

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from tokenmix.mixers import parse

B, L, D, F, H, N = 2, 7, 8, 12, 2, 10
K = D // H


def build(text, **options):
    torch.manual_seed(0)
    m = parse(text).build(d_model=D, d_ff=F, heads=H, max_length=N, **options).double()
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return m


def softmax(rows):
    e = torch.exp(rows - rows.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def heads_of(t, h):
    return t[:, h * K : (h + 1) * K]


def attention(m, x, logits):
    """Y = Softmax(B) G(X), head by head; logits(example, head) gives B."""
    out = []
    for example in x:
        g = example @ m.value.weight.T
        out.append(torch.cat([softmax(logits(example, h)) @ heads_of(g, h) for h in range(H)], -1) @ m.out.weight.T)
    return torch.stack(out)


def x():
    torch.manual_seed(3)
    return torch.randn(B, L, D, dtype=torch.float64)


def dot_logits(t, e, h):
    return heads_of(e @ t.query.weight.T, h) @ heads_of(e @ t.key.weight.T, h).T / math.sqrt(K)


def dense_logits(t, e, h):
    hidden = torch.relu(e @ t.features.first.weight.T + t.features.first.bias)  # W₁X + b
    return torch.stack([heads_of(hidden, h) @ t.keys[h, j] + t.key_bias[h, j] for j in range(L)], -1)


def test_random():
    m = build("random")
    assert torch.allclose(m(x()), attention(m, x(), lambda e, h: m.terms[0].matrix[h, :L, :L]))


def test_factorized_random():
    m = build("factorized_random(k=3)")
    t = m.terms[0]
    assert torch.allclose(m(x()), attention(m, x(), lambda e, h: t.r1[h, :L] @ t.r2[h, :L].T))


def test_dense():
    m = build("dense")
    assert torch.allclose(m(x()), attention(m, x(), lambda e, h: dense_logits(m.terms[0], e, h)))


def test_factorized_dense():
    m = build("factorized_dense(a=4)")
    t = m.terms[0]
    assert (t.a, t.b) == (4, 3)

    def logits(e, h):
        hidden = heads_of(torch.relu(e @ t.first.weight.T + t.first.bias), h)
        both = hidden @ t.second[h] + t.second_bias[h]
        a, b = both[:, : t.a], both[:, t.a :]
        return torch.stack([torch.stack([a[i, j % t.a] * b[i, j // t.a] for j in range(L)]) for i in range(L)])

    assert torch.allclose(m(x()), attention(m, x(), logits))


def test_dot():
    m = build("dot")
    assert torch.allclose(m(x()), attention(m, x(), lambda e, h: dot_logits(m.terms[0], e, h)))


def test_mixture_has_weights_that_sum_to_one():
    m = build("random + dense + dot")
    a = softmax(m.alpha)
    assert torch.allclose(a.sum(), torch.ones((), dtype=torch.float64))
    r, d, v = m.terms

    def logits(e, h):
        return a[0] * r.matrix[h, :L, :L] + a[1] * dense_logits(d, e, h) + a[2] * dot_logits(v, e, h)

    assert torch.allclose(m(x()), attention(m, x(), logits))


def test_published_mixing_rules():
    summed = build('mix(random, dot, alpha="sum")')
    r, v = summed.terms
    assert torch.allclose(summed(x()), attention(summed, x(), lambda e, h: r.matrix[h, :L, :L] + dot_logits(v, e, h)))
    for text in ('mix(random, dot, alpha="sigmoid")', 'mix(dot, random, alpha="sigmoid")'):
        m = build(text)
        a = torch.sigmoid(m.alpha[0])  # (1 − α)·QKᵀ + α·S
        terms = {t.kind: t for t in m.terms}

        def logits(e, h, a=a, terms=terms):
            return (1 - a) * dot_logits(terms["dot"], e, h) + a * terms["random"].matrix[h, :L, :L]

        assert torch.allclose(m(x()), attention(m, x(), logits))


def test_dense_that_reads_the_dot_query():
    m = build('mix(dense(shared=True, query="dot", bias=False), dot, alpha="sum")')
    d, v = m.terms

    def logits(e, h):
        q = heads_of(e @ v.query.weight.T, h)
        return torch.relu(q) @ d.keys[0, :L].T + dot_logits(v, e, h)

    assert torch.allclose(m(x()), attention(m, x(), logits))
    assert not [n for n, _ in d.named_parameters() if "first" in n]


@pytest.mark.parametrize("causal", [False, True])
def test_dense_with_two_convolutions(causal):
    m = build('dense(f="conv_relu_conv", width=(3, 5))', causal=causal)
    t, f = m.terms[0], m.terms[0].features

    def window(rows, i, taps):
        left = taps - 1 if causal else taps // 2
        zero = torch.zeros_like(rows[0])
        return torch.cat([rows[i - left + s] if 0 <= i - left + s < L else zero for s in range(taps)])

    def logits(e, h):
        first = heads_of(e @ f.first.weight.T + f.first.bias, h)
        hidden = torch.stack([torch.relu(window(first, i, 3) @ f.kernel[h]) for i in range(L)])
        rows = torch.stack([t.keys[h, :L] @ window(hidden, i, 5) + t.key_bias[h, :L] for i in range(L)])
        return rows.masked_fill(torch.ones(L, L).triu(1).bool(), float("-inf")) if causal else rows

    assert torch.allclose(m(x()), attention(m, x(), logits))


def test_relative_bias_buckets_as_t5():
    m = build("relative")
    exact = m.terms[0].bias.weight[:, 0]
    logits = torch.empty(L, L, dtype=torch.float64)
    for i in range(L):
        for j in range(L):
            logits[i, j] = exact[(16 if j > i else 0) + abs(j - i)]  # distances below 8 have buckets of their own
    y = attention(m, x(), lambda e, h: logits if h == 0 else m.terms[0].bias(L)[h])
    assert torch.allclose(m(x()), y)


@pytest.mark.parametrize("alpha", [0.3, '"scalar"', '"vector"', '"gate"'])
@pytest.mark.parametrize("causal", [False, True])
def test_remix(alpha, causal):
    m = build(f"remix(alpha={alpha})", causal=causal)
    x1 = gelu(x() @ m.w1.weight.T, approximate="tanh") * (x() @ m.w2.weight.T)  # X' = σ(X W₁) ⊙ X W₂
    h = m.h[0, :L, :L]
    xs = (
        softmax(h.masked_fill(torch.ones(L, L).triu(1).bool(), float("-inf")) if causal else h) @ x1
    )  # X_S = softmax(H) X'
    if alpha == '"gate"':
        a = torch.sigmoid(x1 @ m.alpha_gate.weight.T + m.alpha_gate.bias)
    else:
        a = torch.sigmoid(m.alpha) if isinstance(alpha, str) else alpha
    xc = a * (xs * x1) + (1 - a) * (x1 - xs)  # X_C
    assert torch.allclose(m(x()), xc @ m.w3.weight.T)


def test_remix_ablations_and_literal_reading():
    m = build("remix(compose=False)")
    x1 = gelu(x() @ m.w1.weight.T, approximate="tanh") * (x() @ m.w2.weight.T)
    assert torch.allclose(m(x()), softmax(m.h[0, :L, :L]) @ x1 @ m.w3.weight.T)
    m = build('remix(compose="gated")')
    x1 = gelu(x() @ m.w1.weight.T, approximate="tanh") * (x() @ m.w2.weight.T)
    xs = softmax(m.h[0, :L, :L]) @ x1
    xc = 0.5 * xs * x1 + 0.5 * (x1 - xs)
    g = torch.sigmoid(x1 @ m.gate.weight.T + m.gate.bias)
    assert torch.allclose(m(x()), (g * xc + (1 - g) * xs) @ m.w3.weight.T)
    m = build("remix(literal=True)")
    assert m.w1.weight.shape == m.w3.weight.shape == (D, D)
    x1 = gelu(x() @ m.w1.weight.T, approximate="tanh") * (x() @ m.w2.weight.T)
    xs = softmax(m.h[0, :L, :L]) @ x1
    assert torch.allclose(m(x()), (0.5 * xs * x1 + 0.5 * (x1 - xs)) @ m.w3.weight.T + x1)


@pytest.mark.parametrize("gate", ["split", "multiplicative", "additive", "linear"])
@pytest.mark.parametrize("attention_width", [0, 3])
def test_gmlp(gate, attention_width):
    m = build(f'gmlp(gate="{gate}", attention={attention_width})')
    z = gelu(x() @ m.u.weight.T)
    z1, z2 = (z[..., : F // 2], z[..., F // 2 :]) if gate == "split" else (z, z)
    f = m.weight[:L, :L] @ layer_norm(z2, z2.shape[-1:], m.norm.weight, m.norm.bias) + m.bias[:L, None]
    if attention_width:
        q, k, v = (x() @ m.attention.qkv.weight.T).split(attention_width, -1)
        f = f + softmax(q @ k.transpose(-1, -2) / math.sqrt(attention_width)) @ v @ m.attention.out.weight.T
    s = {"split": z1 * f, "multiplicative": z1 * f, "additive": z1 + f, "linear": f}[gate]
    assert torch.allclose(m(x()), s @ m.v.weight.T)


def test_token_mlp_both_ways_and_in_a_window():
    m = build("token_mlp(hidden=5)")
    expected = m.w2[:L] @ gelu(m.w1[:, :L] @ x() + m.b1[:, None]) + m.b2[:L, None]
    assert torch.allclose(m(x()), expected)
    m = build("token_mlp(hidden=5, window=3)", causal=True)
    y = torch.zeros(B, L, D, dtype=torch.float64)
    for t in range(L):
        for h in range(5):
            inner = sum(m.w1[h, s] * x()[:, t - s] for s in range(3) if t - s >= 0) + m.b1[h]
            y[:, t] += m.a[h] * gelu(inner)
    assert torch.allclose(m(x()), y + m.b)


@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
@pytest.mark.parametrize("causal", [False, True])
def test_convolution(name, causal):
    m = build(f"{name}(width=5)", causal=causal)
    h = (x() @ m.value.weight.T) * torch.sigmoid(x() @ m.gate.weight.T)
    kernel = (h @ m.predict.weight.T).unflatten(-1, (5, D)) if name == "dynamicconv" else m.kernel.expand(B, L, 5, D)
    y = torch.zeros_like(h)
    for t in range(L):
        for s in range(5):
            j = t + s - (4 if causal else 2)
            if 0 <= j < L:
                y[:, t] += softmax(kernel[:, t].transpose(-1, -2))[..., s] * h[:, j]
    assert torch.allclose(m(x()), (y @ m.pointwise.weight.T + m.pointwise.bias) @ m.out.weight.T)


def test_linformer():
    m = build("linformer(k=3)")
    out = []
    for e in x():
        q, k, v = (e @ w.weight.T for w in (m.query, m.key, m.value))
        mixed = [
            softmax(heads_of(q, h) @ (m.e[:L].T @ heads_of(k, h)).T / math.sqrt(K)) @ (m.f[:L].T @ heads_of(v, h))
            for h in range(H)
        ]
        out.append(torch.cat(mixed, -1) @ m.out.weight.T)
    assert torch.allclose(m(x()), torch.stack(out))


def test_fourier_at_each_examples_own_length():
    m = build("fourier")
    assert torch.allclose(m(x()), torch.fft.fft2(x()).real)
    mask = torch.arange(L)[None] < torch.tensor([L, 4])[:, None]
    y = m(x(), mask)
    assert torch.allclose(y[0], torch.fft.fft2(x()[0]).real)
    assert torch.allclose(y[1, :4], torch.fft.fft2(x()[1, :4]).real)
    assert torch.allclose(build('fourier(padding="include")')(x(), mask), torch.fft.fft2(x()).real)


def test_feed_forwards():
    m = build("mlp", bias=True)
    assert torch.allclose(m(x()), gelu(x() @ m.wi.weight.T + m.wi.bias) @ m.wo.weight.T + m.wo.bias)
    m = build("geglu")
    assert torch.allclose(
        m(x()), (gelu(x() @ m.w1.weight.T, approximate="tanh") * (x() @ m.w2.weight.T)) @ m.w3.weight.T
    )
    m = build("conv_relu(width=3)")
    conv = torch.nn.functional.conv1d(x().transpose(1, 2), m.conv.weight.view(F, 3, D).transpose(1, 2), padding=1)
    assert torch.allclose(m(x()), torch.relu(conv).transpose(1, 2) @ m.out.weight.T)
    assert (build("bag_of_words")(x()) == 0).all()


def test_long_toeplitz_gmlp_agrees_with_its_matrix_and_never_builds_it(monkeypatch):
    m = build("gmlp(toeplitz=True)")
    by_matrix = m(x())
    module = importlib.import_module("tokenmix.ops.toeplitz")
    monkeypatch.setitem(module.LONG, "cpu", 4)
    monkeypatch.setattr(module, "toeplitz", None)
    assert torch.allclose(m(x()), by_matrix, atol=1e-9)
