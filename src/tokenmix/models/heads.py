"""The heads: what a body is trained for. Hugging Face classes, losses inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

from tokenmix.mixers.base import ACTIVATIONS
from tokenmix.mixers.rows import Rows
from tokenmix.models.base import Head, TokenmixModel, TokenmixPreTrainedModel
from tokenmix.models.cache import MixingCache
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.losses import IGNORED, classification_loss, token_loss
from tokenmix.ops.cross_entropy import linear_cross_entropy
from tokenmix.ops.linear import Linear
from tokenmix.ops.norm import LayerNorm


class Output(Head, Linear):
    """The output matrix onto the vocabulary or the labels."""

    def __init__(self, config: TokenmixConfig, outputs: int, *, bias: bool = False, std: float | None = None) -> None:
        self.std = std
        Linear.__init__(self, config.d_model, outputs, bias=bias)

    def reset_parameters(self) -> None:
        std = self.in_features**-0.5 if self.std is None else self.std
        nn.init.zeros_(self.weight) if std == 0 else nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class TokenmixLM(TokenmixPreTrainedModel):
    """A head that scores the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.embed.tokens.weight"}

    def __init__(self, config: TokenmixConfig, *, bias: bool = False) -> None:
        super().__init__(config)
        self.model = TokenmixModel(config)
        self.lm_head = Output(config, config.vocab_size, bias=bias, std=0.02 if config.init == "bert" else None)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def score(self, states: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of decoder or encoder states."""
        if self.config.scale_output:
            states = states * self.config.d_model**-0.5
        return self.lm_head(states)

    def score_and_loss(
        self, states: Tensor, labels: Tensor | None, num_items_in_batch: Any, return_logits: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits and, with labels, cross-entropy with the configuration's label smoothing and z-loss (in training).

        Without logits to return, the loss is computed a few thousand tokens at a time, and those of a large vocabulary
        are never stored whole; on a CPU, nothing is computed for padding either.
        """
        smoothing, z = (self.config.label_smoothing, self.config.z_loss) if self.training else (0.0, 0.0)
        options: dict[str, Any] = {"label_smoothing": smoothing, "z_loss": z}
        if labels is not None and not return_logits:
            states = states * self.config.d_model**-0.5 if self.config.scale_output else states
            head = self.lm_head
            return None, linear_cross_entropy(
                states, head.weight, labels, bias=head.bias, count=num_items_in_batch, ignore_index=IGNORED, **options
            )
        logits = self.score(states)
        if labels is None:
            return logits, None
        return logits, token_loss(logits, labels, num_items_in_batch=num_items_in_batch, **options)


class Generates:
    """What Hugging Face's `generate` needs to know of our cache."""

    _is_stateful = True  # a cache that cannot go back: assisted decoding, which takes tokens back, is refused

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = MixingCache(self.config.max_length)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


class TokenmixForConditionalGeneration(Generates, TokenmixLM, GenerationMixin):
    """Text to text: the T5.1.1 body.

    >>> model = create_model("t5-v1.1-tiny")
    >>> model(input_ids=ids, labels=targets).loss
    """

    body = "seq2seq"

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.model.get_encoder()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels moved one place to the right behind the start token."""
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1]], 1).masked_fill_(
            torch.cat([start, labels[:, :-1]], 1) == IGNORED, self.config.pad_token_id
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        decoder_tokens: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_logits: bool = True,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        # real tokens alone: a CPU takes any number of them, elsewhere `decoder_tokens` fixes it
        alone = decoder_tokens is not None or (not return_logits and not torch.compiler.is_compiling())
        body = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            skip_padding=not return_logits,
            decoder_read=_up_to_the_last(labels) if alone and decoder_attention_mask is None else None,
            decoder_tokens=decoder_tokens,
            return_dict=True,
            **kwargs,
        )
        states = body.last_hidden_state
        if decoder_tokens is not None and labels is not None and self.training:
            states = Rows(decoder_tokens, labels.shape).gather(states)  # and logits, if asked for, are of these alone
            labels = labels.flatten()[decoder_tokens]
        logits, loss = self.score_and_loss(states, labels, num_items_in_batch, return_logits)
        out = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=body.past_key_values,
            decoder_hidden_states=body.decoder_hidden_states,
            encoder_last_hidden_state=body.encoder_last_hidden_state,
            encoder_hidden_states=body.encoder_hidden_states,
        )
        return self.finish(out, body, return_dict)


class TokenmixForCausalLM(Generates, TokenmixLM, GenerationMixin):
    """Language modelling, left to right. `labels` are the inputs themselves; the shift happens here."""

    body = "decoder"

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_logits: bool = True,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        following = None
        if labels is not None:
            following = torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), IGNORED)], 1)
            if document_ids is not None:  # the last token of a document predicts nothing
                ends = torch.ones_like(document_ids, dtype=torch.bool)
                ends[:, :-1] = document_ids[:, 1:] != document_ids[:, :-1]
                following = following.masked_fill(ends, IGNORED)
        body = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            skip_padding=not return_logits and _none_at_padding(following, attention_mask, document_ids),
            return_dict=True,
            **kwargs,
        )
        states = body.last_hidden_state
        if labels is None and logits_to_keep:
            states = states[:, -logits_to_keep:]
        logits, loss = self.score_and_loss(states, following, num_items_in_batch, return_logits)
        out = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=body.past_key_values, hidden_states=body.hidden_states
        )
        return self.finish(out, body, return_dict)


class Transform(Head):
    """Linear, activation, norm: what BERT puts before its output matrix."""

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__()
        self.dense = Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.activation = ACTIVATIONS[config.head_activation]

    def reset_parameters(self) -> None:
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class TokenmixForMaskedLM(TokenmixLM):
    """Masked language modelling, BERT's protocol.

    ``predicted_positions`` [batch, predictions] says where the labels are (at least; others among them may be −100). Asked
    for the loss alone, the model then computes the vocabulary there and nowhere else.
    """

    body = "encoder"

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config, bias=True)
        self.transform = Transform(config) if config.head_transform else nn.Identity()
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        predicted_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_logits: bool = True,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        body = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            skip_padding=not return_logits and _none_at_padding(labels, attention_mask, document_ids),
            return_dict=True,
            **kwargs,
        )
        states = body.last_hidden_state
        if predicted_positions is not None and labels is not None and not return_logits:
            labels = labels.gather(1, predicted_positions)
            states = states.gather(1, predicted_positions[..., None].expand(-1, -1, states.shape[-1]))
        logits, loss = self.score_and_loss(self.transform(states), labels, num_items_in_batch, return_logits)
        return self.finish(
            MaskedLMOutput(loss=loss, logits=logits, hidden_states=body.hidden_states), body, return_dict
        )


class Pooler(Head):
    """BERT's tanh layer on the first token."""

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__()
        self.dense = Linear(config.d_model, config.d_model)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense(x))


class TokenmixForSequenceClassification(TokenmixPreTrainedModel):
    """One label (or number) per text or pair of texts; `token_type_ids` tell a pair apart where segments exist."""

    body = "encoder"
    accepts_loss_kwargs = False  # the loss is a mean of its batch: Trainer divides by the accumulated batches

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.model = TokenmixModel(config)
        self.pooler = Pooler(config) if config.pooler else nn.Identity()
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = Output(config, config.num_labels, bias=True, std=0.02)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        body = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            skip_padding=True,
            return_dict=True,
            **kwargs,
        )
        states = body.last_hidden_state
        if self.config.pool == "mean":
            pooled = _mean(states, attention_mask)
        elif attention_mask is None or states.shape[0] == 0:
            pooled = states[:, 0]
        else:  # <cls> is the first real token
            pooled = states[torch.arange(states.shape[0], device=states.device), attention_mask.long().argmax(-1)]
        logits = self.classifier(self.dropout(self.pooler(pooled)))
        loss = None
        if labels is not None:
            kind = self.config.problem_type or (
                "regression" if self.config.num_labels == 1 else "single_label_classification"
            )
            loss = classification_loss(logits, labels, kind, self.config.label_smoothing if self.training else 0.0)
        return self.finish(
            SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states), body, return_dict
        )


class TokenmixForQuestionAnswering(TokenmixPreTrainedModel):
    """Where an answer starts and ends: span prediction as BERT does SQuAD."""

    body = "encoder"
    accepts_loss_kwargs = False  # the loss is a mean of its batch: Trainer divides by the accumulated batches

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.model = TokenmixModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.span = Output(config, 2, bias=True, std=0.02)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        body = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            skip_padding=True,
            return_dict=True,
            **kwargs,
        )
        logits = self.span(self.dropout(body.last_hidden_state))
        if attention_mask is not None:  # no answer in the padding
            logits = logits.masked_fill(~attention_mask.bool()[..., None], torch.finfo(logits.dtype).min)
        start, end = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            # an answer outside the window (position = length) counts for nothing
            length = start.shape[1]
            loss = sum(
                token_loss(scores, torch.where((place >= 0) & (place < length), place, IGNORED)) / 2
                for scores, place in ((start, start_positions.view(-1)), (end, end_positions.view(-1)))
            )
        out = QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=body.hidden_states
        )
        return self.finish(out, body, return_dict)


class TokenmixForImageClassification(TokenmixPreTrainedModel):
    """One label per image; soft labels (mixup) are taken as they are."""

    body = "vision"
    accepts_loss_kwargs = False  # as for texts
    main_input_name = "pixel_values"

    def __init__(self, config: TokenmixConfig) -> None:
        super().__init__(config)
        self.model = TokenmixModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = Output(config, config.num_labels, bias=True, std=0)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        body = self.model(pixel_values=pixel_values, return_dict=True, **kwargs)
        states = body.last_hidden_state
        logits = self.classifier(self.dropout(states[:, 0] if self.config.pool == "cls" else states.mean(1)))
        loss = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = classification_loss(logits, labels, "single_label_classification", smoothing)
        return self.finish(
            ImageClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states), body, return_dict
        )


def _none_at_padding(labels: Tensor | None, *masks: Tensor | None) -> bool:
    """Whether every label stands at a real token; asked on a CPU alone, where nothing waits for the answer."""
    if labels is None or labels.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    given = [mask for mask in masks if mask is not None and mask.shape == labels.shape]
    return not any(((labels != IGNORED) & ~mask.bool()).any() for mask in given)


def _up_to_the_last(labels: Tensor | None) -> Tensor | None:
    """[batch, length], True up to a row's last label: what stands behind it, a causal model need not look at."""
    if labels is None:
        return None
    place = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    return place <= ((labels != IGNORED) * place).amax(1, keepdim=True)


def _mean(states: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return states.mean(1)
    weight = mask.to(states.dtype).unsqueeze(-1)
    return (states * weight).sum(1) / weight.sum(1).clamp_min(1)
