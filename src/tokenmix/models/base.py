"""The body without a head: embeddings and one or two stacks, as a Hugging Face model."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, Seq2SeqModelOutput

from tokenmix.devices import readable
from tokenmix.mixers import parse
from tokenmix.mixers.base import Mixer, too_long
from tokenmix.mixers.rows import Rows
from tokenmix.models.cache import MixingCache
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.embedding import Embedding, Patches, token_std
from tokenmix.models.stack import MixingRecord, Stack, Unpacked, has_holes, right_padded, roll
from tokenmix.naming import unknown

# What Hugging Face's parts pass to every model, whether it has a use for it or not.
IGNORED_ARGUMENTS = ("cache_position", "logits_to_keep", "output_attentions", "num_items_in_batch")


class TokenmixPreTrainedModel(PreTrainedModel):
    """What all models share: configuration, initialisation, saving and loading."""

    config_class = TokenmixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ResidualLayer"]
    body: str | None = None  #: the body that this head needs

    def __init__(self, config: TokenmixConfig, *args: Any, **kwargs: Any) -> None:
        if self.body is not None and config.body != self.body:
            raise ValueError(
                f"{type(self).__name__} needs body={self.body!r}; this configuration has body={config.body!r}"
            )
        super().__init__(config, *args, **kwargs)
        if (
            getattr(self, "generation_config", None) is not None
        ):  # the model's longest sequence is not the default length of generation
            self.generation_config.max_length = None
            self.generation_config._from_model_config = False

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in Hugging Face; weights mapped from a file at odd addresses are copied, so that sums round as before."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for parameter in [*model.parameters(), *model.buffers()]:
            if parameter.device.type == "cpu" and parameter.data_ptr() % 64:
                parameter.data = parameter.data.clone()
        return loaded

    def returned(self, out: Any, return_dict: bool | None) -> Any:
        """The output as a dict, or as a tuple where the call or the configuration asks for one."""
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()

    def finish(self, out: Any, body: Any, return_dict: bool | None) -> Any:
        """A head's output with the mixing matrices of its body."""
        if body.get("mixing") is not None:
            out["mixing"] = body["mixing"]
        return self.returned(out, return_dict)

    @classmethod
    def is_custom_code(cls) -> bool:
        """No: transformers 5 spares modules of custom code that have no parameters but those of their children.

        Ours are set up as a whole, by `reset_parameters`, with functions of torch that leave loaded weights alone.
        """
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (Mixer, Embedding, Patches, Head)):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):  # rows that `resize_token_embeddings` adds; a table's owner comes after
            nn.init.normal_(module.weight, std=token_std(self.config))
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and module.weight is not None:
            nn.init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)


class Head(nn.Module):
    """A module of a head that initialises itself."""

    def reset_parameters(self) -> None:
        """Initial values."""


class TokenmixModel(TokenmixPreTrainedModel):
    """The bare body; `AutoModel` opens it.

    >>> model = TokenmixModel(TokenmixConfig(body="encoder", layer="gmlp", positions="none", d_model=64, layers=2))
    >>> model(torch.randint(0, 100, (2, 16))).last_hidden_state.shape
    torch.Size([2, 16, 64])
    """

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.embed = Patches(config) if config.body == "vision" else Embedding(config)
        relative = config.positions == "relative"
        if config.body != "decoder":
            self.encoder = Stack("encoder", parse(config.layer), config.site(), config.layers, shared_relative=relative)
        if config.body in ("decoder", "seq2seq"):
            two = config.body == "seq2seq"
            self.decoder = Stack(
                "decoder",
                parse(config.decoder_layer if two else config.layer),
                config.site(causal=True),
                config.decoder_layers if two else config.layers,
                shared_relative=relative,
                cross=parse(config.cross) if two else None,
                cross_site=config.cross_site() if two else None,
            )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed.projection if isinstance(self.embed, Patches) else self.embed.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed.tokens = value

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder with its embeddings, called like a model (Hugging Face's `generate` does)."""
        return EncoderOf(self) if self.config.body == "seq2seq" else self

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Encoder states [batch, length, d_model]."""
        return self._run(
            self.encoder, input_ids, attention_mask, inputs_embeds, token_type_ids, document_ids, **context
        )

    def decode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Decoder states [batch, length, d_model]; with `cache`, of the new tokens alone."""
        return self._run(self.decoder, input_ids, attention_mask, inputs_embeds, None, document_ids, **context)

    def _run(
        self,
        stack: Stack,
        ids: Tensor | None,
        mask: Tensor | None,
        vectors: Tensor | None,
        segments: Tensor | None,
        documents: Tensor | None,
        *,
        cache: MixingCache | None = None,
        hidden_states: list[Tensor] | None = None,
        tokens: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        context["hidden_states"] = hidden_states
        if (ids is None) == (vectors is None):
            raise ValueError(
                f"give either input ids or input embeddings to the {stack.name}" + ("" if ids is None else ", not both")
            )
        if ids is not None and (ids.dim() != 2 or ids.is_floating_point()):
            raise ValueError(f"input ids must be whole numbers [batch, length]; got {ids.dtype} {list(ids.shape)}")
        if vectors is not None and (vectors.dim() != 3 or vectors.shape[-1] != self.config.d_model):
            raise ValueError(
                f"input embeddings must be [batch, length, {self.config.d_model}]; got {list(vectors.shape)}"
            )
        given = ids if ids is not None else vectors
        length = given.shape[1]
        if length == 0:
            raise ValueError(f"the {stack.name} needs at least one token per row; got {list(given.shape)}")
        if length > self.config.max_length:
            raise too_long(length, self.config.max_length, "model")
        if mask is not None:
            remembers = cache is not None and cache.seen > 0  # the mask may cover what is remembered too
            fits = mask.dim() == 2 and (mask.shape[1] >= length if remembers else mask.shape[1] == length)
            if not fits or mask.shape[0] != given.shape[0]:
                whose = "decoder_" if self.config.body == "seq2seq" and stack is self.decoder else ""
                raise ValueError(
                    f"{whose}attention_mask must be [batch, length] = {list(given.shape[:2])} like {whose}input_ids; "
                    f"got {list(mask.shape)}"
                )
            mask = mask[:, -length:].bool()
            if cache is None and tokens is None and mask.device.type == "cpu" and readable(mask) and bool(mask.all()):
                mask = None  # no padding: no layer looks for any
        if documents is not None:
            if cache is not None:
                raise ValueError("packed documents (document_ids) cannot be decoded step by step")
            if documents.shape != given.shape[:2]:
                raise ValueError(
                    f"document_ids must be [batch, length] = {list(given.shape[:2])}; got {list(documents.shape)}"
                )
            packed = Unpacked(documents if mask is None else documents * mask)
            rows = [None if t is None else packed.split(t) for t in (ids, vectors, segments)]
            x = stack(self.embed(*rows, None), packed.mask, **context)
            if hidden_states is not None:
                hidden_states[:] = [packed.join(h) for h in hidden_states]
            return packed.join(x)
        back = None
        if tokens is not None and stack.training:  # padding stands behind them
            real = mask if mask is not None else context.get("real")
            context["rows"] = Rows(tokens, given.shape[:2], None if real is None else real.sum(1, dtype=torch.int32))
        elif mask is not None and length > 1 and mask.shape[0] and (order := right_padded(mask)) is not None:
            forth, back = order
            ids, vectors, segments, mask = (
                None if t is None else roll(t, forth) for t in (ids, vectors, segments, mask)
            )
        if cache is not None and mask is not None and length > 1 and has_holes(mask):
            raise ValueError("with a cache, padding stands before or after the tokens of a row, not between them")
        positions = cache.begin(given, mask) if cache is not None else None
        x = stack(self.embed(ids, vectors, segments, positions), mask, cache=cache, **context)
        if cache is not None:
            cache.end()
        if back is None:
            return x
        if hidden_states is not None:
            hidden_states[:] = [roll(h, back) for h in hidden_states]
        return roll(x, back)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        pixel_values: Tensor | None = None,
        past_key_values: MixingCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_mixing: bool = False,
        skip_padding: bool = False,
        decoder_read: Tensor | None = None,
        encoder_tokens: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **ignored: Any,
    ) -> Any:
        """Hidden states of the body.

        `attention_mask` is True (or 1) for real tokens, padding on either side. `document_ids` marks packed documents
        (a number per document, 0 for padding); `position_ids` that begin anew within a row do so too, as Hugging Face's
        collator for flattened batches writes them, and are not needed otherwise: positions count from a row's first
        token. `past_key_values` is a :class:`MixingCache`. `return_mixing=True` adds `mixing`, a list of
        :class:`MixingRecord`, one per sublayer; its matrices count from the first real token of a row, and every packed
        document is a row of its own. `skip_padding`: nobody reads the states at padding (of the encoder, in a seq2seq
        model), which need not be computed where that saves time, in training on a CPU;
        `decoder_read` [batch, length] says the same of a seq2seq model's decoder: no state is read after a row's last.
        `encoder_tokens` and `decoder_tokens` [count] do so where shapes are fixed: the places of its real tokens in the
        flattened right-padded batch, and of as much padding as the count leaves room for.
        """
        for name, value in ignored.items():
            if name not in IGNORED_ARGUMENTS and value is not None:
                known = inspect.signature(TokenmixModel.forward).parameters.keys() - {"self", "ignored"}
                raise unknown("argument of the model", name, known)
        if ignored.get("output_attentions"):
            raise ValueError("output_attentions: not all mixers attend; return_mixing=True gives every mixing matrix")
        if past_key_values is not None and not isinstance(past_key_values, MixingCache):
            raise ValueError(f"past_key_values must be a tokenmix MixingCache; got {type(past_key_values).__name__}")
        if position_ids is not None and document_ids is None and past_key_values is None:
            document_ids = _documents(position_ids, attention_mask)
        records: list[MixingRecord] | None = [] if return_mixing else None
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        cache = past_key_values
        if cache is None and use_cache and self.config.body in ("decoder", "seq2seq"):
            cache = MixingCache(self.config.max_length)
        if self.config.body == "vision":
            if pixel_values is None:
                raise ValueError("a vision model takes pixel_values [batch, channels, height, width]")
            states = self.encoder(self.embed(pixel_values), records=records, hidden_states=hidden)
            out: Any = BaseModelOutputWithPast(last_hidden_state=states, hidden_states=_tuple(hidden))
        elif self.config.body == "encoder":
            states = self.encode(
                input_ids,
                attention_mask,
                inputs_embeds,
                token_type_ids,
                document_ids,
                records=records,
                hidden_states=hidden,
                skip_padding=skip_padding,
            )
            out = BaseModelOutputWithPast(last_hidden_state=states, hidden_states=_tuple(hidden))
        elif self.config.body == "decoder":
            states = self.decode(
                input_ids,
                attention_mask,
                inputs_embeds,
                document_ids,
                cache=cache,
                records=records,
                hidden_states=hidden,
                skip_padding=skip_padding,
            )
            out = BaseModelOutputWithPast(last_hidden_state=states, past_key_values=cache, hidden_states=_tuple(hidden))
        else:
            if document_ids is not None:
                raise ValueError(
                    "document_ids: a seq2seq model takes no packed documents; give it one pair of texts per row"
                )
            encoder_hidden: list[Tensor] | None = [] if output_hidden_states else None
            only_ids = all(t is None for t in (encoder_outputs, inputs_embeds, decoder_inputs_embeds))
            if only_ids and _is_ids(input_ids) and _is_ids(decoder_input_ids):
                inputs_embeds, decoder_inputs_embeds = self.embed.together(input_ids, decoder_input_ids)
                input_ids = decoder_input_ids = None
            if encoder_outputs is None:
                memory = self.encode(
                    input_ids,
                    attention_mask,
                    inputs_embeds,
                    token_type_ids,
                    records=records,
                    hidden_states=encoder_hidden,
                    skip_padding=skip_padding,
                    tokens=encoder_tokens,
                )
            else:
                memory = encoder_outputs[0]
            asked, asked_mask = memory, None if attention_mask is None else attention_mask.bool()
            if asked_mask is not None and asked_mask.shape != memory.shape[:2]:
                raise ValueError(
                    f"attention_mask must be [batch, length] = {list(memory.shape[:2])} of the encoder's states; "
                    f"got {list(asked_mask.shape)}"
                )
            if (
                asked_mask is not None
                and self.config.cross != "dot"
                and (order := right_padded(asked_mask)) is not None
            ):
                asked, asked_mask = roll(memory, order[0]), roll(asked_mask, order[0])  # they go by position
            targets = decoder_input_ids if decoder_input_ids is not None else decoder_inputs_embeds
            if targets is not None and targets.shape[0] != memory.shape[0]:  # several for each input
                decoder_read = decoder_tokens = None
            states = self.decode(
                decoder_input_ids,
                decoder_attention_mask,
                decoder_inputs_embeds,
                memory=asked,
                memory_mask=asked_mask,
                cache=cache,
                records=records,
                hidden_states=hidden,
                skip_padding=decoder_read is not None,
                real=decoder_read,
                tokens=decoder_tokens,
            )
            out = Seq2SeqModelOutput(
                last_hidden_state=states,
                past_key_values=cache,
                decoder_hidden_states=_tuple(hidden),
                encoder_last_hidden_state=memory,
                encoder_hidden_states=_tuple(encoder_hidden),
            )
        if records is not None:
            out["mixing"] = records
        return self.returned(out, return_dict)


class EncoderOf(nn.Module):
    """The encoder half of a seq2seq model with the call of a model of its own."""

    main_input_name = "input_ids"

    def __init__(self, model: TokenmixModel) -> None:
        super().__init__()
        object.__setattr__(self, "owner", model)  # not a submodule: the parameters belong to the model

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        states = self.owner.encode(input_ids, attention_mask, inputs_embeds, token_type_ids, hidden_states=hidden)
        return BaseModelOutputWithPast(last_hidden_state=states, hidden_states=_tuple(hidden))


def _documents(positions: Tensor, mask: Tensor | None) -> Tensor | None:
    """Documents, counted from 1 in each row, where positions begin anew within a row; 0 for padding."""
    starts = positions == 0 if mask is None else (positions == 0) & mask.bool()
    if not readable(positions) and not positions.is_meta:
        raise ValueError(
            "position_ids cannot be read here (compiled, recorded or under vmap); give document_ids, or neither"
        )
    if positions.is_meta or not bool((starts.sum(-1) > 1).any()):
        return None
    documents = starts.long().cumsum(-1)
    return documents if mask is None else documents * mask


def _is_ids(ids: Tensor | None) -> bool:
    return ids is not None and ids.dim() == 2 and ids.dtype in (torch.int32, torch.int64)


def _tuple(states: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if states is None else tuple(states)
