"""The packaged subset is what EMBEDDED.md says it is, and really MNIST."""

import hashlib
import lzma
import os
import re

import numpy as np
import pytest

from straightdp.data import embedded
from straightdp.data.sources import SOURCES, DataError, load, raw_folder

# MNIST's first labels, as every tutorial shows them.
FIRST = {"train": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "test": [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]}


@pytest.mark.parametrize(("split", "each"), [("train", 2000), ("test", 400)])
def test_it_has_as_many_of_each_digit_as_declared(split, each):
    loaded = load("embedded", split)
    assert loaded.images.shape == (10 * each, 28, 28) and loaded.images.dtype == np.uint8
    assert np.bincount(loaded.labels).tolist() == [each] * 10
    assert loaded.labels[:10].tolist() == FIRST[split]
    source = SOURCES["embedded"]
    assert {"train": source.train_size, "test": source.test_size}[split] == 10 * each


def test_the_documented_checksum_is_that_of_the_file_and_the_file_is_small():
    text = (embedded.FILE.parent / "EMBEDDED.md").read_text()
    raw = lzma.decompress(embedded.FILE.read_bytes())
    assert re.findall(r"\b[0-9a-f]{64}\b", text) == [hashlib.sha256(raw).hexdigest()]
    assert embedded.FILE.stat().st_size <= 5_000_000
    assert "ShareAlike" in text and "LeCun" in text


def test_packing_is_undone_by_unpacking():
    generator = np.random.default_rng(0)
    sets = {
        split: (
            generator.integers(0, 256, (size, 28, 28), dtype=np.uint8),
            generator.integers(0, 10, size),
        )
        for split, size in {"train": 20_000, "test": 4_000}.items()
    }
    for split, (images, labels) in embedded.unpack(embedded.pack(sets)).items():
        np.testing.assert_array_equal(images, sets[split][0])
        np.testing.assert_array_equal(labels, sets[split][1])


@pytest.mark.parametrize("damage", ["cut", "other", "gone"])
def test_a_file_that_is_not_the_published_one_is_refused(tmp_path, monkeypatch, damage):
    path = tmp_path / "embedded_mnist.xz"
    if damage == "cut":
        path.write_bytes(embedded.FILE.read_bytes()[:100_000])
    elif damage == "other":
        path.write_bytes(lzma.compress(bytes(785 * 24_000)))
    monkeypatch.setattr(embedded, "FILE", path)
    with pytest.raises(DataError, match="embedded_mnist.xz .*reinstall") as caught:
        load("embedded", "train")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif("STRAIGHTDP_DATA" not in os.environ, reason="STRAIGHTDP_DATA is not set")
@pytest.mark.parametrize(("split", "each"), [("train", 2000), ("test", 400)])
def test_the_records_are_the_first_of_each_digit_in_the_real_mnist(split, each):
    if not raw_folder("mnist").is_dir():
        pytest.skip("STRAIGHTDP_DATA has no MNIST")
    real, subset = load("mnist", split), load("embedded", split)
    for digit in range(10):
        expected = real.images[real.labels == digit][:each]
        np.testing.assert_array_equal(subset.images[subset.labels == digit], expected)
