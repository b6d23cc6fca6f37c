"""From samples to a metrics file, and what is refused on the way."""

import json

import numpy as np
import pytest

from straightdp.data.sources import ImageSet, load
from straightdp.evaluation.evaluate import (
    NotPassed,
    evaluate_cell,
    load_reference,
    passed,
    prepare_reference,
)
from straightdp.evaluation.fid import frechet_distance, gaussian_statistics
from straightdp.files import load_tensors, save_tensors, write_arrays, write_json

CONFIG = {
    "extractor": {"extractor": "fid_lenet"},
    "probe": {"steps": 60, "batch": 32, "learning_rate": 2e-3, "seeds": 2},
}


@pytest.fixture(scope="module")
def digits():
    train, test = load("embedded", "train"), load("embedded", "test")
    return (
        ImageSet("embedded", train.images[::10], train.labels[::10]),
        ImageSet("embedded", test.images[::4], test.labels[::4]),
    )


@pytest.fixture(scope="module")
def reference(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    config = {"extractor": "fid_lenet", "inception_weights": None, "lenet_steps": 30}
    prepare_reference(config, *digits, folder)
    return folder


def cell(folder, images, labels, epsilon=0.9, status="ok"):
    folder.mkdir()
    write_arrays(folder / "samples.npz", images=images, labels=labels)
    write_json(folder / "run.json", {"status": status, "epsilon": epsilon})
    return folder


def evaluated(folder, reference, test, epsilon=1.0):
    identity = {"id": folder.name, "method": "tha", "space": "pixel", "epsilon": epsilon, "seed": 0}
    output = folder / "metrics.json"
    returned = evaluate_cell(folder, reference, identity, CONFIG, test, output)
    assert json.loads(output.read_text()) == returned
    return returned


def test_real_images_do_well_and_noise_does_not(digits, reference, tmp_path):
    train, test = digits
    noise = np.random.default_rng(0).integers(0, 256, size=train.images.shape, dtype=np.uint8)
    real = evaluated(cell(tmp_path / "real", train.images, train.labels), reference, test)
    bad = evaluated(cell(tmp_path / "noise", noise, train.labels), reference, test)
    assert real["accuracy"] > 0.7 > 0.4 > bad["accuracy"]
    assert real["fid"] < 0.2 * bad["fid"]
    assert real["accuracy"] == np.mean(real["probes"])
    assert len(real["probes"]) == 2
    assert (real["n_samples"], real["status"]) == (len(train.images), "ok")
    assert real["extractor_checksum"] == load_reference(reference)[0].checksum


def test_the_reference_is_of_the_test_images(digits, reference):
    extractor, statistics = load_reference(reference)
    test = digits[1]
    assert statistics.count == len(test.images)
    own = gaussian_statistics(extractor.features(test.images))
    assert frechet_distance(own, statistics) == pytest.approx(0, abs=1e-5)


def test_an_infinite_budget_is_written_as_json_can(digits, reference, tmp_path):
    train, test = digits
    test = ImageSet("few", test.images[:100], test.labels[:100])
    folder = cell(tmp_path / "plain", train.images[:50], train.labels[:50], epsilon="inf")
    assert evaluated(folder, reference, test, epsilon=float("inf"))["cell"]["epsilon"] == "inf"


def test_an_extractor_that_has_changed_is_refused(digits, tmp_path):
    config = {"extractor": "fid_lenet", "inception_weights": None, "lenet_steps": 1}
    prepare_reference(config, *digits, tmp_path)
    state = load_tensors(tmp_path / "lenet.pt")
    state["head.bias"] += 1
    save_tensors(tmp_path / "lenet.pt", state)
    with pytest.raises(ValueError, match="are not those of the reference"):
        load_reference(tmp_path)


@pytest.mark.parametrize("status", ["failed", None])
def test_a_cell_that_did_not_finish_is_not_evaluated(status, tmp_path):
    write_json(tmp_path / "run.json", {"status": status, "epsilon": 0.5})
    with pytest.raises(NotPassed, match="run.json: status is"):
        passed(tmp_path, 1.0)


def test_a_cell_above_its_budget_is_not_evaluated(tmp_path):
    write_json(tmp_path / "run.json", {"status": "ok", "epsilon": 1.001})
    with pytest.raises(NotPassed, match="1.001 is above 1"):
        passed(tmp_path, 1.0)
    assert passed(tmp_path, 1.01)["epsilon"] == 1.001


def test_a_replayed_epsilon_that_is_no_number_is_not_within_budget(tmp_path):
    (tmp_path / "run.json").write_text('{"status": "ok", "epsilon": NaN}')
    with pytest.raises(NotPassed):
        passed(tmp_path, 1.0)
