"""Foreign vocabularies: a SentencePiece `spiece.model` and a BERT `vocab.txt`, read into Hugging Face `tokenizers`.

Each reader answers with the backend, the token of every role it knows (`pad_token`, `eos_token`, …), and the frame put
around a text. `tokenmix.data.tokenizers.load_tokenizer` is what to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenmix.data.documents import read_lines

SPACE = "▁"


@dataclass(frozen=True)
class Vocabulary:
    """What a foreign file says of a tokenizer."""

    backend: Tokenizer
    roles: dict[str, str]
    single: str  # template of one text
    pair: str  # template of two texts


def space_decoder() -> decoders.Decoder:
    """▁ → space, bytes → characters, and the boundary in front of the first word is taken away again."""
    return decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def read_spiece(path: Path) -> Vocabulary:
    """A SentencePiece model (unigram or BPE) with its own normalization; ids are the model's."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        raise ValueError(f"{path} is not a SentencePiece model; expected a file such as T5's spiece.model") from None
    spec, rules = proto.trainer_spec, proto.normalizer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    unknown = next((p.piece for p in proto.pieces if p.type == p.UNKNOWN), None)
    if unknown is None:
        raise ValueError(f"{path} has no piece for unknown text; it is damaged or not a SentencePiece model")

    if spec.model_type == spec.UNIGRAM:
        model: models.Model = models.Unigram(pieces, unk_id=ids[unknown], byte_fallback=spec.byte_fallback)
    elif spec.model_type == spec.BPE:
        merges = _merges(pieces, ids)
        model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=spec.byte_fallback)
    else:
        raise ValueError(f"{path} is a SentencePiece model of words or characters; expected unigram or BPE")
    backend = Tokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=spec.split_by_whitespace)
    backend.decoder = space_decoder()

    roles = {"unk_token": unknown}
    for role, piece in (("pad_token", spec.pad_piece), ("eos_token", spec.eos_piece), ("bos_token", spec.bos_piece)):
        if piece in ids:
            roles[role] = piece
    end = roles.get("eos_token")
    return Vocabulary(backend, roles, f"$A {end}" if end else "$A", f"$A {end} $B {end}" if end else "$A $B")


def _merges(pieces: list[tuple[str, float]], ids: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece stores no merges: every split of a piece into two pieces is one, ranked by the piece's score."""
    merges = []
    for piece, score in pieces:
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(-score, ids[a], ids[b], a, b) for a, b in splits if a in ids and b in ids]
    return [(a, b) for *_, a, b in sorted(merges)]


def read_bert_vocab(path: Path) -> Vocabulary:
    """A BERT `vocab.txt` (or `.xz`, `.gz`): WordPiece. Cased if any of its words has a capital letter."""
    vocab = {token: number for number, token in enumerate(read_lines(path))}
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    if missing := [token for token in roles.values() if token not in vocab]:
        raise ValueError(f"{path} has no {', '.join(missing)}; expected a BERT vocabulary, one token per line")
    cased = any(token != token.lower() for token in vocab if not token.startswith("["))
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return Vocabulary(backend, roles, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
