"""Feature maps against the kernels and gradients that they stand for, and their norms by search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite import hermval
from scipy.spatial.distance import pdist
from torch import nn
from torch.func import functional_call, grad, vmap

from straightdp.mechanisms.feature_maps import (
    Hermite,
    hermite,
    hermite_map,
    median_squared_distance,
    mehler_rho,
    random_fourier,
    tangent,
)
from straightdp.rng import Streams

D = 9
STREAMS = Streams.from_seed("test", 0)


def cube(count: int, seed: int = 0, d: int = D) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((count, d))).float()


def gaussian_kernel(x, y, length_squared) -> np.ndarray:
    difference = x.numpy().astype(float)[:, None] - y.numpy().astype(float)[None]
    return np.exp(-(difference**2).sum(-1) / (2 * length_squared))


def maps(d: int = D):
    public = cube(60, 3, d)
    return {
        "fourier": random_fourier(64, d, 0.5, STREAMS),
        "hermite": hermite_map(public, 6, 12, 3, 0.5, 0.4 * d, STREAMS),
        "narrow": hermite_map(public, 20, 12, 3, 0.5, 0.05 * d, STREAMS),
        "wide": hermite_map(public, 1, 12, 1, 0.3, 50.0 * d, STREAMS),
        "tangent": tangent(7, d, STREAMS),
    }


# ---- random Fourier features


@pytest.mark.parametrize("length_squared", [0.3, 2.0])
def test_fourier_features_approach_the_gaussian_kernel(length_squared):
    x, y, size = cube(12, 1), cube(10, 2), 60_000
    one = random_fourier(size, D, length_squared, STREAMS)
    found = (one.features(x) @ one.features(y).T).numpy()
    # a mean of F / 2 cosines, whose deviation is at most 1 each: six deviations for 120 entries
    expected = gaussian_kernel(x, y, length_squared)
    np.testing.assert_allclose(found, expected, atol=6 / math.sqrt(size / 2))


def test_fourier_norms_are_one():
    norms = maps()["fourier"].features(10 * cube(50) - 5).double().norm(dim=1)
    np.testing.assert_allclose(norms.numpy(), 1, atol=1e-6)


# ---- Hermite features


@pytest.mark.parametrize("length_squared", [1e-4, 0.1, 0.7, 3.0, 1e4])
def test_rho_solves_its_equation(length_squared):
    rho = mehler_rho(length_squared)
    assert 0 < rho < 1
    assert (1 - rho**2) * 1 / (2 * length_squared) == pytest.approx(rho, rel=1e-12)


@pytest.mark.parametrize("length_squared", [0.1, 0.5, 3.0])
def test_hermite_features_are_mehlers(length_squared):
    """phi_k(x)^2 of Mehler's formula, with numpy's physicists' Hermite polynomials."""
    x = torch.linspace(-1, 1, 11, dtype=torch.float64)[None]
    rho = mehler_rho(length_squared)
    values = hermite(x, 12, length_squared)[0]
    for k in range(13):
        polynomial = hermval(x[0].numpy(), [0] * k + [1])
        scale = math.sqrt(rho**k / (2.0**k * math.factorial(k))) * (1 - rho**2) ** 0.25
        expected = scale * polynomial * np.exp(-rho / (1 + rho) * x[0].numpy() ** 2)
        np.testing.assert_allclose(values[k].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("length_squared", [0.2, 1.0])
def test_hermite_features_approach_the_gaussian_kernel(length_squared):
    x, y = cube(8, 1, 1).double(), cube(9, 2, 1).double()
    left = hermite(x, 120, length_squared)[:, :, 0]
    right = hermite(y, 120, length_squared)[:, :, 0]
    expected = gaussian_kernel(x, y, length_squared)
    np.testing.assert_allclose((left @ right.T).numpy(), expected, atol=1e-6)


def test_order_20_at_a_tenth_keeps_the_known_part_of_the_norm():
    """On average over [0, 1] 0.959 of the squared norm; at 0, H_k is known in closed form."""
    x = torch.linspace(0, 1, 101, dtype=torch.float64)[None]
    kept = hermite(x, 20, 0.1)[0].square().sum(0)
    assert float(kept.mean()) == pytest.approx(0.959, abs=1e-3)
    rho = mehler_rho(0.1)
    terms = [math.comb(2 * j, j) / 4**j * rho ** (2 * j) for j in range(11)]
    assert float(kept[0]) == pytest.approx(math.sqrt(1 - rho**2) * sum(terms), rel=1e-12)


def test_sum_and_product_kernels_together():
    """<phi(x), phi(y)> = (1 - a) mean_p k(x_p, y_p) + a mean_ij k(x_i, y_i) k(x_j, y_j)."""
    x, y, length = cube(5, 1).double(), cube(6, 2).double(), 0.8
    pairs = torch.tensor([[0, 3], [2, 8], [7, 1]])
    one = Hermite(D, 60, pairs, 60, 0.25, length)
    assert one.features(x).shape == (5, one.size)

    def pixel(p: int) -> np.ndarray:
        return gaussian_kernel(x[:, p : p + 1], y[:, p : p + 1], length)

    single = np.mean([pixel(p) for p in range(D)], axis=0)
    double = np.mean([pixel(i) * pixel(j) for i, j in pairs.tolist()], axis=0)
    found = (one.features(x) @ one.features(y).T).numpy()
    np.testing.assert_allclose(found, 0.75 * single + 0.25 * double, atol=1e-6)


def test_pairs_are_distinct_and_follow_the_public_variance():
    public = cube(300, 4, 12)
    public[:, 5] = 0.3  # never varies
    public[:, 6:] = 0.5 + 0.2 * (public[:, 6:] - 0.5)  # a 25th of the variance
    one = hermite_map(public, 3, 14, 2, 0.5, 1.0, STREAMS)
    pairs = [tuple(pair) for pair in one.pairs.tolist()]
    assert len(set(pairs)) == 14 and all(i < j for i, j in pairs)
    assert not any(5 in pair for pair in pairs)
    assert sum(max(pair) < 5 for pair in pairs) >= 9  # of the ten strong ones
    with pytest.raises(ValueError, match="56 pixel pairs asked for; 55 vary"):
        hermite_map(public, 3, 56, 2, 0.5, 1.0, STREAMS)


# ---- tangent features


class Net(nn.Module):
    """The network of DP-NTK, written as anyone would."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.first, self.last = nn.Linear(d, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def test_tangent_features_are_the_networks_normalised_gradients():
    one, x = tangent(7, D, STREAMS), cube(10)
    net = Net(D, 7)
    with torch.no_grad():
        net.first.weight.copy_(one.weight)
        net.first.bias.copy_(one.bias)
        net.last.weight.copy_(one.head[None])
    parameters = dict(net.named_parameters())
    gradients = vmap(
        grad(lambda p, row: functional_call(net, p, (row[None],)).squeeze()), in_dims=(None, 0)
    )(parameters, x)
    names = ("first.weight", "first.bias", "last.weight", "last.bias")
    rows = torch.cat([gradients[name].flatten(1) for name in names], dim=1)
    expected = rows / rows.norm(dim=1, keepdim=True)
    assert one.size == rows.shape[1]
    np.testing.assert_allclose(one.features(x).numpy(), expected.detach().numpy(), atol=1e-6)


def test_tangent_weights_are_spread_as_torch_spreads_them():
    one, net = tangent(400, 50, STREAMS), Net(50, 400).requires_grad_(False)
    for mine, theirs in ((one.weight, net.first.weight), (one.head, net.last.weight)):
        assert float(mine.abs().max()) <= float(theirs.abs().max()) * 1.02
        assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.15)
        assert abs(float(mine.mean())) < 4 * float(mine.std()) / mine.numel() ** 0.5


# ---- all of them


@pytest.mark.parametrize("name", maps())
def test_no_feature_is_longer_than_one(name):
    """By ascent on the norm from random starts, corners of the cube among them."""
    one = maps()[name]
    starts = torch.cat([cube(40), cube(40, 5).round(), torch.zeros(1, D), torch.ones(1, D)])
    best = 0.0
    for _ in range(15):
        x = starts.clone().requires_grad_()
        norms = one.features(x).double().norm(dim=1)
        best = max(best, float(norms.detach().max()))
        (slope,) = torch.autograd.grad(norms.sum(), x)
        starts = (x + 0.3 * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-9)).detach()
        starts = starts.clamp(0, 1)
    assert 0.5 < best <= 1 + 1e-6


@pytest.mark.parametrize("name", maps())
def test_class_sums_are_sums_of_features(name):
    one, x = maps()[name], cube(30)
    labels = torch.from_numpy(np.random.default_rng(1).choice([0, 1, 3], size=30))
    expected = np.zeros((4, one.size))
    for row, label in zip(one.features(x).numpy(), labels.tolist(), strict=True):
        expected[label] += row
    np.testing.assert_allclose(one.class_sums(x, labels, 4).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", maps())
def test_a_map_is_a_function_of_the_published_seed(name):
    x = cube(5)
    assert torch.equal(maps()[name].features(x), maps()[name].features(x))
    again = maps()[name].to(torch.device("cpu"))
    assert torch.equal(again.features(x), maps()[name].features(x))


@pytest.mark.parametrize("name", maps())
def test_a_generator_can_follow_the_gradient(name):
    """Autograd through class sums against central differences, in float64."""
    one = maps()[name]
    one = type(one)(**{k: _double(v) for k, v in vars(one).items()})
    x = cube(6).double().requires_grad_()
    labels = torch.tensor([0, 1, 1, 0, 2, 2])
    target = torch.from_numpy(np.random.default_rng(3).standard_normal((3, one.size)))

    def loss(x):
        return (one.class_sums(x, labels, 3) * target).sum()

    (slope,) = torch.autograd.grad(loss(x), x)
    for row, column in ((0, 0), (3, 4), (5, 8)):
        step = torch.zeros_like(x)
        step[row, column] = 1e-5
        with torch.no_grad():
            numeric = float(loss(x + step) - loss(x - step)) / 2e-5
        assert float(slope[row, column]) == pytest.approx(numeric, rel=1e-4, abs=1e-6)


def _double(value):
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


# ---- the length scale


def test_the_length_scale_is_the_median_distance():
    x = cube(80)
    expected = np.median(pdist(x.numpy().astype(float)) ** 2)
    assert median_squared_distance(x, STREAMS) == pytest.approx(expected, rel=1e-9)
    large = median_squared_distance(cube(4000, 8), STREAMS)  # a part of them is enough
    # independent uniforms: (x - y)^2 has mean 1/6
    assert large == pytest.approx(D / 6, rel=0.05)


def test_records_that_coincide_have_no_length_scale():
    for x in (torch.ones(20, D), cube(1)):
        with pytest.raises(ValueError, match="no length scale"):
            median_squared_distance(x, STREAMS)
