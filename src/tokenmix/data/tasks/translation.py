"""Translation: Multi30k, WMT14 and WMT16, in T5's form `translate English to German: …`, scored by sacreBLEU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenmix.data.readers import Row, parallel
from tokenmix.data.sources import Files, Hub, Source
from tokenmix.data.task import Convert, Example, Task, register
from tokenmix.evaluation import metrics

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "cs": "Czech", "ro": "Romanian"}


def _convert(source: str, target: str) -> Convert:
    prefix = f"translate {LANGUAGES[source]} to {LANGUAGES[target]}:"

    def convert(row: Row, split: str) -> Example:
        return Example(input=f"{prefix} {row[source]}", target=row[target])

    return convert


def _score(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    return {"bleu": metrics.bleu(predictions, [[example.target] for example in examples])}


def _hub_pair(row: Row) -> Iterable[Row]:
    return (row.derive(**row["translation"]),)


def _translation(name: str, target: str, sources: tuple[Source, ...], url: str, **options: Any) -> None:
    convert = {"text": _convert("en", target)}
    task = Task(
        name, "translation", sources, convert, _score, "bleu", url=url, signature=metrics.bleu_signature, **options
    )
    register(task)


_MULTI30K = {
    "train": "train.en",
    "validation": "val.en",
    "test": "test_2016_flickr.en",
    "test_2017": "test_2017_flickr.en",
    "test_2017_mscoco": "test_2017_mscoco.en",
    "test_2018": "test_2018_flickr.en",
}
for _language in ("de", "fr", "cs"):
    _splits = {s: f for s, f in _MULTI30K.items() if _language != "cs" or "2017" not in s}
    _hub = (Hub("bentrevett/multi30k"),) if _language == "de" else ()
    _translation(
        f"multi30k_en_{_language}",
        _language,
        (Files("multi30k/raw", _splits, read=parallel("en", _language)), *_hub),
        "https://github.com/multi30k/dataset (folder data/task1/raw)",
        default_split="test",
    )

# The training corpora by their published names (Europarl, Common Crawl, news commentary, …), all of them wanted.
_WMT: dict[str, tuple[str, dict[str, Any]]] = {
    "wmt14_en_de": (
        "de-en",
        {
            "train": ("europarl-v7.de-en.en", "commoncrawl.de-en.en", "news-commentary-v9.de-en.en"),
            "validation": "newstest2013.en",
            "test": "newstest2014-deen-src.en.sgm",
        },
    ),
    "wmt14_en_fr": (
        "fr-en",
        {
            "train": (
                "europarl-v7.fr-en.en",
                "commoncrawl.fr-en.en",
                "undoc.2000.fr-en.en",
                "news-commentary-v9.fr-en.en",
                "giga-fren.release2.fixed.en",
            ),
            "validation": "newstest2013.en",
            "test": "newstest2014-fren-src.en.sgm",
        },
    ),
    "wmt16_en_ro": (
        "ro-en",
        {
            "train": ("europarl-v8.ro-en.en", "SETIMES.en-ro.en"),
            "validation": "newsdev2016-enro-src.en.sgm",
            "test": "newstest2016-enro-src.en.sgm",
        },
    ),
}
for _name, (_pair, _files) in _WMT.items():
    _year, _, _target = _name.split("_")
    _translation(
        _name,
        _target,
        (
            Files(f"{_year}/{_pair}", _files, read=parallel("en", _target)),
            Files(_year, _files, read=parallel("en", _target)),
            Hub(f"wmt/{_year}", _pair, streaming=True, adapt=_hub_pair),
        ),
        f"https://www.statmt.org/{_year}/translation-task.html",
        default_split="test",
    )
