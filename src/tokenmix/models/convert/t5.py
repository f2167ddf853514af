"""T5: the configuration that means the same, and a table of names read in both directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from tokenmix.mixers.channel import Geglu, Mlp
from tokenmix.models.config import TokenmixConfig
from tokenmix.models.convert.common import THEIR_ACTIVATIONS, Read, Written, activation, bare, refuse_unless_held, same
from tokenmix.models.convert.weights import linear

COPIES = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}


def names_of(config: TokenmixConfig, gated: bool, head: str) -> dict[str, str]:
    names = {"model.embed.tokens.weight": "shared.weight"}
    if head == "conditional_generation" and not config.tie_embeddings:
        names["lm_head.weight"] = "lm_head.weight"
    feed_forward = {"w1": "wi_0", "w2": "wi_1", "w3": "wo"} if gated else {"wi": "wi", "wo": "wo"}
    attention = {"terms.0.query": "q", "terms.0.key": "k", "value": "v", "out": "o"}
    stacks: list[tuple[str, int, tuple[str, ...]]] = [("encoder", config.layers, ("SelfAttention",))]
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
    return {bare(our, head): their for our, their in names.items()}


def from_t5(model: Any, theirs: dict[str, Tensor], head: str) -> Read:
    """A T5 of theirs, understood; an encoder alone becomes an encoder body."""
    c, decoder = model.config, "decoder.final_layer_norm.weight" in theirs
    if c.is_gated_act:
        if activation(c.dense_act_fn) != "gelu_tanh":
            raise ValueError(
                f"T5 with feed_forward_proj={c.feed_forward_proj!r} has no counterpart here; only 'gated-gelu' has"
            )
        feed_forward = "geglu"
    else:
        feed_forward = f'mlp(activation="{activation(c.dense_act_fn)}")'
    for copy, source in COPIES.items():
        if copy in theirs and not same(theirs[copy], theirs[source]) and not torch.equal(theirs[copy], theirs[source]):
            raise ValueError(f"this T5 has {copy} apart from {source}; ours has one embedding for encoder and decoder")
    tied = "lm_head.weight" in theirs and same(theirs["lm_head.weight"], theirs["shared.weight"])
    eos = c.eos_token_id[0] if isinstance(c.eos_token_id, (list, tuple)) else c.eos_token_id
    start = getattr(c, "decoder_start_token_id", None)
    options: dict[str, Any] = {
        "body": "seq2seq" if decoder else "encoder",
        "layer": f"dot | {feed_forward}",
        "d_model": c.d_model,
        "d_ff": c.d_ff,
        "heads": c.num_heads,
        "head_dim": c.d_kv,
        "layers": c.num_layers,
        "vocab_size": theirs["shared.weight"].shape[0],
        "positions": "relative",
        "relative_buckets": c.relative_attention_num_buckets,
        "relative_distance": c.relative_attention_max_distance,
        "norm": "rms",
        "norm_eps": c.layer_norm_epsilon,
        "bias": False,
        "scale": False,
        "init": "t5",
        "tie_embeddings": tied,
        "scale_output": bool(c.scale_decoder_outputs),
        "dropout": float(c.dropout_rate),
        "pad_token_id": c.pad_token_id,
        "eos_token_id": eos,
        "bos_token_id": getattr(c, "bos_token_id", None),
        "decoder_start_token_id": start if start is not None else c.pad_token_id,
    }
    if decoder:
        options["decoder_layers"] = c.num_decoder_layers
    names = names_of(TokenmixConfig(**options), c.is_gated_act, head)
    return Read(options, names, {*COPIES, *(("lm_head.weight",) if tied else ())})


def to_t5(config: TokenmixConfig, head: str) -> Written:
    """A T5 of theirs for this configuration, without values yet."""
    from transformers import T5Config, T5ForConditionalGeneration, T5Model

    site, cross = config.site(), config.cross_site()
    needed = {
        "positions": "relative",
        "norm": "rms",
        "norm_position": "pre",
        "bias": False,
        "scale": False,
        "cross": "dot",
    }
    needed |= {"segments": 0, "embedding_norm": False, "embedding_projection": False, "scale_embeddings": False}
    needed |= {"decoder_layer": config.layer}
    other = []
    if (site.heads, site.head_dim) != (cross.heads, cross.head_dim):
        other.append(
            f"its cross-attention is {cross.heads} × {cross.head_dim} wide, and T5's is that of self-attention"
        )
    feed_forward = refuse_unless_held("T5", config, (Geglu, Mlp), "'dot | geglu' or 'dot | mlp(…)'", needed, other)
    gated = isinstance(feed_forward, Geglu)
    options: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": site.head_dim,
        "d_ff": site.d_ff,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_distance,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": "gated-gelu" if gated else THEIR_ACTIVATIONS[feed_forward.activation],
        "tie_word_embeddings": bool(config.scale_output),  # in transformers this decides the scale alone
        "pad_token_id": config.pad_token_id,
        "eos_token_id": config.eos_token_id,
        "bos_token_id": config.bos_token_id,
        "decoder_start_token_id": config.decoder_start_token_id,
    }
    with no_init_weights():  # values come next
        theirs = (T5Model if head == "none" else T5ForConditionalGeneration)(T5Config(**options))
    return Written(theirs, names_of(config, gated, head), COPIES, "lm_head.weight", "shared.weight")
