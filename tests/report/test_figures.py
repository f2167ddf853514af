"""Every figure is tested against the matrix that it draws: the numbers in `.data`, and the pixels of the drawing."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import made_comparison as made
import numpy as np
import pytest
import torch

import tokenmix
from tokenmix import create_model
from tokenmix.report import colours
from tokenmix.report.axes import log_ticks, short, ticks
from tokenmix.report.figure import Figure, Heatmap, Lines
from tokenmix.report.look import fresh, look
from tokenmix.report.scene import DASHES, Box, Line, Mark, Raster, Scene, Text, indexed_png

PAIR = ("jump opposite left twice", "walk around right thrice")


def words() -> Any:
    return made.tokenizer()


def built(preset: str, **options: Any) -> Any:
    return made.stir(create_model(preset, **({} if "vision" in preset else {"vocab_size": len(words())}), **options))


def records(model: Any, **feed: Any) -> dict[tuple[str, int, int], dict[str, np.ndarray]]:
    with torch.no_grad():
        found = model(**feed, return_mixing=True).mixing
    return {(r.stack, r.layer, r.sublayer): {k: v[0].detach().numpy() for k, v in r.matrices.items()} for r in found}


# ------------------------------------------------------------------------------------------------------ the numbers


def test_remixer_memory_is_mean_attention_above_softmax_of_h() -> None:
    model, tokenizer = built("remixer-tiny", layer="dot | remix(heads=2)"), words()
    figure = tokenmix.figures.remixer_memory(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    ids = torch.tensor([tokenizer(made.TEXT).input_ids])
    length = ids.shape[1]
    seen = records(model, input_ids=ids, decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))
    h = [p for name, p in model.model.encoder.named_parameters() if name.endswith(".h")]
    for layer in range(2):
        np.testing.assert_allclose(
            figure.data[f"softmax(QKᵀ) · layer {layer + 1}"], seen["encoder", layer, 0]["mixing"].mean(0), atol=1e-6
        )
        memory = torch.softmax(h[layer][:, :length, :length], -1).mean(0).detach().numpy()
        np.testing.assert_allclose(figure.data[f"softmax(H) · layer {layer + 1}"], memory, atol=1e-6)
    top, bottom = figure.panels
    assert [panel.title.split(" · ")[0] for panel in (top[0], bottom[0])] == ["softmax(QKᵀ)", "softmax(H)"]


def test_remixer_memory_of_a_decoder_and_of_chosen_layers() -> None:
    model, tokenizer = built("remixer-tiny"), words()
    figure = tokenmix.figures.remixer_memory(
        model, made.TEXT, tokenizer=tokenizer, target=made.TARGET, stack="decoder", layers=[2]
    )
    assert list(figure.data) == ["softmax(QKᵀ) · layer 2", "softmax(H) · layer 2"]
    for values in figure.data.values():
        assert not np.triu(values, 1).any()
        np.testing.assert_allclose(values.sum(-1), 1, atol=1e-5)


def test_patch_filters_are_rows_of_the_spatial_matrix() -> None:
    model = built("gmlp-vision-tiny")
    figure = tokenmix.figures.patch_filters(model, patches=[(1, 2), (4, 4)])
    side = model.config.image_size // model.config.patch_size
    weights = [
        p.detach().numpy()
        for name, p in model.named_parameters()
        if name.endswith("mixer.weight") and p.shape[0] == side**2
    ]
    assert len(weights) == 2
    for layer, w in enumerate(weights, 1):
        np.testing.assert_allclose(figure.data[f"layer {layer} · patch 1,2"], w[1].reshape(side, side), atol=1e-6)
        np.testing.assert_allclose(figure.data[f"layer {layer} · patch 4,4"], w[15].reshape(side, side), atol=1e-6)


def test_patch_filters_leave_the_class_token_out() -> None:
    model = built("vit-tiny")
    image = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    sight = look(model, image)
    assert sight.tokens[0] == "<cls>"
    figure = tokenmix.figures.patch_filters(model, sight, layers=[1], patches=[(1, 1)])
    side = sight.grid[0] if sight.grid else 0
    np.testing.assert_array_equal(figure.data["layer 1 · patch 1,1"].ravel(), sight.matrices[0].mean[1, 1:])
    assert figure.data["layer 1 · patch 1,1"].shape == (side, side)


@pytest.mark.parametrize("layer", ["gmlp", "gmlp(toeplitz=True)", "gmlp(attention=16)"])
def test_spatial_matrices_and_token_filters_are_w_and_its_middle_row(layer: str) -> None:
    model = built("gmlp-tiny", layer=layer)
    length = model.config.max_length
    blocks = [module for module in model.modules() if type(module).__name__ == "GmlpBlock"]
    whole, rows = tokenmix.figures.spatial_matrices(model), tokenmix.figures.token_filters(model)
    first = tokenmix.figures.token_filters(model, position=1)
    for number, block in enumerate(blocks, 1):
        w = block.matrix(length).detach().numpy()
        np.testing.assert_allclose(whole.data[f"layer {number}"], w, atol=1e-6)
        np.testing.assert_allclose(rows.data[f"layer {number}"][0], w[length // 2], atol=1e-6)
        np.testing.assert_allclose(first.data[f"layer {number}"][0], w[0], atol=1e-6)


def test_tiny_attention_is_the_maximum_over_the_first_half() -> None:
    model, tokenizer = built("amlp-tiny", layers=5), words()
    figure = tokenmix.figures.tiny_attention(model, PAIR, tokenizer=tokenizer)
    ids = torch.tensor([tokenizer(*PAIR).input_ids])
    seen = records(model, input_ids=ids)
    wanted = np.maximum(seen["encoder", 0, 0]["attention"][0], seen["encoder", 1, 0]["attention"][0])
    np.testing.assert_allclose(figure.data["largest weight"], wanted, atol=1e-6)
    (panel,) = figure.panels[0]
    assert isinstance(panel, Heatmap)
    assert (
        panel.rows
        == panel.columns
        == ("jump", "opposite", "left", "twice", "</s>", "walk", "around", "right", "thrice", "</s>")
    )


def test_weight_histograms_count_the_entries_at_initialisation_and_now() -> None:
    model, tokenizer = built("synthesizer-rv-tiny"), words()
    sight = look(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    figure = tokenmix.figures.weight_histograms(model, sight, seed=3)
    start = look(fresh(model, 3), made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    assert list(figure.data) == ["encoder L1", "encoder L2", "decoder L1", "decoder L2"]
    for panel in (panel for row in figure.panels for panel in row):
        assert isinstance(panel, Lines)
        stack, layer = panel.title.split(" L")
        for name, of in (("at initialisation", start), ("now", sight)):
            values = of.pick(stack, kind="mixing", cross=False)[int(layer) - 1].values
            if stack == "decoder":
                values = values[:, np.tril(np.ones(values.shape[1:], dtype=bool))]
            counted = np.histogram(values.ravel(), panel.x)[0] / values.size
            np.testing.assert_allclose(panel.series[name], counted)
            assert panel.series[name].sum() == pytest.approx(1)
    torch.manual_seed(3)
    again = type(model)(model.config)  # `fresh` is what the seed draws
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), fresh(model, 3).parameters()))


def test_fresh_weights_are_those_a_run_of_that_seed_begins_with() -> None:
    from tokenmix.training import RunConfig
    from tokenmix.training.build import build

    parts = build(
        RunConfig.of({"seed": 5, "model": {"layer": "random + dot | remix"}, "data": {"task": "scan", "limit": 50}})
    )
    assert all(torch.equal(a, b) for a, b in zip(parts.model.parameters(), fresh(parts.model, 5).parameters()))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_attention_maps_are_the_models_weights_per_layer_and_head(stack: str) -> None:
    model, tokenizer = built("synthesizer-rv-tiny"), words()
    figure = tokenmix.figures.attention_maps(
        model, made.TEXT, tokenizer=tokenizer, target=made.TARGET, stack=stack, heads=[1, 4]
    )
    ids = torch.tensor([tokenizer(made.TEXT).input_ids])
    answer = torch.tensor([[model.config.decoder_start_token_id, *tokenizer(made.TARGET).input_ids]])
    seen = records(model, input_ids=ids, decoder_input_ids=answer)
    for layer in range(2):
        for head in (1, 4):
            wanted = seen[stack, layer, 0]["mixing"][head - 1]
            np.testing.assert_allclose(figure.data[f"L{layer + 1} · head {head}"], wanted, atol=1e-6)


def test_cross_attention_has_answers_down_and_inputs_across() -> None:
    model, tokenizer = built("t5-v1.1-tiny"), words()
    figure = tokenmix.figures.attention_maps(
        model, made.TEXT, tokenizer=tokenizer, target=made.TARGET, stack="decoder", cross=True, layers=[1], heads=[1]
    )
    (panel,) = figure.panels[0]
    assert isinstance(panel, Heatmap)
    assert panel.values.shape == (len(panel.rows), len(panel.columns))
    assert (panel.rows[1], panel.columns[0]) == ("turn", "jump")


def test_looking_changes_nothing() -> None:
    model, tokenizer = built("t5-v1.1-tiny").train(), words()
    before = torch.get_rng_state()
    look(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    tokenmix.figures.weight_histograms(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


def test_a_seq2seq_model_without_a_target_generates_its_answer() -> None:
    model, tokenizer = built("t5-v1.1-tiny"), words()
    sight = look(model, "jump twice", tokenizer=tokenizer)
    with torch.no_grad():
        made_ids = model.generate(torch.tensor([tokenizer("jump twice").input_ids]), max_new_tokens=64, do_sample=False)
    assert len(sight.target) == made_ids.shape[1]


# ----------------------------------------------------------------------------------------------------- the drawing


def rasters(figure: Figure) -> list[Raster]:
    return [shape for shape in figure.scene().shapes if isinstance(shape, Raster) and shape.key]


@pytest.mark.parametrize("values", [np.linspace(0, 1, 12).reshape(3, 4), np.linspace(-2, 1, 12).reshape(3, 4)])
def test_svg_holds_the_matrix_pixel_by_pixel(values: np.ndarray) -> None:
    from PIL import Image

    figure = Figure("made", "Made", "", ((Heatmap("one", values),),))
    images = re.findall(r"data:image/png;base64,([\w+/=]+)", figure.svg())
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(images[0]))).convert("RGB"))
    kind, low, high = colours.limits(values)
    np.testing.assert_array_equal(pixels, colours.table(kind)[np.rint((values - low) / (high - low) * 255).astype(int)])


def test_png_shows_each_cell_in_the_colour_of_its_value() -> None:
    from PIL import Image

    figure = Figure("made", "Made", "", ((Heatmap("one", np.random.default_rng(0).random((6, 6))),),))
    image = np.asarray(Image.open(io.BytesIO(figure.png(scale=2))).convert("RGB")).astype(int)
    (raster,) = rasters(figure)
    for i in range(6):
        for j in range(6):
            y = round(2 * (raster.y + (i + 0.5) * raster.height / 6))
            x = round(2 * (raster.x + (j + 0.5) * raster.width / 6))
            assert np.abs(image[y, x] - colours.table("sequential")[raster.levels[i, j]]).max() <= 2


def test_scale_of_a_causal_matrix_comes_from_rows_that_have_a_choice() -> None:
    values = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    assert colours.limits(values) == ("sequential", 0.0, pytest.approx(1 / 3))
    assert colours.levels(values, 0, 1 / 3)[0, 0] == 255
    assert colours.limits(np.eye(6) + 0.1)[2] == pytest.approx(1.1)


def test_curves_pass_through_their_values() -> None:
    figure = Figure("made", "Made", "", ((Lines("one", np.array([1, 2, 3]), {"w": np.array([0.0, 2.0, 1.0])}),),))
    curve = max(
        (s for s in figure.scene().shapes if isinstance(s, Line) and s.stroke == "series0"), key=lambda s: len(s.points)
    )
    (x0, y0), (x1, y1), (x2, y2) = curve.points
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert (y0 - y2) == pytest.approx((y0 - y1) / 2)


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_figures_are_saved_by_ending(tmp_path: Path, ending: str) -> None:
    figure = Figure("made", "Made & <b>", "", ((Heatmap("a<b", np.eye(3), ("x", "<i>", "z"), ("1", "2", "3")),),))
    content = figure.save(tmp_path / "deeper" / f"figure.{ending}").read_bytes()
    assert content.startswith({"svg": b"<svg", "png": b"\x89PNG", "html": b"<!doctype"}[ending])
    if ending != "png":
        assert b"<b>" not in content
        assert b"<i>" not in content
        assert b"Made &amp; &lt;b&gt;" in content
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.html"):
        figure.save(tmp_path / "figure.pdf")
    assert figure._repr_svg_().startswith("<svg")


def test_every_shape_is_drawn_both_ways() -> None:
    shapes = [
        Box(1, 1, 20, 10, fill="accent", stroke="ink", opacity=0.5),
        Line(((0, 0), (40, 40), (60, 0)), "series3", 2, DASHES[3]),
        *(
            Mark(10 * k + 8, 20, shape, f"series{k}")
            for k, shape in enumerate(("circle", "square", "diamond", "triangle"))
        ),
        Text(30, 30, "softmax(QKᵀ) · α", upright=True, anchor="middle", bold=True),
        Raster(40, 40, 20, 20, np.arange(4, dtype=np.uint8).reshape(2, 2) * 80),
    ]
    scene = Scene(80, 80, shapes, "all")
    assert scene.svg().count("<") == 2 + 2 + len(shapes) + 1 - 1  # svg, rect, shapes, text closed
    assert "var(--" in scene.svg(page=True)
    assert "var(--" not in scene.svg()
    assert scene.png().startswith(b"\x89PNG")
    assert indexed_png(np.zeros((2, 3), np.uint8), "diverging").startswith(b"\x89PNG")


def test_colour_maps_are_even_and_series_stand_out() -> None:
    sequential, diverging = (colours.lightness(colours.table(name)) for name in ("sequential", "diverging"))
    assert (np.diff(sequential) > -0.05).all()
    assert sequential[-1] - sequential[0] > 70
    assert (np.diff(diverging[:127]) > -0.3).all()
    assert (np.diff(diverging[129:]) < 0.3).all()
    np.testing.assert_allclose(diverging, diverging[::-1], atol=12)
    for series, inks in ((colours.SERIES, colours.INK), (colours.SERIES_DARK, colours.INK_DARK)):
        for colour in [*series, inks["ink"], inks["muted"], inks["accent"]]:
            assert contrast(colour, inks["paper"]) >= (3.0 if colour in series else 4.5), colour


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""
    light = []
    for colour in (one, other):
        c = np.array(colours.rgb(colour)) / 255
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05)
    return max(light) / min(light)


def test_ticks_are_round_and_numbers_short() -> None:
    assert ticks(0, 97) == [0, 20, 40, 60, 80]
    assert ticks(3, 3) == [3]
    assert log_ticks(0.5, 200) == [1, 10, 100]
    assert all(30 <= tick <= 45 for tick in log_ticks(30, 45))
    wanted = {
        0: "0",
        0.03125: "0.0312",
        12.5: "12.5",
        999.6: "1000",
        1200: "1.2k",
        65_300_000: "65.3M",
        1e-5: "1e-5",
    }
    assert {value: short(value) for value in wanted} == wanted
    assert short(None) == short(float("nan")) == "–"


# ------------------------------------------------------------------------------------------------ mistakes of users


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda f, m, t: f.remixer_memory(m, "jump", tokenizer=t), "'dot | remix'"),
        (lambda f, m, t: f.spatial_matrices(m, "jump", tokenizer=t), "persistent mixer"),
        (lambda f, m, t: f.tiny_attention(m, "jump", tokenizer=t), "gmlp\\(attention=64\\)"),
        (lambda f, m, t: f.patch_filters(m), "vision"),
        (lambda f, m, t: f.attention_maps(m, "jump", tokenizer=t, layers=[9]), "no layer 9"),
        (lambda f, m, t: f.attention_maps(m, "jump", tokenizer=t, heads=[5]), "1 to 4"),
        (lambda f, m, t: f.attention_maps(m, "jump", tokenizer=t, stack="decoder"), "no decoder"),
        (lambda f, m, t: f.attention_maps(m, "jump"), "needs a tokenizer"),
        (lambda f, m, t: f.attention_maps(m, Path("cat.png"), tokenizer=t), "reads text"),
        (lambda f, m, t: f.attention_maps(m, ("a", "b", "c"), tokenizer=t), "pair of texts; got 3"),
    ],
)
def test_what_a_model_does_not_have_is_said_plainly(draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(tokenmix.figures, built("bert-tiny"), words())
