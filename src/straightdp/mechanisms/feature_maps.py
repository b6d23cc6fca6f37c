"""Finite feature maps of norm at most 1, for mean embeddings: phi: [0, 1]^d -> R^F.

* random Fourier features of the Gaussian kernel (DP-MERF, Harder et al. 2021);
* Hermite features of the sum and the product kernel (DP-HP, Vinaroz et al. 2022), from
  Mehler's expansion of the Gaussian kernel;
* the gradient of a random ReLU network, normalised (DP-NTK, Yang et al. 2023).

Everything in a map is public: random numbers from a published seed, length scales and pixel
pairs from PUBLIC records. All three differentiate, so that a generator can match them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from straightdp.rng import Role, Streams

BANDWIDTH_RECORDS = 1000  # public records whose pairwise distances give the length scale


class FeatureMap(Protocol):
    """phi, record by record: no row depends on another, and none is longer than 1."""

    @property
    def size(self) -> int:
        """F."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """(B, d) -> (B, F)."""

    def class_sums(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """(Y, F): the sum of phi over the records (B, d) of each class, labels (B,)."""


class _Map:
    def class_sums(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
        return functional.one_hot(labels, classes).to(x).T @ self.features(x)

    def to(self, device: torch.device):
        """The same map with its tensors on `device`."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        tensors = {name: v.to(device) for name, v in values.items() if isinstance(v, torch.Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class RandomFourier(_Map):
    """(cos Wx, sin Wx) / sqrt(F / 2): norm exactly 1."""

    frequencies: torch.Tensor  # W, (F / 2, d)

    @property
    def size(self) -> int:
        return 2 * len(self.frequencies)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        angles = x @ self.frequencies.T
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(len(self.frequencies))


@dataclass(frozen=True)
class Hermite(_Map):
    """[sqrt(1 - a) Phi_sum, sqrt(a) Phi_product]: norm at most 1, less what truncation drops.

    Phi_sum concatenates every pixel's `order` + 1 features, over sqrt(d). Phi_product holds
    the outer products of the first `pair_order` + 1 features of each pair of pixels, over
    sqrt(pairs). a = `weight` is the product kernel's part.
    """

    pixels: int  # d
    order: int
    pairs: torch.Tensor  # (P, 2), pixel indices
    pair_order: int
    weight: float
    length_squared: float  # of one pixel's kernel

    @property
    def size(self) -> int:
        return self.pixels * (self.order + 1) + len(self.pairs) * (self.pair_order + 1) ** 2

    def features(self, x: torch.Tensor) -> torch.Tensor:
        values = hermite(x, self.order, self.length_squared)
        single = values.flatten(1) * math.sqrt((1 - self.weight) / self.pixels)
        low = values[:, : self.pair_order + 1]
        left, right = low[:, :, None, self.pairs[:, 0]], low[:, None, :, self.pairs[:, 1]]
        double = (left * right).flatten(1) * math.sqrt(self.weight / len(self.pairs))
        return torch.cat([single, double], dim=1)


@dataclass(frozen=True)
class Tangent(_Map):
    """grad f / |grad f| of f(x) = w . relu(Ax + b) + c, in closed form: norm exactly 1.

    The order is that of the parameters: A, b, w, c. Its class sums are matrix products, so
    that no record's gradient (F is some 10^5) is ever formed.
    """

    weight: torch.Tensor  # A, (m, d)
    bias: torch.Tensor  # b, (m,)
    head: torch.Tensor  # w, (m,)

    @property
    def size(self) -> int:
        return self.weight.numel() + 2 * len(self.head) + 1

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """df/db (B, m), df/dw (B, m) and df/dc (B, 1), each over the whole gradient's norm."""
        hidden = x @ self.weight.T + self.bias
        slope, value = (hidden > 0) * self.head, hidden.clamp_min(0)
        square = slope.square().sum(1) * (1 + x.square().sum(1)) + value.square().sum(1) + 1
        scale = square.rsqrt()[:, None]
        return slope * scale, value * scale, scale

    def features(self, x: torch.Tensor) -> torch.Tensor:
        slope, value, one = self._parts(x)
        return torch.cat([(slope[:, :, None] * x[:, None]).flatten(1), slope, value, one], dim=1)

    def class_sums(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
        slope, value, one = self._parts(x)
        rest = torch.cat([slope, value, one], dim=1)
        sums = []
        for label in range(classes):
            rows = (labels == label).nonzero()[:, 0]
            sums.append(torch.cat([(slope[rows].T @ x[rows]).flatten(), rest[rows].sum(0)]))
        return torch.stack(sums)


def mehler_rho(length_squared: float) -> float:
    """rho with exp(-(x - y)^2 / (2 l^2)) = sum_k phi_k(x) phi_k(y): rho / (1 - rho^2) = 1/(2 l^2).

    In the form that keeps its digits at every length scale.
    """
    return 1 / (length_squared + math.sqrt(length_squared**2 + 1))


def hermite(x: torch.Tensor, order: int, length_squared: float) -> torch.Tensor:
    """(B, d) -> (B, order + 1, d): phi_k(x) by the stable recursion of DP-HP's Section 3.

    sum_k phi_k(x)^2 = 1 over all orders, so a cut expansion has norm at most 1 a pixel.
    """
    rho = mehler_rho(length_squared)
    values = [(1 - rho**2) ** 0.25 * torch.exp(-rho / (1 + rho) * x.square())]
    for k in range(order):
        following = math.sqrt(2 * rho / (k + 1)) * x * values[-1]
        if k:
            following = following - rho * math.sqrt(k / (k + 1)) * values[-2]
        values.append(following)
    return torch.stack(values, dim=1)


def median_squared_distance(x: torch.Tensor, streams: Streams) -> float:
    """The median heuristic: the median of |x - x'|^2 over pairs of PUBLIC records (N, d).

    Over at most BANDWIDTH_RECORDS records, drawn by `streams`. Raises ValueError where half
    of the pairs coincide, or there is none.
    """
    count = min(len(x), BANDWIDTH_RECORDS)
    draw = streams.generator(Role.CALIBRATE, 0).choice(len(x), size=count, replace=False)
    rows = x[torch.from_numpy(draw)].double()
    squares = rows.square().sum(1)
    distances = (squares[:, None] + squares - 2 * rows @ rows.T).numpy()
    found = float(np.median(distances[np.triu_indices(count, 1)])) if count > 1 else 0.0
    if not found > 1e-9:
        raise ValueError(f"the median distance of {count} public records is 0: no length scale")
    return found


def random_fourier(size: int, pixels: int, length_squared: float, streams: Streams):
    """RandomFourier of `size` (even) features: frequencies from N(0, I / l^2)."""
    frequencies = streams.normal(Role.CALIBRATE, 1, (size // 2, pixels)) / length_squared**0.5
    return RandomFourier(frequencies)


def hermite_map(
    x: torch.Tensor,
    order: int,
    pairs: int,
    pair_order: int,
    weight: float,
    length_squared: float,
    streams: Streams,
) -> Hermite:
    """Hermite features whose pixel pairs follow the variances of PUBLIC records x (N, d).

    Distinct pairs {i, j}, drawn with probability in proportion to var_i var_j.
    `length_squared` is the whole image's; a pixel has the d-th part of it, so that both
    kernels see distances at the same scale. Raises ValueError for more pairs than there are.
    """
    variances = x.double().var(0, unbiased=False).numpy()
    left, right = np.triu_indices(x.shape[1], 1)
    chances = variances[left] * variances[right]
    available = int((chances > 0).sum())
    if pairs > available:
        raise ValueError(f"{pairs} pixel pairs asked for; {available} vary on the public set")
    generator = streams.generator(Role.CALIBRATE, 1)
    drawn = generator.choice(len(left), size=pairs, replace=False, p=chances / chances.sum())
    chosen = torch.from_numpy(np.stack([left[drawn], right[drawn]], axis=1))
    return Hermite(x.shape[1], order, chosen, pair_order, weight, length_squared / x.shape[1])


def tangent(width: int, pixels: int, streams: Streams) -> Tangent:
    """Tangent of a random network d -> `width` -> ReLU -> 1.

    Weights and biases uniform on +-1/sqrt(fan in), torch's own default, as DP-NTK has it.
    """

    def draw(sub: int, shape, fan_in: int) -> torch.Tensor:
        return (2 * streams.uniform(Role.CALIBRATE, 1, shape, sub) - 1) / math.sqrt(fan_in)

    return Tangent(
        draw(0, (width, pixels), pixels), draw(1, (width,), pixels), draw(2, (width,), width)
    )
