"""Hugging Face's T5, BERT and FNet as models of ours, and T5 and BERT back."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tokenmix.models.base import TokenmixPreTrainedModel
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.convert.bert import from_bert, to_bert
from tokenmix.models.convert.common import bare
from tokenmix.models.convert.t5 import from_t5, to_t5
from tokenmix.models.convert.weights import build, take
from tokenmix.models.create import HEADS
from tokenmix.naming import unknown

#: their class → how to read it, our head
CLASSES = {
    "T5ForConditionalGeneration": (from_t5, "conditional_generation"),
    "T5Model": (from_t5, "none"),
    "T5EncoderModel": (from_t5, "none"),
    "BertForMaskedLM": (from_bert, "masked_lm"),
    "BertForSequenceClassification": (from_bert, "sequence_classification"),
    "BertForQuestionAnswering": (from_bert, "question_answering"),
    "BertModel": (from_bert, "none"),
    "FNetForMaskedLM": (from_bert, "masked_lm"),
    "FNetForSequenceClassification": (from_bert, "sequence_classification"),
    "FNetForQuestionAnswering": (from_bert, "question_answering"),
    "FNetModel": (from_bert, "none"),
}


def from_transformers(model: PreTrainedModel, **overrides: Any) -> TokenmixPreTrainedModel:
    """A Hugging Face T5, BERT or FNet model as one of ours, with the same outputs and the head that it had.

    Whether a T5 is tied is decided by its tensors, not by its configuration. T5 has no longest sequence, ours has:
    `max_length=512` unless given. FNet becomes `fourier(padding="include")`, since Hugging Face transforms padding too.

    Args:
        model: T5ForConditionalGeneration, T5Model, T5EncoderModel, or BERT or FNet with the masked LM, sequence
            classification or question answering head or with none (a bare model's pooler is left behind).
        overrides: options of :class:`TokenmixConfig` to change, such as `max_length` or `dropout`.

    >>> from transformers import T5ForConditionalGeneration
    >>> model = from_transformers(T5ForConditionalGeneration.from_pretrained("t5-small"), max_length=1024)
    >>> model.config.layer
    'dot | mlp(activation="relu")'
    """
    name = next((cls.__name__ for cls in type(model).__mro__ if cls.__name__ in CLASSES), None)
    if name is None:
        raise unknown("model to convert", type(model).__name__, CLASSES)
    read, head = CLASSES[name]
    theirs = dict(model.state_dict(keep_vars=True))
    options, names, unused = read(model, theirs, head)
    config = TokenmixConfig(**{**options, **overrides})
    tensors = take(names, theirs, name, unused)
    positions = bare("model.embed.positions.weight", head)
    if (table := tensors.get(positions)) is not None:
        if config.max_length > len(table):
            raise ValueError(f"{name} has {len(table)} learned positions; max_length={config.max_length} is more")
        tensors[positions] = table[: config.max_length]
    return build(config, head, tensors, name).train(model.training)


def to_transformers(model: TokenmixPreTrainedModel) -> PreTrainedModel:
    """A seq2seq model of ours as Hugging Face's T5, an encoder as its BERT: the way back of :func:`from_transformers`.

    A model that they cannot hold is a `ValueError` that says why. Regularisation that they have no option for
    (stochastic depth, z-loss, label smoothing) stays behind; outputs are the same.

    >>> to_transformers(create_model("t5-v1.1-tiny")).save_pretrained("t5")
    """
    if not isinstance(model, TokenmixPreTrainedModel):
        raise ValueError(f"to_transformers takes a model of tokenmix; got {type(model).__name__}")
    config: Any = model.config
    head = next(name for name, kind in HEADS.items() if isinstance(model, kind))
    writers = {"seq2seq": to_t5, "encoder": to_bert}
    if config.body not in writers:
        raise ValueError(
            f"Hugging Face's T5 holds seq2seq models and its BERT encoders; neither can hold body={config.body!r}"
        )
    theirs, names, copies, output, embedding = writers[config.body](config, head)
    ours, places = model.state_dict(), set(theirs.state_dict())
    copies = {copy: first for copy, first in copies.items() if copy in places}
    if config.tie_embeddings and output in places:
        copies[output] = embedding
    state = {their: ours[our].detach().clone() for our, their in names.items()}
    theirs.load_state_dict(state | {copy: state[first] for copy, first in copies.items()}, assign=True)
    # by hand: transformers itself would tie the output of a T5 in any case
    for copy, first in copies.items():
        _set(theirs, copy, theirs.get_parameter(first))
    return theirs.train(model.training)


def _set(model: nn.Module, name: str, value: nn.Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, value)
