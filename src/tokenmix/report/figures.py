"""The figures of the three papers, for any model that has what they show.

    figure                paper                 shows
    remixer_memory        Remixer, Fig. 2       mean softmax(QKᵀ) above softmax(H), per layer
    patch_filters         gMLP, Fig. 3          rows of W as pictures, for chosen patches
    token_filters         gMLP, Fig. 4          the row of W of the token in the middle, per layer
    spatial_matrices      gMLP, Fig. 9          W whole, per layer
    tiny_attention        gMLP, Fig. 10         aMLP's attention over a sentence pair, maximum over the first half
    weight_histograms     Synthesizer, Fig. 2–3 distribution of mixing weights, at initialisation and now
    attention_maps        Synthesizer, Fig. 4–5 mixing weights per layer and head, of the encoder or the decoder

Each takes a model and, where it matters, an input — a text, a pair of texts, token ids or an image — and returns a
:class:`Figure`: its numbers in `.data`, `.save("name.svg")`, `.png` or `.html`, and itself in a notebook.

>>> import tokenmix
>>> tokenmix.figures.attention_maps(model, "jump twice", tokenizer=tokenizer).save("maps.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmix.report.figure import Figure, Heatmap, Lines
from tokenmix.report.look import Inputs, Matrix, Sight, again, fresh, look

__all__ = [
    "Figure",
    "attention_maps",
    "patch_filters",
    "remixer_memory",
    "spatial_matrices",
    "tiny_attention",
    "token_filters",
    "weight_histograms",
]
MOST = 6  # layers shown when none are named
BINS = 40
FROM, TO = "draws from token (position j)", "token (position i)"


def remixer_memory(
    model: Any,
    inputs: Inputs | Sight = None,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    stack: str = "encoder",
) -> Figure:
    """Remixer, Fig. 2: attention over the input, mean of the heads, above the persistent memory softmax(H), per layer.

    `layers` count from 1; by default all, or six of them evenly spaced. Of a decoder-only model `stack` is "decoder".

    >>> remixer_memory(model, "jump twice", tokenizer=tokenizer, layers=[1, 2]).save("memory.svg")
    """
    sight = _sight(model, inputs, tokenizer, target)
    found = _stack(model, sight, stack)
    memory = {m.layer: m for m in found if "remix" in m.terms()}
    attention = {m.layer: m for m in found if m.attends and not m.cross}
    _need(memory and attention, model, "remixer_memory", "attention and a remix sublayer, such as 'dot | remix'")
    chosen = _layers(sorted(set(memory) & set(attention)), layers)
    name = "softmax(QKᵀ)" if all(m.terms() == ("dot",) for m in attention.values()) else "softmax(logits)"
    rows = tuple(
        tuple(Heatmap(f"{label} · layer {n}", of[n].mean, of[n].rows, of[n].columns) for n in chosen)
        for label, of in ((name, attention), ("softmax(H)", memory))
    )
    return Figure(
        "remixer-memory",
        "What a Remixer attends to, and what it remembers",
        f"Top: {name} on this input, mean of the heads, position bias included. Bottom: the persistent memory "
        f"softmax(H), the same for every input ({stack}). After Remixer, Fig. 2.",
        rows,
        FROM,
        TO,
    ).sized()


def patch_filters(
    model: Any,
    inputs: Inputs | Sight = None,
    *,
    layers: Sequence[int] | None = None,
    patches: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """gMLP, Fig. 3: for chosen patches (row, column, from 1), what they draw from every patch, as a picture per layer.

    Without an image an empty one is shown to the model, which is enough for gMLP, Mixer and other persistent mixers.

    >>> patch_filters(create_model("gmlp-tiny-vision"), layers=[1, 2]).save("filters.svg")
    """
    sight = _sight(model, inputs, None, None)
    if sight.grid is None:
        raise ValueError(f"patch_filters draws vision models; this one has the body {model.config.body!r}")
    side, offset = sight.grid
    found = {m.layer: m for m in sight.pick(kind="mixing")}
    chosen = _layers(sorted(found), layers)
    if patches is None:
        near, middle, far = ((side - 1) * q // 4 + 1 for q in (1, 2, 3))
        patches = list(dict.fromkeys([(near, near), (near, far), (middle, middle), (far, near), (far, far)]))
    for patch in patches:
        if not (len(patch) == 2 and all(1 <= place <= side for place in patch)):
            raise ValueError(f"no patch {patch} here: rows and columns go from 1 to {side}")
    rows = []
    for layer in chosen:
        matrix = found[layer].mean
        pictures = [matrix[offset + (i - 1) * side + j - 1, offset:].reshape(side, side) for i, j in patches]
        rows.append(tuple(Heatmap(f"layer {layer} · patch {i},{j}", p) for (i, j), p in zip(patches, pictures)))
    return Figure(
        "patch-filters",
        "Filters of chosen patches",
        f"Each picture is a row of the mixing matrix, folded to the {side} × {side} patches of the image; each row of "
        "pictures is a layer. After gMLP, Fig. 3.",
        tuple(rows),
        "patch column",
        "patch row",
        size=110,
    )


def token_filters(
    model: Any,
    inputs: Inputs | Sight = None,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    position: int | None = None,
    layers: Sequence[int] | None = None,
    stack: str = "encoder",
) -> Figure:
    """gMLP, Fig. 4: the row of the spatial matrix W of the token in the middle (or at `position`, from 1), per layer.

    >>> token_filters(create_model("gmlp-tiny")).data["layer 1"].shape
    (1, 128)
    """
    found, seen = _persistent(model, inputs, tokenizer, target, stack, "token_filters")
    length = seen[0].values.shape[1]
    place = length // 2 if position is None else position - 1
    if not 0 <= place < length:
        raise ValueError(f"position={position} is outside the sequence: expected 1 to {length}")
    chosen = _layers(sorted(found), layers, most=24)
    x = np.arange(1, found[chosen[0]].values.shape[2] + 1)
    panels = [Lines(f"layer {n}", x, {"weight": found[n].mean[place]}) for n in chosen]
    return Figure(
        "token-filters",
        "Spatial filters of the token in the middle" if position is None else f"Spatial filters of token {position}",
        f"The row of the mixing matrix of token {place + 1} of {length}, per layer ({stack}). After gMLP, Fig. 4.",
        _rows(panels, 6),
        "position of the token drawn from",
        "weight",
    ).sized()


def spatial_matrices(
    model: Any,
    inputs: Inputs | Sight = None,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    stack: str = "encoder",
) -> Figure:
    """gMLP, Fig. 9: the whole spatial matrix W of each layer (of Mixer, Remixer or a Random Synthesizer alike).

    >>> spatial_matrices(create_model("gmlp-tiny")).data["layer 1"].shape
    (128, 128)
    """
    found, seen = _persistent(model, inputs, tokenizer, target, stack, "spatial_matrices")
    chosen = _layers(sorted(found), layers, most=24)
    panels = [Heatmap(f"layer {n}", found[n].mean, found[n].rows, found[n].columns) for n in chosen]
    heads = "" if seen[0].heads == 1 else ", mean of the heads"
    return Figure(
        "spatial-matrices",
        "Learned spatial matrices",
        f"The mixing matrix that every input shares, per layer ({stack} · {seen[0].name}{heads}). Stripes along the "
        "diagonal mean that the model has learned shift invariance. After gMLP, Fig. 9.",
        _rows(panels, 6),
        FROM,
        TO,
    ).sized()


def tiny_attention(model: Any, inputs: Inputs | Sight, *, tokenizer: Any = None, stack: str = "encoder") -> Figure:
    """gMLP, Fig. 10: aMLP's tiny attention over a text or a pair, the maximum over the first half of the layers.

    >>> tiny_attention(model, ("a man sleeps", "nobody is awake"), tokenizer=tokenizer).save("tiny.svg")
    """
    sight = _sight(model, inputs, tokenizer, None)
    found = [m for m in _stack(model, sight, stack) if m.kind == "attention"]
    _need(found, model, "tiny_attention", "tiny attention, such as 'gmlp(attention=64)'")
    depth = max(m.layer for m in found)
    half = max(1, depth // 2)
    strongest = np.stack([m.values.max(0) for m in found if m.layer <= half]).max(0)
    panel = Heatmap("largest weight", strongest, found[0].rows, found[0].columns)
    return Figure(
        "tiny-attention",
        "Tiny attention over the text",
        f"The largest attention weight of each pair of tokens in the first half of the network (layers 1 to {half} of "
        f"{depth}). After gMLP, Fig. 10.",
        ((panel,),),
        FROM,
        TO,
        size=min(560.0, max(240.0, 13.0 * len(found[0].rows))),
    )


def weight_histograms(
    model: Any,
    inputs: Inputs | Sight = None,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    initial: Any = None,
    seed: int = 0,
) -> Figure:
    """Synthesizer, Fig. 2 and 3: how mixing weights are distributed at initialisation and now, encoder and decoder.

    `initial` is a model to compare with; by default one of the same configuration with fresh weights drawn by `seed`.
    `layers` count from 1; by default the first, the middle and the last. What a causal token cannot see is left out.

    >>> weight_histograms(model, "jump twice", tokenizer=tokenizer).save("histograms.svg")
    """
    sight = _sight(model, inputs, tokenizer, target)
    before = again(fresh(model, seed) if initial is None else initial, sight)
    rows = []
    for stack in ("encoder", "decoder"):
        now, start = (_first(s.pick(stack, kind="mixing", cross=False)) for s in (sight, before))
        if not now:
            continue
        chosen = _layers(sorted(now), layers, most=3)
        rows.append(tuple(_histogram(f"{stack} L{n}", start[n], now[n]) for n in chosen))
    _need(rows, model, "weight_histograms", "a sublayer that mixes tokens, such as 'random | geglu'")
    what = "drawn with seed " + str(seed) if initial is None else "the model given as `initial`"
    return Figure(
        "weight-histograms",
        "Distribution of mixing weights",
        f"Share of the entries of the mixing matrix per bin, all heads, at initialisation ({what}) and now; L is the "
        "layer. The y axis is logarithmic. After Synthesizer, Fig. 2 and 3.",
        tuple(rows),
        "mixing weight",
        "share of entries",
    ).sized(250)


def attention_maps(
    model: Any,
    inputs: Inputs | Sight,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    stack: str = "encoder",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    cross: bool = False,
) -> Figure:
    """Synthesizer, Fig. 4 and 5: what each token draws from each, per layer (rows) and head (columns).

    `stack`: "encoder" or "decoder"; `cross=True` shows the decoder's cross-attention. `layers`, `heads`: from 1.

    >>> attention_maps(model, "jump twice", tokenizer=tokenizer, stack="decoder").save("maps.svg")
    """
    sight = _sight(model, inputs, tokenizer, target)
    found = _first([m for m in _stack(model, sight, stack) if m.kind == "mixing" and m.cross == cross])
    wanted = "cross-attention" if cross else "a sublayer that mixes tokens, such as 'dot | mlp'"
    _need(found, model, "attention_maps", wanted)
    chosen = _layers(sorted(found), layers)
    count = found[chosen[0]].heads
    picked = list(range(1, min(count, 8) + 1)) if heads is None else list(heads)
    if any(not 1 <= head <= count for head in picked):
        raise ValueError(f"heads={picked}: heads go from 1 to {count}")
    rows = tuple(
        tuple(Heatmap(f"L{n} · head {h}", found[n].values[h - 1], found[n].rows, found[n].columns) for h in picked)
        for n in chosen
    )
    if len(picked) == 1:  # one head: the layers stand side by side
        rows = _rows([row[0] for row in rows], 6)
    more = f" Heads 1 to 8 of {count}." if heads is None and count > 8 else ""
    number = "4 (decoder)" if stack == "decoder" else "5 (encoder)"
    return Figure(
        f"attention-maps-{'cross' if cross else stack}",
        f"Mixing weights per layer and head, {'cross-attention' if cross else stack}",
        f"Row i shows what token i draws from each token ({found[chosen[0]].name}).{more} "
        f"After Synthesizer, Fig. {number}.",
        rows,
        FROM,
        TO,
    ).sized()


# -------------------------------------------------------------------------------------------------------- helpers


def _sight(model: Any, inputs: Inputs | Sight, tokenizer: Any, target: str | None) -> Sight:
    return inputs if isinstance(inputs, Sight) else look(model, inputs, tokenizer=tokenizer, target=target)


def _stack(model: Any, sight: Sight, stack: str) -> list[Matrix]:
    have = list(dict.fromkeys(m.stack for m in sight.matrices))
    if have and stack not in have:
        raise ValueError(f"this model ({model.config.body}) has no {stack}; take stack={have[0]!r}")
    return sight.pick(stack)


def _persistent(
    model: Any, inputs: Inputs | Sight, tokenizer: Any, target: str | None, stack: str, asked: str
) -> tuple[dict[int, Matrix], list[Matrix]]:
    """Matrices that every input shares by layer: gMLP's if there are any."""
    sight = _sight(model, inputs, tokenizer, target)
    seen = [m for m in _stack(model, sight, stack) if m.persistent and not m.cross]
    seen = [m for m in seen if "gmlp" in m.terms()] or seen
    _need(seen, model, asked, "a persistent mixer, such as 'gmlp', 'token_mlp | mlp', 'dot | remix' or 'random | mlp'")
    return _first(seen), seen


def _first(found: list[Matrix]) -> dict[int, Matrix]:
    """By layer, the first of a layer's sublayers."""
    return {m.layer: m for m in reversed(found)}


def _need(found: Any, model: Any, asked: str, wanted: str) -> None:
    if not found:
        raise ValueError(f"{asked} draws models with {wanted}; the layer of this one is {model.config.layer!r}")


def _layers(have: list[int], asked: Sequence[int] | None, most: int = MOST) -> list[int]:
    """The layers asked for, or at most `most` of those there are, first and last included."""
    if asked is not None:
        if strange := [n for n in asked if n not in have]:
            raise ValueError(f"no layer {strange[0]} to draw: layers are {', '.join(map(str, have))}, counted from 1")
        return list(asked)
    if len(have) <= most:
        return have
    return [have[round(k * (len(have) - 1) / (most - 1))] for k in range(most)]


def _rows(panels: Sequence[Any], wide: int) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(panels[k : k + wide]) for k in range(0, len(panels), wide))


def _seen(matrix: Matrix) -> np.ndarray:
    """The entries that a token can draw on: all, or those up to the token itself in a decoder."""
    values = matrix.values
    if matrix.stack == "decoder" and not matrix.cross:
        seen = np.tri(*values.shape[1:], dtype=np.bool_)
        return values[np.broadcast_to(seen, values.shape)]
    return values.ravel()


def _histogram(title: str, start: Matrix, now: Matrix) -> Lines:
    old, new = _seen(start), _seen(now)
    both = np.concatenate([old, new])
    low = min(0.0, float(both.min()))
    edges = np.linspace(low, max(float(both.max()), low + 1e-9), BINS + 1)
    parts = {"at initialisation": old, "now": new}
    series = {name: np.histogram(part, edges)[0] / part.size for name, part in parts.items()}
    return Lines(title, edges, series, steps=True, log=True)
