"""No paper: the best expression of all for masked LM, at equal size.

    tokenmix reproduce tokenmix-table-2 --scale bench

Time: about 23 minutes on one H200, one run after another (an estimate), 19 of them for the search. Expect: nothing yet,
nobody has seen it. Each of 24 expressions is trained with a seed of its own for a quarter of the steps; the best is trained
with new seeds for all of them, beside a Transformer and a gMLP in the same body: norms before the sublayers, T5's relative
positions in what attends.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_mlm import ABLATION, GMLP, SIZES, TINY, pretrain, tiny_stages
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Search
from tokenmix.recipes.verdicts import better

_SPACE = {
    "terms": ("dot", "random", "factorized_random", "dense", "relative"),
    "mixers": ("lightconv", "dynamicconv", "token_mlp", "linformer", "fourier"),
    "channels": ("geglu", "mlp", "remix", "remix(toeplitz=True)", GMLP, "gmlp(toeplitz=True, attention=64)"),
}
_BODY = {"positions": "relative", "embedding_norm": True, "head_transform": True}
FOUND = "found by search"

RECIPE = Recipe(
    name="tokenmix-table-2",
    place="tokenmix, Table 2",
    title="The best expression of all for masked LM, at equal size, found by search",
    columns=("Perplexity", "Params (M)"),
    rows=(
        Row("Transformer", {}, layer="dot | mlp", options=_BODY),
        Row("gMLP", {}, layer=GMLP, options=_BODY),
        Row(FOUND, {}, layer=f"dot | {GMLP}", options=_BODY, searched=True),
    ),
    scales={
        "tiny": Scale(
            tiny_stages(), sizes=TINY, body="encoder", match="params", note=TINY_NOTE,
            search=Search("mlm", trials=2, space=_SPACE),
        ),
        "bench": Scale(
            (pretrain(ABLATION),),
            seeds=3,
            sizes=SIZES,
            match="params",
            body="encoder",
            note=f"{WIKIPEDIA}; length 128; trials of a quarter of the steps",
            search=Search(
                "mlm", trials=24, start=(GMLP, "gmlp(toeplitz=True, attention=64)"), space=_SPACE,
                settings={"budget": {"steps": ABLATION // 4}},
            ),
        ),
    },
    claims=(
        Claim("an expression that search finds beats the Transformer at masked LM", better(FOUND, "Transformer", "Perplexity")),
        Claim("it beats gMLP too", better(FOUND, "gMLP", "Perplexity")),
    ),
    baseline="Transformer",
    lower=("Perplexity",),
    doc=__doc__,
)  # fmt: skip
