"""The probe: it learns what can be learnt, nothing else, and the same thing every time."""

import numpy as np
import pytest
import torch

from straightdp.data.sources import load
from straightdp.evaluation.probe import (
    LeNet,
    accuracy,
    probe_accuracies,
    scaled,
    train_lenet,
)

SCHEDULE = {"batch": 64, "learning_rate": 2e-3}


def blocks(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright block whose place is the class: ten separable classes."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    images = generator.integers(0, 90, size=(count, 28, 28))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[2 + 8 * row : 8 + 8 * row, 2 + 6 * column : 7 + 6 * column] += 160
    return images.astype(np.uint8), labels


def test_the_network_has_the_parameters_of_lenet5():
    assert sum(p.numel() for p in LeNet().parameters()) == 61_706  # 28 x 28 input, 10 classes
    images, _ = blocks(3, 0)
    assert LeNet().body(scaled(images)).shape == (3, 84)


def test_learns_separable_classes():
    found = probe_accuracies(*blocks(500, 0), *blocks(400, 1), steps=80, seeds=2, **SCHEDULE)
    assert len(found) == 2
    assert min(found) > 0.97


def test_learns_digits():
    train, test = load("embedded", "train"), load("embedded", "test")
    rows = np.arange(0, len(train.labels), 10)
    (found,) = probe_accuracies(
        train.images[rows],
        train.labels[rows],
        test.images,
        test.labels,
        steps=100,
        seeds=1,
        **SCHEDULE,
    )
    assert found > 0.8  # a tenth is chance


def test_is_wrong_where_the_training_labels_are():
    """Every class under its neighbour's name: a good probe is then never right."""
    images, labels = blocks(500, 0)
    found = probe_accuracies(
        images, (labels + 1) % 10, *blocks(400, 1), steps=80, seeds=1, **SCHEDULE
    )
    assert found[0] < 0.03


def test_is_at_chance_on_labels_that_say_nothing():
    images, labels = blocks(500, 0)
    test_images, test_labels = blocks(2000, 1)
    shuffled = np.random.default_rng(2).permutation(test_labels)
    found = probe_accuracies(images, labels, test_images, shuffled, steps=60, seeds=1, **SCHEDULE)
    assert abs(found[0] - 0.1) < 5 * (0.1 * 0.9 / 2000) ** 0.5


@pytest.mark.parametrize("count", [1, 999, 2345])  # evaluated in parts: none is lost
def test_accuracy_counts_what_is_right(count):
    network = LeNet()
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.eye(10)[3])  # always says 3
    labels = np.random.default_rng(0).integers(0, 10, size=count)
    images = np.zeros((count, 28, 28), np.uint8)
    assert accuracy(network, images, labels) == np.mean(labels == 3)


def test_is_a_function_of_its_arguments():
    images, labels = blocks(200, 0)

    def weights(seed):
        return torch.cat(
            [
                p.flatten()
                for p in train_lenet(images, labels, 5, seed=seed, **SCHEDULE).parameters()
            ]
        )

    torch.manual_seed(1)
    first, drawn = weights(0), torch.rand(3)
    torch.manual_seed(2)
    again = weights(0)
    torch.manual_seed(1)
    assert torch.equal(first, again)
    assert torch.equal(drawn, torch.rand(3))  # torch's own generator was left alone
    assert not torch.equal(first, weights(1))


def test_inputs_span_the_declared_range():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 0, 0] = 255
    assert (scaled(image).min(), scaled(image).max()) == (-1, 1)


def test_refusals_name_what_is_wrong():
    images, labels = blocks(20, 0)
    with pytest.raises(ValueError, match=r"images are float64 of shape \(20, 28, 28\)"):
        train_lenet(images / 255, labels, 1, seed=0, **SCHEDULE)
    with pytest.raises(ValueError, match=r"shape \(20, 14, 14\), not uint8"):
        train_lenet(images[:, ::2, ::2], labels, 1, seed=0, **SCHEDULE)
    with pytest.raises(ValueError, match=r"20 images with labels of shape \(19,\)"):
        train_lenet(images, labels[1:], 1, seed=0, **SCHEDULE)
    with pytest.raises(ValueError, match="0 to 9"):
        train_lenet(images, labels + 1, 1, seed=0, **SCHEDULE)
    with pytest.raises(ValueError, match=r"shape \(0, 28, 28\)"):
        accuracy(LeNet(), images[:0], labels[:0])
