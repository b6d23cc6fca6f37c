"""The accountant against closed forms, quadrature, and published and precomputed values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from straightdp.mechanisms.accounting import (
    MAX_EPSILON,
    MIN_MULTIPLIER,
    Adjacency,
    GaussianRelease,
    SubsampledSteps,
    calibrate_releases,
    calibrate_steps,
    epsilon,
    rdp_scale,
)

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
DELTA = 1e-5


def release(multiplier: float, sensitivity: float = 1.0) -> GaussianRelease:
    return GaussianRelease("release", sensitivity, multiplier * sensitivity)


def steps(multiplier: float, rate: float = 0.02, count: int = 2000) -> SubsampledSteps:
    return SubsampledSteps("steps", rate, multiplier, count)


def analytic_delta(sigma: float, eps: float) -> float:
    """The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 5), sensitivity 1."""
    left = norm.cdf(1 / (2 * sigma) - eps * sigma)
    return left - math.exp(eps) * norm.cdf(-1 / (2 * sigma) - eps * sigma)


def densities(part, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output densities of one mechanism on a neighbouring pair, as (with, without).

    A release moves by one sensitivity. A Poisson-sampled sum is a mixture; under replacement
    (`part` = (sigma, rate, -1)) the record is in the sample on both sides, moved to and fro.
    """
    sigma, rate, other = part
    still = norm.pdf(points, 0, sigma)
    there = (1 - rate) * still + rate * norm.pdf(points, 1, sigma)
    return there, (1 - rate) * still + rate * norm.pdf(points, other, sigma)


def quadrature_delta(parts, eps: float, points: int = 6001) -> float:
    """The hockey-stick divergence of a product of mechanisms by quadrature, both directions."""
    p, q, volume = 1.0, 1.0, 1.0
    for axis, part in enumerate(parts):
        grid = np.linspace(-1 - 9 * part[0], 1 + 9 * part[0], points)
        volume *= grid[1] - grid[0]
        shape = [-1 if i == axis else 1 for i in range(len(parts))]
        one, two = densities(part, grid)
        p, q = p * one.reshape(shape), q * two.reshape(shape)
    gaps = (p - math.exp(eps) * q, q - math.exp(eps) * p)
    return max(float(np.maximum(gap, 0).sum()) * volume for gap in gaps)


def brackets(found: float, delta: float, parts, points: int = 6001, within: float = 5e-3) -> bool:
    """`found` meets delta (to the grid's error), and no epsilon smaller by `within` does."""
    return (
        quadrature_delta(parts, found, points) <= delta * (1 + 1e-3)
        and quadrature_delta(parts, found * (1 - within), points) > delta
    )


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 3.73, 20.0, 200.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_one_gaussian_is_the_analytic_mechanism(sigma, delta):
    found = epsilon([release(sigma, sensitivity=0.01)], delta)
    assert analytic_delta(sigma, found) == pytest.approx(delta, rel=1e-6)


def test_releases_compose_as_one_gaussian():
    sigmas = (1.5, 2.0, 7.0, 0.9)
    joint = sum(s**-2 for s in sigmas) ** -0.5
    releases = [release(s, sensitivity=i + 0.5) for i, s in enumerate(sigmas)]
    for adjacency in Adjacency:  # sensitivities are declared, and never doubled
        assert analytic_delta(joint, epsilon(releases, DELTA, adjacency)) == pytest.approx(
            DELTA, rel=1e-6
        )


@pytest.mark.parametrize(
    "target, one, ten",
    [(0.3, 11.238, 35.54), (1.0, 3.731, 11.80), (3.0, 1.391, 4.40), (10.0, 0.500, 1.58)],
)
def test_release_multipliers(target, one, ten):
    assert calibrate_releases(target, DELTA, 1) == pytest.approx(one, rel=1e-3)
    assert calibrate_releases(target, DELTA, 10) == pytest.approx(ten, rel=1e-3)


@pytest.mark.parametrize("target", [1e-3, 0.05, 1.0, 100.0, 1000.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_releases_spend_their_budget_and_not_more(target, count):
    sigma = calibrate_releases(target, DELTA, count)
    spent = epsilon([release(sigma)] * count, DELTA)
    assert target * (1 - 1e-6) < spent <= target * (1 + 1e-9)


# q = 0.02, 2,000 steps, delta 1e-5, two equal releases at 0.235 epsilon together.
TABLE = [
    (0.3, 59.803, 10.487),
    (1.0, 19.886, 3.567),
    (3.0, 7.259, 1.494),
    (10.0, 2.442, 0.7865),
]


@pytest.mark.parametrize("target, stage1, stage2", TABLE)
def test_joint_calibration_of_a_whole_run(target, stage1, stage2):
    sigma = calibrate_releases(0.235 * target, DELTA, 2)
    assert sigma == pytest.approx(stage1, rel=1e-3)
    releases = [release(sigma)] * 2
    scale = calibrate_steps(target, DELTA, releases, [(1.0, 2000)], 0.02)
    assert scale == pytest.approx(stage2, rel=1e-3)
    spent = epsilon([*releases, steps(scale)], DELTA)
    assert 0.998 * target < spent <= target
    assert epsilon([steps(scale)], DELTA) < spent


@pytest.mark.parametrize("target, exact", [(0.3, 10.487), (1.0, 3.567), (3.0, 1.494)])
def test_renyi_scale_is_above_the_exact_one(target, exact):
    releases = [release(calibrate_releases(0.235 * target, DELTA, 2))] * 2
    scale = rdp_scale(target, DELTA, releases, [(1.0, 2000)], 0.02)
    assert exact < scale < 1.13 * exact


@pytest.mark.parametrize(
    "sigma, rate, delta", [(1.0, 0.02, 1e-5), (0.7, 0.2, 1e-4), (3, 0.5, 1e-6)]
)
def test_one_sampled_step_by_quadrature(sigma, rate, delta):
    found = epsilon([steps(sigma, rate, 1)], delta)
    assert brackets(found, delta, [(sigma, rate, 0)], points=200_001)


@pytest.mark.parametrize("sigma, rate, delta", [(1.0, 0.05, 1e-5), (2.0, 0.3, 1e-5)])
def test_one_sampled_step_under_replacement_by_quadrature(sigma, rate, delta):
    found = epsilon([steps(sigma, rate, 1)], delta, REPLACE)
    assert brackets(found, delta, [(sigma, rate, -1)], points=200_001)


@pytest.mark.parametrize("adjacency, other", [(ADD, 0), (REPLACE, -1)])
def test_a_release_and_steps_of_two_multipliers_by_quadrature(adjacency, other):
    """A release counts once under either adjacency; steps move to and fro under replacement."""
    mechanisms = [steps(1.2, 0.3, 1), release(2.5, sensitivity=4.0), steps(1.8, 0.1, 1)]
    parts = [(1.2, 0.3, other), (2.5, 1.0, 0), (1.8, 0.1, other)]
    found = epsilon(mechanisms, 1e-4, adjacency)
    assert brackets(found, 1e-4, parts, points=221, within=1e-2)


def test_two_equal_steps_by_quadrature():
    found = epsilon([steps(0.8, 0.1, 2)], DELTA)
    assert brackets(found, DELTA, [(0.8, 0.1, 0)] * 2, points=3001)


def test_whole_batches_are_plain_gaussians():
    """At rate 1 there is no sampling: T steps are one Gaussian of multiplier sigma/sqrt(T)."""
    for adjacency, moved in ((ADD, 1), (REPLACE, 2)):
        found = epsilon([steps(10.0, 1.0, 16)], DELTA, adjacency)
        exact = epsilon([release(10.0 / 4 / moved)], DELTA)
        assert exact <= found <= exact * 1.002


def test_replacement_costs_more_but_no_more_than_two_moves():
    add, replace = (epsilon([steps(4.0)], DELTA, a) for a in (ADD, REPLACE))
    halved = epsilon([steps(2.0)], DELTA, ADD)
    assert 1.5 * add < replace <= halved * 1.05


def test_monotone_in_every_argument():
    def cost(sigma=2.0, rate=0.02, count=500, delta=DELTA):
        return epsilon([release(9.0), steps(sigma, rate, count)], delta)

    for name, values in {
        "sigma": (4.0, 2.0, 1.0, 0.5),
        "rate": (0.005, 0.01, 0.02, 0.05),
        "count": (1, 100, 500, 2000),
        "delta": (1e-3, 1e-5, 1e-7),
    }.items():
        costs = [cost(**{name: value}) for value in values]
        assert all(a < b for a, b in itertools.pairwise(costs)), name


def test_the_order_and_the_slicing_of_charges_do_not_matter():
    whole = [release(5.0), steps(1.5, 0.02, 100), steps(2.0, 0.02, 60)]
    sliced = [steps(2.0, 0.02, 25), *(steps(1.5, 0.02, 20) for _ in range(5))]
    assert epsilon([*sliced, release(5.0), steps(2.0, 0.02, 35)], DELTA) == epsilon(whole, DELTA)


def test_nothing_costs_nothing():
    assert epsilon([], DELTA) == 0
    assert epsilon([steps(1.0, 0.02, 0), steps(1.0, 0.0, 5)], DELTA) == 0
    assert epsilon([release(math.inf), steps(math.inf)], DELTA) == 0
    assert epsilon([release(2.0), steps(0.0, 0.02, 0)], DELTA) == epsilon([release(2.0)], DELTA)


def test_no_noise_is_no_privacy():
    assert epsilon([release(0.0)], DELTA) == math.inf
    assert epsilon([release(5.0), steps(0.0)], DELTA) == math.inf
    assert calibrate_releases(math.inf, DELTA, 2) == 0
    assert calibrate_steps(math.inf, DELTA, [release(0.0)], [(1.0, 100)], 0.02) == 0
    assert rdp_scale(math.inf, DELTA, [], [(1.0, 100)], 0.02) == 0


# Where a replayed composition once exceeded its calibration, or took gigabytes.
EXTREMES = [
    (0.05, DELTA, 0.02, [(1.0, 2000)], 0.235, ADD),
    (100.0, DELTA, 0.02, [(1.0, 2000)], 0.235, ADD),
    (0.01292, 3.8e-7, 0.512, [(1.3, 942), (0.8, 943)], 0.1, ADD),
    (0.03984, 2.7e-6, 0.239, [(1.3, 2823), (0.8, 2824)], 0.1, ADD),
    (0.2319, 3.3e-6, 0.00113, [(1.0, 184)], 0.0, REPLACE),
    (2.0, DELTA, 1.0, [(1.0, 5), (2.0, 0)], 0.1, REPLACE),
]


@pytest.mark.parametrize("target, delta, rate, relative, share, adjacency", EXTREMES)
def test_a_calibration_is_certified_by_the_accountant(
    target, delta, rate, relative, share, adjacency
):
    releases = [release(calibrate_releases(share * target, delta, 2))] * 2 if share else []
    scale = calibrate_steps(target, delta, releases, relative, rate, adjacency)
    run = [SubsampledSteps("", rate, scale * noise, count) for noise, count in relative]
    assert 0.998 * target < epsilon([*releases, *run], delta, adjacency) <= target


def test_rounding_in_a_transcript_does_not_move_the_answer():
    sigma = calibrate_steps(1.0, DELTA, [], [(1.0, 300)], 0.02)
    for clip in (0.1, 0.3, 7.7, 1234.5):
        assert epsilon([steps(sigma * clip / clip, 0.02, 300)], DELTA) <= 1.0


def test_the_least_noise_is_kept():
    """A target that needs almost no noise gets the least multiplier, and meets the target."""
    scale = calibrate_steps(MAX_EPSILON, DELTA, [], [(1.0, 1), (2.0, 1)], 0.001)
    assert scale == pytest.approx(MIN_MULTIPLIER, rel=1e-9) and scale >= MIN_MULTIPLIER


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: epsilon([steps(0.01)], DELTA), "noise multiplier 0.01"),
        (lambda: epsilon([release(0.001), steps(1.0)], DELTA), "too small"),
        (lambda: epsilon([release(-1.0)], DELTA), "release: noise multiplier -1"),
        (lambda: epsilon([release(math.nan)], DELTA), "noise multiplier nan"),
        (lambda: epsilon([steps(1.0, 1.5)], DELTA), "sampling rate 1.5"),
        (lambda: epsilon([steps(1.0, 0.1, -3)], DELTA), "-3 steps"),
        (lambda: epsilon([], 0.0), "delta"),
        (lambda: epsilon([], 1.0), "delta"),
        (lambda: calibrate_releases(0.0, DELTA, 1), "epsilon"),
        (lambda: calibrate_releases(1.0, DELTA, 0), "count"),
        (lambda: calibrate_steps(-1.0, DELTA, [], [(1.0, 10)], 0.1), "epsilon"),
        (lambda: calibrate_steps(1000.0, DELTA, [], [(1.0, 10)], 0.1), "use inf"),
        (lambda: calibrate_steps(1.0, DELTA, [], [], 0.1), "no steps"),
        (lambda: calibrate_steps(1.0, DELTA, [], [(1.0, 0)], 0.1), "no steps"),
        (lambda: calibrate_steps(1.0, DELTA, [], [(1.0, 10)], 0.0), "no steps"),
        (lambda: calibrate_steps(1.0, DELTA, [release(0.5)], [(1.0, 10)], 0.1), "whole budget"),
        (lambda: calibrate_steps(1.0, DELTA, [release(0.0)], [(1.0, 10)], 0.1), "whole budget"),
    ],
)
def test_bad_requests_are_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
