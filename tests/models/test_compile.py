"""`torch.compile` takes whole models, loss and gradients included, without a graph break."""

import ast
from pathlib import Path

import pytest
import torch

import tokenmix
from tokenmix.models import TokenmixConfig, create_model

CASES = [
    ("seq2seq", "dot | geglu"),
    ("seq2seq", "random + dot | remix"),
    ("seq2seq", "random | geglu"),
    ("seq2seq", "dense | geglu"),
    ("encoder", "gmlp(toeplitz=True)"),
    ("encoder", "gmlp(attention=4)"),
    ("encoder", "factorized_dense | mlp"),
    ("encoder", "fourier | mlp"),
    ("encoder", "linformer(k=4) | mlp"),
    ("decoder", "dot | remix(heads=2)"),
    ("decoder", "token_mlp(hidden=8, window=4) | lightconv"),
    ("decoder", "dynamicconv | conv_relu"),
    ("vision", "gmlp"),
]


@pytest.mark.parametrize(("body", "layer"), CASES)
def test_whole_models_compile_to_one_graph(body, layer):
    torch._dynamo.reset()
    sizes = dict(d_model=16, d_ff=24, heads=4, layers=1, vocab_size=40, max_length=12)
    image = dict(image_size=12, patch_size=4) if body == "vision" else {}
    model = create_model(TokenmixConfig(body=body, layer=layer, **sizes, **image))
    if body == "vision":
        given = dict(pixel_values=torch.randn(3, 3, 12, 12), labels=torch.tensor([0, 1, 0]))
    else:
        ids = torch.randint(2, 40, (3, 9))
        mask = torch.ones_like(ids)
        mask[1, 6:] = 0
        given = dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    expected = model(**given).loss
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**given).loss
    loss.backward()
    assert torch.allclose(loss, expected, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-4), name


@pytest.mark.parametrize("folder", ["ops", "mixers", "models"])
def test_no_class_patterns_where_the_compiler_looks(folder):
    """Before torch 2.12, `case SomeClass(...)` breaks the graph; only the parser of expressions may say it."""
    files = [f for f in (Path(tokenmix.__file__).parent / folder).rglob("*.py") if f.name != "expression.py"]
    found = [f"{f}:{n.lineno}" for f in files for n in ast.walk(ast.parse(f.read_text())) if type(n) is ast.MatchClass]
    assert files
    assert not found
