"""The real data that TOKENMIX_DATA names loads whole, with the counts of its README."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmix.data.task import get_task

COUNTS = {
    "cogs": {"train": 24_155, "validation": 3_000, "test": 3_000, "gen": 21_000},
    "sst2": {"train": 67_349, "validation": 872},
    "cola": {"train": 8_551, "validation": 1_043},
    "mrpc": {"train": 3_668, "validation": 408, "test": 1_725},
    "glue_rte": {"train": 2_490, "validation": 277},
    "stsb": {"train": 5_749, "validation": 1_500, "test": 1_379},
    "wnli": {"train": 635, "validation": 71},
    "qnli": {"validation": 5_463},
    "cb": {"train": 250, "validation": 56},
    "copa": {"train": 400, "validation": 100},
    "multirc": {"train": 27_243, "validation": 4_848},
    "rte": {"train": 2_490, "validation": 277},
    "wic": {"train": 5_428, "validation": 638},
    "boolq": {"validation": 3_270},
    "axb": {"test": 1_104},
    "axg": {"test": 356},
    "mnli": {"train": 15_722, "validation": 1_738},
    "snli": {"train": 72_671, "validation": 9_842, "test": 9_824},
    "anli": {"validation": 3_198},
    "anli_r1": {"validation": 1_000},
    "anli_r2": {"validation": 1_000},
    "anli_r3": {"validation": 1_198},
    "conjnli": {"train": 15_000, "validation": 623},
    "squad": {"train": 9_044, "validation": 1_190},
    "ag_news": {"train": 14_858, "test": 7_600},
    "imdb": {"train": 25_000, "test": 25_000},
    "multi30k_en_de": {"train": 29_000, "validation": 1_014, "test": 1_000},
    "multi30k_en_fr": {"train": 29_000, "validation": 1_014, "test": 1_000},
    "samsum": {"train": 14_731, "validation": 818, "test": 819},
    "dialogsum": {"validation": 500, "test": 500},
    "fashion_mnist": {"train": 50_000, "validation": 10_000},
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_real_data_loads_whole(name: str, shared_data: Path) -> None:
    task = get_task(name)
    form = "classify" if "classify" in task.forms else task.forms[0]
    loaded = {split: task.load(split, shared_data, form) for split in COUNTS[name]}
    assert {split: len(examples) for split, examples in loaded.items()} == COUNTS[name]
    if task.labels:
        assert all(e.label is not None for examples in loaded.values() for e in examples[:100])


def test_real_wsc_and_abductive_data_load_whole(shared_data: Path) -> None:
    wsc, art = get_task("wsc"), get_task("anli_abductive")
    assert [len(wsc.load(s, shared_data, "classify")) for s in ("train", "validation")] == [554, 104]
    assert len(wsc.load("train", shared_data, "text")) == 259
    assert sum(len(art.load(s, shared_data)) for s in ("train", "validation")) == 6_500
    assert len({e.meta["category"] for e in get_task("cogs").load("gen", shared_data)}) == 21


def test_real_wikipedia_has_the_words_it_should(shared_data: Path) -> None:
    words = sum(len(e.target.split()) for e in get_task("wikipedia").load("validation", shared_data))
    assert 430_000 < words < 450_000
    assert "slice" in get_task("wikipedia").about("train", shared_data)
    assert next(get_task("wikipedia").stream("train", shared_data)).target
