"""One configuration for every model: an expression, a body and sizes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from transformers import GenerationConfig, PreTrainedConfig

from tokenmix.mixers import Site, parse
from tokenmix.naming import unknown

BODIES = ("seq2seq", "encoder", "decoder", "vision")
POSITIONS = ("relative", "relative_per_layer", "absolute", "sinusoidal", "none")

# What a body looks like when nothing else is said: T5.1.1, BERT, a T5-like language model, ViT/B16.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "seq2seq": dict(positions="relative", norm="rms", bias=False, scale=False, init="t5", tie_embeddings=False),
    "encoder": dict(positions="absolute", norm="layer", bias=True, scale=True, init="bert", tie_embeddings=True),
    "decoder": dict(positions="relative", norm="rms", bias=False, scale=False, init="t5", tie_embeddings=True),
    "vision": dict(positions="none", norm="layer", bias=True, scale=True, init="xavier", tie_embeddings=False),
}

FROM_TRANSFORMERS = {
    "num_labels", "name_or_path", "torch_dtype", "output_attentions", "attn_implementation", "experts_implementation",
    "auto_map", "use_cache", "model_type", "per_layer_config",
}  # fmt: skip
NOT_OPTIONS = {"model_type", "keys_to_ignore_at_inference", "attribute_map"}


class TokenmixConfig(PreTrainedConfig):
    """Everything that makes a model.

    >>> config = TokenmixConfig(body="seq2seq", layer="random + dot | remix", d_model=256, heads=4, layers=4)

    Options left at None take the convention of the body (`CONVENTIONS`): T5.1.1 for `seq2seq` and `decoder`, BERT for
    `encoder`, ViT for `vision`.
    """

    model_type = "tokenmix"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "mixing"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_hidden_layers": "layers",
        "max_position_embeddings": "max_length",
        "tie_word_embeddings": "tie_embeddings",
    }

    # what it is
    body: str = "seq2seq"  #: "seq2seq", "encoder", "decoder" or "vision"
    layer: str = "dot | geglu"  #: the layer expression
    decoder_layer: str | None = None  #: that of the decoder of a seq2seq model; `layer` by default
    cross: str = "dot"  #: attention term(s) of cross-attention; others only serve to test that dot is needed
    # sizes
    d_model: int = 512
    d_ff: int | None = None  #: 4 · d_model by default
    heads: int = 8
    head_dim: int | None = None  #: d_model / heads by default
    cross_heads: int | None = None  #: those of `heads` by default
    cross_head_dim: int | None = None
    layers: int = 6
    decoder_layers: int | None = None  #: `layers` by default
    vocab_size: int = 32128
    max_length: int = 512  #: longest sequence; sizes every parameter that depends on length
    # conventions
    positions: str | None = (
        None  #: "relative" (T5, shared by the layers), "relative_per_layer", "absolute", "sinusoidal", "none"
    )
    relative_buckets: int = 32
    relative_distance: int = 128
    norm: str | None = None  #: "rms" or "layer"
    norm_position: str = "pre"  #: "pre" or "post"
    norm_eps: float = 1e-6
    bias: bool | None = None  #: biases in linear layers
    scale: bool | None = None  #: dot products times 1/√head_dim
    init: str | None = None  #: "t5", "bert" or "xavier"
    tie_embeddings: bool | None = None  #: output matrix = input embedding
    scale_output: bool | None = None  #: hidden states times 1/√d_model before the output matrix (T5 v1.0)
    scale_embeddings: bool | None = None  #: embeddings times √d_model; by default beside sinusoids alone
    # regularisation and loss
    dropout: float = 0.0
    attention_dropout: float | None = None  #: `dropout` by default
    inner_dropout: float | None = None  #: inside feed-forwards: `dropout` in T5-like bodies, else 0
    drop_path: float = 0.0  #: stochastic depth
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    # encoder protocol
    segments: int = 0  #: number of segment embeddings (BERT: 2)
    embedding_norm: bool = False  #: a norm on the embeddings (BERT)
    embedding_projection: bool = False  #: a linear layer on the embeddings (FNet)
    head_transform: bool = False  #: linear, gelu and norm before the masked LM output (BERT)
    head_activation: str = "gelu"  #: its activation: "gelu", or "gelu_tanh" (FNet), "relu", "silu"
    pooler: bool = False  #: tanh layer on the first token before classification (BERT)
    pool: str | None = None  #: "cls" or "mean": what classification reads
    classifier_dropout: float = 0.0
    # vision
    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    # tokens
    pad_token_id: int | None = 0
    eos_token_id: int | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        for alias, name in self.attribute_map.items():  # Hugging Face's own names for our options
            if alias in kwargs:
                setattr(self, name, kwargs.pop(alias))
        known = FROM_TRANSFORMERS | set(GenerationConfig._get_default_generation_params())
        for key in kwargs:
            if key not in known and not key.startswith("_"):
                own = [name for name in TokenmixConfig.__annotations__ if name not in NOT_OPTIONS]
                raise unknown("option of TokenmixConfig", key, own)
        if self.body not in BODIES:
            raise unknown("body", self.body, BODIES)
        self.layer = str(parse(self.layer))
        self.cross = str(parse(self.cross))
        for name, value in CONVENTIONS[self.body].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.body == "seq2seq":
            self.decoder_layer = str(parse(self.decoder_layer)) if self.decoder_layer is not None else self.layer
            self.decoder_layers = self.layers if self.decoder_layers is None else self.decoder_layers
        elif self.decoder_layer is not None or self.decoder_layers is not None:
            raise ValueError(f"decoder_layer and decoder_layers belong to a seq2seq body; this one is {self.body!r}")
        if self.scale_embeddings is None:
            self.scale_embeddings = self.positions == "sinusoidal"
        if self.scale_output is None:
            self.scale_output = bool(self.tie_embeddings and self.init == "t5")
        if self.inner_dropout is None:
            self.inner_dropout = self.dropout if self.init == "t5" else 0.0
        if self.attention_dropout is None:
            self.attention_dropout = self.dropout
        if self.pool is None:
            self.pool = "mean" if self.body == "vision" else "cls"
        self._check()
        if self.body == "vision":
            self.max_length = (self.image_size // self.patch_size) ** 2 + (self.pool == "cls")
        self.site()  # heads, widths
        self.is_encoder_decoder = self.body == "seq2seq"
        super().__post_init__(**kwargs)
        if not self.num_labels or self.num_labels < 1:
            raise ValueError(f"num_labels must be a whole number >= 1; got {self.num_labels!r}")

    def _check(self) -> None:
        """Every impossible value, by name."""
        for name, known in (
            ("positions", POSITIONS),
            ("norm", ("rms", "layer")),
            ("norm_position", ("pre", "post")),
            ("init", ("t5", "bert", "xavier")),
            ("pool", ("cls", "mean")),
            ("head_activation", ("gelu", "gelu_tanh", "relu", "silu")),
        ):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name in (
            "d_model", "heads", "vocab_size", "max_length", "image_size", "patch_size", "channels", "relative_buckets",
            "relative_distance",
        ):  # fmt: skip
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number >= 1; got {getattr(self, name)!r}")
        for name in ("d_ff", "head_dim", "cross_heads", "cross_head_dim"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number >= 1, or None for its default; got {value!r}")
        for name in ("layers", "segments", *(["decoder_layers"] if self.body == "seq2seq" else [])):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a whole number >= 0; got {value!r}")
        for name in (
            "bias", "scale", "tie_embeddings", "scale_output", "scale_embeddings", "embedding_norm",
            "embedding_projection", "head_transform", "pooler",
        ):  # fmt: skip
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False; got {getattr(self, name)!r}")
        for name in (
            "dropout",
            "attention_dropout",
            "inner_dropout",
            "drop_path",
            "label_smoothing",
            "classifier_dropout",
        ):
            if not isinstance(getattr(self, name), (int, float)) or not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be a number in [0, 1); got {getattr(self, name)!r}")
        for name in ("z_loss", "norm_eps"):
            if not isinstance(getattr(self, name), (int, float)) or not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number >= 0; got {getattr(self, name)!r}")
        for name in ("pad_token_id", "decoder_start_token_id"):  # the decoder's inputs are made of labels and these
            value = getattr(self, name)
            if self.body == "seq2seq" and (type(value) is not int or not 0 <= value < self.vocab_size):
                raise ValueError(
                    f"{name} of a seq2seq model must be in 0 … {self.vocab_size - 1} (vocab_size={self.vocab_size}); "
                    f"got {value!r}"
                )
        if self.body == "vision" and self.positions in ("relative", "sinusoidal"):
            raise ValueError(
                f'positions={self.positions!r} is for text; vision takes "absolute", "relative_per_layer" or "none"'
            )
        if self.body == "vision" and self.image_size % self.patch_size:
            raise ValueError(f"patch_size={self.patch_size} does not divide image_size={self.image_size}")

    def site(self, *, causal: bool = False) -> Site:
        """Where the mixers of this model's (encoder or, with `causal`, decoder) stack are built."""
        return Site(
            d_model=self.d_model,
            d_ff=self.d_ff or 0,
            heads=self.heads,
            head_dim=self.head_dim or 0,
            max_length=self.max_length,
            causal=causal,
            bias=bool(self.bias),
            scale=bool(self.scale),
            norm=str(self.norm),
            norm_eps=self.norm_eps,
            post_norm=self.norm_position == "post",
            dropout=self.dropout,
            inner_dropout=float(self.inner_dropout or 0.0),
            attention_dropout=float(self.attention_dropout or 0.0),
            drop_path=self.drop_path,
            init=str(self.init),
            relative=self.positions == "relative_per_layer",
            relative_buckets=self.relative_buckets,
            relative_distance=self.relative_distance,
        )

    def cross_site(self) -> Site:
        """Where cross-attention is built: its own width, a memory beside the tokens."""
        site = self.site(causal=True)
        heads = self.cross_heads or site.heads
        if self.cross_head_dim is None and self.cross_heads is not None and self.d_model % heads:
            raise ValueError(f"cross_heads={heads} does not divide d_model={self.d_model}; give cross_head_dim too")
        width = self.cross_head_dim or (site.head_dim if self.cross_heads is None else self.d_model // heads)
        return site.but(heads=heads, head_dim=width, relative=False, memory_length=self.max_length)
