"""From a finished cell's samples to its metrics file.

Every metric is an entry of its own: its value, n (the samples it was computed from), the
network it was measured `by` with its checksum, and the real images it refers to. What was
measured differently therefore never passes for the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from straightdp.data.sources import ImageSet
from straightdp.evaluation.classifiers import domain_rate, label_consistency
from straightdp.evaluation.fid import class_distances, frechet_distance, gaussian_statistics
from straightdp.evaluation.manifold import NEIGHBOURS, fixed_subset, precision_recall
from straightdp.evaluation.probe import CLASSES, probe_accuracies
from straightdp.evaluation.record import SAMPLES, digests, passed
from straightdp.evaluation.reference import Reference, load_reference
from straightdp.files import made_by, read_arrays, write_json
from straightdp.version import EVALUATING, code_version

SCHEMA = 2
PROBE = "lenet_probe"


def evaluate_samples(
    images: np.ndarray, labels: np.ndarray, test: ImageSet, probe: dict, reference: Reference
) -> dict[str, dict]:
    """Every metric of samples (n, 28, 28) uint8 with labels (n,), by its name."""
    if not len(images) or len(images) != len(labels):
        raise ValueError(f"{len(images)} samples with {len(labels)} labels")
    features = reference.extractor.features(images)
    return {
        "accuracy": _accuracy(images, labels, test, probe, reference),
        **_distances(features, images, labels, reference),
        **_classified(images, labels, reference),
        **_manifold(features, reference),
    }


def _entry(value: float, n: int, by: str, checksum: str, reference: str, **more) -> dict:
    common = {"value": value, "n": n, "by": by, "checksum": checksum, "reference": reference}
    return common | more


def _accuracy(images, labels, test: ImageSet, probe: dict, reference: Reference) -> dict:
    """Downstream accuracy, a probe a seed; its checksum is that of the probe's schedule."""
    found = probe_accuracies(
        images,
        labels,
        test.images,
        test.labels,
        steps=probe["steps"],
        batch=probe["batch"],
        learning_rate=probe["learning_rate"],
        seeds=probe["seeds"],
    )
    schedule = hashlib.sha256(json.dumps(probe, sort_keys=True).encode()).hexdigest()[:12]
    mean = float(np.mean(found))
    return _entry(mean, len(images), PROBE, schedule, reference.split, probes=found)


def _distances(features, images, labels, reference: Reference) -> dict[str, dict]:
    """FID, FID by class, and FID in features that know no label."""
    by, blind, n = reference.extractor, reference.blind, len(images)
    fid = frechet_distance(gaussian_statistics(features), reference.statistics)
    found = class_distances(features, labels, reference.features, reference.labels, CLASSES)
    unlabelled = frechet_distance(
        gaussian_statistics(blind.features(images)), reference.blind_statistics
    )
    return {
        "fid": _entry(fid, n, by.name, by.checksum, reference.split),
        "fid_by_class": _entry(
            found.mean,
            n,
            by.name,
            by.checksum,
            reference.split,
            classes=list(found.distances),
            class_n=list(found.samples),
            class_n_real=list(found.real),
        ),
        "fid_blind": _entry(unlabelled, n, blind.name, blind.checksum, reference.split),
    }


def _classified(images, labels, reference: Reference) -> dict[str, dict]:
    """What classifiers of real images say of the samples."""
    found = {
        "label_consistency": (
            reference.label_classifier,
            label_consistency(reference.label_classifier, images, labels),
        ),
        "domain_rate": (
            reference.domain_classifier,
            domain_rate(reference.domain_classifier, images),
        ),
    }
    return {
        name: _entry(
            value, len(images), by.name, by.checksum, by.trained_on, real_accuracy=by.accuracy
        )
        for name, (by, value) in found.items()
    }


def _manifold(features, reference: Reference) -> dict[str, dict]:
    """Improved precision and recall against as many real images, a fixed part of them."""
    n, by = min(len(features), len(reference.features)), reference.extractor
    rows, real = fixed_subset(len(features), n), fixed_subset(len(reference.features), n)
    found = precision_recall(features[rows], reference.features[real])
    return {
        name: _entry(value, n, by.name, by.checksum, reference.split, neighbours=NEIGHBOURS)
        for name, value in (("precision", found.precision), ("recall", found.recall))
    }


def evaluate_cell(
    folder: Path,
    reference_folder: Path,
    identity: dict,
    cell: dict,
    config: dict,
    test: ImageSet,
    output: Path,
) -> dict:
    """Evaluate the samples in `folder` and write `output`; returns what was written.

    `identity` names the cell (id, method, space, epsilon, seed), `cell` is its resolved
    configuration; `config` holds the probe's settings.
    """
    believed = digests(folder)
    epsilon = passed(folder, cell)
    samples = read_arrays(folder / SAMPLES)
    with made_by(reference_folder):
        reference = load_reference(reference_folder)
    metrics = evaluate_samples(
        samples["images"], samples["labels"], test, config["probe"], reference
    )
    record = {
        "schema": SCHEMA,
        "status": "ok",
        "cell": identity | {"epsilon": _json_epsilon(identity["epsilon"])},
        "replayed_epsilon": _json_epsilon(epsilon),
        "files": believed,
        "n_samples": len(samples["images"]),
        "metrics": metrics,
        "evaluation": config,
        "code": code_version(EVALUATING),
    }
    write_json(output, record)
    return record


def _json_epsilon(value: float) -> float | str:
    return "inf" if value == float("inf") else value
