"""No paper: the best expression of all for COGS, at equal size.

    tokenmix reproduce tokenmix-table-1 --scale bench

Time: about 29 minutes on one H200, one run after another (an estimate), 22 of them for the search. Expect: nothing yet,
nobody has seen it. Each of 24 expressions is trained with a seed of its own for a third of Table 4's steps and judged on
1,050 sentences of the generalisation set; the best is trained as the rows of Remixer's Table 4 are, with new seeds, beside
the Transformer and the Remixer. The search has seen which sentences generalise: what it finds is chosen for COGS.
"""

from dataclasses import replace

from tokenmix.recipes.common import TINY_NOTE
from tokenmix.recipes.recipe import Claim, Recipe, Row, Search
from tokenmix.recipes.remixer_table_4 import RECIPE as TABLE_4
from tokenmix.recipes.verdicts import better

_SPACE = {
    "terms": ("dot", "random", "factorized_random", "dense", "relative"),
    "mixers": ("lightconv", "dynamicconv"),
    "channels": ("geglu", "mlp", "remix", "remix(toeplitz=True)", "gmlp(toeplitz=True)"),
}
_TINY, _BENCH = TABLE_4.scale("tiny"), TABLE_4.scale("bench")
FOUND = "found by search"

RECIPE = Recipe(
    name="tokenmix-table-1",
    place="tokenmix, Table 1",
    title="The best expression of all for COGS, at equal size, found by search",
    columns=TABLE_4.columns,
    rows=(
        Row("T5.1.1", {}, layer="dot | geglu"),
        Row("Remixer", {}, layer="dot | remix"),
        Row(FOUND, {}, layer="random + dot | remix", searched=True),
    ),
    scales={
        "tiny": replace(_TINY, note=TINY_NOTE, search=Search("cogs", trials=2, space=_SPACE)),
        "bench": replace(
            _BENCH,
            search=Search(
                "cogs", trials=24, start=("dot | remix", "random + dot | geglu"), space=_SPACE,
                settings={"budget": {"steps": 4000}}, examples=1050,
            ),
            note=f"{_BENCH.note}; trials of a third of the steps, judged on 1,050 sentences of the same set",
        ),
    },
    claims=(
        Claim("an expression that search finds beats the Transformer on COGS", better(FOUND, "T5.1.1", "Gen. EM")),
        Claim("it beats the Remixer too", better(FOUND, "Remixer", "Gen. EM")),
    ),
    baseline="T5.1.1",
    doc=__doc__,
)  # fmt: skip
