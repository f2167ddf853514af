"""Hugging Face's T5, BERT and FNet as models of ours, and T5 and BERT back.

Each architecture is two things: the configuration that means the same, and a table of names, read in both directions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenmix.mixers import Dot, Geglu, Mlp, parse
from tokenmix.mixers.expression import Layer
from tokenmix.models.base import TokenmixModel, TokenmixPreTrainedModel
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.convert.weights import build, linear, take
from tokenmix.models.create import HEADS
from tokenmix.naming import unknown

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}

#: their class → (architecture, our head)
CLASSES = {
    "T5ForConditionalGeneration": ("t5", "conditional_generation"),
    "T5Model": ("t5", "none"),
    "T5EncoderModel": ("t5_encoder", "none"),
    "BertForMaskedLM": ("bert", "masked_lm"),
    "BertForSequenceClassification": ("bert", "sequence_classification"),
    "BertForQuestionAnswering": ("bert", "question_answering"),
    "BertModel": ("bert", "none"),
    "FNetForMaskedLM": ("fnet", "masked_lm"),
    "FNetForSequenceClassification": ("fnet", "sequence_classification"),
    "FNetForQuestionAnswering": ("fnet", "question_answering"),
    "FNetModel": ("fnet", "none"),
}


def from_transformers(model: PreTrainedModel, **overrides: Any) -> TokenmixPreTrainedModel:
    """A Hugging Face T5, BERT or FNet model as one of ours, with the same outputs and the head that it had.

    T5 may be tied or not, scaled or not: what its tensors are decides. T5 has no longest sequence, ours has:
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
    kind, head = CLASSES[name]
    theirs = dict(model.state_dict(keep_vars=True))
    if kind.startswith("t5"):
        options, names, unused = _from_t5(model, theirs, head, decoder=kind == "t5")
    else:
        options, names, unused = _from_bert(model, theirs, head, kind)
    config = TokenmixConfig(**{**options, **overrides})
    tensors = take(names, theirs, name, unused)
    if (table := tensors.get(_bare("model.embed.positions.weight", head))) is not None:
        if config.max_length > table.shape[0]:
            raise ValueError(f"{name} has {table.shape[0]} positions; max_length={config.max_length} is more than it knows")
        tensors[_bare("model.embed.positions.weight", head)] = table[: config.max_length]
    ours = build(config, head, tensors, name)
    return ours.train(model.training)


def to_transformers(model: TokenmixPreTrainedModel) -> PreTrainedModel:
    """A seq2seq model of ours as Hugging Face's T5, an encoder as its BERT: the way back of :func:`from_transformers`.

    A model that they cannot hold is a `ValueError` that says why. Regularisation that they have no option for (stochastic
    depth, z-loss, label smoothing) stays behind; outputs are the same.

    >>> to_transformers(create_model("t5-v1.1-tiny")).save_pretrained("t5")
    """
    if not isinstance(model, TokenmixPreTrainedModel):
        raise ValueError(f"to_transformers takes a model of tokenmix; got {type(model).__name__}")
    head = next(name for name, kind in HEADS.items() if isinstance(model, kind))
    config = model.config
    if config.body == "seq2seq":
        theirs, names, copies = _to_t5(config, head)
    elif config.body == "encoder":
        theirs, names, copies = _to_bert(config, head)
    else:
        raise ValueError(
            f"Hugging Face's T5 holds seq2seq models and its BERT encoders; this model has body={config.body!r}, "
            "which neither can hold"
        )
    ours = dict(model.state_dict())
    state = {str(their): ours[our].detach().clone() for our, their in names.items()}
    if config.tie_embeddings and (output := OUTPUTS[config.body]) in theirs.state_dict():
        state[output] = state[EMBEDDINGS[config.body]]
    for copy, source in copies.items():
        if copy in theirs.state_dict():
            state[copy] = state[source]
    theirs.load_state_dict(state, assign=True)
    if config.tie_embeddings or head == "none":
        theirs.tie_weights()
    else:  # transformers would tie the output to the embeddings
        _tie_all_but_output(theirs, copies)
    return theirs.to(model.device).train(model.training)


OUTPUTS = {"seq2seq": "lm_head.weight", "encoder": "cls.predictions.decoder.weight"}
EMBEDDINGS = {"seq2seq": "shared.weight", "encoder": "bert.embeddings.word_embeddings.weight"}


def _tie_all_but_output(model: nn.Module, copies: dict[str, str]) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for copy, source in copies.items():
        if copy in parameters:
            owner, _, attribute = copy.rpartition(".")
            setattr(model.get_submodule(owner), attribute, parameters[source])


def _bare(name: str, head: str) -> str:
    return name.removeprefix("model.") if head == "none" else name


def _activation(name: Any) -> str:
    if name not in ACTIVATIONS:
        raise unknown("activation to convert", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def _same(first: Tensor, second: Tensor) -> bool:
    """One tensor under two names."""
    return first is second or (first.data_ptr() == second.data_ptr() and first.shape == second.shape and first.numel() > 0)


# ----------------------------------------------------------------------------------------------------------------- T5

T5_COPIES = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}


def _t5_names(config: TokenmixConfig, gated: bool, head: str) -> dict[str, str]:
    names = {"model.embed.tokens.weight": "shared.weight"}
    if head == "conditional_generation" and not config.tie_embeddings:
        names["lm_head.weight"] = "lm_head.weight"
    feed_forward = {"w1": "wi_0", "w2": "wi_1", "w3": "wo"} if gated else {"wi": "wi", "wo": "wo"}
    attention = {"terms.0.query": "q", "terms.0.key": "k", "value": "v", "out": "o"}
    stacks = [("encoder", config.layers, ("SelfAttention",))]
    if config.body == "seq2seq":
        stacks.append(("decoder", config.decoder_layers or 0, ("SelfAttention", "EncDecAttention")))
    for stack, layers, mixers in stacks:
        ours, theirs = f"model.{stack}", stack
        for i in range(layers):
            for j, part in enumerate((*mixers, "DenseReluDense")):
                here, there = f"{ours}.layers.{i}.{j}", f"{theirs}.block.{i}.layer.{j}"
                names |= linear(f"{here}.norm", f"{there}.layer_norm", bias=False)
                for our, their in (feed_forward if part == "DenseReluDense" else attention).items():
                    names |= linear(f"{here}.mixer.{our}", f"{there}.{part}.{their}", bias=False)
        names[f"{ours}.relative.weight"] = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names |= linear(f"{ours}.final_norm", f"{theirs}.final_layer_norm", bias=False)
    return {_bare(our, head): their for our, their in names.items()}


def _from_t5(model: Any, theirs: dict[str, Tensor], head: str, *, decoder: bool) -> tuple[dict[str, Any], dict[str, str], set[str]]:
    c = model.config
    if c.is_gated_act:
        if _activation(c.dense_act_fn) != "gelu_tanh":
            raise ValueError(f"T5 with feed_forward_proj={c.feed_forward_proj!r}: of the gated ones, only 'gated-gelu' has a counterpart")
        feed_forward: Any = Geglu()
    else:
        feed_forward = Mlp(activation=_activation(c.dense_act_fn))
    for copy, source in T5_COPIES.items():
        if copy in theirs and not _same(theirs[copy], theirs[source]) and not torch.equal(theirs[copy], theirs[source]):
            raise ValueError(f"this T5 has {copy} apart from {source}; ours has one embedding for encoder and decoder")
    tied = "lm_head.weight" in theirs and _same(theirs["lm_head.weight"], theirs["shared.weight"])
    eos = c.eos_token_id[0] if isinstance(c.eos_token_id, (list, tuple)) else c.eos_token_id
    start = getattr(c, "decoder_start_token_id", None)
    options = dict(
        body="seq2seq" if decoder else "encoder",
        layer=str(Dot() | feed_forward),
        d_model=c.d_model,
        d_ff=c.d_ff,
        heads=c.num_heads,
        head_dim=c.d_kv,
        layers=c.num_layers,
        vocab_size=theirs["shared.weight"].shape[0],
        positions="relative",
        relative_buckets=c.relative_attention_num_buckets,
        relative_distance=c.relative_attention_max_distance,
        norm="rms",
        norm_eps=c.layer_norm_epsilon,
        bias=False,
        scale=False,
        init="t5",
        tie_embeddings=tied,
        scale_output=bool(c.scale_decoder_outputs),
        dropout=float(c.dropout_rate),
        pad_token_id=c.pad_token_id,
        eos_token_id=eos,
        bos_token_id=getattr(c, "bos_token_id", None),
        decoder_start_token_id=start if start is not None else c.pad_token_id,
    )
    if decoder:
        options["decoder_layers"] = c.num_decoder_layers
    names = _t5_names(TokenmixConfig(**options), c.is_gated_act, head)
    return options, names, {*T5_COPIES, *(("lm_head.weight",) if tied else ())}


def _to_t5(config: TokenmixConfig, head: str) -> tuple[PreTrainedModel, dict[str, str], dict[str, str]]:
    from transformers import T5Config, T5ForConditionalGeneration, T5Model

    self_site, cross_site = config.site(), config.cross_site()
    feed_forward = _refuse_unless_held(
        "T5",
        config,
        (Geglu, Mlp),
        "dot | geglu or dot | mlp",
        {"positions": "relative", "norm": "rms", "norm_position": "pre", "bias": False, "scale": False, "cross": "dot"}
        | {"segments": 0, "embedding_norm": False, "embedding_projection": False, "scale_embeddings": False}
        | {"decoder_layer": config.layer},
        [] if (self_site.heads, self_site.head_dim) == (cross_site.heads, cross_site.head_dim) else ["cross-attention of another width"],
    )
    gated = isinstance(feed_forward, Geglu)
    their_config = T5Config(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_kv=self_site.head_dim,
        d_ff=self_site.d_ff,
        num_layers=config.layers,
        num_decoder_layers=config.decoder_layers,
        num_heads=config.heads,
        relative_attention_num_buckets=config.relative_buckets,
        relative_attention_max_distance=config.relative_distance,
        dropout_rate=config.dropout,
        layer_norm_epsilon=config.norm_eps,
        feed_forward_proj="gated-gelu" if gated else THEIR_ACTIVATIONS[feed_forward.activation],
        tie_word_embeddings=bool(config.scale_output),  # in transformers this decides the scale alone
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    if not gated:  # T5Config reads "gelu_new" as it stands
        their_config.dense_act_fn = THEIR_ACTIVATIONS[feed_forward.activation]
    with torch.device("meta"):
        theirs = (T5Model if head == "none" else T5ForConditionalGeneration)(their_config)
    return theirs, _t5_names(config, gated, head), T5_COPIES


# ------------------------------------------------------------------------------------------------------ BERT and FNet

BERT_COPIES = {"cls.predictions.bias": "cls.predictions.decoder.bias"}


def _bert_names(config: TokenmixConfig, head: str, kind: str) -> dict[str, str]:
    names = {f"model.embed.{our}.weight": f"{kind}.embeddings.{their}_embeddings.weight" for our, their in (("tokens", "word"), ("segments", "token_type"), ("positions", "position"))}
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
        names["output_bias"] = "cls.predictions.decoder.bias"
        if not config.tie_embeddings:
            names["lm_head.weight"] = "cls.predictions.decoder.weight"
    elif head == "sequence_classification":
        names |= linear("pooler.dense", f"{kind}.pooler.dense") | linear("classifier", "classifier")
    elif head == "question_answering":
        names |= linear("span", "qa_outputs")
    if head != "none":
        return names
    return {_bare(our, head): their.removeprefix(f"{kind}.") for our, their in names.items()}


def _from_bert(model: Any, theirs: dict[str, Tensor], head: str, kind: str) -> tuple[dict[str, Any], dict[str, str], set[str]]:
    c = model.config
    if getattr(c, "is_decoder", False) or getattr(c, "add_cross_attention", False):
        raise ValueError("BERT as a decoder (is_decoder or add_cross_attention) has no counterpart here; only the encoder has")
    activation = _activation(c.hidden_act)
    mixer = "dot" if kind == "bert" else 'fourier(padding="include")'
    output, embedding = OUTPUTS["encoder"], f"{kind}.embeddings.word_embeddings.weight"
    tied = head != "masked_lm" or _same(theirs[output], theirs[embedding])
    dropout, classifier_dropout = float(c.hidden_dropout_prob), getattr(c, "classifier_dropout", None)
    options = dict(
        body="encoder",
        layer=str(parse(mixer) | Mlp(activation=activation)),
        d_model=c.hidden_size,
        d_ff=c.intermediate_size,
        heads=c.num_attention_heads if kind == "bert" else 1,
        layers=c.num_hidden_layers,
        vocab_size=model.get_input_embeddings().weight.shape[0],
        max_length=c.max_position_embeddings,
        positions="absolute",
        segments=c.type_vocab_size,
        norm="layer",
        norm_position="post",
        norm_eps=c.layer_norm_eps,
        bias=True,
        scale=True,
        init="bert",
        tie_embeddings=tied,
        scale_output=False,
        embedding_norm=True,
        embedding_projection=kind == "fnet",
        head_transform=True,
        head_activation=activation,
        pooler=True,
        pool="cls",
        dropout=dropout,
        attention_dropout=float(getattr(c, "attention_probs_dropout_prob", dropout)),
        classifier_dropout=dropout if classifier_dropout is None else float(classifier_dropout),
        pad_token_id=c.pad_token_id,
        eos_token_id=c.eos_token_id,
        bos_token_id=c.bos_token_id,
    )
    if head == "sequence_classification":
        options |= {"id2label": c.id2label, "label2id": c.label2id, "problem_type": c.problem_type}
    unused = {"cls.predictions.bias"} | ({output} if tied else set())
    if head != "sequence_classification":  # nothing reads it
        unused |= {f"{prefix}pooler.dense.{part}" for prefix in ("", f"{kind}.") for part in ("weight", "bias")}
    return options, _bert_names(TokenmixConfig(**options), head, kind), unused


def _to_bert(config: TokenmixConfig, head: str) -> tuple[PreTrainedModel, dict[str, str], dict[str, str]]:
    import transformers

    other = [] if config.site().width == config.d_model else [f"heads · head_dim = {config.site().width}, not d_model = {config.d_model}"]
    if not config.segments:
        other.append("segments=0 (BERT has segment embeddings)")
    needed = {"positions": "absolute", "norm": "layer", "norm_position": "post", "bias": True, "scale": True}
    needed |= {"embedding_norm": True, "embedding_projection": False, "scale_embeddings": False}
    if head == "masked_lm":
        needed |= {"head_transform": True, "scale_output": False}
    elif head == "sequence_classification":
        needed |= {"pooler": True, "pool": "cls"}
    feed_forward = _refuse_unless_held("BERT", config, (Mlp,), "dot | mlp", needed, other)
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
        attention_probs_dropout_prob=config.attention_dropout,
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
    with torch.device("meta"):
        if head == "none":
            theirs: Any = transformers.BertModel(their_config, add_pooling_layer=False)
        else:
            kinds = {"masked_lm": "MaskedLM", "sequence_classification": "SequenceClassification", "question_answering": "QuestionAnswering"}
            theirs = getattr(transformers, f"BertFor{kinds[head]}")(their_config)
    return theirs, _bert_names(config, head, "bert"), BERT_COPIES


def _refuse_unless_held(what: str, config: TokenmixConfig, kinds: tuple[type, ...], layers: str, needed: dict[str, Any], other: list[str]) -> Any:
    """The feed-forward of a layer that they can hold, or an error with every reason why they cannot."""
    expression = parse(config.layer)
    held = isinstance(expression, Layer) and len(expression.parts) == 2 and isinstance(expression.parts[0], Dot) and isinstance(expression.parts[1], kinds)
    reasons = [] if held else [f"its layer is {config.layer!r}, and {what} has {layers}"]
    reasons += [f"{name}={getattr(config, name)!r}, where {what} has {value!r}" for name, value in needed.items() if getattr(config, name) != value]
    if reasons or other:
        raise ValueError(f"Hugging Face's {what} cannot hold this model: {'; '.join(reasons + other)}")
    return expression.sublayers[1]
