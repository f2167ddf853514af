"""Files to rows: formats, compression, one's own files, errors that name file and line; the Hub without a network."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_samples import idx_bytes, write

from tokenmix.data import readers, sources
from tokenmix.data.sources import Files, Hub, data_folder
from tokenmix.data.task import get_task


@pytest.mark.parametrize("end", ["", ".gz", ".xz"])
def test_plain_and_compressed_files_read_alike(end: str, tmp_path: Path) -> None:
    write(tmp_path, {f"d/train.tsv{end}": "\ufeffa\tb\r\n1\té\u2028x\n\n"})
    rows = list(Files("d", {"train": "train.tsv"}).rows("train", tmp_path))
    assert rows == [{"a": "1", "b": "é\u2028x"}]  # a Unicode line separator ends no line
    assert rows[0].line == 2


def test_plain_file_comes_before_its_compressed_copy(tmp_path: Path) -> None:
    write(tmp_path, {"x-1.txt": "plain\n", "x-1.txt.gz": "packed\n", "x-2.txt.xz": "two\n"})
    source = Files(".", {"train": "x-*.txt", "open": "x-*"})
    assert [row["text"] for row in source.rows("train", tmp_path)] == ["plain", "two"]
    assert len(source.paths("open", tmp_path)) == 2


def test_all_files_of_a_split_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "1\n"})
    source = Files(".", {"train": ("a.txt", "b.txt")})
    assert not source.has("train", tmp_path)
    write(tmp_path, {"b.txt.gz": "2\n"})
    assert [row["text"] for row in source.rows("train", tmp_path)] == ["1", "2"]


def test_csv_records_span_lines_and_know_where_they_begin(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"a.csv": 'q,a\n"one\ntwo","say ""hi"""\nx,y\n', "bad.csv": "q,a\n1,2\n1,2,3\n", "open.csv": 'q,a\n"1,2\n'},
    )
    rows = list(readers.csv_rows()(tmp_path / "a.csv"))
    assert rows == [{"q": "one\ntwo", "a": 'say "hi"'}, {"q": "x", "a": "y"}]
    assert [row.line for row in rows] == [2, 4]
    with pytest.raises(ValueError, match=r"bad\.csv, line 3: expected 2 comma-separated fields \(q, a\), found 3"):
        list(readers.csv_rows()(tmp_path / "bad.csv"))
    with pytest.raises(ValueError, match=r"open\.csv, line 2: expected a well-formed csv record"):
        list(readers.csv_rows()(tmp_path / "open.csv"))


def test_tsv_passes_over_as_many_broken_rows_as_it_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"a.tsv": "a\tb\n1\t2\nbroken\n3\t4\nbroken\n"})
    assert len(list(readers.tsv(corrupt=2)(tmp_path / "a.tsv"))) == 2
    with pytest.raises(
        ValueError, match=r"a\.tsv, line 5: expected 2 tab-separated fields \(a, b\), found 1: 'broken'"
    ):
        list(readers.tsv(corrupt=1)(tmp_path / "a.tsv"))


def test_text_that_is_no_utf8_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"fine\n\xff\xfe\n"})
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text \(invalid start byte in .*xff"):
        list(readers.lines(tmp_path / "a.txt"))


def test_jsonl_wants_objects(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": '{"a": 1}\n\n[1]\n'})
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: expected a JSON object, found '\[1\]'"):
        list(readers.jsonl(tmp_path / "a.jsonl"))


def test_documents_are_separated_by_blank_lines(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A\none\n\n\nB\n"})
    rows = list(readers.documents(tmp_path / "a.txt"))
    assert [(row["text"], row.line) for row in rows] == [("A\none", 1), ("B", 5)]


def test_idx_files_are_checked(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    write(tmp_path, {"a.gz": idx_bytes(array), "short": idx_bytes(array)[:-1], "no": b"GIF89a"})
    assert (readers.idx(tmp_path / "a.gz") == array).all()
    with pytest.raises(ValueError, match="expected 24 bytes after the header, found 23"):
        readers.idx(tmp_path / "short")
    with pytest.raises(ValueError, match="expected an idx-ubyte file"):
        readers.idx(tmp_path / "no")


def test_parallel_files_must_be_equally_long(tmp_path: Path) -> None:
    write(tmp_path, {"t.en.gz": "a\nb\n", "t.de": "x\n"})
    with pytest.raises(ValueError, match=r"t\.en\.gz has 2 lines and .*t\.de 1"):
        list(readers.parallel("en", "de")(tmp_path / "t.en.gz"))


def test_data_folder_is_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMIX_DATA", "/from/environment")
    assert data_folder("/given") == Path("/given")
    assert data_folder() == Path("/from/environment")
    monkeypatch.delenv("TOKENMIX_DATA")
    assert data_folder() is None


# --- one's own files


def test_own_text_to_text_files(tmp_path: Path) -> None:
    write(tmp_path, {"t.jsonl": '{"question": "1+1", "answer": 2}\n', "dev.csv": "question,answer\n2+2,4\n"})
    task = get_task(f"file:{tmp_path}/t.jsonl?input=question&target=answer&validation=dev.csv&name=sums")
    assert (task.name, task.splits, task.default_split, task.forms) == (
        "sums",
        ("train", "validation"),
        "validation",
        ("text",),
    )
    assert [(e.input, e.target) for s in task.splits for e in task.load(s)] == [("1+1", "2"), ("2+2", "4")]
    assert task.evaluate(["4"], task.load("validation")) == {"exact_match": 100.0}


@pytest.mark.parametrize(
    ("metric", "headline"), [("bleu", "bleu"), ("rouge", "rougeL"), ("squad", "f1"), ("accuracy", "accuracy")]
)
def test_own_files_choose_their_metric(metric: str, headline: str, tmp_path: Path) -> None:
    write(tmp_path, {"t.tsv": "a\tb\nx\tthe cat sat on the mat\n"})
    task = get_task(f"file:{tmp_path}/t.tsv?input=a&target=b&metric={metric}")
    assert task.evaluate(["the cat sat on the mat"], task.load("train"))[headline] == pytest.approx(100)


def test_own_labelled_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"t.csv.gz": "review,other,stars\ngood,x,two\nbad,y,one\n", "test.csv": "review,other,stars\nodd,z,three\n"},
    )
    task = get_task(f"file:{tmp_path}/t.csv.gz?text=review,other&label=stars&test=test.csv")
    assert task.labels == ("one", "two")
    assert task.forms == ("classify", "text")
    assert [(e.texts, e.label) for e in task.load("train")] == [(("good", "x"), 1), (("bad", "y"), 0)]
    example = task.load("train", form="text")[0]
    assert (example.input, example.target, task.postprocess("two")) == ("review: good other: x", "two", 1)
    with pytest.raises(ValueError, match=r"test\.csv, line 2: expected a label out of one, two, found 'three'"):
        task.load("test")


def test_own_text_is_for_language_models(tmp_path: Path) -> None:
    write(tmp_path, {"t.txt": "one line\n\nanother\n"})
    task = get_task(f"file:{tmp_path}/t.txt")
    assert task.forms == ("document",)
    assert [e.target for e in task.load("train")] == ["one line", "another"]
    assert not task.generates


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("file:{}/t.jsonl?inptu=a&target=b", ValueError, "did you mean 'input'"),
        ("file:?input=a", ValueError, "names no file"),
        ("file:{}/t.jsonl?target=b&metric=blue", ValueError, "did you mean 'bleu'"),
        ("file:{}/t.jsonl?label=b", ValueError, "label= without text="),
        (
            "file:{}/t.jsonl?input=a&target=nope",
            ValueError,
            r"t\.jsonl, line 1: expected a field 'nope', found only: a, b",
        ),
        ("file:{}/none.jsonl?input=a&target=b", FileNotFoundError, r"none\.jsonl"),
        ("file:{}/none.jsonl?text=a&label=b", FileNotFoundError, r"none\.jsonl"),
        ("file:{}/t.parquet?input=a&target=b", ValueError, r"expected a name ending in \.tsv"),
        ("file:{}/null.jsonl?input=a&target=b", ValueError, r"null\.jsonl, line 1: field 'b' is null"),
        ("file:{}/null.jsonl?input=b&target=a", ValueError, r"null\.jsonl, line 1: field 'b' is null"),
        ("file:{}/null.jsonl?text=b", ValueError, r"null\.jsonl, line 1: field 'b' is null"),
        ("file:{}/null.jsonl?text=a&label=b", ValueError, r"null\.jsonl, line 1: field 'b' is null"),
        ("file:{}/one.csv?text=a&label=b", ValueError, r"one\.csv holds 'only' alone; .*'b' needs at least two labels"),
        ("file:{}/empty.csv?text=a&label=b", ValueError, r"empty\.csv has no rows; .*at least two labels"),
        ("file:{}/twice.csv?input=a&target=b", ValueError, r"twice\.csv, line 1: the column 'a' stands there 2 times"),
        ("file:{}/twice.tsv?input=a&target=b", ValueError, r"twice\.tsv, line 1: the column 'a' stands there 2 times"),
        (
            "file:{}/broken.jsonl?input=a&target=b",
            ValueError,
            r"broken\.jsonl\.gz cannot be unpacked .*not a \.gz file",
        ),
    ],
)
def test_mistakes_in_own_files_are_answered(spec: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "t.jsonl": '{"a": "x", "b": "y"}\n',
            "t.parquet": "PAR1",
            "null.jsonl": '{"a": "x", "b": null}\n',
            "one.csv": "a,b\nx,only\ny,only\n",
            "empty.csv": "a,b\n",
            "twice.csv": "a,b,a\n1,2,3\n",
            "twice.tsv": "a\tb\ta\n1\t2\t3\n",
        },
    )
    (tmp_path / "broken.jsonl.gz").write_bytes(b"not packed")
    with pytest.raises(error, match=message):
        get_task(spec.format(tmp_path)).load("train")


def test_a_file_of_ones_own_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"t.jsonl": '{"a": "x", "b": "y"}\n'})
    task = get_task(f"file:{tmp_path}/t.jsonl?input=a&target=b&validation=none.jsonl")
    with pytest.raises(FileNotFoundError, match=rf"no file for split 'validation'. Looked for {tmp_path}/none\.jsonl"):
        task.load("validation")


# --- the Hub


def hub_answers(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    monkeypatch.setattr(sources.socket, "getaddrinfo", lambda *_: [])  # it has an address
    monkeypatch.setattr("datasets.load_dataset", load_dataset)


def test_hub_never_trusts_remote_code_and_falls_back_to_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, int]]:
        asked.append((args, options))
        if "revision" not in options:
            raise RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")
        return [{"a": 1}, {"a": 2}]

    hub_answers(monkeypatch, load_dataset)
    source = Hub("org/name", "config", adapt=lambda row: (row.derive(b=row["a"]),))
    assert list(source.rows("train")) == [{"b": 1}, {"b": 2}]
    assert [row["b"] for row in source.indexed("train")] == [1, 2]
    assert asked[1] == (
        ("org/name", "config"),
        {"split": "train", "streaming": False, "revision": "refs/convert/parquet"},
    )
    assert all("trust_remote_code" not in options for _, options in asked)
    assert not any("trust_remote_code=True" in path.read_text() for path in Path(sources.__file__).parent.rglob("*.py"))


def test_unreachable_hub_is_missing_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any, **options: Any) -> None:
        raise ConnectionError("no route")

    hub_answers(monkeypatch, load_dataset)
    monkeypatch.delenv("TOKENMIX_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match=r"Hub did not serve 'allenai/c4' \(ConnectionError: no route\).*TOKENMIX_DATA=DIR"
    ):
        next(get_task("c4").stream("train"))
    with pytest.raises(FileNotFoundError, match="uoft-cs/cifar10"):
        get_task("cifar10").load("train")


@pytest.mark.parametrize("proxies", [{}, {"https": "http://proxy:3128"}, {"no": "localhost"}])
def test_without_a_network_the_hub_is_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str]
) -> None:
    import datasets.config
    import huggingface_hub.constants

    places, seen = (datasets.config, huggingface_hub.constants), []

    def nowhere(*args: Any) -> None:
        raise OSError("Name or service not known")

    def load_dataset(*args: Any, **options: Any) -> list[Any]:
        seen.extend(place.HF_HUB_OFFLINE for place in places)
        return []

    monkeypatch.setattr(sources, "getproxies", lambda: proxies)
    hub_answers(monkeypatch, load_dataset)
    monkeypatch.setattr(sources.socket, "getaddrinfo", nowhere)
    for place in places:
        monkeypatch.setattr(place, "HF_HUB_OFFLINE", False)
    assert sources.load_from_hub("org/name", None, "train", False) == []
    assert seen == ["https" not in proxies] * 2  # behind a proxy nobody needs the address
    assert [place.HF_HUB_OFFLINE for place in places] == [False, False]


def test_large_corpora_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMIX_DATA", raising=False)

    def load_dataset(*args: Any, streaming: bool, **options: Any) -> Any:
        assert streaming
        return ({"text": str(n)} for n in range(10**12))

    hub_answers(monkeypatch, load_dataset)
    for name in ("c4", "realnews", "wikipedia", "lm1b"):
        assert [e.target for e in get_task(name).load("train", limit=2)] == ["0", "1"]


MODULES = ["readers", "sources", "task", "labelled", "own", "tasks.scan", "tasks.toy", "tasks.glue", "tasks.superglue"]


@pytest.mark.parametrize(
    "name", [f"tokenmix.data.{m}" for m in MODULES] + ["tokenmix.evaluation.metrics", "tokenmix.data.augment"]
)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
