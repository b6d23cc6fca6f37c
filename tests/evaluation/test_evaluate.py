"""From samples to a metrics file, and what is refused on the way."""

import json

import numpy as np
import pytest
from test_record import configuration, edit, finish, less_noise

from straightdp.data.glyphs import draw
from straightdp.data.sources import ImageSet, load
from straightdp.evaluation.evaluate import evaluate_cell, evaluate_samples
from straightdp.evaluation.record import NotPassed
from straightdp.evaluation.reference import load_reference, prepare_reference
from straightdp.files import write_arrays

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
    prepare_reference(config, *digits, draw(300), folder)
    return folder


def cell(folder, images, labels, epsilon=1.0):
    finish(folder, epsilon)
    write_arrays(folder / "samples.npz", images=images, labels=labels)
    return folder


def evaluated(folder, reference, test, epsilon=1.0):
    identity = {"id": folder.name, "method": "tha", "space": "pixel", "epsilon": epsilon, "seed": 0}
    output = folder / "metrics.json"
    returned = evaluate_cell(
        folder, reference, identity, configuration(epsilon), CONFIG, test, output
    )
    assert json.loads(output.read_text()) == returned
    return returned


QUICK = CONFIG["probe"] | {"steps": 1, "seeds": 1}
METRICS = {
    "accuracy": "lenet_probe",
    "fid": "fid_lenet",
    "fid_by_class": "fid_lenet",
    "fid_blind": "fid_random",
    "label_consistency": "lenet_labels",
    "domain_rate": "lenet_domains",
    "precision": "fid_lenet",
    "recall": "fid_lenet",
}


def test_real_images_do_well_and_noise_does_not(digits, reference, tmp_path):
    train, test = digits
    noise = np.random.default_rng(0).integers(0, 256, size=train.images.shape, dtype=np.uint8)
    real = evaluated(cell(tmp_path / "real", train.images, train.labels), reference, test)
    bad = evaluated(cell(tmp_path / "noise", noise, train.labels), reference, test)
    good, poor = (
        {name: one["value"] for name, one in record["metrics"].items()} for record in (real, bad)
    )
    assert good["accuracy"] > 0.7 > 0.4 > poor["accuracy"]
    assert good["label_consistency"] > 0.7 > 0.2 > poor["label_consistency"]
    assert good["precision"] > 0.7 > 0.2 > poor["precision"]
    assert good["recall"] > 0.7 > 0.2 > poor["recall"]
    assert good["domain_rate"] > 0.85
    for name in ("fid", "fid_by_class", "fid_blind"):
        assert good[name] < 0.2 * poor[name]
    probes = real["metrics"]["accuracy"]["probes"]
    assert good["accuracy"] == np.mean(probes) and len(probes) == 2
    assert (real["n_samples"], real["status"], real["schema"]) == (len(train.images), "ok", 2)


def test_every_value_says_with_what_it_was_measured(digits, reference):
    train, test = digits
    loaded = load_reference(reference)
    found = evaluate_samples(train.images, train.labels, test, QUICK, loaded)
    assert {name: one["by"] for name, one in found.items()} == METRICS
    assert all(len(one["checksum"]) == 12 for one in found.values())
    smaller = min(len(train.images), len(test.images))
    for name, one in found.items():
        assert one["n"] == (smaller if name in ("precision", "recall") else len(train.images))
    assert found["fid"]["checksum"] == loaded.extractor.checksum
    assert found["fid"]["reference"] == "embedded test, n = 1000"
    assert found["label_consistency"]["reference"] == "embedded train, n = 2000"
    assert found["domain_rate"]["reference"].endswith("against glyphs train, n = 270 of each")
    by_class = found["fid_by_class"]
    assert by_class["value"] == pytest.approx(np.mean(by_class["classes"]))
    assert by_class["class_n"] == np.bincount(train.labels).tolist()
    assert by_class["class_n_real"] == np.bincount(test.labels).tolist()


def test_the_real_set_against_itself_is_perfect(digits, reference):
    test, loaded = digits[1], load_reference(reference)
    found = evaluate_samples(test.images, test.labels, test, QUICK, loaded)
    for name in ("fid", "fid_by_class", "fid_blind"):
        assert found[name]["value"] == pytest.approx(0, abs=1e-4)
    assert (found["precision"]["value"], found["recall"]["value"]) == (1, 1)
    classifier = loaded.label_classifier
    assert found["label_consistency"]["value"] == classifier.accuracy


def test_labels_that_lie_are_seen_by_what_reads_labels_alone(digits, reference):
    train, test = digits
    loaded = load_reference(reference)
    honest, lying = (
        evaluate_samples(train.images, labels, test, CONFIG["probe"] | {"seeds": 1}, loaded)
        for labels in (train.labels, (train.labels + 1) % 10)
    )
    for name in ("fid", "fid_blind", "domain_rate", "precision", "recall"):
        assert honest[name] == lying[name]
    assert lying["fid_by_class"]["value"] > 3 * honest["fid_by_class"]["value"]
    assert lying["label_consistency"]["value"] < 0.2
    assert lying["accuracy"]["value"] < 0.2


def test_an_infinite_budget_is_written_as_json_can(digits, reference, tmp_path):
    train, test = digits
    test = ImageSet("few", test.images[:100], test.labels[:100])
    folder = cell(tmp_path / "plain", train.images[:50], train.labels[:50], epsilon=float("inf"))
    assert evaluated(folder, reference, test, epsilon=float("inf"))["cell"]["epsilon"] == "inf"


def test_a_cell_whose_transcript_was_edited_is_not_evaluated(digits, reference, tmp_path):
    train, test = digits
    folder = cell(tmp_path / "cell", train.images[:50], train.labels[:50])
    edit(folder, less_noise)
    with pytest.raises(NotPassed, match="transcript.jsonl: replays to epsilon"):
        evaluated(folder, reference, test)
    assert not (folder / "metrics.json").exists()
