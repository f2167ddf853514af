"""gMLP, Table 3: masked LM with Transformers, Mixer and the versions of the gate.

    tokenmix reproduce gmlp-table-3 --scale bench

Time: about 16 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
the split gate is the best version, 21.0; the Transformer has 23.6 ± 1.8, so that which of the two is better stays
undecided; without content terms it has 39.3 (`recipes/results/gmlp-table-3.json`, three seeds). The row without the
Toeplitz constraint tests Appendix C's remark that the constraint is neutral: without it the perplexity is 16% higher.
`tokenmix inspect` draws the free matrices (Figure 9); most of their variance lies along diagonals all the same (one seed).
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA, tiny_text
from tokenmix.recipes.gmlp_mlm import ABLATION, BERT, MLM, PLAIN, RELATIVE, SIZES, TINY, bert, gmlp, paper_mlm, pretrain
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale
from tokenmix.recipes.verdicts import above, better, every, not_worse, within, worse

_SPLIT = "Multiplicative, Split gMLP"
_FILLED = {**MLM, "Toeplitz (%)": "toeplitz"}


def _printed(perplexity: float, params: float) -> dict[str, float | None]:
    return {"Perplexity": perplexity, "Params (M)": params}


def _gate(name: str, gate: str, perplexity: float) -> Row:
    layer = f'gmlp(gate="{gate}", toeplitz=True)'
    multiples = {"layers": 3, "d_model": 2 / 3, "d_ff": 2 / 3}
    return Row(name, _printed(perplexity, 92), f"gmlp-36-{gate}", layer, PLAIN, multiples)


RECIPE = Recipe(
    name="gmlp-table-3",
    place="gMLP, Table 3",
    title="MLM validation perplexities of Transformer baselines and four versions of gMLPs",
    columns=("Perplexity", "Params (M)", "Toeplitz (%)"),
    rows=(
        Row(
            "BERT base",
            _printed(4.37, 110),
            "bert-base-relative",
            BERT,
            {**RELATIVE, "positions": "absolute"},
            changes={"positions": "absolute"},
        ),
        bert("BERT base + rel pos", _printed(4.26, 110), "bert-base-relative"),
        Row(
            "BERT base + rel pos - attn",
            _printed(5.64, 96),
            "bert-base-no-attention",
            "relative | mlp",
            {**RELATIVE, "positions": "none"},
        ),
        Row("MLP-Mixer", _printed(5.34, 112), "mixer-24", "token_mlp(hidden=384) | mlp", PLAIN, {"layers": 1.5}),
        _gate("Linear gMLP", "linear", 5.14),
        _gate("Additive gMLP", "additive", 4.97),
        _gate("Multiplicative gMLP", "multiplicative", 4.53),
        gmlp(_SPLIT, _printed(4.35, 102), "gmlp-36"),
        Row(
            "gMLP without Toeplitz (App. C)",
            {},
            "gmlp-36",
            "gmlp",
            PLAIN,
            {"layers": 3, "d_model": 2 / 3},
            {"layer": "gmlp"},
        ),
    ),
    scales={
        "tiny": Scale((tiny_text("mlm", _FILLED),), sizes=TINY, body="encoder", note=TINY_NOTE),
        "bench": Scale(
            (pretrain(ABLATION, _FILLED),),
            seeds=3,
            sizes=SIZES,
            body="encoder",
            match="params",
            note=f"{WIKIPEDIA}; length 128",
        ),
        "paper": Scale((paper_mlm(),)),
    },
    claims=(
        Claim(
            "the split gate is the best version of the gate",
            every(
                *(
                    better(_SPLIT, name, "Perplexity")
                    for name in ("Linear gMLP", "Additive gMLP", "Multiplicative gMLP")
                )
            ),
            "4.35 against 5.14, 4.97 and 4.53",
        ),
        Claim(
            "gMLP is as good as a Transformer at masked LM (its perplexity no more than 5% higher)",
            not_worse(_SPLIT, "BERT base + rel pos", "Perplexity", 5, percent=True),
            "4.35 and 4.26",
        ),
        Claim(
            "without content terms a Transformer is much worse (by a tenth)",
            worse("BERT base + rel pos - attn", "BERT base + rel pos", "Perplexity", 10, percent=True),
            "5.64 against 4.26",
        ),
        Claim(
            "relative positions beat absolute ones",
            better("BERT base + rel pos", "BERT base", "Perplexity"),
            "4.26 against 4.37",
        ),
        Claim(
            "gMLP beats a Transformer without content terms",
            better(_SPLIT, "BERT base + rel pos - attn", "Perplexity"),
            "4.35 against 5.64",
        ),
        Claim("gMLP beats MLP-Mixer at masked LM", better(_SPLIT, "MLP-Mixer", "Perplexity"), "4.35 against 5.34"),
        Claim(
            "the Toeplitz constraint is neutral (Section 4, Appendix C; within 3%)",
            within("gMLP without Toeplitz (App. C)", _SPLIT, "Perplexity", 3, percent=True),
            "empirically quality-neutral",
        ),
        Claim(
            "free spatial matrices become Toeplitz-like unasked (most of their variance lies along diagonals)",
            above("gMLP without Toeplitz (App. C)", "Toeplitz (%)", 50),
            "a figure",
        ),
    ),
    baseline="BERT base + rel pos",
    lower=("Perplexity",),
    doc=__doc__,
)
