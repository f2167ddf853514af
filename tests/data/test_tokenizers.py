"""Tokenizers: ids as T5's, every text comes back, and foreign vocabularies encode as their own libraries do."""

from __future__ import annotations

import lzma
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from typer.testing import CliRunner

from tokenmix.cli import app, load_commands
from tokenmix.data.tokenizers import KINDS, load_tokenizer, train_tokenizer

TEXTS = [
    f"The {a} {b} sat on {n} mats.\nIt was (very) happy!"
    for a in ("old", "new")
    for b in ("cat", "dog")
    for n in range(40)
]
HARD = [
    "😀 family 👨‍👩‍👧 flags 🇳🇱",
    "日本語のテキスト 中文 한국어",
    "nul \x00 bell \x07 escape \x1b delete \x7f",
    "tab\tnewline\nreturn\r\n  two spaces  end ",
    "é is not é; ﬁ ½ K Å",
    "literal <0x41> and < 0x41 >",
    "rtl שלום مرحبا zero\u200bwidth \ufeff \ufffd",
    "\u2028 line separator \u0085 next line",
]


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(TEXTS, kind=kind, vocab_size=420) for kind in KINDS}


def back(tokenizer, text):
    return tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_follow_t5(trained, kind):
    tokenizer = trained[kind]
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert tokenizer.convert_tokens_to_ids(["<pad>", "</s>", "<unk>"]) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer("cat").input_ids[-1] == 1
    if kind != "word":
        top = len(tokenizer) - 1
        assert tokenizer.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(100)]) == list(
            range(top, top - 100, -1)
        )
        assert tokenizer("<extra_id_7>").input_ids == [top - 7, 1] or kind == "unigram"


@pytest.mark.parametrize("kind", KINDS)
def test_auto_tokenizer_opens_what_was_saved(trained, kind, tmp_path):
    trained[kind].save_pretrained(tmp_path)
    for again in (
        AutoTokenizer.from_pretrained(tmp_path),
        load_tokenizer(tmp_path),
        load_tokenizer(tmp_path / "tokenizer.json"),
    ):
        assert isinstance(again, PreTrainedTokenizerFast)
        assert len(again) == len(trained[kind])
        assert again.get_vocab() == trained[kind].get_vocab()
        assert (again.pad_token_id, again.eos_token_id) == (0, 1)
        text = "The old cat <extra_id_0> sat on 日本 <extra_id_1>"
        assert again(text).input_ids == trained[kind](text).input_ids
        assert again.all_special_ids == trained[kind].all_special_ids


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_unicode_comes_back(trained, kind, text):
    assert back(trained[kind], text) == text
    assert trained[kind].unk_token_id not in trained[kind](text).input_ids


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(trained, text):
    assert back(trained["bpe"], text) == text
    if not text.startswith((" ", "▁")):
        assert back(trained["unigram"], text) == text.replace("▁", " ")


def test_the_documented_losses_are_the_only_ones(trained):
    assert back(trained["unigram"], " cat") == "cat"
    assert back(trained["unigram"], "   cat") == "  cat"
    assert back(trained["unigram"], "a▁b") == "a b"
    assert back(trained["word"], " The  old\tcat ") == "The old cat"


def test_nfkc_normalizes_and_says_so_by_its_name():
    tokenizer = train_tokenizer(TEXTS, vocab_size=420, normalization="nfkc")
    assert back(tokenizer, "ﬁve\u00a0 ½  cats\t") == "five 1⁄2 cats "


def test_sentinels_in_text_keep_the_words_around_them(trained):
    for kind in ("unigram", "bpe"):
        text = "The old <extra_id_0> sat on <extra_id_1> mats."
        assert back(trained[kind], text) == text


def test_vocab_size_is_met_and_counts_no_sentinels():
    syllables = ["ba", "co", "du", "fe", "gi", "lo", "mu", "ne"]
    words = [a + b + c for a in syllables for b in syllables for c in syllables]
    tokenizer = train_tokenizer(words, vocab_size=330, sentinels=10)
    assert len(tokenizer) == 340
    assert len(train_tokenizer(TEXTS, kind="bpe", vocab_size=300, sentinels=0)) == 300


def test_word_level_knows_every_word_of_scan_and_cogs():
    texts = ["jump around left twice after walk", "I_TURN_LEFT I_JUMP", "rose ( x _ 1 ) AND help . theme"]
    tokenizer = train_tokenizer(texts, kind="word")
    assert len(tokenizer) == 3 + len({word for text in texts for word in text.split()})
    assert [back(tokenizer, text) for text in texts] == texts
    assert tokenizer("unseen").input_ids == [2, 1]


def test_bert_style_frames_and_masks():
    tokenizer = train_tokenizer(TEXTS, vocab_size=420, style="bert")
    pair = tokenizer("cat", "dog")
    assert pair.input_ids[0] == tokenizer.cls_token_id
    assert pair.input_ids.count(tokenizer.sep_token_id) == 2
    assert pair.token_type_ids[-1] == 1
    assert tokenizer.mask_token_id == 5
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_spiece_model_encodes_as_sentencepiece_does(tmp_path, model_type, byte_fallback):
    import sentencepiece

    prefix = tmp_path / "spiece"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXTS for line in text.split("\n")),
        model_prefix=str(prefix), model_type=model_type, vocab_size=320 if byte_fallback else 60,
        byte_fallback=byte_fallback, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    ours = load_tokenizer(f"{prefix}.model")
    assert ours.convert_tokens_to_ids("<extra_id_0>") == theirs.get_piece_size() + 99 == len(ours) - 1
    for text in ["The old cat sat on 17 mats.", "  It   was (happy) ", "ﬁne ½ dogs", "zebra quiz"]:
        assert ours(text, add_special_tokens=False).input_ids == theirs.encode(text), text
        assert ours(text).input_ids[-1] == ours.eos_token_id == 1
    assert ours.decode(theirs.encode("The old cat")) == "The old cat"
    assert load_tokenizer(tmp_path).get_vocab() == ours.get_vocab()  # the folder works too


def test_spiece_model_without_a_pad_piece_gets_one_below_the_sentinels(tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "m"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    tokenizer = load_tokenizer(tmp_path / "m.model")
    assert tokenizer.pad_token_id == len(tokenizer) - 101


@pytest.mark.parametrize("packed", [False, True])
def test_bert_vocab_is_read_packed_or_not(tmp_path, packed):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "ate", "!", "", "\u3000", "last"]
    content = "".join(f"{word}\n" for word in words).encode()
    path = tmp_path / ("vocab.txt.xz" if packed else "vocab.txt")
    path.write_bytes(lzma.compress(content) if packed else content)
    tokenizer = load_tokenizer(path)
    assert tokenizer("The CATS áte!").input_ids == [2, 5, 6, 7, 8, 9, 3]
    assert tokenizer("the", "cat").token_type_ids == [0, 0, 0, 1, 1]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    assert tokenizer.decode([5, 6, 7]) == "the cats"
    assert tokenizer("last").input_ids == [2, 12, 3]  # a blank token counts too


def test_mistakes_are_answered_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="unknown tokenizer kind 'unigrm'; did you mean 'unigram'"):
        train_tokenizer(TEXTS, kind="unigrm")
    with pytest.raises(ValueError, match="vocab_size=100 is too small for a unigram tokenizer; give 291"):
        train_tokenizer(TEXTS, vocab_size=100)
    with pytest.raises(ValueError, match="texts is one string"):
        train_tokenizer("text")
    (tmp_path / "bad.model").write_bytes(b"not a model at all")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "bad.model")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"has no \[PAD\]"):
        load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="is no tokenizer; expected a folder"):
        load_tokenizer(tmp_path / "x.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"cannot load tokenizer .*`tokenmix tokenizer` trains one"):
        load_tokenizer(tmp_path / "empty")


@pytest.mark.parametrize("normalization", ["none", "nfkc"])
def test_a_vocabulary_that_is_too_small_is_answered_with_the_smallest_that_is_not(normalization):
    texts = ["ﬁne ½\ttab", "".join(map(chr, range(0x4E00, 0x4F00)))]
    with pytest.raises(
        ValueError, match=r"400 is too small for a unigram tokenizer of these texts.* give \d+"
    ) as error:
        train_tokenizer(texts, vocab_size=400, normalization=normalization)
    enough = int(re.search(r"give (\d+)", str(error.value))[1])
    train_tokenizer(texts, vocab_size=enough, normalization=normalization)
    with pytest.raises(ValueError, match="too small"):
        train_tokenizer(texts, vocab_size=enough - 1, normalization=normalization)


@pytest.mark.parametrize("name", ["./mine", "{}/mine", "a/b/c", "~/mine-that-is-not-there"])
def test_what_looks_like_a_path_is_not_looked_for_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *a: pytest.fail("the Hub was asked"))
    with pytest.raises(ValueError, match="no such file, folder or Hub name"):
        load_tokenizer(name.format(tmp_path))


def test_without_a_network_the_hub_is_not_asked_for_a_tokenizer(monkeypatch):
    import huggingface_hub.constants

    seen = []

    def nowhere(*_):
        raise OSError("Name or service not known")

    def asked(name):
        seen.append((name, huggingface_hub.constants.HF_HUB_OFFLINE))
        raise OSError(name)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("tokenmix.data.sources.getproxies", dict)
    monkeypatch.setattr("tokenmix.data.sources.socket.getaddrinfo", nowhere)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", asked)
    with pytest.raises(ValueError, match="no such file, folder or Hub name"):
        load_tokenizer("google/t5-smal")
    assert seen == [("google/t5-smal", True)]


def test_command_writes_no_tokenizer_into_a_file(tmp_path):
    load_commands()
    text, out = tmp_path / "text.txt", tmp_path / "file"
    text.write_text("\n\n".join(TEXTS))
    out.write_text("mine")
    result = CliRunner().invoke(app, ["tokenizer", str(text), "--vocab", "400", "--out", str(out)])
    assert result.exit_code == 2
    assert "Invalid value for '--out'" in re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    assert out.read_text() == "mine"


def test_command_trains_and_saves(tmp_path):
    load_commands()
    text = tmp_path / "text.txt.xz"
    text.write_bytes(lzma.compress("\n\n".join(TEXTS).encode()))
    out = tmp_path / "tokenizer"
    result = CliRunner().invoke(app, ["tokenizer", str(text), "--vocab", "400", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "tokens" in result.output
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert back(tokenizer, "The old cat 😀") == "The old cat 😀"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word"])
def test_no_text_is_an_error(kind):
    with pytest.raises(ValueError, match="there is no text to make a tokenizer from"):
        train_tokenizer(iter(["", "  \n"]), kind=kind, vocab_size=1000)
