"""Shards: the same files whatever happens on the way, damage is found, and the stream is the same for all readers."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.data import shard_writer
from tokenmix.data.documents import read_documents
from tokenmix.data.objectives import Corrupted, SpanCorruption
from tokenmix.data.packing import CausalLM, number_documents
from tokenmix.data.shard_writer import prepare_shards
from tokenmix.data.shards import TokenShards
from tokenmix.data.stream import ExampleStream
from tokenmix.data.tokenizers import load_tokenizer, train_tokenizer

SOURCE = Path(__file__).parents[2] / "src"


def make_text(documents: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = ["cat", "dog", "sat", "on", "mat", "old", "日本", "é", "😀", "and\nthen"]
    return [" ".join(rng.choice(words, rng.integers(1, 60))) for _ in range(documents)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(make_text(50), vocab_size=350)


@pytest.fixture(scope="module")
def documents():
    return make_text(200, seed=1)


@pytest.fixture(scope="module")
def text_file(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(text_file, tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards") / "out"
    prepare_shards([text_file], tokenizer, out, workers=1, shard_size=3000)
    return out


@pytest.fixture
def copy(folder, tmp_path):
    for name, content in files_of(folder).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


# --- documents


@pytest.mark.parametrize("suffix, pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_documents_are_read_however_packed(tmp_path, suffix, pack):
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(pack("\n\nOne\ntwo\u2028.\n \n\n\nthree\n".encode()))
    read = []
    assert list(read_documents([path, path], progress=read.append)) == ["One\ntwo\u2028.", "three"] * 2
    assert sum(read) == 2 * path.stat().st_size
    assert list(read_documents([path], split="line")) == ["One", "two\u2028.", "three"]


def test_documents_of_json_lines_and_their_mistakes(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"body": "a\\nb"}\n\n{"body": "half \\ud83d pair"}\n')
    assert list(read_documents([path], split="jsonl", field="body")) == ["a\nb", "half \ufffd pair"]
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1: expected an object with the text in 'text', found: body"):
        list(read_documents([path], split="jsonl"))
    path.write_text('{"text": "a"}\n{oops\n')
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2: expected one JSON object per line"):
        list(read_documents([path], split="jsonl"))
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        list(read_documents([path]))
    with pytest.raises(ValueError, match=r"missing\.txt does not exist"):
        list(read_documents([tmp_path / "missing.txt"]))
    with pytest.raises(ValueError, match="is a folder"):
        list(read_documents([tmp_path]))
    with pytest.raises(ValueError, match="did you mean 'jsonl'"):
        list(read_documents([path], split="json"))
    (tmp_path / "t.xz").write_bytes(lzma.compress(b"text " * 1000)[:-20])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        list(read_documents([tmp_path / "t.xz"]))


# --- writing


def test_every_document_comes_back(folder, tokenizer, documents):
    shards = TokenShards(folder)
    assert len(shards) == len(documents)
    assert len(shards.manifest["shards"]) > 3
    for tokens, document in zip(shards, documents, strict=True):
        assert tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(tokens[:-1]) == document
    assert shards.num_tokens == sum(len(tokens) for tokens in shards) == shards.manifest["tokens"]
    assert shards.tokenizer().get_vocab() == tokenizer.get_vocab()
    assert shards.manifest["characters"] == sum(map(len, documents))


def test_reading_copies_nothing(folder):
    shards = TokenShards(folder)
    mapped = shards._map(0)
    assert shards.dtype == np.uint16
    assert not mapped.flags.writeable
    assert np.shares_memory(shards[3], mapped)
    assert np.shares_memory(shards.windows(16)[2], mapped)
    assert (shards[-1] == shards[len(shards) - 1]).all()
    assert len(shards[2:5]) == 3
    with pytest.raises(IndexError):
        shards[len(shards)]


def test_two_workers_write_what_one_writes(folder, text_file, tokenizer, tmp_path):
    prepare_shards([text_file], tokenizer, tmp_path, workers=2, shard_size=3000)
    assert files_of(tmp_path) == files_of(folder)


def test_a_run_cut_off_anywhere_and_run_again_gives_identical_files(
    folder, text_file, tokenizer, tmp_path, monkeypatch
):
    made = []

    def fails_at_third(path, value, original=shard_writer.write_json):
        if path.name == "shard-00002.json":
            raise KeyboardInterrupt  # between the shard's tokens and its entry
        original(path, value)

    monkeypatch.setattr(shard_writer, "write_json", fails_at_third)
    with pytest.raises(KeyboardInterrupt):
        prepare_shards([text_file], tokenizer, tmp_path, workers=1, shard_size=3000)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="run the same `tokenmix prepare` again to finish it"):
        TokenShards(tmp_path)
    first = (tmp_path / "shard-00001.bin").stat().st_mtime_ns
    prepare_shards([text_file], tokenizer, tmp_path, workers=1, shard_size=3000, on_shard=lambda r, n: made.append(n))
    assert files_of(tmp_path) == files_of(folder)
    assert (tmp_path / "shard-00001.bin").stat().st_mtime_ns == first  # a finished shard was kept
    assert sum(made) == text_file.stat().st_size


def test_an_interruption_stops_the_workers_and_leaves_their_shards_to_the_next_run(
    folder, text_file, tokenizer, tmp_path
):
    def interrupt(record, size):
        raise KeyboardInterrupt

    os.environ["TOKENIZERS_PARALLELISM"] = "as it was"
    with pytest.raises(KeyboardInterrupt):
        prepare_shards([text_file], tokenizer, tmp_path, workers=2, shard_size=3000, on_shard=interrupt)
    assert os.environ.pop("TOKENIZERS_PARALLELISM") == "as it was"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shard")]
    assert len(list(tmp_path.glob("shard-*.json"))) < len(list(folder.glob("shard-*.json")))
    prepare_shards([text_file], tokenizer, tmp_path, workers=2, shard_size=3000)
    assert files_of(tmp_path) == files_of(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_command_goes_on_and_gives_identical_files(tokenizer, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(make_text(10_000, seed=2)), encoding="utf-8")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = f"prepare {text} -t {tmp_path / 'tokenizer'} --workers 2 --shard-size 60000 --out".split()
    command = [sys.executable, "-m", "tokenmix", *arguments]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [*command, str(out)], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("shard-*.json")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(out.glob("shard-*.json"))
    assert not (out / "manifest.json").exists()
    subprocess.run([*command, str(out)], env=environment, check=True, capture_output=True)
    prepare_shards([text], load_tokenizer(tmp_path / "tokenizer"), tmp_path / "whole", workers=1, shard_size=60_000)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_changed_text_is_noticed_and_a_shorter_one_leaves_nothing_behind(copy, tokenizer, documents, tmp_path_factory):
    text = tmp_path_factory.mktemp("changed") / "text.txt"
    changed = ["cat sat", *documents[1:50]]
    text.write_text("\n\n".join(changed), encoding="utf-8")
    prepare_shards([text], tokenizer, copy, workers=1, shard_size=3000)
    shards = TokenShards(copy)
    shards.verify()
    assert [tokenizer.decode(tokens[:-1]) for tokens in shards] == changed
    assert len(list(copy.glob("shard-*.bin"))) == len(shards.manifest["shards"])


def test_damage_is_detected_and_mended(copy, folder, text_file, tokenizer, caplog):
    TokenShards(copy).verify()
    path = copy / "shard-00001.bin"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00001\.bin is damaged: its SHA-256 is not the one in manifest\.json"):
        TokenShards(copy).verify()
    path.write_bytes(content[:-2])
    with pytest.raises(ValueError, match=r"shard-00001\.bin has \d+ bytes, expected \d+; run the same"):
        TokenShards(copy)
    path.unlink()
    with pytest.raises(ValueError, match=r"shard-00001\.bin is missing"):
        TokenShards(copy)
    path.write_bytes(content)
    prepare_shards([text_file], tokenizer, copy, workers=1, shard_size=3000)
    assert "damaged" in caplog.text
    assert files_of(copy) == files_of(folder)


def test_other_settings_are_refused(copy, text_file, tokenizer, documents):
    with pytest.raises(ValueError, match=r"begun with other settings .shard_size 3000 → 4000.; give another --out"):
        prepare_shards([text_file], tokenizer, copy, workers=1, shard_size=4000)
    with pytest.raises(ValueError, match=r"begun with other settings .tokenizer"):
        prepare_shards([text_file], train_tokenizer(documents, vocab_size=380), copy, workers=1, shard_size=3000)


def test_large_vocabularies_and_no_end_mark(text_file, tmp_path, documents):
    words = train_tokenizer([" ".join(f"w{n}" for n in range(70_000)), *documents], kind="word", vocab_size=80_000)
    prepare_shards([text_file], words, tmp_path / "a", workers=1, end_mark=False)
    shards = TokenShards(tmp_path / "a")
    assert shards.dtype == np.uint32
    assert words.decode(shards[0]) == " ".join(documents[0].split())
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with pytest.raises(ValueError, match=r"no text in .*empty\.txt"):
        prepare_shards([empty], words, tmp_path / "b", workers=1)
    with pytest.raises(ValueError, match="no text files"):
        prepare_shards([], words, tmp_path / "b", workers=1)


# --- windows


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 3000), tail=st.booleans())
def test_windows_hold_the_whole_text_across_shards_and_documents(folder, length, tail):
    shards = TokenShards(folder)
    whole = np.concatenate(list(shards))
    owner = np.repeat(np.arange(1, len(shards) + 1), [len(tokens) for tokens in shards])
    count = -(-len(whole) // length) if tail else len(whole) // length
    windows = shards.windows(length, tail=tail)
    padded, owners = (np.pad(a, (0, max(0, count * length - len(whole))))[: count * length] for a in (whole, owner))
    assert len(windows) == count
    assert (windows.batch(np.arange(count)) == padded.reshape(count, length)).all()
    assert (windows.document_ids(np.arange(count)) == number_documents(owners.reshape(count, length))).all()
    some = np.random.default_rng(length).integers(0, count, 5)
    assert (windows.batch(some) == padded.reshape(count, length)[some]).all()
    assert (np.concatenate([windows[n] for n in range(count)]) == whole[: count * length]).all()


def test_windows_answer_mistakes(folder):
    shards = TokenShards(folder)
    with pytest.raises(ValueError, match="less than one window of 1000000"):
        shards.windows(1_000_000)
    with pytest.raises(ValueError, match="windows of 0 tokens"):
        shards.windows(0)
    with pytest.raises(IndexError):
        shards.windows(100).batch([10_000])
    with pytest.raises(ValueError, match="make one with `tokenmix prepare`"):
        TokenShards(folder / "nowhere")


# --- stream


def example_stream(folder, **options):
    objective = SpanCorruption(449, inputs_length=32)
    return ExampleStream(Corrupted(TokenShards(folder).windows(objective.window), objective), 8, seed=3, **options)


def first_batches(batches, count):
    return [np.asarray(batch["input_ids"]) for _, batch in zip(range(count), batches, strict=False)]


def test_two_workers_and_one_give_the_same_stream(folder):
    alone = first_batches(example_stream(folder), 9)
    for workers in (1, 2):
        loader = DataLoader(example_stream(folder), batch_size=None, num_workers=workers)
        assert all((a == b).all() for a, b in zip(alone, first_batches(loader, 9), strict=True))


def test_two_processes_together_make_what_one_makes(folder):
    alone = first_batches(example_stream(folder), 6)
    halves = [first_batches(example_stream(folder, rank=rank, world_size=2), 6) for rank in (0, 1)]
    for whole, *parts in zip(alone, *halves, strict=True):
        assert (np.concatenate(parts) == whole).all()


@settings(max_examples=20, deadline=None)
@given(n=st.integers(0, 2000))
def test_resuming_at_n_equals_skipping_n(folder, n):
    stream = example_stream(folder)
    everything = np.concatenate([stream.locate(0, n + 24)[0]])
    stream.position = n
    resumed = first_batches(stream, 3)
    assert (stream.locate(n, 24)[0] == everything[n:]).all()
    assert all((stream.batch(n + 8 * k, 8)["input_ids"] == batch).all() for k, batch in enumerate(resumed))
    assert stream.state_dict() == {"position": n + 24, "seed": 3}


def test_state_goes_on_where_it_was_taken(folder):
    stream, again = example_stream(folder), example_stream(folder)
    batches = iter(stream)
    first_batches(batches, 5)
    again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert again.state_dict() == example_stream(folder).state_dict(batches=5)
    assert all((a == b).all() for a, b in zip(first_batches(batches, 4), first_batches(again, 4), strict=True))
    with pytest.raises(ValueError, match="the saved stream has seed 9, this one 3"):
        again.load_state_dict({"position": 0, "seed": 9})


def test_an_epoch_shows_everything_once_and_each_in_another_order():
    stream = ExampleStream(list(range(103)), 10, epochs=2, seed=1)
    seen = [item for batch in stream for item in batch]
    assert sorted(seen[:103]) == sorted(seen[103:]) == list(range(103))
    assert seen[:103] != seen[103:]
    assert seen[:103] != list(range(103))
    in_order = ExampleStream(list(range(7)), 4, epochs=1, shuffle=False, collate=tuple)
    assert list(in_order) == [(0, 1, 2, 3), (4, 5, 6)]


def test_packed_batches_know_their_documents(folder):
    shards = TokenShards(folder)
    source = Corrupted(shards.windows(64), CausalLM(max_length=64))
    batch = ExampleStream(source, 16).batch(0, 16)
    ends = batch["input_ids"] == 1
    assert (np.diff(batch["document_ids"], axis=1) == ends[:, :-1]).all()  # a new document after every end mark
    assert set(source[0]) == set(batch)


def test_stream_answers_mistakes(folder):
    with pytest.raises(ValueError, match="batch_size=8 does not divide among 3 processes"):
        example_stream(folder, world_size=3)
    with pytest.raises(ValueError, match="rank 2 of 2 processes"):
        example_stream(folder, rank=2, world_size=2)
    with pytest.raises(ValueError, match="no examples"):
        ExampleStream([], 4)
    with pytest.raises(ValueError, match=r"take shards\.windows\(568\)"):
        Corrupted(TokenShards(folder).windows(512), SpanCorruption(449))


# --- command


def test_command_prepares(text_file, tokenizer, tmp_path):
    load_commands()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = ["prepare", str(text_file), "--tokenizer", str(tmp_path / "tokenizer"), "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out"), "--shard-size", "3000"])
    assert result.exit_code == 0, result.output
    shards = TokenShards(tmp_path / "out")
    shards.verify()
    assert f"{shards.num_tokens:,} tokens of 200 documents" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "lines"), "--split", "lines"])
    assert isinstance(result.exception, ValueError)
    assert "did you mean 'line'" in str(result.exception)
    assert "preparing" not in result.output


def test_ids_of_another_tokenizer_are_refused(folder, tokenizer):
    shards = TokenShards(folder)
    shards.check_tokenizer(tokenizer)
    with pytest.raises(ValueError, match=r"hold ids of another tokenizer .*take theirs, .*tokenizer, or prepare"):
        shards.check_tokenizer(train_tokenizer(["a b c"], kind="word", vocab_size=20))
