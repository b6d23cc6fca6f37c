"""The classifiers that judge samples, on images whose class and domain are known."""

import numpy as np
import pytest

from straightdp.data.glyphs import draw
from straightdp.data.sources import ImageSet, load
from straightdp.evaluation.classifiers import (
    domain_classifier,
    domain_rate,
    label_classifier,
    label_consistency,
)
from straightdp.evaluation.probe import accuracy


@pytest.fixture(scope="module")
def sets():
    train, test = load("embedded", "train"), load("embedded", "test")
    return (
        ImageSet("embedded", train.images[::5], train.labels[::5]),
        ImageSet("embedded", test.images[::4], test.labels[::4]),
        draw(600),
    )


@pytest.fixture(scope="module")
def labels(sets):
    return label_classifier(sets[0], sets[1], steps=100)


@pytest.fixture(scope="module")
def domains(sets):
    return domain_classifier(*sets, steps=60)


def test_consistency_of_real_images_is_the_classifiers_accuracy(labels, sets):
    _, test, _ = sets
    assert label_consistency(labels, test.images, test.labels) == labels.accuracy > 0.85
    assert labels.trained_on == "embedded train, n = 4000"


def test_consistency_follows_the_labels(labels, sets):
    """Wrong by construction it is nearly never right; half wrong, half as right."""
    _, test, _ = sets
    wrong = (test.labels + 1) % 10
    assert label_consistency(labels, test.images, wrong) < 1 - labels.accuracy + 0.001
    half = np.where(np.arange(len(wrong)) % 2, test.labels, wrong)
    assert label_consistency(labels, test.images, half) == pytest.approx(
        labels.accuracy / 2, abs=0.05
    )
    shuffled = np.random.default_rng(0).permutation(test.labels)
    assert abs(label_consistency(labels, test.images, shuffled) - 0.1) < 5 * 0.3 / 1000**0.5


def test_domains_are_told_apart_and_a_mixture_by_its_parts(domains, sets):
    _, test, public = sets
    unseen = draw(200, seed=1, split="test").images
    assert domain_rate(domains, test.images) > 0.95
    assert domain_rate(domains, unseen) < 0.05
    mixture = np.concatenate([test.images[:100], unseen[:200], public.images[:100]])
    assert domain_rate(domains, mixture) == pytest.approx(0.25, abs=0.05)
    assert domains.accuracy > 0.95


def test_the_domains_train_on_as_many_of_each(domains):
    """Of 600 public images a tenth is held out, and 540 of 4,000 private ones match the rest."""
    assert domains.trained_on == "embedded train against glyphs train, n = 540 of each"


def test_domain_accuracy_gives_both_domains_the_same_weight(sets):
    """An untrained network says one thing of nearly everything: about a half, not the majority."""
    train, test, public = sets
    untrained = domain_classifier(train, test, public, steps=0)
    rate = domain_rate(untrained, test.images)
    assert untrained.accuracy == pytest.approx(0.5, abs=0.15)
    assert rate == accuracy(untrained.network, test.images, np.ones(len(test.images)))


def test_classifiers_are_functions_of_their_data(domains, labels, sets):
    again = domain_classifier(*sets, steps=60)
    assert again.checksum == domains.checksum != labels.checksum
    other = domain_classifier(sets[0], sets[1], draw(600, seed=2), steps=60)
    assert other.checksum != domains.checksum
