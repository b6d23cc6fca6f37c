"""Image sets by name. Nothing here downloads: `straightdp fetch NAME` is what does.

`mnist`, `fashion_mnist` and `kmnist` are read from a folder in torchvision's layout
(`MNIST/raw/train-images-idx3-ubyte`, gzipped or not), named by STRAIGHTDP_DATA and else
`data/`. `embedded` comes with the package; `glyphs` and `letters` are drawn, and `letters` can
be drawn once into the same folder, to be a private set's stand-in.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

Split = Literal["train", "test"]
ROOT_VARIABLE = "STRAIGHTDP_DATA"


class DataError(ValueError):
    """A data set that is missing or damaged; the message says what to do."""


@dataclass(frozen=True)
class ImageSet:
    name: str
    images: np.ndarray  # (N, 28, 28) uint8
    labels: np.ndarray  # (N,) int64


@dataclass(frozen=True)
class Source:
    """What is known of a source before it is read."""

    name: str
    benchmark: bool  # published images: a published noise seed harms nobody
    train_size: int | None  # None: any size
    test_size: int | None
    license: str
    origin: str
    folder: str | None = None  # below the data folder; None: nothing to fetch


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("mnist", True, 60_000, 10_000, "CC BY-SA 3.0", "LeCun, Cortes and Burges", "MNIST"),
        Source("fashion_mnist", True, 60_000, 10_000, "MIT", "Zalando SE", "FashionMNIST"),
        Source(
            "kmnist",
            True,
            60_000,
            10_000,
            "CC BY-SA 4.0",
            "CODH, from the Kuzushiji data set by NIJL and others",
            "KMNIST",
        ),
        Source(
            "embedded",
            True,
            20_000,
            4_000,
            "CC BY-SA 3.0",
            "a subset of MNIST that comes with the package",
        ),
        Source("glyphs", True, None, None, "drawn here", "the DejaVu fonts that matplotlib ships"),
        Source(
            "letters",
            True,
            60_000,
            10_000,
            "drawn here",
            "the STIX and Computer Modern fonts that matplotlib ships",
            "Letters",
        ),
    )
}
DRAWN = ("glyphs", "letters")
PREFIX = {"train": "train", "test": "t10k"}


def data_root(root: Path | None = None) -> Path:
    """The data folder: the argument, else $STRAIGHTDP_DATA, else `data`."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or "data")


def load(
    name: str,
    split: Split,
    *,
    root: Path | None = None,
    size: int | None = None,
    seed: int = 0,
) -> ImageSet:
    """Read a source, or draw `size` images of a drawn one; `size` and `seed` are for those.

    Raises :class:`DataError`, one line, if the source is unknown, missing or damaged.
    """
    if name not in SOURCES:
        raise DataError(f"{name}: no such data set; known: {', '.join(SOURCES)}")
    if split not in PREFIX:
        raise DataError(f"{split}: no such split; use train or test")
    if name not in DRAWN and (size is not None or seed != 0):
        raise DataError(f"{name}: size and seed are for drawn sets alone; leave them out")
    if size is not None:
        from straightdp.data.glyphs import draw

        return draw(size, seed, split, name)
    if name == "glyphs":
        raise DataError("glyphs: say how many to draw (size)")
    if name == "embedded":
        from straightdp.data.embedded import read_embedded

        return read_embedded(split)
    images = read_file(name, split, "images", root)
    labels = read_file(name, split, "labels", root)
    if labels.max() > 9:
        raise DataError(
            f"{name}: a label of {labels.max()} in {split} where 0 to 9 are due; fetch it again: "
            f"straightdp fetch {name}"
        )
    return ImageSet(name, images, labels.astype(np.int64))


def raw_folder(name: str, root: Path | None = None) -> Path:
    """Where a fetched source's files are, in torchvision's layout."""
    return data_root(root) / SOURCES[name].folder / "raw"


def read_file(name: str, split: Split, part: str, root: Path | None = None) -> np.ndarray:
    """One IDX file, gzipped (as `straightdp fetch` leaves it) or plain, of the due shape.

    `part` is "images", (N, 28, 28), or "labels", (N,); unsigned bytes.
    """
    folder, source = raw_folder(name, root), SOURCES[name]
    size = source.train_size if split == "train" else source.test_size
    due = (size, 28, 28) if part == "images" else (size,)
    file = f"{PREFIX[split]}-{part}-idx{len(due)}-ubyte"
    advice = f"run `straightdp fetch {name}`, or name its folder in {ROOT_VARIABLE}"
    for path in (folder / f"{file}.gz", folder / file):
        if path.exists():
            break
    else:
        raise DataError(f"{name}: {folder / file}[.gz] is not there; {advice}")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        array = parse_idx(raw, len(due))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{name}: {path} is damaged ({error}); {advice}") from error
    if array.shape != due:
        raise DataError(f"{name}: {path} is of shape {array.shape}, not {due}; {advice}")
    return array


def parse_idx(raw: bytes, dimensions: int) -> np.ndarray:
    """An IDX array of unsigned bytes with the given number of dimensions (LeCun's format)."""
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"not an IDX file of {dimensions}-dimensional unsigned bytes")
    shape = tuple(np.frombuffer(raw[4:header], ">u4").tolist())
    if len(raw) - header != math.prod(shape):
        raise ValueError(f"{len(raw) - header} bytes of data where {math.prod(shape)} are due")
    return (
        np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy()
    )  # torch warns of read-only ones


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of unsigned bytes in LeCun's IDX format, as :func:`parse_idx` reads it."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
