"""What gMLP's masked LM recipes share: Transformers and gMLPs of four depths, pretraining and finetuning."""

from __future__ import annotations

from tokenmix.recipes.common import TINY_SIZES, bench_finetune, bench_text, tiny, tiny_text
from tokenmix.recipes.recipe import Row, Stage

BERT = "dot | mlp"
GMLP = "gmlp(toeplitz=True)"
AMLP = "gmlp(toeplitz=True, attention=64)"
# A Transformer of L + L blocks beside a gMLP of 3 L blocks, two thirds as wide (768 and 512 in the paper).
RELATIVE = {"positions": "relative_per_layer", "norm_position": "post", "embedding_norm": True, "head_transform": True}
PLAIN = {"positions": "none", "heads": 1, "embedding_norm": True, "head_transform": True}  # BERT's way in and out
SIZES = {"d_model": 256, "d_ff": 1024, "heads": 4, "layers": 4, "max_length": 128}
TINY = {**TINY_SIZES, "d_model": 24, "d_ff": 48, "max_length": 64}
ABLATION = 4000  # steps of Tables 3 and 10
MLM = {"Perplexity": "perplexity", "Params (M)": "parameters/1e6"}


def bert(name: str, printed: dict[str, float | None], preset: str | None, depth: float = 1) -> Row:
    """A Transformer with relative positions, `depth` times the scale's layers."""
    return Row(name, printed, preset, BERT, RELATIVE, {"layers": depth})


def gmlp(
    name: str,
    printed: dict[str, float | None],
    preset: str | None,
    depth: float = 1,
    layer: str = GMLP,
    changes: dict[str, str] | None = None,
) -> Row:
    """A gMLP of the same capacity: three times as deep, two thirds as wide."""
    return Row(name, printed, preset, layer, PLAIN, {"layers": 3 * depth, "d_model": 2 / 3}, changes or {})


def pretrain(steps: int = 10_000, columns: dict[str, str] | None = None, batch: int = 128) -> Stage:
    """Masked LM on Wikipedia, length 128: 164 million tokens, 66 million in the ablations, half of that in Figure 5."""
    return bench_text(
        "mlm", MLM if columns is None else columns, steps, length=128, batch=batch, lr=1e-3, objective="masked_lm"
    )


def finetune(
    name: str, task: str, column: str, steps: int, metric: str = "accuracy", form: str = "classify", length: int = 128
) -> Stage:
    """Finetuning the pretrained encoder on a task."""
    return bench_finetune(name, task, {column: metric}, steps, after="mlm", lr=1e-4, form=form, max_input=length)


def paper_mlm(full: bool = False) -> Stage:
    """Table 8's settings: the ablations' (RealNews, length 128) or the full ones (C4, length 512)."""
    return Stage("mlm", {"preset": "gmlp-mlm" if full else "gmlp-mlm-ablation"}, MLM)


def paper_glue(name: str, task: str, column: str, split: str | None = None) -> Stage:
    """Table 9's settings for SST-2 and MNLI."""
    return Stage(
        name, {"preset": "gmlp-finetune-glue", "data": {"task": task}}, {column: "accuracy"}, after="mlm", split=split
    )


def tiny_stages(*columns: tuple[str, str, str]) -> tuple[Stage, ...]:
    """Masked LM and finetuning for a few steps: (task, column, form)."""
    more = (
        tiny(column.lower(), task, {column: "f1" if form == "span" else "accuracy"}, after="mlm", form=form)
        for task, column, form in columns
    )
    return (tiny_text("mlm", MLM), *more)


def bench_glue() -> tuple[Stage, ...]:
    """SST-2, complete, and SNLI in MNLI's place."""
    return finetune("sst2", "sst2", "SST-2", 4000), finetune("snli", "snli", "MNLI-m", 4000)


GLUE_NOTE = "SST-2 complete; SNLI (13% of its training set) in the column MNLI-m"
