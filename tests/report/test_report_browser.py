"""The pages in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import made_comparison as made
import numpy as np
import pytest

from tokenmix.report import write_inspection
from tokenmix.report.look import look
from tokenmix.report.runs import open_run

WIDE = {"width": 1200, "height": 900}
NARROW = {"width": 390, "height": 844}


@contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """A page that may ask for nothing but itself, say nothing on the console and open no dialog."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request", lambda r: r.url.startswith("data:") or r.url == file.as_uri() or said.append(f"request: {r.url}")
    )
    page.goto(file.as_uri())
    yield page
    page.wait_for_timeout(50)
    assert said == []
    context.close()


def column(page: Any, number: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#results tbody tr > *:nth-child({number})", "cells => cells.map(c => c.dataset.value)"
    )


def test_report_opens_from_disk_without_request_or_complaint(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert "is best on scan" in page.inner_text("h1")
        assert page.locator("#results tbody tr").count() == 5
        assert page.locator("figure.chart svg").count() == 4
        page.mouse.wheel(0, 8000)


def test_text_from_data_is_shown_as_text(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert made.ATTACK in page.inner_text("#results")
        assert made.ATTACK in page.inner_text("#categories")
        assert page.locator("script").count() == 2


def test_table_sorts_by_click_and_by_keyboard(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        by_metric = [float(value) for value in column(page, 2)]
        assert by_metric == sorted(by_metric, reverse=True)  # the best stands first
        heads = page.locator("#results thead th")
        assert heads.nth(1).get_attribute("aria-sort") == "descending"
        page.click("#results thead th:nth-child(5) button")
        assert heads.nth(4).get_attribute("aria-sort") == "ascending"
        assert heads.nth(1).get_attribute("aria-sort") is None
        sizes = [int(value) for value in column(page, 5)]
        assert sizes == sorted(sizes)
        page.focus("#results thead th:nth-child(5) button")
        page.keyboard.press("Enter")
        assert heads.nth(4).get_attribute("aria-sort") == "descending"
        assert [int(value) for value in column(page, 5)] == sorted(sizes, reverse=True)
        page.click("#results thead th:nth-child(7) button")  # numbers of one to three digits
        speeds = [float(value) for value in column(page, 7)]
        assert speeds == sorted(speeds, reverse=True)
        page.click("#results thead th:nth-child(1) button")
        names = column(page, 1)
        assert names == sorted(names, key=str.lower)
        page.click("#results thead th:nth-child(4) button")
        assert column(page, 4)[-1] == ""  # the baseline has no difference to itself: it stays below
        page.click("#results thead th:nth-child(4) button")
        assert column(page, 4)[-1] == ""


def test_pickers_change_the_map_and_tokens_tell_what_they_draw_from(browser: Any, report: Path) -> None:
    folder = report.parent / "runs" / "m3-s0"
    model, tokenizer = open_run(folder)
    sight = look(model, made.TEXT, tokenizer=tokenizer, target=made.TARGET)
    with opened(browser, report) as page:
        shown = lambda: page.evaluate("document.querySelector('[data-part=map]').toDataURL()")  # noqa: E731
        choose = lambda part, **how: page.locator(f"[data-part={part}]").select_option(**how)  # noqa: E731
        choose("model", label="dot | remix")
        choose("kind", label="encoder · dot")
        first = shown()
        choose("layer", label="layer 2")
        second = shown()
        assert first != second
        assert "layer 2" in page.get_attribute("[data-part=map]", "aria-label")
        choose("head", label="head 3")
        assert shown() != second
        page.locator("[data-part=asking] button").nth(4).hover()
        assert "“and”, 5 of 10" in page.inner_text("[data-part=asker]")
        weights = sight.pick("encoder", kind="mixing")[2].values[2, 4]
        assert sight.pick("encoder", kind="mixing")[2].name == "dot"
        said = page.eval_on_selector_all(
            "[data-part=answers] .weight", "spans => spans.map(s => Number(s.textContent))"
        )
        np.testing.assert_allclose(said, weights, rtol=6e-3, atol=1e-4)
        top = page.inner_text("[data-part=bars] .name >> nth=0")
        assert top == sight.tokens[int(weights.argmax())]
        choose("kind", label="decoder · cross: dot")
        assert page.locator("[data-part=asking] button").count() == len(sight.target)
        assert page.locator("[data-part=answers] > span").count() == len(sight.tokens)


def test_rows_of_the_map_and_charts_tell_their_values(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        page.locator("[data-part=map]").scroll_into_view_if_needed()
        box = page.locator("[data-part=map]").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
        assert "←" in page.inner_text("#tip")
        assert page.locator("[data-part=asking] button[aria-pressed=true]").count() == 1
        page.locator("figure.chart svg").first.hover()
        tip = page.inner_text("#tip")
        assert tip.startswith("step ")
        assert made.ATTACK in tip
        page.locator("image[data-matrix]").first.hover()
        assert "←" in page.inner_text("#tip")
        button = page.locator(".legend button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert not page.locator("#learning figure.chart [data-series='0']").first.is_visible()
        button.click()
        assert page.locator("#learning figure.chart [data-series='0']").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_on_a_narrow_screen(browser: Any, report: Path, scheme: str) -> None:
    with opened(browser, report, viewport=NARROW, color_scheme=scheme) as page:
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 26, 34)"}[scheme]
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        box = page.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.querySelector('#results .scroll'))")
        assert box[0] > box[1]  # the table scrolls inside its own box
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav.contents").is_visible()


def test_policy_stops_a_script_that_got_in(browser: Any, report: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(report.as_uri())
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.hacked = 1';
        document.body.append(script);
        document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.hacked = 2">');
    }""")
    page.wait_for_timeout(50)
    assert page.evaluate("window.hacked") is None
    context.close()


def test_inspect_page_in_the_browser(browser: Any, tmp_path: Path) -> None:
    run = made.save_run(tmp_path / "run", "synthesizer-rv-tiny")
    page_file = write_inspection(run, inputs=f"jump {made.ATTACK} walk", target=made.TARGET, png=False)
    with opened(browser, page_file) as page:
        assert page.locator("figure.plate").count() >= 4
        assert not page.locator("[data-part=model]").is_visible()  # there is one only
        page.locator("[data-part=layer]").select_option(label="layer 2")
        page.locator("[data-part=asking] button").nth(1).focus()
        assert "2 of" in page.inner_text("[data-part=asker]")


def test_patches_are_shown_as_a_picture(browser: Any, tmp_path: Path) -> None:
    from tokenmix import create_model

    made.stir(create_model("gmlp-vision-tiny")).save_pretrained(tmp_path / "run")
    with opened(browser, write_inspection(tmp_path / "run", png=False)) as page:
        assert page.locator("[data-part=answers] canvas").count() == 1
        assert page.locator("[data-part=asking] button").count() == 16
