"""The shared reference: what is stored, and that nothing else passes for it."""

import json

import numpy as np
import pytest

from straightdp.data.glyphs import draw
from straightdp.data.sources import ImageSet, load
from straightdp.evaluation import reference
from straightdp.evaluation.evaluate import evaluate_samples
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
    with pytest.raises(DamagedFile, match=r"extractor\.json: schema 1, not 2"):
        load_reference(folder)


def test_a_network_file_of_the_wrong_shape_is_named(folder):
    save_tensors(folder / "domains.pt", load_tensors(folder / "lenet.pt"))
    with pytest.raises(DamagedFile, match="domains.pt: not the weights of lenet_domains"):
        load_reference(folder)


class Wide:
    """Stands in for Inception: more features than there are samples."""

    name, checksum = "inception_v3_tf", "feedfeedfeed"

    def __init__(self, weights):
        self.weights = weights

    def features(self, images: np.ndarray) -> np.ndarray:
        mixing = np.random.default_rng(0).normal(size=(784, 300))
        return (images.reshape(len(images), -1) / 255 @ mixing).astype(np.float32)


def test_another_extractor_leaves_the_classifiers(digits, tmp_path, monkeypatch):
    """With Inception's weights at hand, FID and the manifolds are Inception's; labels are not."""
    weights = tmp_path / "weights.pth"
    weights.touch()
    monkeypatch.setattr(reference, "InceptionExtractor", Wide)
    config = CONFIG | {"extractor": "auto", "inception_weights": str(weights)}
    prepare_reference(config, *digits, draw(60), tmp_path)
    loaded, (train, test) = load_reference(tmp_path), digits
    assert loaded.extractor.name == "inception_v3_tf" and loaded.features.shape == (200, 300)
    assert loaded.label_classifier.name == "lenet_labels"
    probe = {"steps": 1, "batch": 8, "learning_rate": 1e-3, "seeds": 1}
    found = evaluate_samples(train.images, train.labels, test, probe, loaded)
    for name in ("fid", "fid_by_class", "precision", "recall"):
        assert (found[name]["by"], found[name]["checksum"]) == (Wide.name, Wide.checksum)
    assert found["precision"]["n"] == found["recall"]["n"] == 200  # of 1,000 samples
    assert found["label_consistency"]["by"] == "lenet_labels"
    assert found["fid_by_class"]["value"] > found["fid"]["value"]  # bias of small n
    monkeypatch.setattr(Wide, "checksum", "other")
    with pytest.raises(ValueError, match="the extractor's weights"):
        load_reference(tmp_path)
