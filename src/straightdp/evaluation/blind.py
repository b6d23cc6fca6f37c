"""Features that know no label: a fixed, randomly weighted convolutional network.

The features of `fid_lenet` come from a classifier of the private set's labels, so a FID in
them sees more than the marginal distribution. Random weights depend on no data at all, and
their features still rank sets of small grey images (Naeem et al. 2020, who use them on
MNIST). The weights are drawn from a constant seed by the package's own generator, so the
network is the same everywhere and its checksum a constant.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from straightdp.evaluation.extractors import tensor_checksum
from straightdp.evaluation.probe import scaled
from straightdp.rng import Role, Streams

RANDOM = "fid_random"
CHANNELS = (16, 32, 64)  # of 3 x 3 convolutions, each with ReLU and 2 x 2 average pooling
SIZE = 64  # features: below the sample numbers of every preset, a class's apart
CHUNK = 250


class RandomExtractor:
    """64 features of images (N, 28, 28) uint8; depends on neither images nor labels."""

    name = RANDOM

    def __init__(self):
        streams = Streams.from_seed("random-features")
        inputs = (1, *CHANNELS[:-1])
        shapes = [(out, into, 3, 3) for out, into in zip(CHANNELS, inputs, strict=True)]
        shapes.append((SIZE, CHANNELS[-1] * 3 * 3))  # 28 -> 14 -> 7 -> 3 pixels
        self.weights = []
        for index, shape in enumerate(shapes):
            gain = 2.0 if len(shape) == 4 else 1.0  # He et al. 2015 before a ReLU
            scale = (gain / np.prod(shape[1:])) ** 0.5
            self.weights.append(scale * streams.normal(Role.EVALUATE, index, shape))
        self.checksum = tensor_checksum({str(i): w for i, w in enumerate(self.weights)})

    @torch.no_grad()
    def features(self, images: np.ndarray) -> np.ndarray:
        *kernels, last = self.weights
        parts = []
        for x in scaled(images).split(CHUNK):
            for kernel in kernels:
                x = F.avg_pool2d(F.conv2d(x, kernel, padding=1).relu_(), 2)
            parts.append(x.flatten(1) @ last.T)
        return torch.cat(parts).numpy()
