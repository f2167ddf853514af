"""`generate`: from input ids to output ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmix.generation.beam import BeamSearch
from tokenmix.generation.engine import Session, open_session, steps
from tokenmix.generation.search import Limits, Sampling, Search, StopStrings


@dataclass
class Generated:
    """What came out. `sequences` begins with the prompt (the start token in a seq2seq model), as in Hugging Face."""

    sequences: Tensor  #: [batch, prompt + longest] ids; padding after the end of a row
    scores: Tensor | None  #: [batch] log-probability of the new tokens; with beams divided by their number to the λ
    prompt: int  #: columns of the prompt
    lengths: Tensor  #: [batch] new tokens of each row, its end mark included

    @property
    def tokens(self) -> Tensor:
        """[batch, longest] the new tokens alone."""
        return self.sequences[:, self.prompt :]


def generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    eos_token_id: int | Sequence[int] | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    generator: torch.Generator | None = None,
    return_scores: bool = False,
) -> Generated:
    """Generate with a seq2seq or decoder model, the tokens that Hugging Face's `model.generate` gives, faster.

    The model runs in the dtype of its weights (`model.to(torch.bfloat16)` halves what a step reads), autocast or not.

    Args:
        model: a :class:`TokenmixForConditionalGeneration` or :class:`TokenmixForCausalLM`.
        input_ids: [batch, length] what the encoder reads, or the prompt.
        attention_mask: [batch, length], 1 for real tokens, padding on either side.
        max_new_tokens: rows end after this many tokens, or where the model's `max_length` is reached.
        num_beams: 1 for greedy search or sampling, more for beam search.
        length_penalty: λ in log P / n^λ, by which beam search ranks; the Synthesizer paper has 0.6.
        do_sample: draw tokens instead of taking the likeliest.
        temperature, top_k, top_p: sharpen and cut the distribution that is drawn from; 0 and 1.0 cut nothing.
        eos_token_id: end mark or marks; the model's own by default, `()` for none.
        stop_strings: a row ends with the token that completes one of these; needs `tokenizer`.
        generator: where the randomness of sampling comes from.
        return_scores: fill in `scores`.

    >>> out = generate(model, ids, mask, max_new_tokens=64, num_beams=4, length_penalty=0.6)
    >>> tokenizer.batch_decode(out.sequences, skip_special_tokens=True)
    """
    with evaluating(model):
        session, search, prompt = prepare(
            model,
            input_ids,
            attention_mask,
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            do_sample=do_sample,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            eos_token_id=eos_token_id,
            stop_strings=stop_strings,
            tokenizer=tokenizer,
            generator=generator,
            scored=return_scores,
        )
        if session is not None:
            for _ in steps(session):
                pass
        with torch.inference_mode():
            new, scores, lengths = search.result()
    new, scores, lengths = new.clone(), scores.clone(), lengths.clone()
    if session is not None:
        session.rest()
    return Generated(torch.cat([prompt, new], 1), scores if return_scores else None, prompt.shape[1], lengths)


def prepare(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    *,
    max_new_tokens: int,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    eos_token_id: int | Sequence[int] | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    generator: torch.Generator | None = None,
    scored: bool = True,
) -> tuple[Session | None, Search, Tensor]:
    """Check everything and begin; the session (None if there is nothing to do), its search, the prompt [batch, columns]."""
    config: Any = getattr(model, "config", None)
    body = getattr(config, "body", None)
    if body not in ("seq2seq", "decoder") or not hasattr(model, "score"):
        raise TypeError(f"generate needs a seq2seq or decoder model with a language head; got {type(model).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [batch, length]; got {list(input_ids.shape)}")
    batch, length = input_ids.shape
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must be [batch, length] = {[batch, length]}; got {list(attention_mask.shape)}"
        )
    for name, value, least in (("max_new_tokens", max_new_tokens, 0), ("num_beams", num_beams, 1), ("top_k", top_k, 0)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}; got {value!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0; got {temperature!r} (for the likeliest token, do_sample=False)")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1]; got {top_p!r}")
    if do_sample and num_beams > 1:
        raise ValueError("sampling and beam search exclude each other; give do_sample=False or num_beams=1")
    if not do_sample and (generator is not None or temperature != 1.0 or top_k or top_p != 1.0):
        raise ValueError(
            "temperature, top_k, top_p and generator have a meaning in sampling alone; give do_sample=True"
        )
    if length > config.max_length:
        raise ValueError(
            f"sequence of {length} tokens exceeds max_length={config.max_length} of this model; "
            f"truncate it, or build the model with max_length >= {length}"
        )
    real = None if attention_mask is None else attention_mask.bool().sum(-1)
    if batch and (length == 0 or (real is not None and int(real.min()) == 0)):
        what = "the encoder's input" if body == "seq2seq" else "the prompt"
        raise ValueError(f"{what} has an empty row; give at least one token, such as the start or end mark")
    device = input_ids.device
    if body == "seq2seq":
        prompt = input_ids.new_full((batch, 1), config.decoder_start_token_id)
        used = torch.ones(batch, dtype=torch.long, device=device)
    else:
        prompt = input_ids
        used = torch.full((batch,), length, dtype=torch.long, device=device) if real is None else real
    # the last token is not read any more, so one more than positions fits
    room = (config.max_length + 1 - used).clamp(max=max_new_tokens)
    tokens = int(room.max()) if batch else 0
    limits = Limits(tokens, room, _marks(model, eos_token_id), _pad(model))
    stops = None
    if stop_strings:
        texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        if tokenizer is None:
            raise ValueError("stop_strings are found in text; give the tokenizer too")
        if not all(texts):
            raise ValueError("an empty stop string would stop before the first token")
        stops = StopStrings(texts, tokenizer)
    with torch.inference_mode():
        search: Search
        if num_beams > 1:
            search = BeamSearch(batch, limits, device, stops, beams=num_beams, length_penalty=length_penalty)
        elif do_sample:
            search = Sampling(
                batch,
                limits,
                device,
                stops,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
                scored=scored,
            )
        else:
            search = Search(batch, limits, device, stops, scored=scored)
        session = None
        if tokens:
            seq2seq = body == "seq2seq"
            read, masked = (length, attention_mask is not None) if seq2seq else (0, False)
            session = open_session(model, search, prompt.shape[1], tokens, read, masked)
            search = session.search
            session.begin(model, input_ids, attention_mask)
    return session, search, prompt


def _marks(model: Any, given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        settings = getattr(model, "generation_config", None)
        given = getattr(settings, "eos_token_id", None)
        given = model.config.eos_token_id if given is None else given
    return () if given is None else (given,) if isinstance(given, int) else tuple(given)


def _pad(model: Any) -> int:
    pad = model.config.pad_token_id
    return 0 if pad is None else int(pad)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout while this runs, and no autocast: steps run in the dtype of the weights, which arrive once a token."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        if training:
            model.train()
