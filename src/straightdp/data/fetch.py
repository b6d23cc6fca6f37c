"""The only thing that downloads: `straightdp fetch NAME`. Jobs only read.

Host names and checksums are torchvision's, with one more host each. A file takes its place
only when its checksum is right, so that a failed or killed fetch leaves what was there, and
running it again fetches only what is missing.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import sys
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from straightdp.data.sources import (
    DRAWN,
    PREFIX,
    SOURCES,
    DataError,
    idx_bytes,
    load,
    raw_folder,
    read_file,
)
from straightdp.files import replacing

TIMEOUT = 30.0  # seconds without an answer, a host
MORE_MIRRORS = {
    "mnist": ("https://storage.googleapis.com/cvdf-datasets/mnist/",),
    "fashion_mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "kmnist": ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
}


@dataclass(frozen=True)
class Catalogue:
    """Where a source's files are and what they must be."""

    mirrors: tuple[str, ...]  # addresses ending in "/", tried in this order
    files: dict[str, str]  # file name -> md5, in hexadecimal


def catalogue(name: str) -> Catalogue:
    """torchvision's mirrors and checksums for `mnist`, `fashion_mnist` or `kmnist`."""
    from torchvision import datasets  # takes seconds

    classes = {
        "mnist": datasets.MNIST,
        "fashion_mnist": datasets.FashionMNIST,
        "kmnist": datasets.KMNIST,
    }
    listed = getattr(classes[name], "mirrors", None)
    mirrors = listed or [classes[name].resources[0][0].rpartition("/")[0] + "/"]
    files = {address.rpartition("/")[2]: md5 for address, md5 in classes[name].resources}
    return Catalogue((*mirrors, *MORE_MIRRORS[name]), files)


def fetch(
    name: str,
    root: Path | None = None,
    where: Catalogue | None = None,
    *,
    timeout: float = TIMEOUT,
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Path:
    """Make a source's files be there and right; returns the folder they are in.

    `root` is the data folder (default: $STRAIGHTDP_DATA, else `data`). Whole files are kept.
    `embedded` and `glyphs` need nothing: that is reported, and the package's own folder
    returned. `letters` are drawn, not downloaded. Raises :class:`DataError`, one line with
    every host tried, what each answered, and the folder into which the files may be put by hand.
    """
    if name not in SOURCES:
        raise DataError(f"{name}: no such data set; known: {', '.join(SOURCES)}")
    if SOURCES[name].folder is None:
        report(f"{name}: comes with the package or is drawn by it; nothing needs fetching")
        return Path(__file__).parent
    folder = raw_folder(name, root)
    if name in DRAWN:
        _draw(name, folder, root, report)
        return folder
    where = where or catalogue(name)
    for file, md5 in where.files.items():
        kept = _kept(name, folder / file, md5, root)
        if kept:
            report(f"{name}: {folder / file} {kept}")
            continue
        body, host = _download(name, file, md5, where, folder, timeout)
        try:
            with replacing(folder / file) as temporary:
                temporary.write_bytes(body)
        except OSError as error:
            raise DataError(f"{name}: {folder / file} cannot be written ({error})") from error
        report(f"{name}: {folder / file} fetched from {host}")
    return folder


def _draw(name: str, folder: Path, root: Path | None, report: Callable[[str], None]) -> None:
    """Draw what is missing of a drawn set's files, as gzipped IDX."""
    from straightdp.data.glyphs import draw

    source = SOURCES[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{name}: {folder} cannot be made ({error.strerror})") from error
    for split, size in (("train", source.train_size), ("test", source.test_size)):
        try:
            load(name, split, root=root)
            report(f"{name}: its {split} files in {folder} are there and whole")
            continue
        except DataError:
            report(f"{name}: drawing {size} images ({split}) takes a minute or two")
        drawn = draw(size, 0, split, name)
        for part, array in (("images", drawn.images), ("labels", drawn.labels.astype(np.uint8))):
            path = folder / f"{PREFIX[split]}-{part}-idx{array.ndim}-ubyte.gz"
            try:
                with replacing(path) as temporary:
                    temporary.write_bytes(gzip.compress(idx_bytes(array), 6, mtime=0))
            except OSError as error:
                raise DataError(f"{name}: {error}") from error


def _kept(name: str, path: Path, md5: str, root: Path | None) -> str:
    """Why a file needs no download; empty if it does.

    A whole file that is not the published archive (unpacked, or packed again) is somebody's
    own and stays, but the report says so.
    """
    if path.is_file() and _md5(path.read_bytes()) == md5:
        return "is there and is the published file"
    split = next(split for split, prefix in PREFIX.items() if path.name.startswith(prefix))
    try:
        read_file(name, split, "images" if "images" in path.name else "labels", root)
    except DataError:
        return ""
    return "is there and whole, but not as published (unpacked or packed again); kept"


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def _download(
    name: str, file: str, md5: str, where: Catalogue, folder: Path, timeout: float
) -> tuple[bytes, str]:
    """The right bytes of one file and the mirror that gave them."""
    answers = []
    for mirror in where.mirrors:
        try:
            with urllib.request.urlopen(mirror + file, timeout=timeout) as response:
                body = response.read()
        except http.client.IncompleteRead as error:
            answers.append(f"{mirror}: cut off after {len(error.partial)} bytes")
        except (OSError, http.client.HTTPException, ValueError) as error:
            answers.append(f"{mirror}: {' '.join(str(error).split()) or type(error).__name__}")
        else:
            if _md5(body) == md5:
                return body, mirror
            answers.append(f"{mirror}: wrong checksum ({_described(body)})")
    raise DataError(
        f"{name}: {file} could not be fetched ({'; '.join(answers)}); by hand: put "
        f"{', '.join(where.files)} into {folder}"
    )


def _described(body: bytes) -> str:
    """What came in a file's place, for the message."""
    if body[:2] != b"\x1f\x8b":
        return f"{len(body)} bytes that are no gzip file"
    try:
        gzip.decompress(body)
    except (OSError, EOFError, zlib.error):
        return f"{len(body)} bytes of a damaged gzip file"
    return f"{len(body)} bytes of another gzip file"
