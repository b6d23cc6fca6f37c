"""A subset of the real MNIST that comes with the package (see EMBEDDED.md).

The first 2,000 training and 400 test images of each digit, in MNIST's own order. Images are
stored column of pixels by column of pixels, which xz compresses best.
"""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import numpy as np

from straightdp.data.sources import DataError, ImageSet

FILE = Path(__file__).parent / "embedded_mnist.xz"
PER_CLASS = {"train": 2000, "test": 400}
SIZES = {split: 10 * count for split, count in PER_CLASS.items()}
# of the uncompressed bytes:
SHA256 = "5992d68502c0f439f07135d7dcf0cf4dbade4b57ab71ae6b9af3044501e6214c"


def pack(sets: dict[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Images (N, 28, 28) and labels (N,) of both splits to one byte string."""
    parts = []
    for split, size in SIZES.items():
        images, labels = sets[split]
        if images.shape != (size, 28, 28) or labels.shape != (size,):
            raise ValueError(f"{split}: expected {size} images, not {images.shape}")
        parts += [images.reshape(size, 784).T.astype(np.uint8).tobytes()]
        parts += [labels.astype(np.uint8).tobytes()]
    return b"".join(parts)


def unpack(raw: bytes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The inverse of :func:`pack`."""
    sets, offset = {}, 0
    for split, size in SIZES.items():
        images = np.frombuffer(raw, np.uint8, 784 * size, offset).reshape(784, size).T
        labels = np.frombuffer(raw, np.uint8, size, offset + 784 * size)
        sets[split] = np.ascontiguousarray(images).reshape(size, 28, 28), labels.astype(np.int64)
        offset += 785 * size
    return sets


def read_embedded(split: str) -> ImageSet:
    """The packaged subset; refuses a file whose bytes are not the published ones."""
    try:
        raw = lzma.decompress(FILE.read_bytes())
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"embedded: {FILE} cannot be read ({error}); reinstall") from error
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise DataError(f"embedded: {FILE} is not the published file; reinstall the package")
    images, labels = unpack(raw)[split]
    return ImageSet("embedded", images, labels)
