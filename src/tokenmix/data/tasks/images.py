"""Images: ImageNet, CIFAR-10, Fashion-MNIST, and any folder of images as `images:FOLDER`.

Arrays are uint8, [height, width, 3] (Fashion-MNIST [28, 28]); files are opened when their example is asked for.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenmix.data.labelled import ACCURACY, label_index
from tokenmix.data.readers import Reader, Row, find_file, idx, open_bytes
from tokenmix.data.sources import Files, Hub
from tokenmix.data.task import Example, Task, register

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")


def open_image(image: Any) -> np.ndarray:
    """An RGB array of a path, a PIL image (what the Hub gives) or an array."""
    if isinstance(image, np.ndarray):
        return image
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("image files are opened with pillow: pip install 'tokenmix[vision]'") from error
    opened = Image.open(image) if isinstance(image, (str, Path)) else image
    return np.asarray(opened.convert("RGB"))


def _convert(labels: tuple[str, ...], row: Row, split: str) -> Example:
    return Example(image=open_image(row["image"]), label=label_index(row["label"], labels))


def _images(name: str, sources: tuple[Any, ...], labels: tuple[str, ...], **options: Any) -> Task:
    convert = {"image": functools.partial(_convert, labels)}  # no closure: workers of a data loader get it by pickle
    return Task(name, "images", sources, convert, ACCURACY, "accuracy", labels=labels, lazy=True, **options)


# --- Fashion-MNIST


def _fashion(part: slice = slice(None)) -> Reader:
    def read(path: Path) -> Iterator[Row]:
        images = idx(path)
        labels_path = find_file(path.parent, path.name.split(".")[0].replace("images-idx3", "labels-idx1"))
        if labels_path is None:
            raise FileNotFoundError(f"{path} has no labels: expected …-labels-idx1-ubyte (or .gz, .xz) beside it")
        labels = idx(labels_path)
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{labels_path}: expected one label for each image of {path} {images.shape}, found {labels.shape}"
            )
        for number in range(len(images))[part]:
            yield Row({"image": images[number], "label": int(labels[number])}, path, number + 1)

    return read


_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
register(
    _images(
        "fashion_mnist",
        (
            Files("fashion_mnist", {"train": "train-images-idx3-ubyte"}, read=_fashion(slice(None, -10_000))),
            Files("fashion_mnist", {"validation": "train-images-idx3-ubyte"}, read=_fashion(slice(-10_000, None))),
            Files("fashion_mnist", {"test": "t10k-images-idx3-ubyte"}, read=_fashion()),
            Hub(
                "zalando-datasets/fashion_mnist",
                splits={"train": "train[:50000]", "validation": "train[50000:]", "test": "test"},
            ),
        ),
        _FASHION,
        url="https://github.com/zalandoresearch/fashion-mnist",
        note="validation: the last 10,000 training images",
    )
)


# --- CIFAR-10: the binary release, or the Python one


class _ArraysOnly(pickle.Unpickler):
    """A pickle of dictionaries, lists and numpy arrays; anything else in it is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise ValueError(f"refused {module}.{name}: expected only numpy arrays in a CIFAR-10 file")


def _cifar_python(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        batch = _ArraysOnly(file, encoding="bytes").load()
    yield from _cifar_rows(path, np.asarray(batch[b"data"]), batch[b"labels"])


def _cifar_binary(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        content = np.frombuffer(file.read(), np.uint8)
    if len(content) % 3073:
        raise ValueError(f"{path}: expected records of 3,073 bytes (label, 32×32×3), found {len(content)} bytes in all")
    records = content.reshape(-1, 3073)
    yield from _cifar_rows(path, records[:, 1:], records[:, 0])


def _cifar_rows(path: Path, data: np.ndarray, labels: Any) -> Iterator[Row]:
    for number, (image, label) in enumerate(zip(data.reshape(-1, 3, 32, 32), labels, strict=True), 1):
        yield Row({"image": image.transpose(1, 2, 0), "label": int(label)}, path, number)


def _cifar_hub(row: Row) -> Iterable[Row]:
    return (row.derive(image=row["img"], label=row["label"]),)


_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
register(
    _images(
        "cifar10",
        (
            Files("cifar-10-batches-bin", {"train": "data_batch_*.bin", "test": "test_batch.bin"}, read=_cifar_binary),
            Files("cifar-10-batches-py", {"train": "data_batch_*", "test": "test_batch"}, read=_cifar_python),
            Hub("uoft-cs/cifar10", splits={"train": "train", "test": "test"}, adapt=_cifar_hub),
        ),
        _CIFAR,
        default_split="test",
        url="https://www.cs.toronto.edu/~kriz/cifar.html",
    )
)


# --- a folder for each class: ImageNet and one's own


def image_paths(folder: Path) -> Iterator[Row]:
    """Images below `folder/CLASS/`; the label is the class's place in alphabetical order, as usual for ImageNet."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    for label, name in enumerate(classes):
        for path in sorted((folder / name).rglob("*")):
            if path.suffix.lower() in SUFFIXES:
                yield Row({"image": path, "label": label}, path, 1)


register(
    _images(
        "imagenet",
        (
            Files("imagenet", {"train": "train", "validation": "val"}, read=image_paths),
            Hub("ILSVRC/imagenet-1k", splits={"train": "train", "validation": "validation"}),
        ),
        tuple(map(str, range(1000))),  # the place of the class's WordNet id in alphabetical order
        url="https://image-net.org/download.php (val sorted into class folders)",
    )
)


def folder_task(spec: str) -> Task:
    """`images:FOLDER`: FOLDER/train/CLASS/ and FOLDER/val/CLASS/, or FOLDER/CLASS/ of which a tenth is held out."""
    root = Path(spec.removeprefix("images:")).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"{spec!r}: no folder {root}; expected class folders of images in it, or train/ and val/ with such"
        )
    train = root / "train" if (root / "train").is_dir() else root
    labels = tuple(sorted(entry.name for entry in train.iterdir() if entry.is_dir()))
    if len(labels) < 2:
        raise ValueError(f"{train} has {len(labels)} class folders ({', '.join(labels)}); expected at least two")
    held = next((name for name in ("val", "validation", "test") if (root / name).is_dir()), None)

    def read(split: str, folder: Path) -> Iterator[Row]:
        for row in image_paths(folder):
            if train != root or (zlib.crc32(row["image"].name.encode()) % 10 == 0) == (split == "validation"):
                yield row

    splits = {"train": train} | ({"validation": root / held} if train != root and held else {})
    splits |= {"validation": root} if train == root else {}
    sources = tuple(
        Files(str(path.resolve().parent), {split: path.resolve().name}, read=functools.partial(read, split))
        for split, path in splits.items()
    )
    return _images(spec, sources, labels, url=f"the folder {root}")
