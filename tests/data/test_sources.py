"""Reading IDX files: against files written by hand, torchvision, and MNIST's published facts."""

import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from straightdp.data import sources
from straightdp.data.sources import SOURCES, DataError, load, parse_idx

SIZES = {"train": 6, "t10k": 4}
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    """LeCun's format: 0, 0, 8 (unsigned byte), dimensions, big-endian sizes, data."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A KMNIST of 6 and 4 images; returns the data folder, its raw folder and the arrays."""
    monkeypatch.setitem(SOURCES, "kmnist", replace(SOURCES["kmnist"], train_size=6, test_size=4))
    monkeypatch.delenv("STRAIGHTDP_DATA", raising=False)
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    generator, arrays = np.random.default_rng(0), {}
    for prefix, size in SIZES.items():
        images = generator.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, size, dtype=np.uint8)
        arrays[prefix] = images, labels
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path, raw, arrays


@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_plain_and_gzipped_files_give_what_was_written(tiny, split, prefix):
    root, _, arrays = tiny
    loaded = load("kmnist", split, root=root)
    assert loaded.name == "kmnist"
    assert loaded.images.dtype == np.uint8 and loaded.labels.dtype == np.int64
    np.testing.assert_array_equal(loaded.images, arrays[prefix][0])
    np.testing.assert_array_equal(loaded.labels, arrays[prefix][1])


def test_the_argument_then_the_variable_then_data_name_the_folder(tiny, monkeypatch):
    root, _, _ = tiny
    monkeypatch.setenv("STRAIGHTDP_DATA", str(root / "elsewhere"))
    assert len(load("kmnist", "train", root=root).labels) == 6
    with pytest.raises(DataError, match="elsewhere"):
        load("kmnist", "train")
    monkeypatch.setenv("STRAIGHTDP_DATA", str(root))
    assert len(load("kmnist", "train").labels) == 6
    monkeypatch.delenv("STRAIGHTDP_DATA")
    monkeypatch.chdir(root)
    with pytest.raises(DataError, match=r"data/KMNIST/raw"):
        load("kmnist", "train")


def _refused(root: Path, *named: str) -> None:
    with pytest.raises(DataError) as caught:
        load("kmnist", "train", root=root)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("kmnist", "straightdp fetch kmnist", *named):
        assert part in message


def test_a_missing_file_is_named_with_the_verb_that_fetches_it(tiny):
    root, raw, _ = tiny
    (raw / TRAIN_IMAGES).unlink()
    _refused(root, str(raw / TRAIN_IMAGES), "not there")


@pytest.mark.parametrize("cut", [0, 3, 10, 20, -1])
def test_a_truncated_plain_file_is_refused(tiny, cut):
    root, raw, _ = tiny
    path = raw / TRAIN_IMAGES
    path.write_bytes(path.read_bytes()[:cut])
    _refused(root, str(path), "damaged")


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_a_damaged_gzip_file_is_refused(tiny, damage):
    root, raw, _ = tiny
    path = raw / f"{TRAIN_LABELS}.gz"
    body = bytearray(path.read_bytes())
    if damage == "flipped":
        body[-6] ^= 1  # in the CRC
    path.write_bytes({"cut": body[:-9], "flipped": body, "text": b"<html>"}[damage])
    _refused(root, str(path), "damaged")


@pytest.mark.parametrize("shape", [(6, 27, 28), (5, 28, 28), (6, 784)])
def test_a_file_of_another_shape_is_refused(tiny, shape):
    root, raw, _ = tiny
    (raw / TRAIN_IMAGES).write_bytes(idx(np.zeros(shape, np.uint8)))
    _refused(root, str(raw / TRAIN_IMAGES))


def test_too_many_bytes_are_refused(tiny):
    root, raw, _ = tiny
    path = raw / TRAIN_IMAGES
    path.write_bytes(path.read_bytes() + b"\0")
    _refused(root, str(path), "damaged")


def test_a_label_outside_the_classes_is_refused(tiny):
    root, raw, _ = tiny
    labels = np.array([0, 1, 2, 10, 4, 5], np.uint8)
    (raw / f"{TRAIN_LABELS}.gz").write_bytes(gzip.compress(idx(labels)))
    _refused(root, "10")


def test_names_splits_and_arguments_that_are_wrong_are_refused(tiny):
    root, _, _ = tiny
    with pytest.raises(DataError, match="emnist: .*fashion_mnist"):
        load("emnist", "train")
    with pytest.raises(DataError, match="valid: .*train or test"):
        load("kmnist", "valid", root=root)
    with pytest.raises(DataError, match="kmnist: size and seed are for drawn sets"):
        load("kmnist", "train", root=root, size=3)
    with pytest.raises(DataError, match=r"glyphs: .*\(size\)"):
        load("glyphs", "train")


def test_idx_is_read_as_torchvision_reads_it(tmp_path):
    from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

    raw = idx(np.random.default_rng(1).integers(0, 256, (3, 5, 7), dtype=np.uint8))
    (tmp_path / "x").write_bytes(raw)
    expected = read_sn3_pascalvincent_tensor(str(tmp_path / "x")).numpy()
    np.testing.assert_array_equal(parse_idx(raw, 3), expected)
    assert parse_idx(raw, 3).flags.writeable


# Published: the md5 of the unpacked files, and how many of each digit there are.
MNIST = {
    "train": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    ),
    "test": (
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
}


@pytest.mark.skipif("STRAIGHTDP_DATA" not in os.environ, reason="STRAIGHTDP_DATA is not set")
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_real_mnist_is_the_published_one(split):
    if not sources.raw_folder("mnist").is_dir():
        pytest.skip("STRAIGHTDP_DATA has no MNIST")
    loaded = load("mnist", split)
    images_md5, labels_md5, counts = MNIST[split]
    assert hashlib.md5(idx(loaded.images)).hexdigest() == images_md5
    assert hashlib.md5(idx(loaded.labels.astype(np.uint8))).hexdigest() == labels_md5
    assert np.bincount(loaded.labels).tolist() == counts
