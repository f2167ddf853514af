"""BERT and FNet: the configuration that means the same, and a table of names read in both directions."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.initialization import no_init_weights

from tokenmix.mixers.channel import Mlp
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.convert.common import THEIR_ACTIVATIONS, Read, Written, activation, bare, refuse_unless_held, same
from tokenmix.models.convert.weights import linear

OUTPUT = "cls.predictions.decoder.weight"
COPIES = {"cls.predictions.bias": "cls.predictions.decoder.bias"}


def names_of(config: TokenmixConfig, head: str, kind: str) -> dict[str, str]:
    names = {}
    for our, their in (("tokens", "word"), ("segments", "token_type"), ("positions", "position")):
        names[f"model.embed.{our}.weight"] = f"{kind}.embeddings.{their}_embeddings.weight"
    names |= linear("model.embed.norm", f"{kind}.embeddings.LayerNorm")
    if kind == "fnet":
        names |= linear("model.embed.projection", "fnet.embeddings.projection")
    for i in range(config.layers):
        here, there = f"model.encoder.layers.{i}", f"{kind}.encoder.layer.{i}"
        if kind == "bert":
            names |= linear(f"{here}.0.mixer.terms.0.query", f"{there}.attention.self.query")
            names |= linear(f"{here}.0.mixer.terms.0.key", f"{there}.attention.self.key")
            names |= linear(f"{here}.0.mixer.value", f"{there}.attention.self.value")
            names |= linear(f"{here}.0.mixer.out", f"{there}.attention.output.dense")
        names |= linear(f"{here}.0.norm", f"{there}.{'attention' if kind == 'bert' else 'fourier'}.output.LayerNorm")
        names |= linear(f"{here}.1.mixer.wi", f"{there}.intermediate.dense")
        names |= linear(f"{here}.1.mixer.wo", f"{there}.output.dense")
        names |= linear(f"{here}.1.norm", f"{there}.output.LayerNorm")
    if head == "masked_lm":
        names |= linear("transform.dense", "cls.predictions.transform.dense")
        names |= linear("transform.norm", "cls.predictions.transform.LayerNorm")
        names["lm_head.bias"] = "cls.predictions.decoder.bias"
        if not config.tie_embeddings:
            names["lm_head.weight"] = "cls.predictions.decoder.weight"
    elif head == "sequence_classification":
        names |= linear("pooler.dense", f"{kind}.pooler.dense") | linear("classifier", "classifier")
    elif head == "question_answering":
        names |= linear("span", "qa_outputs")
    if head != "none":
        return names
    return {bare(our, head): their.removeprefix(f"{kind}.") for our, their in names.items()}


def from_bert(model: Any, theirs: dict[str, Tensor], head: str) -> Read:
    """A BERT or FNet of theirs, understood."""
    c, kind = model.config, model.base_model_prefix
    if getattr(c, "is_decoder", False) or getattr(c, "add_cross_attention", False):
        raise ValueError("BERT as a decoder (is_decoder, add_cross_attention) has no counterpart here; the encoder has")
    gelu = activation(c.hidden_act)
    mixer = "dot" if kind == "bert" else 'fourier(padding="include")'
    tied = head != "masked_lm" or same(theirs[OUTPUT], theirs[f"{kind}.embeddings.word_embeddings.weight"])
    dropout, classifier_dropout = float(c.hidden_dropout_prob), getattr(c, "classifier_dropout", None)
    options: dict[str, Any] = {
        "body": "encoder",
        "layer": f'{mixer} | mlp(activation="{gelu}")',
        "d_model": c.hidden_size,
        "d_ff": c.intermediate_size,
        "heads": c.num_attention_heads if kind == "bert" else 1,
        "layers": c.num_hidden_layers,
        "vocab_size": model.get_input_embeddings().weight.shape[0],
        "max_length": c.max_position_embeddings,
        "positions": "absolute",
        "segments": c.type_vocab_size,
        "norm": "layer",
        "norm_position": "post",
        "norm_eps": c.layer_norm_eps,
        "bias": True,
        "scale": True,
        "init": "bert",
        "tie_embeddings": tied,
        "scale_output": False,
        "embedding_norm": True,
        "embedding_projection": kind == "fnet",
        "head_transform": True,
        "head_activation": gelu,
        "pooler": True,
        "pool": "cls",
        "dropout": dropout,
        "attention_dropout": float(getattr(c, "attention_probs_dropout_prob", dropout)),
        "classifier_dropout": dropout if classifier_dropout is None else float(classifier_dropout),
        "pad_token_id": c.pad_token_id,
        "eos_token_id": c.eos_token_id,
        "bos_token_id": c.bos_token_id,
    }
    if c.id2label is not None:
        options |= {"id2label": c.id2label, "label2id": c.label2id, "problem_type": c.problem_type}
    unused = {"cls.predictions.bias"} | ({OUTPUT} if tied else set())
    if head != "sequence_classification":  # nothing reads it
        unused |= {f"{prefix}pooler.dense.{part}" for prefix in ("", f"{kind}.") for part in ("weight", "bias")}
    return Read(options, names_of(TokenmixConfig(**options), head, kind), unused)


def to_bert(config: TokenmixConfig, head: str) -> Written:
    """A BERT of theirs for this configuration, without values yet."""
    import transformers

    width, other = config.site().width, []
    if width != config.d_model:
        other.append(f"its heads are {width} wide together, and BERT's are as wide as the model, {config.d_model}")
    if not config.segments:
        other.append("it has no segments, and BERT at least one")
    needed = {"positions": "absolute", "norm": "layer", "norm_position": "post", "bias": True, "scale": True}
    needed |= {"embedding_norm": True, "embedding_projection": False, "scale_embeddings": False}
    if head == "masked_lm":
        needed |= {"head_transform": True, "scale_output": False}
    elif head == "sequence_classification":
        needed |= {"pooler": True, "pool": "cls"}
    feed_forward = refuse_unless_held("BERT", config, (Mlp,), "'dot | mlp'", needed, other)
    if head == "masked_lm" and config.head_activation != feed_forward.activation:
        raise ValueError(
            f"Hugging Face's BERT cannot hold this model: it has one activation, and here the layers have "
            f"{feed_forward.activation!r} and the masked LM head {config.head_activation!r}"
        )
    their_config = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.site().d_ff,
        hidden_act=THEIR_ACTIVATIONS[feed_forward.activation],
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=float(config.attention_dropout or 0.0),
        classifier_dropout=config.classifier_dropout,
        max_position_embeddings=config.max_length,
        type_vocab_size=config.segments,
        layer_norm_eps=config.norm_eps,
        tie_word_embeddings=bool(config.tie_embeddings),
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        id2label=config.id2label,
        label2id=config.label2id,
        problem_type=config.problem_type,
    )
    with no_init_weights():  # values come next
        if head == "none":
            theirs: Any = transformers.BertModel(their_config, add_pooling_layer=False)
        else:
            task = {"masked_lm": "MaskedLM"}.get(head) or head.title().replace("_", "")
            theirs = getattr(transformers, f"BertFor{task}")(their_config)
    return Written(theirs, names_of(config, head, "bert"), COPIES, OUTPUT, "bert.embeddings.word_embeddings.weight")
