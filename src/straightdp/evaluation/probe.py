"""The LeNet probe: trained on synthetic (image, label) pairs, tested on real ones (Section 4.1).

Its schedule is fixed beforehand; nothing is selected on the test set. The same network,
trained on real images, gives the features of `fid_lenet`.
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
    """LeNet-5's shape (LeCun et al. 1998), with ReLU and max-pooling: 28 x 28 to 10 logits."""

    def __init__(self):
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
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def scaled(images: np.ndarray) -> torch.Tensor:
    """(N, 28, 28) uint8 -> (N, 1, 28, 28) in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images)).float()[:, None] / 127.5 - 1


def train_lenet(
    images: np.ndarray,
    labels: np.ndarray,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
) -> LeNet:
    """`steps` of Adam with a linearly falling rate; a function of its arguments alone."""
    if len(images) != len(labels) or not len(images):
        raise ValueError(f"{len(images)} images and {len(labels)} labels")
    streams = Streams.from_seed("lenet", seed)
    torch.manual_seed(streams.torch_seed(Role.INIT))
    network = LeNet()
    optimizer = AdamW(network.parameters(), learning_rate)
    x, y = scaled(images), torch.from_numpy(np.asarray(labels, np.int64))
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
def accuracy(network: LeNet, images: np.ndarray, labels: np.ndarray) -> float:
    """The part of (images, labels) that the network classifies as labelled."""
    x, y = scaled(images), torch.from_numpy(np.asarray(labels, np.int64))
    right = sum(
        int((network(a).argmax(1) == b).sum())
        for a, b in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    )
    return right / len(y)


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
