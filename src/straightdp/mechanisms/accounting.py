"""The accountant: exact composition through dp-accounting's privacy-loss distributions.

Every number comes from one joint composition of all of a run's mechanisms (Mironov et al.
2019; Koskela et al. 2020; Gopi et al. 2021 for the machinery). Plain Gaussian releases fold
into one in closed form, 1/s^2 = sum 1/s_i^2; steps of equal noise and rate are composed with
themselves at once. The distributions are pessimistic, so every answer is an upper bound.

>>> round(calibrate_releases(1.0, 1e-5, 1), 3)  # one Gaussian of sensitivity 1
3.731
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from dp_accounting import NeighboringRelation, dp_event, rdp
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize, special


class Adjacency(StrEnum):
    """What "neighbouring" means. Never mixed in one composition or one table."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"


MIN_MULTIPLIER = 0.15  # below it a subsampled step is refused: no privacy, and much memory
MAX_EPSILON = 200.0  # above it no calibration is offered
WIDEST = 4e-3  # discretisation of the privacy loss, at most
FINENESS = 0.06  # and as a part of the loss's deviation in a mechanism
ROOM = 1e-6  # kept below a calibration's target, for rounding on its way into a transcript


@dataclass(frozen=True)
class GaussianRelease:
    """One Gaussian mechanism; its sensitivity is declared under the run's own adjacency."""

    name: str
    sensitivity: float
    noise_std: float

    @property
    def noise_multiplier(self) -> float:
        return self.noise_std / self.sensitivity


@dataclass(frozen=True)
class SubsampledSteps:
    """`steps` Poisson-subsampled Gaussian sums of contributions clipped to 1.

    Under replacement a sum moves by two contributions; dp-accounting doubles it there.
    """

    name: str
    sampling_rate: float
    noise_multiplier: float
    steps: int


Mechanism = GaussianRelease | SubsampledSteps


def _relation(adjacency: Adjacency) -> NeighboringRelation:
    if adjacency is Adjacency.REPLACE_ONE:
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.ADD_OR_REMOVE_ONE


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """delta of one Gaussian of multiplier sigma at epsilon (Balle and Wang 2018)."""
    if sigma == math.inf:
        return 0.0
    if sigma == 0:
        return 1.0
    a, b = 1 / (2 * sigma), epsilon * sigma
    if epsilon > 700:
        return float(special.ndtr(a - b))
    log_tail = epsilon + special.log_ndtr(-a - b)
    return float(special.ndtr(a - b) - math.exp(log_tail))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """epsilon of one Gaussian of multiplier sigma at delta, in closed form."""
    if sigma == 0:
        return math.inf
    if sigma == math.inf or gaussian_delta(sigma, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(sigma, high) > delta:
        high *= 2
    return float(optimize.brentq(lambda e: gaussian_delta(sigma, e) - delta, 0, high, xtol=1e-12))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest multiplier of one Gaussian that meets (epsilon, delta)."""
    if epsilon == math.inf:
        return 0.0
    _check_target(epsilon, delta)
    low, high = 1e-3, 1.0
    while gaussian_delta(high, epsilon) > delta:
        high *= 2
    while gaussian_delta(low, epsilon) <= delta:
        low /= 2

    def excess(sigma: float) -> float:
        return math.log(max(gaussian_delta(sigma, epsilon), 1e-300)) - math.log(delta)

    root = optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13)
    return float(root * (1 + 1e-10))


def _check_target(epsilon: float, delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, not {delta}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be above 0, not {epsilon}")


def _folded(mechanisms: Sequence[Mechanism]) -> tuple[float, dict[tuple[float, float], int]]:
    """One Gaussian multiplier for all releases, and steps by (rate, multiplier)."""
    inverse, steps = 0.0, {}
    for mechanism in mechanisms:
        sigma = mechanism.noise_multiplier
        if sigma < 0 or math.isnan(sigma):
            raise ValueError(f"{mechanism.name}: noise multiplier {sigma} is not a scale")
        if isinstance(mechanism, GaussianRelease):
            inverse = math.inf if sigma == 0 else inverse + sigma**-2
            continue
        if mechanism.steps < 0:
            raise ValueError(f"{mechanism.name}: {mechanism.steps} steps")
        if not 0 <= mechanism.sampling_rate <= 1:
            raise ValueError(f"{mechanism.name}: sampling rate {mechanism.sampling_rate}")
        if mechanism.steps and mechanism.sampling_rate and sigma < math.inf:
            key = (mechanism.sampling_rate, sigma)
            steps[key] = steps.get(key, 0) + mechanism.steps
    return math.inf if inverse == 0 else inverse**-0.5, steps


def epsilon(
    mechanisms: Sequence[Mechanism],
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
) -> float:
    """The epsilon at `delta` of the joint composition; 0 for none, inf without noise.

    Beside steps, multipliers below MIN_MULTIPLIER (releases: below a third of it) raise
    ValueError: they take much memory and give no privacy. Releases alone are exact.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, not {delta}")
    sigma, steps = _folded(mechanisms)
    if sigma == 0 or any(noise == 0 for _, noise in steps):
        return math.inf
    if not steps:
        return gaussian_epsilon(sigma, delta)
    for _, noise in steps:
        if noise < MIN_MULTIPLIER:
            least = f"below {MIN_MULTIPLIER}, the least accounted for with subsampling"
            raise ValueError(f"noise multiplier {noise:.3g} is {least}; use more, or epsilon inf")
    if sigma < MIN_MULTIPLIER / 3:
        raise ValueError(f"a release's noise multiplier {sigma:.3g} is too small to compose")
    parts = tuple(sorted(steps.items()))
    interval = _interval(sigma, parts, adjacency)
    return float(_composed(sigma, parts, adjacency, interval).get_epsilon_for_delta(delta))


def _interval(sigma: float, steps: tuple, adjacency: Adjacency) -> float:
    """The discretisation for a composition: fine against its mechanisms, bounded in memory.

    Nothing is gained far below one mechanism's deviation, sqrt(total variance / count); a
    mechanism has at most some 4e4 points and a composition some 2e6. It is a power of two,
    which rounding of the noise does not move, so that a replay repeats a calibration.
    """
    moved = _contributions(adjacency)
    variance, count, mean = sigma**-2, 1, sigma**-2 / 2
    reach = 9 / sigma + mean
    for (rate, noise), times in steps:
        mu = moved / noise
        variance += times * rate**2 * math.expm1(min(mu**2, 60.0))
        count += times
        reach = max(reach, math.log1p(rate * math.expm1(9 * mu + mu**2 / 2)))
        mean += times * rate * mu**2 / 2  # bounds the mean loss, by convexity
    width = min(WIDEST, FINENESS * math.sqrt(variance / count))
    return 2.0 ** math.floor(math.log2(max(width, reach / 2e4, mean / 1e6)))


def _contributions(adjacency: Adjacency) -> float:
    """How many clipped contributions a neighbour changes in one sum."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


@lru_cache(maxsize=8)
def _composed(sigma: float, steps: tuple, adjacency: Adjacency, interval: float):
    total = None
    if sigma != math.inf:
        # Sensitivities are declared under the run's adjacency: never doubled a second time.
        total = pld.from_gaussian_mechanism(
            standard_deviation=sigma,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    for (rate, noise), count in steps:
        part = pld.from_gaussian_mechanism(
            standard_deviation=noise,
            value_discretization_interval=interval,
            sampling_prob=rate,
            neighboring_relation=_relation(adjacency),
        ).self_compose(count)
        total = part if total is None else total.compose(part)
    return total


def calibrate_releases(epsilon: float, delta: float, count: int) -> float:
    """The multiplier of each of `count` equal Gaussians that together meet (epsilon, delta)."""
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return gaussian_sigma(epsilon, delta) * math.sqrt(count)


def _workload(scale, relative, sampling_rate) -> list[SubsampledSteps]:
    return [
        SubsampledSteps("step", sampling_rate, scale * noise, steps) for noise, steps in relative
    ]


def _central_limit_scale(
    target: float,
    delta: float,
    releases: Sequence[GaussianRelease],
    relative,
    rate: float,
    adjacency: Adjacency,
) -> float:
    """First guess: mu^2 = sum T q^2 (exp(c/s^2) - 1) + sum 1/s_g^2 (Dong et al. 2022)."""
    moved = _contributions(adjacency) ** 2
    spent = _folded(releases)[0]
    budget = gaussian_sigma(target, delta) ** -2 - (math.inf if spent == 0 else spent**-2)
    if budget <= 0:
        raise ValueError("the releases alone spend the whole budget; nothing is left for steps")

    def excess(log_scale: float) -> float:
        terms = [
            steps * math.expm1(min(moved / (math.exp(log_scale) * noise) ** 2, 60.0))
            for noise, steps in relative
        ]
        return math.log(rate**2 * sum(terms)) - math.log(budget)

    return math.exp(optimize.brentq(excess, math.log(1e-2), math.log(1e7)))


def calibrate_steps(
    target: float,
    delta: float,
    releases: Sequence[GaussianRelease],
    relative: Sequence[tuple[float, int]],
    sampling_rate: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    tolerance: float = 1e-3,
) -> float:
    """The smallest scale s for which the releases and the steps together meet (target, delta).

    `relative` lists (sigma_k / s, T_k). The answer is certified: its own composition lies at
    or below `target`, and above (1 - tolerance) target unless a multiplier is at its least.
    An infinite target needs no noise (0). Raises ValueError for a target above MAX_EPSILON,
    for releases that leave nothing, and where there is no step to calibrate.
    """
    if target == math.inf:
        return 0.0
    _check_target(target, delta)
    if target > MAX_EPSILON:
        raise ValueError(f"epsilon {target:g} is above {MAX_EPSILON:g}; use inf for no privacy")
    relative = [(noise, steps) for noise, steps in relative if steps]
    if not relative or not sampling_rate > 0:
        raise ValueError("there are no steps to calibrate; steps and sampling rate must be above 0")
    least = math.log(MIN_MULTIPLIER / min(noise for noise, _ in relative)) + 1e-12

    def excess(log_scale: float) -> float:
        steps = _workload(math.exp(log_scale), relative, sampling_rate)
        spent = epsilon([*releases, *steps], delta, adjacency)
        return math.log(max(spent, 1e-12)) - math.log(target * (1 - ROOM))

    guess = _central_limit_scale(target, delta, releases, relative, sampling_rate, adjacency)
    return math.exp(_secant_below(excess, max(math.log(guess), least), least, tolerance))


def _secant_below(excess, start: float, least: float, tolerance: float) -> float:
    """A point with -tolerance <= excess <= 0 of a decreasing function, or `least`."""
    points: list[tuple[float, float]] = []
    x = start
    for _ in range(40):
        value = excess(x)
        if -tolerance <= value <= 0 or (value <= 0 and x <= least):
            return x
        points.append((x, value))
        above = [point for point in points if point[1] > 0]
        below = [point for point in points if point[1] <= 0]
        if len(points) == 1:
            x = x + value * 0.9 + (tolerance / 2 if value > 0 else 0)
        else:
            (x0, y0), (x1, y1) = sorted(points, key=lambda point: abs(point[1]))[:2]
            slope = (y1 - y0) / (x1 - x0) if x1 != x0 else -1.0
            slope = slope if slope < -1e-6 else -1.0
            x = x0 + (-tolerance / 2 - y0) / slope
            if above and below:  # stay inside the bracket
                low, high = max(p[0] for p in above), min(p[0] for p in below)
                if not low < x < high:
                    x = (low + high) / 2
                if high - low < 1e-9:
                    return high
        x = max(x, least)
    raise ValueError("the noise could not be calibrated; is the workload within range?")


def rdp_scale(
    target: float,
    delta: float,
    releases: Sequence[GaussianRelease],
    relative: Sequence[tuple[float, int]],
    sampling_rate: float,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
) -> float:
    """The scale by Renyi accounting: milliseconds, for ranking candidates (Table 9).

    Never below the exact one under add/remove adjacency; under replacement it halves the
    steps' noise, which certifies nothing. Raises ValueError out of range.
    """
    if target == math.inf:
        return 0.0
    orders = [*range(2, 12), *range(12, 64, 4), 80, 128, 256]  # an order costs its own size

    moved = _contributions(adjacency)

    def excess(log_scale: float) -> float:
        accountant = rdp.RdpAccountant(orders)
        for release in releases:
            accountant.compose(dp_event.GaussianDpEvent(release.noise_multiplier))
        for step in _workload(math.exp(log_scale), relative, sampling_rate):
            one = dp_event.PoissonSampledDpEvent(
                sampling_rate, dp_event.GaussianDpEvent(step.noise_multiplier / moved)
            )
            accountant.compose(dp_event.SelfComposedDpEvent(one, step.steps))
        return math.log(max(accountant.get_epsilon(delta), 1e-12)) - math.log(target)

    guess = _central_limit_scale(target, delta, releases, relative, sampling_rate, adjacency)
    return math.exp(_secant_below(excess, math.log(1.1 * guess), math.log(1e-2), 3e-3))
