"""The shared reference: what is stored, and that nothing else passes for it."""

import json

import numpy as np
import pytest

from straightdp.data.glyphs import draw
from straightdp.data.sources import ImageSet, load
from straightdp.evaluation.fid import frechet_distance, gaussian_statistics
from straightdp.evaluation.reference import load_reference, prepare_reference
from straightdp.files import DamagedFile, load_tensors, save_tensors

CONFIG = {"extractor": "fid_lenet", "inception_weights": None, "lenet_steps": 2}


@pytest.fixture(scope="module")
def digits():
    return tuple(
        ImageSet("embedded", one.images[::20], one.labels[::20])
        for one in (load("embedded", "train"), load("embedded", "test"))
    )


@pytest.fixture
def folder(digits, tmp_path):
    prepare_reference(CONFIG, *digits, draw(60), tmp_path)
    return tmp_path


def test_it_describes_the_real_test_images(digits, folder):
    loaded, test = load_reference(folder), digits[1]
    assert loaded.split == "embedded test, n = 200"
    assert np.array_equal(loaded.labels, test.labels)
    assert np.array_equal(loaded.features, loaded.extractor.features(test.images))
    for extractor, stored in (
        (loaded.extractor, loaded.statistics),
        (loaded.blind, loaded.blind_statistics),
    ):
        own = gaussian_statistics(extractor.features(test.images))
        assert stored.count == 200
        assert frechet_distance(own, stored) == pytest.approx(0, abs=1e-5)


def test_the_label_classifier_is_the_network_of_fid_lenet(folder):
    loaded = load_reference(folder)
    assert loaded.extractor.checksum == loaded.label_classifier.checksum
    assert loaded.extractor.checksum != loaded.domain_classifier.checksum


@pytest.mark.parametrize(
    ("file", "words"),
    [("lenet.pt", "the extractor's weights"), ("domains.pt", "the domain classifier's weights")],
)
def test_networks_that_have_changed_are_refused(folder, file, words):
    state = load_tensors(folder / file)
    state["head.bias"] += 1
    save_tensors(folder / file, state)
    with pytest.raises(ValueError, match=f"{words} .* are not those of the reference"):
        load_reference(folder)


def test_another_label_blind_network_is_refused(folder):
    path = folder / "extractor.json"
    record = json.loads(path.read_text())
    record["blind"]["checksum"] = "0" * 12
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="label-blind extractor's weights"):
        load_reference(folder)


def test_a_reference_of_before_is_refused_by_name(folder):
    path = folder / "extractor.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 1}))
    with pytest.raises(DamagedFile, match=r"extractor\.json: schema 1, not 2; remove the folder"):
        load_reference(folder)


def test_a_network_file_of_the_wrong_shape_is_named(folder):
    save_tensors(folder / "domains.pt", load_tensors(folder / "lenet.pt"))
    with pytest.raises(DamagedFile, match="domains.pt: not the weights of lenet_domains"):
        load_reference(folder)
