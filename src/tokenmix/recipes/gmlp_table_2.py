"""gMLP, Table 2: image classification.

    tokenmix reproduce gmlp-table-2 --scale bench

Time: about 7 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
Fashion-MNIST in place of ImageNet, small models of equal size from scratch. In the paper gMLP and ViT are close, and
both above the Mixer; after 2,000 steps on a CPU DeiT was below it (`recipes/results/gmlp-table-2.json`). ConvNets and
ResMLP are quoted.
"""

from typing import Any

from tokenmix.recipes.common import SCRATCH, TINY_NOTE, TINY_VISION, tiny
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import better, not_worse

_NAMES = ("Top-1", "Resolution", "Params (M)", "MAdds (B)")
_FILLED = {"Top-1": "accuracy", "Params (M)": "parameters/1e6", "MAdds (B)": "flops_forward/2e9"}
_QUOTED = {
    "ResNet-152": (78.3, 224, 60, 11.3),
    "RegNetY-8GF": (81.7, 224, 39, 8.0),
    "EfficientNet-B0": (77.1, 224, 5, 0.39),
    "EfficientNet-B3": (81.6, 300, 12, 1.8),
    "EfficientNet-B7": (84.3, 600, 66, 37.0),
    "NFNet-F0": (83.6, 192, 72, 12.4),
    "Mixer-B/16 (Tolstikhin et al.)": (76.4, 224, 59, 12.7),
    "ResMLP-12": (76.6, 224, 15, 3.0),
    "ResMLP-24": (79.4, 224, 30, 6.0),
    "ResMLP-36": (79.7, 224, 45, 8.9),
}
_BUILT = {
    "ViT-B/16": ("vit-b16-384", None, (77.9, 384, 86, 55.4)),
    "ViT-L/16": ("vit-l16-384", None, (76.5, 384, 307, 190.7)),
    "DeiT-Ti": ("deit-ti16-224", None, (72.2, 224, 5, 1.3)),
    "DeiT-S": ("deit-s16-224", "dot | mlp", (79.8, 224, 22, 4.6)),
    "DeiT-B": ("deit-b16-224", None, (81.8, 224, 86, 17.5)),
    "Mixer-B/16 (our setup)": ("mixer-b16-224", "token_mlp(hidden=64) | mlp", (77.3, 224, 59, 12.7)),
    "Mixer-L/16": ("mixer-l16-224", None, (71.8, 224, 207, 44.8)),
    "gMLP-Ti": ("gmlp-ti16-224", None, (72.3, 224, 6, 1.4)),
    "gMLP-S": ("gmlp-s16-224", "gmlp", (79.6, 224, 20, 4.5)),
    "gMLP-B": ("gmlp-b16-224", None, (81.6, 224, 73, 15.8)),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "DeiT-S": {"positions": "absolute", "pool": "cls", "heads": 4},
    "gMLP-S": {"heads": 1},
    "Mixer-B/16 (our setup)": {"heads": 1},
}
_BENCH = {
    "data": {"task": "fashion_mnist", "batch_size": 256},
    "budget": {"steps": 8000},
    "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.05, "clip": 1.0},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "model": {"options": {"label_smoothing": 0.1, "drop_path": 0.1}},
    "checkpoints": {"every": 4000, "keep_last": 1},
}

RECIPE = Recipe(
    name="gmlp-table-2",
    place="gMLP, Table 2",
    title="ImageNet-1K results without extra data",
    columns=_NAMES,
    rows=(
        *(Row(name, dict(zip(_NAMES, printed))) for name, printed in _QUOTED.items()),
        *(
            Row(
                name,
                dict(zip(_NAMES, printed)),
                preset,
                layer,
                _OPTIONS.get(name, {}),
                {"layers": 2.5} if name == "gMLP-S" else {},
            )
            for name, (preset, layer, printed) in _BUILT.items()
        ),
    ),
    scales={
        "tiny": Scale(
            (tiny("images", "toy_images", _FILLED),), sizes={**TINY_VISION, "layers": 2}, body="vision", note=TINY_NOTE
        ),
        "bench": Scale(
            (Stage("images", _BENCH, _FILLED),),
            seeds=3,
            sizes={"d_model": 128, "d_ff": 512, "layers": 6, "image_size": 28, "patch_size": 4, "channels": 1},
            body="vision",
            match="params",
            note=f"Fashion-MNIST, its last 10,000 training images held out, in place of ImageNet; {SCRATCH}",
        ),
        "paper": Scale((Stage("images", {"preset": "gmlp-imagenet"}, _FILLED),)),
    },
    claims=(
        Claim(
            "gMLP is as accurate as DeiT at equal size", not_worse("gMLP-S", "DeiT-S", "Top-1", 0.5), "79.6 and 79.8"
        ),
        Claim(
            "gMLP is more accurate than MLP-Mixer",
            better("gMLP-S", "Mixer-B/16 (our setup)", "Top-1"),
            "79.6 with 20M parameters against 77.3 with 59M",
        ),
        Claim(
            "DeiT is more accurate than MLP-Mixer",
            better("DeiT-S", "Mixer-B/16 (our setup)", "Top-1"),
            "79.8 against 77.3",
        ),
    ),
    baseline="DeiT-S",
    doc=__doc__,
)
