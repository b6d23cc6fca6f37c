"""The LeNet probe: trained on synthetic (image, label) pairs, tested on real ones (Section 4.1).

Its schedule is fixed beforehand; nothing is selected on the test set. The same network,
trained on real images, gives the features of `fid_lenet` and the classifiers of labels and
domains.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from straightdp.model.adam import AdamW
from straightdp.rng import Role, Streams

CLASSES, FEATURES = 10, 84
CHUNK = 1000


class LeNet(nn.Module):
    """LeNet-5's shape (LeCun et al. 1998), with ReLU and max-pooling: 28 x 28 to logits.

    x (B, 1, 28, 28) in [-1, 1]; `body` gives the penultimate features (B, 84).
    """

    def __init__(self, classes: int = CLASSES):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, FEATURES),
            nn.ReLU(),
        )
        self.head = nn.Linear(FEATURES, classes)
        self.to(memory_format=torch.channels_last)  # a fifth less time on a CPU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def scaled(images: np.ndarray) -> torch.Tensor:
    """(N, 28, 28) uint8 -> (N, 1, 28, 28) in [-1, 1]; ValueError for other images."""
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28) or not len(images):
        raise ValueError(
            f"images are {images.dtype} of shape {images.shape}, not uint8 of shape (N, 28, 28)"
        )
    return torch.from_numpy(np.ascontiguousarray(images)).float()[:, None] / 127.5 - 1


def _pairs(
    images: np.ndarray, labels: np.ndarray, classes: int = CLASSES
) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = scaled(images), np.asarray(labels, np.int64)
    if y.shape != (len(x),) or y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"{len(x)} images with labels of shape {y.shape}: each image needs one, "
            f"0 to {classes - 1}"
        )
    return x, torch.from_numpy(y)


def train_lenet(
    images: np.ndarray,
    labels: np.ndarray,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    classes: int = CLASSES,
) -> LeNet:
    """`steps` of Adam with a linearly falling rate, drawing batches with replacement.

    A function of its arguments alone; torch's global generator is left as it was.
    ValueError unless images are (N, 28, 28) uint8 with labels (N,) below `classes`, N >= 1.
    """
    x, y = _pairs(images, labels, classes)
    streams = Streams.from_seed("lenet", seed)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(streams.torch_seed(Role.INIT))
        network = LeNet(classes)
    optimizer = AdamW(network.parameters(), learning_rate)
    for step in range(steps):
        draw = streams.generator(Role.EVALUATE, step).integers(len(x), size=batch)
        rows = torch.from_numpy(draw)
        optimizer.lr = learning_rate * (1 - step / steps)
        loss = F.cross_entropy(network(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@torch.no_grad()
def predictions(network: LeNet, images: np.ndarray) -> np.ndarray:
    """(N,) int64: the class that the network gives each of images (N, 28, 28) uint8."""
    return torch.cat([network(part).argmax(1) for part in scaled(images).split(CHUNK)]).numpy()


def accuracy(network: LeNet, images: np.ndarray, labels: np.ndarray) -> float:
    """The part of images (N, 28, 28) uint8 that the network classifies as labelled, in [0, 1]."""
    found, labels = predictions(network, images), np.asarray(labels)
    if labels.shape != found.shape:
        raise ValueError(f"{len(found)} images with labels of shape {labels.shape}")
    return float(np.mean(found == labels))


def probe_accuracies(
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    steps: int,
    batch: int,
    learning_rate: float,
    seeds: int,
) -> list[float]:
    """Downstream accuracy of each of `seeds` probes, in [0, 1]."""
    return [
        accuracy(
            train_lenet(images, labels, steps, batch, learning_rate, seed),
            test_images,
            test_labels,
        )
        for seed in range(seeds)
    ]
