"""One decoding step after the other: what runs the model, in what order, and on a GPU as one captured graph."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenmix.generation.beam import BeamSearch
from tokenmix.generation.fused import AsItIs, Projection, Step, encode, fuse, lean, rms_norm
from tokenmix.generation.search import Search
from tokenmix.models.cache import MixingCache
from tokenmix.models.stack import right_padded, roll

CHECK_EVERY = 8  # tokens between two questions to a GPU whether all rows have ended
KEPT = 2  # captured graphs kept per model, with their caches
BLOCK = 64  # lengths on a GPU are rounded up to this, so that one graph serves many


class Decoder:
    """A decoder that goes on from what it remembers, for every causal mixer.

    `load` makes it ready for a batch, `read` reads prompts, `step` one more token of every row. With `static` all shapes
    and addresses stay the same from step to step and from batch to batch.
    """

    def __init__(self, model: Any, search: Search, capacity: int, *, static: bool) -> None:
        self.model = weakref.proxy(model)  # a kept graph does not keep its model
        self.beams, self.static = search.beams, static
        self.stack = model.model.decoder
        self.state = Step(MixingCache(capacity, fixed=static), search.ended, search.tokens.shape[0])
        self.sublayers = [
            fuse(residual, f"{self.stack.name}.{i}.{j}", cross=j == layer.cross_at, relative=self.stack.relative)
            for i, layer in enumerate(self.stack.layers)
            for j, residual in enumerate(layer)
        ]
        lean_head = model.lm_head.bias is None and not model.lm_head.weight.is_cuda
        self.head = Projection([model.lm_head]) if lean_head else None
        others = [sublayer for sublayer in self.sublayers if isinstance(sublayer, AsItIs)]
        self.shares_bias = self.stack.relative is not None and any(not sublayer.cross for sublayer in others)
        self.reusable = static and not any(sublayer.cross for sublayer in others)

    def load(self, memory: Tensor | None, memory_mask: Tensor | None, *, even: bool = True) -> None:
        """Forget; remember the encoder's states [examples, length, d_model], right-padded. `even`: rows stand together."""
        state = self.state
        state.cache.restart()
        state.even = even and not self.static  # a captured step knows its position on the device alone
        if memory is not None:
            state.memory, state.memory_mask = memory, memory_mask
            if state.memory_lengths is None:
                state.memory_lengths = torch.zeros(memory.shape[0], dtype=torch.long, device=memory.device)
            if memory_mask is None:
                state.memory_lengths.fill_(memory.shape[1])
            else:
                state.memory_lengths.copy_(memory_mask.sum(-1))
        for sublayer in self.sublayers:
            sublayer.load(state)
        if self.head is not None:
            self.head.load(state.rows)

    def read(self, prompt: Tensor, mask: Tensor | None) -> Tensor:
        """Read prompts [examples, length], right-padded; logits [rows, vocabulary] of what follows them."""
        beams, cache = self.beams, self.state.cache
        if self.static:  # rows at their final addresses
            prompt = prompt.repeat_interleave(beams, 0)
            mask = None if mask is None else mask.repeat_interleave(beams, 0)
        states = self.model.model.decode(prompt, mask, cache=cache)
        last = states[:, -1]
        if mask is not None:
            last = states[torch.arange(states.shape[0], device=states.device), mask.sum(-1) - 1]
        logits = self.model.score(last)
        if beams > 1 and not self.static:
            cache.spread(beams)
            logits = logits.repeat_interleave(beams, 0)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row, [rows]; logits [rows, vocabulary]."""
        state, cache = self.state, self.state.cache
        if cache.lengths is not None:  # rows that have ended stay where they are
            cache.lengths.clamp_(max=cache.capacity - 1)
        positions = cache.begin(tokens[:, None], None)
        cache.fresh = False  # at the very start too: a step is a step
        x = self.model.model.embed(tokens[:, None], None, None, positions)[:, 0]
        state.squares = None
        if self.shares_bias:
            state.bias = self.stack.relative(1, cache.slot(f"{self.stack.name}.relative"))
        for sublayer in self.sublayers:
            x = sublayer(x, state)
        cache.end()
        norm = self.stack.final_norm
        x = rms_norm(x, norm.weight, norm.eps) if isinstance(norm, nn.RMSNorm) else norm(x)
        if self.head is None:
            return self.model.score(x)
        config = self.model.config
        return self.head(x * config.d_model**-0.5 if config.scale_output else x, state)

    def change_places(self, origin: Tensor) -> None:
        """Row i goes on from row origin[i] of the same example."""
        self.state.cache.change_places(origin)

    def keep(self, rows: Tensor, examples: Tensor, ended: Tensor) -> None:
        """Go on with some rows alone, those of some examples."""
        state = self.state
        state.cache.keep(rows, examples)
        state.ended = ended
        state.memory = None if state.memory is None else state.memory[examples]
        state.memory_mask = None if state.memory_mask is None else state.memory_mask[examples]
        state.memory_lengths = None if state.memory_lengths is None else state.memory_lengths[examples]


class Session:
    """A search and a decoder for batches of one shape; on a GPU what they do is captured once and replayed."""

    def __init__(self, model: Any, search: Search, capacity: int, *, static: bool) -> None:
        self.search = search
        self.decoder = Decoder(model, search, capacity, static=static)
        self.static = static
        self.graph: Any = None  #: one step, with the choice after it where that needs no host
        self.logits: Tensor | None = None  #: what a captured step leaves to choose from
        self.front: Any = None  #: the encoder and all preparations, where they can be captured
        self.home: tuple[OrderedDict[Any, Session], Any] | None = None  #: where it waits for the next batch
        self.ids: Tensor | None = None  #: what the captured encoder reads
        self.mask: Tensor | None = None

    def begin(self, model: Any, input_ids: Tensor, mask: Tensor | None) -> None:
        """Encode, or read the prompts and choose the first token."""
        if mask is not None:
            mask = mask.bool()
            if (order := right_padded(mask)) is not None:
                input_ids, mask = roll(input_ids, order[0]), roll(mask, order[0])
        search, decoder = self.search, self.decoder
        if model.config.body == "seq2seq":
            start = model.config.decoder_start_token_id
            self._encode(model, input_ids, mask)
            if self._capture(start):
                self._encode(model, input_ids, mask)
            search.tokens.fill_(start)
            return
        even = mask is None
        decoder.load(None, None, even=even)
        logits = decoder.read(input_ids, mask)
        if self._capture(0):  # which tries the step out, so read again
            decoder.load(None, None, even=even)
            logits = decoder.read(input_ids, mask)
        search.choose(logits)
        search.chosen += 1

    def _encode(self, model: Any, input_ids: Tensor, mask: Tensor | None) -> None:
        if not self.static:
            self.decoder.load(encode(model.model, input_ids, mask), mask)
            return
        more = _columns(model, input_ids.shape[1]) - input_ids.shape[1]
        if more and mask is None:
            mask = torch.ones_like(input_ids, dtype=torch.bool)
        if more and mask is not None:
            input_ids, mask = pad(input_ids, (0, more)), pad(mask, (0, more))
        if self.ids is None:
            self.ids, self.mask = input_ids.clone(), None if mask is None else mask.clone()
        ids = self.ids.copy_(input_ids)
        if mask is not None and self.mask is not None:
            self.mask.copy_(mask)

        def work() -> None:
            self.decoder.load(encode(model.model, ids, self.mask), self.mask)

        if self.front is not None:
            self.front.replay()
            return
        work()
        if self.graph is not None and self.decoder.reusable and lean(model.model.encoder):
            self.front = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.front):
                work()

    def advance(self) -> None:
        """One more token."""
        if self.graph is not None:
            self.graph.replay()
            if self.logits is not None:
                self.search.choose(self.logits)
        else:
            self.search.choose(self._step())
        self.search.chosen += 1

    def shrink(self) -> None:
        """Stop working on rows that have ended. (Captured kernels skip them by themselves.)"""
        if not self.static and (rows := self.search.compact()) is not None:
            beams = self.search.beams
            self.decoder.keep(rows, rows[::beams] // beams, self.search.ended)

    def rest(self) -> None:
        """What it found has been taken: the next batch may have it."""
        if self.home is not None:
            kept, key = self.home
            kept[key] = self
            while len(kept) > KEPT:
                kept.popitem(last=False)

    def _step(self) -> Tensor:
        if isinstance(self.search, BeamSearch):
            self.decoder.change_places(self.search.origin)
        return self.decoder.step(self.search.tokens)

    def _capture(self, token: int) -> bool:
        """Record a step as a CUDA graph, unless that has been done; afterwards everything has to begin again."""
        search = self.search
        if not self.static or self.graph is not None or not search.tokens.is_cuda:
            return False
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles kernels, allocates caches
                self._restart(token)
                self._choice()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._restart(token)
        with torch.cuda.graph(graph):
            logits = self._choice()
        self.graph, self.logits = graph, None if search.capturable else logits
        search.restart()
        return True

    def _restart(self, token: int) -> None:
        """Steps are tried from the very start: behind the prompts there may be no room."""
        self.search.restart()
        self.search.tokens.fill_(token)
        self.decoder.state.cache.restart()

    def _choice(self) -> Tensor:
        logits = self._step()
        if self.search.capturable:
            self.search.choose(logits)
        return logits


_sessions: weakref.WeakKeyDictionary[Any, OrderedDict[Any, Session]] = weakref.WeakKeyDictionary()


def open_session(model: Any, search: Search, prompt: int, tokens: int, length: int, masked: bool) -> Session:
    """A session for this search; on a GPU one that is already captured for these shapes, where there is one.

    `prompt` columns precede the new tokens; the encoder reads `length` columns (0: there is none), `masked` or all real.
    """
    most = model.config.max_length
    capacity = min(most, prompt + tokens - 1)
    if not search.tokens.is_cuda:
        return Session(model, search, capacity, static=False)
    capacity, padded = _rounded(capacity, most), _columns(model, length) if length else 0
    addresses = hash(tuple((p.data_ptr(), p.dtype) for p in model.parameters()))
    shape = (search.rows.shape[0], padded, masked or padded > length, capacity)
    key = (addresses, shape, *search.kind())
    kept = _sessions.setdefault(model, OrderedDict())
    session = kept.pop(key, None)  # nobody else's until it rests again
    if session is not None:
        session.search.take_over(search)
        return session
    session = Session(model, search, capacity, static=True)
    if session.decoder.reusable:
        session.home = kept, key
    return session


def _columns(model: Any, length: int) -> int:
    """How many columns an encoder reads of a batch of so many: rounded up, unless padding changes what it says."""
    seen = model.model.encoder.sees_padding
    return length if seen else _rounded(length, model.config.max_length)


def _rounded(length: int, most: int) -> int:
    return min(most, length + -length % BLOCK)


def steps(session: Session, *, ask: bool = False) -> Iterator[Search]:
    """Run a session that has begun to its end, handing out the search after every token.

    Whether all rows have ended is asked after every token on a CPU or with `ask`, else (a GPU would have to be waited for)
    now and then.
    """
    search = session.search
    every = 1 if ask or not session.static or search.stops is not None else CHECK_EVERY
    if search.chosen:
        yield search
    while search.chosen < search.limits.tokens:
        with torch.inference_mode():
            if search.chosen and search.chosen % every == 0:
                if search.finished():
                    return
                session.shrink()
            session.advance()
        yield search
