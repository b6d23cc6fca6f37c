"""Classifiers of real images that judge samples: which class, and which domain (Appendix D.1).

Both are LeNets under the schedule of `fid_lenet`, trained once a reference. The label
classifier is the network behind `fid_lenet`. Each carries its accuracy on real images that it
was not trained on: what it says of samples is worth no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from straightdp.data.sources import ImageSet
from straightdp.evaluation.extractors import LENET_SCHEDULE, tensor_checksum
from straightdp.evaluation.probe import LeNet, accuracy, predictions, train_lenet
from straightdp.rng import Role, Streams

LABELS, DOMAINS = "lenet_labels", "lenet_domains"
PRIVATE, PUBLIC = 1, 0  # the domain classifier's classes
HELD_OUT = 10  # one public image in so many is kept from the domain classifier's training


@dataclass(frozen=True)
class Classifier:
    """A trained network, with what it was trained on and its accuracy on unseen real images."""

    name: str
    network: LeNet
    trained_on: str
    accuracy: float

    @property
    def checksum(self) -> str:
        return tensor_checksum(self.network.state_dict())


def label_classifier(train: ImageSet, test: ImageSet, steps: int) -> Classifier:
    """The private set's labels, learnt from its real training images."""
    network = train_lenet(train.images, train.labels, steps, **LENET_SCHEDULE)
    return Classifier(
        LABELS,
        network,
        f"{train.name} train, n = {len(train.images)}",
        accuracy(network, test.images, test.labels),
    )


def domain_classifier(train: ImageSet, test: ImageSet, public: ImageSet, steps: int) -> Classifier:
    """Private against public images, as many of each, by a fixed draw.

    Its accuracy is the mean of those on the private test images and on held-out public ones,
    so a set that is larger than the other does not pay for guessing it.
    """
    order = Streams.from_seed("domains").generator(Role.EVALUATE).permutation(len(public.images))
    held, kept = np.split(order, [max(1, len(order) // HELD_OUT)])
    size = min(len(kept), len(train.images))
    rows = Streams.from_seed("domains").generator(Role.EVALUATE, 1).permutation(len(train.images))
    images = np.concatenate([train.images[rows[:size]], public.images[kept[:size]]])
    labels = np.repeat([PRIVATE, PUBLIC], size)
    network = train_lenet(images, labels, steps, classes=2, **LENET_SCHEDULE)
    right = [
        accuracy(network, test.images, np.full(len(test.images), PRIVATE)),
        accuracy(network, public.images[held], np.full(len(held), PUBLIC)),
    ]
    trained_on = f"{train.name} train against {public.name} train, n = {size} of each"
    return Classifier(DOMAINS, network, trained_on, float(np.mean(right)))


def label_consistency(classifier: Classifier, images: np.ndarray, labels: np.ndarray) -> float:
    """The part of images (n, 28, 28) that the classifier gives the label they were made for."""
    return accuracy(classifier.network, images, labels)


def domain_rate(classifier: Classifier, images: np.ndarray) -> float:
    """The part of images (n, 28, 28) that the classifier takes for private ones."""
    return float(np.mean(predictions(classifier.network, images) == PRIVATE))
