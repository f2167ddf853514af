"""Tokenizers: train one on text, or load one that exists. All are transformers' fast tokenizers.

>>> tokenizer = train_tokenizer(["jump twice", "walk left"], kind="word")
>>> tokenizer("walk twice").input_ids[-1] == tokenizer.eos_token_id == 1
True
>>> tokenizer.decode(tokenizer("walk twice").input_ids, skip_special_tokens=True)
'walk twice'

Ids follow T5: `<pad>` 0, `</s>` 1, `<unk>` 2, then the vocabulary, then the sentinels at the top, descending, so that
`<extra_id_0>` is the highest id. ``vocab_size`` counts everything but the sentinels (32,000 + 100, as T5's).

What comes back from `decode`: **the very same text**, unless ``normalization="nfkc"`` was asked for. Characters outside
the vocabulary are spelt in bytes (`<0xF0>` …), never lost. The exceptions: a special token's name in the text is that
token; `unigram` reads the first of the leading spaces as the word boundary that it puts there anyway, and writes
U+2581 (▁, its own sign for a space) as a space; `word` joins words by single spaces and knows no others.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenmix.data.sources import offline_without_network
from tokenmix.data.tokenizer_files import SPACE, Vocabulary, read_bert_vocab, read_spiece, space_decoder
from tokenmix.naming import unknown

logger = logging.getLogger(__name__)

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
CLS, SEP, MASK = "<cls>", "<sep>", "<mask>"
KINDS = ("unigram", "bpe", "word")
STYLES = ("t5", "bert")
NORMALIZATIONS = ("none", "nfkc")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

# Pieces that text must never match by their spelling (a literal "<0x41>" is six characters, not the byte "A").
_NEVER = -1e4
_BYTE_SPELLING = "<>x0123456789ABCDEF"  # in the alphabet always, so that such a literal can be spelt


def train_tokenizer(
    texts: Iterable[str],
    kind: Literal["unigram", "bpe", "word"] = "unigram",
    vocab_size: int = 32_000,
    sentinels: int | None = None,
    style: Literal["t5", "bert"] = "t5",
    normalization: Literal["none", "nfkc"] = "none",
    progress: bool = False,
) -> Any:
    """Train a tokenizer on ``texts`` and return it as a `PreTrainedTokenizerFast`.

    Args:
        kind: `unigram` (SentencePiece-style, byte fallback), `bpe` (byte-level), or `word` (split at white space, for
            SCAN and COGS).
        vocab_size: tokens without the sentinels. Less comes out where the texts have no more to give.
        sentinels: `<extra_id_…>` tokens for span corruption; by default 100, none for `word`.
        style: `t5` ends a text with `</s>`; `bert` writes `<cls> … <sep>` and has a `<mask>`.
        normalization: `none` keeps every character; `nfkc` folds compatibility characters, drops control characters
            and squeezes runs of spaces, as T5's own does.
    """
    for what, given, known in (
        ("tokenizer kind", kind, KINDS),
        ("tokenizer style", style, STYLES),
        ("normalization", normalization, NORMALIZATIONS),
    ):
        if given not in known:
            raise unknown(what, given, known)
    if isinstance(texts, str):
        raise ValueError("texts is one string; give an iterable of texts, such as [text]")
    sentinels = (0 if kind == "word" else 100) if sentinels is None else sentinels
    if sentinels < 0:
        raise ValueError(f"sentinels={sentinels}: give 0 or more")
    special = [PAD, END, UNKNOWN] + ([CLS, SEP, MASK] if style == "bert" else [])
    least = len(special) + {"unigram": len(BYTES) + 32, "bpe": 256, "word": 1}[kind]
    if vocab_size < least:
        raise ValueError(f"vocab_size={vocab_size} is too small for a {kind} tokenizer; give {least} or more")

    texts = iter(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise ValueError("there is no text to make a tokenizer from")
    texts = itertools.chain([first], texts)
    train = {"unigram": _train_unigram, "bpe": _train_bpe, "word": _train_word}[kind]
    backend = train(texts, vocab_size, special, sentinels, progress, normalization)
    # The model's own vocabulary ends below the sentinels, so these are appended in descending order.
    names = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    size = backend.get_vocab_size() - sum(backend.token_to_id(name) is not None for name in names)
    if size < vocab_size and kind != "word":
        logger.warning("the texts gave a vocabulary of %d tokens, not %d", size, vocab_size)
    return _wrap(backend, special, names)


def _normalizer(normalization: str) -> normalizers.Normalizer | None:
    if normalization == "none":
        return None
    return normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])


def _train_unigram(
    texts: Iterable[str], size: int, special: list[str], sentinels: int, progress: bool, normalization: str
) -> Tokenizer:
    learner = Tokenizer(models.Unigram())
    if normalizer := _normalizer(normalization):
        learner.normalizer = normalizer
    # No piece crosses a space or a line break.
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first"),
            pre_tokenizers.Split(Regex(r"[\n\r\t]"), "isolated"),
        ]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=size - len(special) - len(BYTES) + 1,
        special_tokens=[UNKNOWN],
        unk_token=UNKNOWN,
        initial_alphabet=[SPACE, *_BYTE_SPELLING],
        show_progress=progress,
    )
    characters = {SPACE, *_BYTE_SPELLING}

    def read() -> Iterator[str]:
        for text in texts:
            characters.update(text if normalizer is None else normalizer.normalize_str(text))
            yield text

    try:
        learner.train_from_iterator(read(), trainer)
    except Exception as error:  # what the library raises has no type of its own
        if "contain all chars" not in str(error):
            raise
        needed = len(special) + len(BYTES) - 1 + len(characters - {" "})
        raise ValueError(
            f"vocab_size={size} is too small for a unigram tokenizer of these texts: it has a token for each of their "
            f"characters; give {needed} or more, or take kind bpe, which spells rare characters in bytes"
        ) from None
    taken = {*special, *BYTES}
    pieces = [(piece, score) for piece, score in json.loads(learner.to_str())["model"]["vocab"] if piece not in taken]
    names = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    vocab = [(token, _NEVER) for token in [*special, *BYTES]] + pieces + [(name, _NEVER) for name in names]
    backend = Tokenizer(models.Unigram(vocab, unk_id=special.index(UNKNOWN), byte_fallback=True))
    if learner.normalizer is not None:
        backend.normalizer = learner.normalizer
    backend.pre_tokenizer = learner.pre_tokenizer
    backend.decoder = space_decoder()
    return backend


def _train_bpe(
    texts: Iterable[str], size: int, special: list[str], sentinels: int, progress: bool, normalization: str
) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    if normalizer := _normalizer(normalization):
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_word(
    texts: Iterable[str], size: int, special: list[str], sentinels: int, progress: bool, normalization: str
) -> Tokenizer:
    backend = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if normalizer := _normalizer(normalization):
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=special, show_progress=progress)
    backend.train_from_iterator(texts, trainer)
    return backend


def _wrap(backend: Tokenizer, special: list[str], sentinels: list[str]) -> Any:
    """A trained ``backend`` with its special tokens and its frame around a text."""
    roles = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    single, pair = f"$A {END}", f"$A {END} $B {END}"
    if MASK in special:
        roles |= {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
        single, pair = f"{CLS} $A {SEP}", f"{CLS} $A {SEP} $B:1 {SEP}:1"
    return _hand_over(Vocabulary(backend, roles, single, pair), sentinels)


def _hand_over(vocabulary: Vocabulary, sentinels: list[str]) -> Any:
    """``vocabulary`` as a transformers tokenizer; ``sentinels`` in the order of their ids."""
    from transformers import PreTrainedTokenizerFast  # slow to import; preparing text does without

    backend, roles = vocabulary.backend, dict(vocabulary.roles)
    roles.setdefault("pad_token", PAD)  # a SentencePiece model may have none: it is put on top, below the sentinels
    special = [*dict.fromkeys(roles.values()), *sentinels]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    framed = [(token, backend.token_to_id(token)) for token in roles.values()]
    backend.post_processor = processors.TemplateProcessing(
        single=vocabulary.single, pair=vocabulary.pair, special_tokens=framed
    )
    segments = ["token_type_ids"] if "cls_token" in roles else []
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *segments, "attention_mask"],
        extra_special_tokens=list(reversed(sentinels)),
        clean_up_tokenization_spaces=False,
        **roles,
    )


def load_tokenizer(path_or_name: str | Path, sentinels: int = 100) -> Any:
    """A tokenizer from a Hugging Face folder, a `spiece.model`, a BERT `vocab.txt` (`.gz`, `.xz`), or the Hub by name.

    ``sentinels`` are put on top of a `spiece.model`, which has none of its own, as T5 does.
    """
    path = Path(path_or_name)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        # A folder of a bare vocabulary; any other folder is transformers' to open.
        found = [path / name for name in ("spiece.model", "vocab.txt", "vocab.txt.xz") if (path / name).exists()]
        path = found[0] if found and not (path / "tokenizer_config.json").exists() else path
    if path.is_file():
        if path.suffix == ".model":
            vocabulary = read_spiece(path)
            names = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
            return _hand_over(vocabulary, names if vocabulary.backend.token_to_id("<extra_id_0>") is None else [])
        if ".txt" in path.suffixes:
            return _hand_over(read_bert_vocab(path), [])
        if path.suffix == ".json":
            path = path.parent  # tokenizer.json itself was named
        else:
            raise ValueError(f"{path} is no tokenizer; expected a folder, a .model, a vocab.txt or a tokenizer.json")
    from transformers import AutoTokenizer

    try:
        if path.exists():
            return AutoTokenizer.from_pretrained(str(path))
        if _is_path(str(path_or_name)):
            raise FileNotFoundError(path)
        with offline_without_network():
            return AutoTokenizer.from_pretrained(str(path_or_name))
    except (OSError, ValueError, KeyError) as error:
        where = "folder has no tokenizer that can be read" if path.exists() else "no such file, folder or Hub name"
        raise ValueError(
            f"cannot load tokenizer {str(path_or_name)!r}: {where}. Give a folder with tokenizer.json, a spiece.model "
            "or a vocab.txt; `tokenmix tokenizer` trains one"
        ) from error


def _is_path(name: str) -> bool:
    """Can this be no Hub name? Those are NAME or OWNER/NAME, and beside an OWNER's own folder nobody means the Hub.

    >>> _is_path("./tokenizer"), _is_path("t5-small"), _is_path("google/t5-small")
    (True, False, False)
    """
    folder = Path(name).parent
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or (folder != Path() and folder.is_dir())
