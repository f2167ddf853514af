"""Properties of every mixer of the registry, bidirectional and causal. A new mixer is tested by being registered."""

import copy
import importlib
import pickle
import pkgutil

import pytest
import torch
from cases import ALL, BOTH, CAUSAL, can_be_causal
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import tokenmix.mixers
from tokenmix.mixers import parse
from tokenmix.mixers.base import Slot
from tokenmix.ops import reference
from tokenmix.ops.norm import RMSNorm

WIDTH, HEADS, LONGEST, LENGTH = 16, 4, 16, 11
both = pytest.mark.parametrize(("text", "causal"), BOTH, ids=[f"{t}-{'causal' if c else 'both ways'}" for t, c in BOTH])


def build(text, causal=False, **options):
    """A small mixer whose parameters have left their initial values, so that nothing hides behind a zero."""
    torch.manual_seed(1)
    mixer = parse(text).build(d_model=WIDTH, d_ff=24, heads=HEADS, max_length=LONGEST, causal=causal, **options)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return mixer.eval()


def batch(rows=3, length=LENGTH):
    torch.manual_seed(2)
    return torch.randn(rows, length, WIDTH)


@pytest.fixture
def plain_operators(monkeypatch):
    """Every mixer on the reference operators."""
    for info in pkgutil.iter_modules(tokenmix.mixers.__path__):
        module = importlib.import_module(f"tokenmix.mixers.{info.name}")
        for name in ("attend", "persist"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(reference, name))


@both
@pytest.mark.parametrize("padded", [False, True])
def test_output_and_gradients_equal_the_float64_reference(text, causal, padded, monkeypatch, request):
    mixer, x = build(text, causal, bias=True), batch().requires_grad_()
    mask = torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 5, 1])[:, None] if padded else None
    real = torch.ones(3, LENGTH, 1) if mask is None else mask[..., None].float()
    out = mixer(x, mask) * real
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    request.getfixturevalue("plain_operators")
    exact, y = copy.deepcopy(mixer).double(), x.detach().double().requires_grad_()
    exact.zero_grad()
    expected = exact(y, mask) * real
    (expected * weight).sum().backward()
    assert torch.allclose(out.double(), expected, atol=1e-4, rtol=1e-4)
    assert torch.allclose(x.grad.double(), y.grad, atol=1e-3, rtol=1e-3)
    for (name, p), q in zip(mixer.named_parameters(), exact.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            assert torch.allclose(p.grad.double(), q.grad, atol=1e-3, rtol=1e-3), name


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch):
    """As small sizes are computed, and as large ones are."""
    if request.param == "large":
        for module, name, value in (
            ("attend", "SMALL", 0),
            ("linear", "LARGE", 0),
            ("window", "CHUNK", {"cpu": 1, "cuda": 1}),
            ("toeplitz", "LONG", {"cpu": 0}),
        ):
            monkeypatch.setattr(importlib.import_module(f"tokenmix.ops.{module}"), name, value)
    return request.param


def padding(padded):
    return torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 5, 1])[:, None] if padded else None


@both
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_transforms_see_through_every_mixer(text, causal, padded, size):
    mixer, mask = build(text, causal), padding(padded)
    weights = {"x": batch()} | {name: p.detach().clone() for name, p in mixer.named_parameters()}
    real = torch.ones(3, LENGTH) if mask is None else mask.float()

    def output(weights, mask=mask, real=real):
        return (
            functional_call(mixer, {n: p for n, p in weights.items() if n != "x"}, (weights["x"], mask))
            * real[..., None]
        )

    def loss(weights, *masks):
        return output(weights, *masks).square().sum()

    def close(got, want):
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")

    plain = {name: t.clone().requires_grad_() for name, t in weights.items()}
    want = dict(zip(plain, torch.autograd.grad(loss(plain), plain.values()), strict=True))
    close(grad(loss)(weights), want)

    def of_one(x, *masks):  # one example's gradient, the masks being its own
        return grad(lambda w: loss(w, *(m if m is None else m[None] for m in masks)))(weights | {"x": x[None]})

    each = vmap(of_one, in_dims=(0, None if mask is None else 0, 0))(weights["x"], mask, real)
    close({name: g.sum(0) for name, g in each.items() if name != "x"} | {"x": each["x"][:, 0]}, want)

    several = {name: torch.stack([t, t + 0.1]) for name, t in weights.items()}
    with torch.no_grad():
        together = vmap(output)(several)
        for k in range(2):
            alone = output({name: t[k] for name, t in several.items()})
            torch.testing.assert_close(together[k], alone, rtol=1e-4, atol=1e-4)

    direction = {name: torch.randn_like(t) for name, t in weights.items()}
    slope = sum((want[name] * direction[name]).sum() for name in want)
    torch.testing.assert_close(jvp(loss, (weights,), (direction,))[1], slope, rtol=1e-3, atol=1e-2)
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(t, direction[name]) for name, t in weights.items()}
        torch.testing.assert_close(forward_ad.unpack_dual(loss(dual)).tangent, slope, rtol=1e-3, atol=1e-2)

    curvature = jvp(grad(loss), (weights,), (direction,))[1]
    along = grad(lambda w: sum((g * direction[name]).sum() for name, g in grad(loss)(w).items()))(weights)
    for name in want:  # forward over reverse, and reverse over reverse
        scale = along[name].abs().max().clamp_min(1.0)
        torch.testing.assert_close(curvature[name] / scale, along[name] / scale, rtol=1e-3, atol=1e-3)


@both
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_gradients_are_right_or_refused(text, causal, padded, size, monkeypatch, request):
    sizes = dict(d_model=WIDTH, d_ff=24, heads=HEADS, max_length=LONGEST, causal=causal)
    layer, mask = (parse(text) | parse("geglu")).build(**sizes, post_norm=True), padding(padded)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    x = batch().requires_grad_()
    real = torch.ones(3, LENGTH, 1) if mask is None else mask[..., None].float()
    weight, direction = (
        torch.randn_like(x) * real,
        torch.randn_like(x),
    )  # linear in the output: the last norm's own turn

    def twice(layer, x):
        leaves = [x, *layer.parameters()]
        (g,) = torch.autograd.grad((layer(x, mask) * weight).sum(), x, create_graph=True)
        found = torch.autograd.grad((g * direction).sum(), leaves, allow_unused=True, materialize_grads=True)
        return dict(zip(["x", *dict(layer.named_parameters())], found, strict=True))

    try:
        got = twice(layer, x)
    except RuntimeError as error:
        assert size == "large"
        assert "no gradients of gradients" in str(error) or "is not implemented" in str(error)  # noqa: PT017
        return
    request.getfixturevalue("plain_operators")
    monkeypatch.setattr(RMSNorm, "forward", nn.RMSNorm.forward)
    exact = twice(copy.deepcopy(layer).double(), x.detach().double().requires_grad_())
    for name, want in exact.items():
        scale = want.abs().max().clamp_min(1.0)
        assert torch.allclose(got[name].double() / scale, want / scale, atol=1e-3), name


@both
@pytest.mark.parametrize("padded", [False, True])
def test_shapes_can_be_asked_for_on_the_meta_device(text, causal, padded):
    mixer, mask = build(text, causal).to("meta").train(), padding(padded)
    x = batch().to("meta").requires_grad_()
    out = mixer(x, mask if mask is None else mask.to("meta"))
    assert out.is_meta
    assert out.shape == (3, LENGTH, WIDTH)
    out.sum().backward()
    assert x.grad.shape == x.shape


@both
def test_output_does_not_depend_on_padding_nor_on_other_rows(text, causal):
    mixer, x = build(text, causal), batch()
    alone = mixer(x[:1, :6])
    with_neighbours = mixer(x[:, :6])[:1]
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[0, :6], mask[1, :] = True, True
    padded = mixer(x, mask)[:1, :6]
    assert torch.allclose(alone, with_neighbours, atol=1e-5)
    assert torch.allclose(alone, padded, atol=1e-5)
    changed = x.clone()
    changed[0, 6:] = 100.0  # what stands in the padding does not matter
    changed[1:] = -3.0  # nor what the neighbours say
    assert torch.allclose(mixer(changed, mask)[0, :6], padded[0], atol=1e-5)


@pytest.mark.parametrize("text", CAUSAL)
def test_causal_output_does_not_change_when_later_tokens_change(text):
    mixer, x = build(text, causal=True), batch()
    before = mixer(x)
    for t in (0, 4, LENGTH - 2):
        y = x.clone()
        y[:, t + 1 :] = torch.randn_like(y[:, t + 1 :])
        assert torch.equal(mixer(y)[:, : t + 1].isfinite(), before[:, : t + 1].isfinite())
        assert torch.allclose(mixer(y)[:, : t + 1], before[:, : t + 1], atol=1e-5)


@pytest.mark.parametrize("text", CAUSAL)
@pytest.mark.parametrize(
    "pieces", [(1,) * LENGTH, (6, 1, 1, 3), (LENGTH,)], ids=["one by one", "prompt first", "at once"]
)
def test_incremental_equals_full(text, pieces):
    mixer, x = build(text, causal=True), batch()
    slot, outs, seen = Slot(LONGEST), [], 0
    for piece in pieces:
        slot.fresh, slot.counts = seen == 0, None
        slot.positions = torch.arange(seen, seen + piece).expand(3, -1)
        outs.append(mixer(x[:, seen : seen + piece], slot=slot))
        seen += piece
    assert torch.allclose(torch.cat(outs, 1), mixer(x), atol=1e-5)


@both
def test_lengths_one_to_longest_and_an_empty_batch_work(text, causal):
    mixer = build(text, causal)
    for length in (1, 2, LONGEST):
        out = mixer(batch(length=length))
        assert out.shape == (3, length, WIDTH)
        assert out.isfinite().all()
    assert mixer(torch.zeros(0, 5, WIDTH)).shape == (0, 5, WIDTH)
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[0] = True
    x = batch().requires_grad_()
    out = mixer(x, mask)  # rows of nothing but padding
    out[0].sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@both
def test_sequences_longer_than_the_parameters_are_refused_by_name(text, causal):
    sizes = dict(d_model=WIDTH, d_ff=24, heads=HEADS, causal=causal)
    mixer, longer = build(text, causal), parse(text).build(**sizes, max_length=4 * LONGEST)
    limited = any(t.shape != s.shape for t, s in zip(mixer.state_dict().values(), longer.state_dict().values()))
    if not limited:  # no parameter depends on length
        assert mixer(batch(length=LONGEST + 1)).shape == (3, LONGEST + 1, WIDTH)
        return
    says = "^sequence of 17 tokens exceeds max_length=16 of this layer; truncate it, or build .* max_length >= 17$"
    for layer in (mixer, (parse("mlp") | parse(text)).build(**sizes, max_length=LONGEST)):
        with pytest.raises(ValueError, match=says):
            layer(batch(length=LONGEST + 1))
        with pytest.raises(ValueError, match=says):
            layer(x=batch(length=LONGEST + 1))


@pytest.mark.parametrize("text", ["dot", "gmlp", "fourier", "random | mlp"])
@pytest.mark.parametrize("shape", [(5, WIDTH), (2, 3, 5, WIDTH), (2, 5, WIDTH + 1)])
def test_inputs_of_the_wrong_shape_are_named(text, shape):
    with pytest.raises(
        ValueError, match=rf"x must be \[batch, length, d_model=16\]; got \[{', '.join(map(str, shape))}\]"
    ):
        build(text)(torch.zeros(shape))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_compiles_and_survives_copies(dynamic):
    torch._dynamo.reset()
    layer = pickle.loads(pickle.dumps(copy.deepcopy(build("dense | mlp"))))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (5, 7):
        assert torch.allclose(compiled(batch(length=length)), layer(batch(length=length)), atol=1e-5)
    with pytest.raises(ValueError, match="exceeds max_length=16"):
        layer(batch(length=LONGEST + 1))


def test_misspelt_sizes_get_the_nearest_right_one():
    with pytest.raises(ValueError, match="unknown option of build 'dmodel'; did you mean 'd_model'"):
        parse("dot").build(dmodel=16, heads=2)
    with pytest.raises(ValueError, match="did you mean 'max_length'"):
        parse("dot | mlp").build(d_model=16, max_lenght=8)


@both
def test_mixing_matrices_are_recorded(text, causal):
    mixer, x = build(text, causal), batch()
    record = {}
    assert torch.allclose(mixer(x, record=record), mixer(x), atol=1e-6)
    if "mixing" in record:
        matrix = record["mixing"]
        assert matrix.shape[-2:] == (LENGTH, LENGTH)
        assert matrix.shape[0] in (1, 3)
        if causal:
            assert torch.allclose(matrix, matrix.tril(), atol=1e-7)
        softmaxed = not text.startswith(("gmlp", "fourier", "token_mlp", "lightconv", "dynamicconv", "linformer"))
        if softmaxed:
            assert torch.allclose(matrix.sum(-1), torch.ones_like(matrix.sum(-1)), atol=1e-5)
    else:
        assert text.startswith(("mlp", "geglu", "bag_of_words", "conv_relu"))


@both
def test_no_parameter_is_idle(text, causal):
    mixer = build(text, causal)
    mixer(batch().requires_grad_()).square().sum().backward()
    idle = [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not idle


@pytest.mark.parametrize("text", [t for t in ALL if not can_be_causal(t)])
def test_what_cannot_be_causal_says_so_at_construction(text):
    with pytest.raises(ValueError, match=r"cannot be causal.*encoder"):
        parse(text).build(d_model=WIDTH, heads=HEADS, max_length=LONGEST, causal=True)


@both
def test_bf16_autocast_trains(text, causal):
    mixer, x = build(text, causal).train(), batch().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mixer(x, torch.ones(3, LENGTH, dtype=torch.bool))
    out.float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())
    exact = mixer.eval()(x)
    assert ((out.float() - exact).norm() / exact.norm().clamp_min(1e-6)) < 0.05


def test_a_layer_of_several_sublayers_is_a_module():
    layer = parse("random + dot | remix").build(d_model=WIDTH, heads=HEADS, max_length=LONGEST)
    assert layer(batch()).shape == (3, LENGTH, WIDTH)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("dot", dict(heads=3), "heads=3 does not divide d_model=16"),
        ("remix(heads=5)", {}, "5 does not divide 24"),
        ("gmlp", dict(d_ff=25), "d_ff=25 is odd"),
        ('dense(query="dot")', {}, "add one: dot"),
        ("factorized_dense + factorized_dense", {}, "at most one"),
        ("factorized_dense(a=99)", {}, "at most the length"),
        ("dot", dict(max_length=0), "max_length must be a whole number"),
        ("dot", dict(norm="batch"), "norm must be"),
    ],
)
def test_impossible_mixers_are_refused_at_construction(text, options, says):
    sizes = {**dict(d_model=WIDTH, d_ff=24, heads=HEADS, max_length=LONGEST), **options}
    with pytest.raises(ValueError, match=says):
        (parse(text) | parse("mlp")).build(**sizes)
