"""gMLP, Figure 2: accuracy against capacity.

    tokenmix reproduce gmlp-figure-2 --scale bench

Time: about 15 minutes on one H200, one run after another (an estimate); `--jobs 4` runs four side by side. Expect:
two curves that lie on each other: gMLP and ViT at three sizes each, on Fashion-MNIST. The points of the paper's
figure are those of its Table 2.
"""

from tokenmix.recipes.common import SCRATCH, TINY_NOTE, TINY_VISION, tiny
from tokenmix.recipes.gmlp_table_2 import _BENCH, _BUILT, _FILLED
from tokenmix.recipes.recipe import Claim, Recipe, Row, Scale, Stage
from tokenmix.recipes.verdicts import every, same_slope, within

_SIZES = {"Ti": 0.5, "S": 1.0, "B": 2.0}


def _row(name: str, size: str) -> Row:
    preset, _, printed = _BUILT[name]
    numbers = {"Top-1": printed[0], "Params (M)": printed[2], "MAdds (B)": printed[3]}
    width = _SIZES[size]
    if name.startswith("gMLP"):
        return Row(name, numbers, preset, "gmlp", {"heads": 1}, {"d_model": width, "d_ff": 1.5 * width, "layers": 2})
    options = {"positions": "absolute", "pool": "cls", "heads": 4}
    return Row(name, numbers, preset, "dot | mlp", options, {"d_model": width, "d_ff": width})


RECIPE = Recipe(
    name="gmlp-figure-2",
    place="gMLP, Figure 2",
    title="ImageNet accuracy vs model capacity",
    columns=("Top-1", "Params (M)", "MAdds (B)"),
    rows=tuple(_row(f"{family}-{size}", size) for family in ("DeiT", "gMLP") for size in _SIZES),
    scales={
        "tiny": Scale((tiny("images", "toy_images", _FILLED),), sizes=TINY_VISION, body="vision", note=TINY_NOTE),
        "bench": Scale(
            (Stage("images", _BENCH, _FILLED),),
            seeds=3,
            sizes={"d_model": 128, "d_ff": 512, "layers": 6, "image_size": 28, "patch_size": 4, "channels": 1},
            body="vision",
            note=f"Fashion-MNIST in place of ImageNet; {SCRATCH}",
        ),
        "paper": Scale((Stage("images", {"preset": "gmlp-imagenet"}, _FILLED),)),
    },
    claims=(
        Claim(
            "accuracy follows capacity, not the presence of attention: gMLP and DeiT agree at every size",
            every(*(within(f"gMLP-{size}", f"DeiT-{size}", "Top-1", 0.7) for size in _SIZES)),
            "72.3, 79.6, 81.6 and 72.2, 79.8, 81.8",
        ),
        Claim(
            "both grow equally fast with parameters",
            same_slope(
                [f"gMLP-{s}" for s in _SIZES],
                [f"DeiT-{s}" for s in _SIZES],
                "Params (M)",
                "Top-1",
                0.5,
                logarithmic=False,
            ),
            "a figure",
        ),
    ),
    baseline="DeiT-S",
    doc=__doc__,
)
