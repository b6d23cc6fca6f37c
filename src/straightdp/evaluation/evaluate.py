"""From a finished cell's samples to its metrics file.

The reference (the extractor, and the statistics of the real test set in its features) is
made once per private set and shared. A metrics file says what it measured with: the
extractor and its checksum, n, the probe's schedule, and the version of the code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from straightdp.data.sources import ImageSet
from straightdp.evaluation.extractors import (
    LENET,
    Extractor,
    InceptionExtractor,
    LeNetExtractor,
    inception_weights,
    pick_extractor,
)
from straightdp.evaluation.fid import Statistics, frechet_distance, gaussian_statistics
from straightdp.evaluation.probe import probe_accuracies
from straightdp.files import read_arrays, read_json, write_arrays, write_json
from straightdp.version import EVALUATING, code_version

SCHEMA = 1
REFERENCE, STATISTICS, LENET_WEIGHTS = "extractor.json", "statistics.npz", "lenet.pt"


class NotPassed(ValueError):
    """A cell whose own record does not say that it finished within its budget."""


def prepare_reference(config: dict, train: ImageSet, test: ImageSet, folder: Path) -> None:
    """Make the extractor and the real test set's statistics in `folder`."""
    weights = inception_weights(config["inception_weights"])
    name = pick_extractor(config["extractor"], weights)
    extractor: Extractor
    if name == LENET:
        extractor = LeNetExtractor.train(train.images, train.labels, config["lenet_steps"])
        extractor.save(folder / LENET_WEIGHTS)
    else:
        extractor = InceptionExtractor(weights)
    statistics = gaussian_statistics(extractor.features(test.images))
    write_arrays(
        folder / STATISTICS,
        mean=statistics.mean,
        covariance=statistics.covariance,
        count=np.array(statistics.count),
    )
    write_json(
        folder / REFERENCE,
        {
            "schema": SCHEMA,
            "extractor": name,
            "checksum": extractor.checksum,
            "weights": str(weights) if name != LENET else LENET_WEIGHTS,
            "reference": f"{test.name} test, n = {statistics.count}",
        },
    )


def load_reference(folder: Path) -> tuple[Extractor, Statistics]:
    """The extractor and statistics of a folder; refuses weights that have changed."""
    record, arrays = read_json(folder / REFERENCE), read_arrays(folder / STATISTICS)
    extractor: Extractor
    if record["extractor"] == LENET:
        extractor = LeNetExtractor.load(folder / LENET_WEIGHTS)
    else:
        extractor = InceptionExtractor(Path(record["weights"]))
    if extractor.checksum != record["checksum"]:
        raise ValueError(
            f"{folder}: the extractor's weights ({extractor.checksum}) are not those of the "
            f"reference ({record['checksum']}); remove the folder to make it anew"
        )
    return extractor, Statistics(arrays["mean"], arrays["covariance"], int(arrays["count"]))


def passed(folder: Path, declared: float) -> dict:
    """A cell's run.json; :class:`NotPassed` unless it finished within the declared epsilon."""
    run = read_json(folder / "run.json")
    if run.get("status") != "ok":
        raise NotPassed(f"{folder / 'run.json'}: status is {run.get('status')!r}, not ok")
    if not float(run["epsilon"]) <= declared * (1 + 1e-9):
        raise NotPassed(
            f"{folder / 'run.json'}: replayed epsilon {run['epsilon']} is above {declared:g}"
        )
    return run


def evaluate_samples(
    images: np.ndarray,
    labels: np.ndarray,
    test: ImageSet,
    probe: dict,
    extractor: Extractor,
    reference: Statistics,
) -> dict:
    """Accuracy (a probe a seed) and FID of samples (n, 28, 28) uint8 with labels (n,)."""
    if not len(images) or len(images) != len(labels):
        raise ValueError(f"{len(images)} samples with {len(labels)} labels")
    accuracies = probe_accuracies(
        images,
        labels,
        test.images,
        test.labels,
        steps=probe["steps"],
        batch=probe["batch"],
        learning_rate=probe["learning_rate"],
        seeds=probe["seeds"],
    )
    fid = frechet_distance(gaussian_statistics(extractor.features(images)), reference)
    return {"accuracy": float(np.mean(accuracies)), "probes": accuracies, "fid": fid}


def evaluate_cell(
    folder: Path, reference_folder: Path, identity: dict, config: dict, test: ImageSet, output: Path
) -> dict:
    """Evaluate the samples in `folder` and write `output`; returns what was written.

    `identity` names the cell (id, method, space, epsilon, seed); `config` holds the probe's
    settings.
    """
    run = passed(folder, identity["epsilon"])
    samples = read_arrays(folder / "samples.npz")
    extractor, statistics = load_reference(reference_folder)
    measured = evaluate_samples(
        samples["images"], samples["labels"], test, config["probe"], extractor, statistics
    )
    record = {
        "schema": SCHEMA,
        "status": "ok",
        "cell": identity | {"epsilon": _json_epsilon(identity["epsilon"])},
        "replayed_epsilon": run["epsilon"],
        **measured,
        "n_samples": len(samples["images"]),
        "extractor": extractor.name,
        "extractor_checksum": extractor.checksum,
        "reference": read_json(reference_folder / REFERENCE)["reference"],
        "evaluation": config,
        "code": code_version(EVALUATING),
    }
    write_json(output, record)
    return record


def _json_epsilon(value: float) -> float | str:
    return "inf" if value == float("inf") else value
