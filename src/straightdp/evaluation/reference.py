"""What every cell's samples are measured against, made once a private set and shared.

The folder holds the networks (the extractor's, the label-blind one's, the classifiers'), the
real test set's features with their labels, and its statistics. `extractor.json` names each
with its checksum; weights that are no longer those are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from straightdp.data.sources import ImageSet
from straightdp.evaluation.blind import RandomExtractor
from straightdp.evaluation.classifiers import (
    DOMAINS,
    LABELS,
    Classifier,
    domain_classifier,
    label_classifier,
)
from straightdp.evaluation.extractors import (
    LENET,
    Extractor,
    InceptionExtractor,
    LeNetExtractor,
    inception_weights,
    load_lenet,
    pick_extractor,
)
from straightdp.evaluation.fid import Statistics, gaussian_statistics
from straightdp.files import (
    DamagedFile,
    read_arrays,
    read_json,
    save_tensors,
    write_arrays,
    write_json,
)

SCHEMA = 2
RECORD, STATISTICS, FEATURES = "extractor.json", "statistics.npz", "features.npz"
WEIGHTS = {LABELS: "lenet.pt", DOMAINS: "domains.pt"}


@dataclass(frozen=True)
class Reference:
    """The networks and the real test set as they see it."""

    extractor: Extractor
    features: np.ndarray  # (N, F) float32, of the real test images
    labels: np.ndarray  # (N,) int64
    statistics: Statistics  # of `features`
    blind: Extractor
    blind_statistics: Statistics
    label_classifier: Classifier
    domain_classifier: Classifier
    split: str  # the real set's name, split and size


def prepare_reference(
    config: dict, train: ImageSet, test: ImageSet, public: ImageSet, folder: Path
) -> None:
    """Train the classifiers, pick the extractor, and describe the real test set in `folder`.

    `public` is the public training set, which the domain classifier tells from `train`.
    """
    weights = inception_weights(config["inception_weights"])
    name = pick_extractor(config["extractor"], weights)
    labels = label_classifier(train, test, config["lenet_steps"])
    domains = domain_classifier(train, test, public, config["lenet_steps"])
    for one in (labels, domains):
        save_tensors(folder / WEIGHTS[one.name], one.network.state_dict())
    extractor: Extractor
    if name == LENET:
        extractor = LeNetExtractor(labels.network, labels.checksum)
    else:
        extractor = InceptionExtractor(weights)
    blind = RandomExtractor()
    features = extractor.features(test.images)
    write_arrays(folder / FEATURES, features=features, labels=test.labels)
    write_arrays(
        folder / STATISTICS,
        **_arrays("", gaussian_statistics(features)),
        **_arrays("blind_", gaussian_statistics(blind.features(test.images))),
    )
    write_json(
        folder / RECORD,
        {
            "schema": SCHEMA,
            "extractor": name,
            "checksum": extractor.checksum,
            "weights": str(weights) if name != LENET else WEIGHTS[LABELS],
            "blind": {"name": blind.name, "checksum": blind.checksum},
            "classifiers": {
                one.name: {
                    "checksum": one.checksum,
                    "weights": WEIGHTS[one.name],
                    "trained_on": one.trained_on,
                    "accuracy": one.accuracy,
                }
                for one in (labels, domains)
            },
            "reference": f"{test.name} test, n = {len(test.images)}",
        },
    )


def _arrays(prefix: str, statistics: Statistics) -> dict[str, np.ndarray]:
    return {
        f"{prefix}mean": statistics.mean,
        f"{prefix}covariance": statistics.covariance,
        f"{prefix}count": np.array(statistics.count),
    }


def _statistics(arrays: dict[str, np.ndarray], prefix: str) -> Statistics:
    mean, covariance, count = (
        arrays[f"{prefix}{part}"] for part in ("mean", "covariance", "count")
    )
    return Statistics(mean, covariance, int(count))


def load_reference(folder: Path) -> Reference:
    """The reference of a folder.

    :class:`DamagedFile` for a record of another schema, and where a network is not the one that
    the record names.
    """
    record = read_json(folder / RECORD)
    if record.get("schema") != SCHEMA:
        raise DamagedFile(f"{folder / RECORD}: schema {record.get('schema')}, not {SCHEMA}")
    arrays, tested = read_arrays(folder / STATISTICS), read_arrays(folder / FEATURES)
    labels, domains = (
        _classifier(folder, name, record["classifiers"][name], classes)
        for name, classes in ((LABELS, 10), (DOMAINS, 2))
    )
    extractor: Extractor
    if record["extractor"] == LENET:
        extractor = LeNetExtractor(labels.network, labels.checksum)
    else:
        extractor = InceptionExtractor(Path(record["weights"]))
    blind = RandomExtractor()
    named = {
        "extractor": (extractor, record["checksum"]),
        "label-blind extractor": (blind, record["blind"]["checksum"]),
        "label classifier": (labels, record["classifiers"][LABELS]["checksum"]),
        "domain classifier": (domains, record["classifiers"][DOMAINS]["checksum"]),
    }
    for what, (one, checksum) in named.items():
        if one.checksum != checksum:
            raise DamagedFile(
                f"{folder}: the {what}'s weights ({one.checksum}) are not those of the "
                f"reference ({checksum})"
            )
    return Reference(
        extractor=extractor,
        features=tested["features"],
        labels=tested["labels"],
        statistics=_statistics(arrays, ""),
        blind=blind,
        blind_statistics=_statistics(arrays, "blind_"),
        label_classifier=labels,
        domain_classifier=domains,
        split=record["reference"],
    )


def _classifier(folder: Path, name: str, record: dict, classes: int) -> Classifier:
    network = load_lenet(folder / record["weights"], name, classes)
    return Classifier(name, network, record["trained_on"], record["accuracy"])
