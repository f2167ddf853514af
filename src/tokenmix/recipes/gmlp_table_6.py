"""gMLP, Table 6: finetuning BERT, gMLP and aMLP.

    tokenmix reproduce gmlp-table-6 --scale bench

Time: about 24 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
tiny attention (aMLP) closes the gap of gMLP on sentence pairs and questions; SQuAD v1.1 is a 10% subset here, v2.0 is
absent.
"""

from tokenmix.recipes.common import TINY_NOTE, WIKIPEDIA
from tokenmix.recipes.gmlp_mlm import (
    AMLP,
    GLUE_NOTE,
    SIZES,
    TINY,
    bench_glue,
    bert,
    finetune,
    gmlp,
    paper_glue,
    paper_mlm,
    pretrain,
    tiny_stages,
)
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, every, not_worse, worse

_NAMES = ("Perplexity", "SST-2", "MNLI-m", "MNLI-mm", "SQuAD v1.1", "SQuAD v2.0", "Attn Size", "Params (M)")


def _printed(*values: float | None) -> dict[str, float | None]:
    return dict(zip(_NAMES, values, strict=True))


def _squad(name: str, task: str, column: str) -> Stage:
    return Stage(name, {"preset": "gmlp-finetune-squad", "data": {"task": task}}, {column: "f1"}, after="mlm")


RECIPE = Recipe(
    name="gmlp-table-6",
    place="gMLP, Table 6",
    title="Pretraining perplexities and dev-set results for finetuning",
    columns=_NAMES,
    rows=(
        Row("BERT base (Devlin et al.)", _printed(None, 92.7, 84.4, None, 88.5, 76.3, 768, 110)),
        bert("BERT base (ours)", _printed(4.17, 93.8, 85.6, 85.7, 90.2, 78.6, 768, 110), "bert-base"),
        gmlp("gMLP base", _printed(4.28, 94.2, 83.7, 84.1, 86.7, 70.1, None, 130), "gmlp-base"),
        gmlp("aMLP base", _printed(3.95, 93.4, 85.9, 85.8, 90.7, 80.9, 64, 109), "amlp-base", layer=AMLP),
        Row("BERT large (Devlin et al.)", _printed(None, 93.7, 86.6, None, 90.9, 81.8, 1024, 336)),
        Row("BERT large (ours)", _printed(3.35, 94.3, 87.0, 87.4, 92.0, 81.0, 1024, 336), "bert-large"),
        Row("gMLP large", _printed(3.32, 94.8, 86.2, 86.5, 89.5, 78.3, None, 365), "gmlp-large"),
        Row("aMLP large", _printed(3.19, 94.8, 88.4, 88.4, 92.2, 85.4, 128, 316), "amlp-large"),
        Row("gMLP xlarge", _printed(2.89, 95.6, 87.7, 87.7, 90.9, 82.1, None, 941), "gmlp-xlarge"),
    ),
    scales={
        "tiny": Scale(
            tiny_stages(
                ("toy_sentiment", "SST-2", "classify"),
                ("toy_pairs", "MNLI-m", "classify"),
                ("toy_questions", "SQuAD v1.1", "span"),
            ),
            sizes=TINY,
            body="encoder",
            note=TINY_NOTE,
        ),
        "bench": Scale(
            (pretrain(10_000), *bench_glue(), finetune("squad", "squad", "SQuAD v1.1", 3000, "f1", "span")),
            seeds=3,
            sizes=SIZES,
            body="encoder",
            match="params",
            note=f"{WIKIPEDIA}; {GLUE_NOTE}; SQuAD v1.1: 10% of its training set, judged on XQuAD's English part",
        ),
        "paper": Scale(
            (
                paper_mlm(full=True),
                paper_glue("sst2", "sst2", "SST-2"),
                paper_glue("mnli", "mnli", "MNLI-m"),
                _squad("squad", "squad", "SQuAD v1.1"),
                _squad("squad-v2", "squad_v2", "SQuAD v2.0"),
            ),
        ),
    },
    claims=(
        Claim("gMLP beats BERT on SST-2", better("gMLP base", "BERT base (ours)", "SST-2"), "94.2 against 93.8"),
        Claim(
            "gMLP lags on sentence pairs and questions",
            every(
                worse("gMLP base", "BERT base (ours)", "MNLI-m"), worse("gMLP base", "BERT base (ours)", "SQuAD v1.1")
            ),
            "83.7 against 85.6, 86.7 against 90.2",
        ),
        Claim(
            "tiny attention closes the gap: aMLP is not behind BERT on pairs and questions",
            every(
                not_worse("aMLP base", "BERT base (ours)", "MNLI-m", 0.5),
                not_worse("aMLP base", "BERT base (ours)", "SQuAD v1.1", 0.5),
            ),
            "85.9 against 85.6, 90.7 against 90.2",
        ),
        Claim(
            "aMLP has a lower perplexity than BERT",
            better("aMLP base", "BERT base (ours)", "Perplexity"),
            "3.95 against 4.17",
        ),
    ),
    baseline="BERT base (ours)",
    lower=("Perplexity",),
    doc=__doc__,
)
