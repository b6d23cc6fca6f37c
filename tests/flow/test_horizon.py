"""The horizon: an exact kernel field, laws whose moment model is right, and one where it fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from straightdp.flow.analytic import MomentModel, velocity_unconditional
from straightdp.flow.horizon import (
    GRID,
    _split,
    calibrate_horizon,
    empirical_velocity,
    last_time_above,
    mean_cosine,
)
from straightdp.rng import Streams

D = 3


def isotropic(means, variance: float) -> MomentModel:
    means = torch.as_tensor(np.asarray(means), dtype=torch.float32)
    return MomentModel(
        torch.full((len(means),), 1 / len(means)),
        means,
        torch.eye(means.shape[1])[:, :1],
        torch.full((1,), variance),
        variance,
    )


def test_the_empirical_velocity_is_bayes_rule_over_the_records():
    """By a loop over records, with unnormalised Gaussian likelihoods of E[z - xi | x_t = x]."""
    rng = np.random.default_rng(0)
    records, x, t = rng.standard_normal((7, D)), rng.standard_normal((4, D)), 0.35
    expected = np.zeros((4, D))
    for row in range(4):
        total = 0.0
        for z in records:
            xi = (x[row] - t * z) / (1 - t)
            likelihood = math.exp(-(xi @ xi) / 2)
            expected[row] += likelihood * (z - xi)
            total += likelihood
        expected[row] /= total
    found = empirical_velocity(torch.from_numpy(records), torch.from_numpy(x), t)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_the_empirical_velocity_is_the_moment_field_of_vanishing_bandwidth():
    """Remark B.5, across the two modules."""
    rng = np.random.default_rng(1)
    records, x = torch.from_numpy(rng.standard_normal((9, D))), torch.randn(5, D).double()
    kernel = isotropic(records, 1e-10)
    for t in (0.1, 0.5, 0.8):
        torch.testing.assert_close(
            velocity_unconditional(kernel, x, t),
            empirical_velocity(records.float(), x, t),
            atol=1e-4,
            rtol=1e-4,
        )


def test_the_mean_cosine_averages_angles_not_lengths():
    a = torch.tensor([[1.0, 0.0], [0.0, 100.0]])
    b = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    assert mean_cosine(a, b) == pytest.approx((1 + math.sqrt(0.5)) / 2)


@pytest.mark.parametrize(
    ("cosines", "cap", "expected"),
    [
        ([0.99, 0.98, 0.97, 0.96], 0.9, 0.4),  # never below
        ([0.99, 0.98, 0.97, 0.96], 0.25, 0.2),  # the cap, between two grid times
        ([0.99, 0.98, 0.97, 0.96], 0.3, 0.3),  # the cap, on the grid
        ([0.99, 0.94, 0.97, 0.96], 0.9, 0.1),  # a later recovery does not count
        ([0.99, 0.95, 0.94, 0.96], 0.9, 0.2),  # at the threshold is enough
        ([0.5, 0.4, 0.3, 0.2], 0.9, 0.1),  # at least one step
        ([0.5, 0.4, 0.3, 0.2], 0.05, 0.05),  # yet never above the cap
    ],
)
def test_the_decision(cosines, cap, expected):
    assert last_time_above((0.1, 0.2, 0.3, 0.4), cosines, 0.95, cap) == expected


def gaussian_classes(per_class=1500, scale=0.7, seed=2):
    rng = np.random.default_rng(seed)
    means = np.array([[2.0, 0, 0], [-1.0, 1, 0]])
    labels = np.repeat([0, 1], per_class)
    z = means[labels] + scale * rng.standard_normal((2 * per_class, D))
    return means, torch.from_numpy(z).float(), torch.from_numpy(labels)


def test_gaussian_classes_reach_the_cap():
    """Where the moment model is the law, only the kernel field's sampling error remains."""
    means, z, labels = gaussian_classes()
    model = isotropic(means, 0.49)
    horizon = calibrate_horizon(model, z, labels, Streams.from_seed(0), cap=0.35, threshold=0.95)
    assert horizon.tau == 0.35
    early = [i for i, t in enumerate(GRID) if t <= 0.5]
    assert min(horizon.worst_class[i] for i in early) > 0.99
    assert min(horizon.null_branch[i] for i in early) > 0.99


def test_one_class_of_two_modes_shortens_the_horizon():
    """The worst class decides: its field splits towards its modes, which one Gaussian cannot."""
    means, z, labels = gaussian_classes()
    rng = np.random.default_rng(3)
    members = labels == 1
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=int(members.sum()))).float()
    z[members] = torch.tensor([0.0, 0, 8.0]) * signs[:, None] + 0.1 * z[members]
    model = isotropic([means[0], 0.1 * means[1]], 0.49)
    horizon = calibrate_horizon(model, z, labels, Streams.from_seed(0), cap=0.9, threshold=0.95)
    alone = isotropic(means[:1], 0.49)
    easy = calibrate_horizon(
        alone, z[:1500], labels[:1500], Streams.from_seed(0), cap=0.9, threshold=0.95
    )
    assert horizon.tau < 0.2 < easy.tau
    strict = calibrate_horizon(model, z, labels, Streams.from_seed(0), cap=0.9, threshold=0.999)
    assert strict.tau <= horizon.tau
    assert strict.worst_class == horizon.worst_class  # the same points, another decision


def test_queries_are_not_among_their_references():
    z = torch.arange(40.0)[:, None]
    for step in range(3):
        queries, references = _split(z, Streams.from_seed(4), step)
        assert len(queries) == 10 and len(references) == 30
        assert not set(queries[:, 0].tolist()) & set(references[:, 0].tolist())


def test_repeatable_and_plain_to_write():
    means, z, labels = gaussian_classes(per_class=60)
    model = isotropic(means, 0.49)
    arguments = model, z, labels
    first = calibrate_horizon(*arguments, Streams.from_seed(5), cap=0.35, threshold=0.95)
    again = calibrate_horizon(*arguments, Streams.from_seed(5), cap=0.35, threshold=0.95)
    other = calibrate_horizon(*arguments, Streams.from_seed(6), cap=0.35, threshold=0.95)
    assert first == again
    assert first.worst_class != other.worst_class
    written = first.to_dict()
    assert written["times"] == list(GRID)
    assert len(written["worst_class"]) == len(written["null_branch"]) == len(GRID)


def test_a_class_without_a_reference_is_named():
    means, z, labels = gaussian_classes(per_class=5)
    with pytest.raises(ValueError, match="class 1 has 1 public records; 2 are needed"):
        calibrate_horizon(
            isotropic(means, 0.49), z[:6], labels[:6], Streams.from_seed(0), 0.35, 0.95
        )
