"""The planner: shapes by hand, the guarantees of Appendix B.5, and certified budgets."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from straightdp.flow.analytic import MomentModel
from straightdp.mechanisms import planner
from straightdp.mechanisms.accounting import Adjacency, GaussianRelease, calibrate_releases
from straightdp.mechanisms.planner import (
    PublicGradients,
    Workload,
    choose_plan,
    proxy,
    shape,
)

FAMILY = (0, 0.25, 0.5, 0.75, 1)
DELTA = 1e-5


@pytest.fixture(scope="module")
def moments() -> MomentModel:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(12, 3, generator=generator, dtype=torch.float64))[0]
    return MomentModel(
        priors=torch.tensor([0.5, 0.5]),
        means=torch.zeros(2, 12, dtype=torch.float64),
        basis=basis,
        variances=torch.tensor([3.0, 1.0, 0.4], dtype=torch.float64),
        floor=0.01,
    )


def gradients(growth: float = 1.0, parameters: int = 5000, agreement: float = 0.4):
    """Norms that grow by `growth` from bucket to bucket; the mean is `agreement` of them."""
    spread = np.linspace(0.5, 1.5, 21)
    rows = [growth**k * 100 * spread for k in range(4)]
    return PublicGradients(
        edges=(0.2, 0.4, 0.6, 0.8, 1.0),
        norms=tuple(tuple(float(v) for v in row) for row in rows),
        mean_norms=tuple(float(agreement * row.mean()) for row in rows),
        parameters=parameters,
    )


def workload(epsilon=1.0, adjacency=Adjacency.ADD_OR_REMOVE_ONE, steps=203, **changes):
    releases = ()
    if epsilon < math.inf:
        sigma = calibrate_releases(0.235 * epsilon, DELTA, 2)
        releases = (GaussianRelease("a", 2.0, 2 * sigma), GaussianRelease("b", 0.1, 0.1 * sigma))
    values = Workload(epsilon, DELTA, adjacency, releases, steps, 0.05, 20000)
    return dataclasses.replace(values, **changes)


@pytest.mark.parametrize("beta", FAMILY)
def test_shape_is_the_papers_formula_on_dense_matrices(moments, beta):
    """(sqrt(tr((1-t)^2 Sigma A_t^-1)) / (1-t))^beta at midpoints, over its geometric mean."""
    sigma = moments.covariance().numpy()
    raw = []
    for low, high in itertools.pairwise((0.2, 0.4, 0.6, 0.8, 1.0)):
        t = (low + high) / 2
        inverse = np.linalg.inv((1 - t) ** 2 * np.eye(12) + t**2 * sigma)
        variance = np.trace((1 - t) ** 2 * sigma @ inverse)
        raw.append((math.sqrt(variance) / (1 - t)) ** beta)
    found = shape(moments, (0.2, 0.4, 0.6, 0.8, 1.0), beta)
    np.testing.assert_allclose(found, np.array(raw) / np.prod(raw) ** 0.25, rtol=1e-6)
    assert np.prod(found) == pytest.approx(1.0)


def test_shape_zero_is_exactly_uniform(moments):
    assert (shape(moments, (0.0, 0.3, 1.0), 0) == 1).all()


def test_proxy_by_hand():
    """One bucket half clipped: signal 3 x (1 + 1/2)/2, noise 2 sqrt(16) / (0.1 x 20)."""
    public = PublicGradients((0.0, 1.0), ((1.0, 4.0),), (3.0,), 16)
    load = Workload(1.0, DELTA, Adjacency.ADD_OR_REMOVE_ONE, (), 10, 0.1, 20)
    signal, noise = 3 * 0.75, 4.0
    expected = signal**2 / (signal**2 + noise**2)
    assert proxy(public, [2.0], 2.0, load) == pytest.approx(expected)
    assert proxy(public, [2.0], 0.0, load) == 1.0


def test_steps_are_shared_as_the_round_goes():
    counts = workload(steps=203).bucket_steps(4)
    assert counts == [sum(step % 4 == k for step in range(203)) for k in range(4)]


def independent_epsilon(choice, load: Workload) -> float:
    """The joint composition through dp-accounting's event interface, bucket by bucket."""
    doubled = load.adjacency is Adjacency.REPLACE_ONE
    relation = NeighboringRelation.REPLACE_ONE if doubled else NeighboringRelation.ADD_OR_REMOVE_ONE
    events = [
        # That interface doubles releases too under replacement: give it half the sensitivity.
        GaussianDpEvent(one.noise_multiplier * (2 if doubled else 1))
        for one in load.releases
    ]
    for k, sigma in enumerate(choice.noise_multipliers):
        step = PoissonSampledDpEvent(load.sampling_rate, GaussianDpEvent(sigma))
        count = sum(index % 4 == k for index in range(load.steps))
        events.append(SelfComposedDpEvent(step, count))
    accountant = PLDAccountant(relation, value_discretization_interval=2e-4)
    return accountant.compose(ComposedDpEvent(events)).get_epsilon(load.delta)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("growth", [0.5, 1.6])
def test_the_chosen_plan_meets_its_budget_and_is_not_below_uniform(moments, growth, adjacency):
    load, public = workload(adjacency=adjacency), gradients(growth)
    choice = choose_plan(public, moments, load, 1.0, FAMILY)
    assert choice.certified_epsilon <= load.epsilon
    assert 0.995 < independent_epsilon(choice, load) / load.epsilon < 1.001
    # Appendix B.5, guarantee (ii), on the plan that would run.
    uniform = choose_plan(public, moments, load, 1.0, (0,))
    score = proxy(public, choice.clips, choice.noise_multipliers[0] * choice.clips[0], load)
    base = proxy(public, uniform.clips, uniform.noise_multipliers[0] * uniform.clips[0], load)
    assert score >= base
    assert choice.certified_scores[f"{choice.beta:g}"] == pytest.approx(score)


def test_noise_has_one_deviation_and_clips_have_the_shape(moments):
    public = gradients(1.6)
    choice = choose_plan(public, moments, workload(), 0.7, FAMILY)
    assert choice.beta > 0  # growing gradients call for growing clips
    clips, sigmas = np.array(choice.clips), np.array(choice.noise_multipliers)
    np.testing.assert_allclose(sigmas * clips, (sigmas * clips)[0], rtol=1e-9)
    median = np.median(np.concatenate([np.array(row) for row in public.norms]))
    expected = 0.7 * median * shape(moments, public.edges, choice.beta)
    np.testing.assert_allclose(clips, expected, rtol=1e-9)


def test_the_whole_family_is_scored_and_uniform_always_is(moments):
    choice = choose_plan(gradients(), moments, workload(), 1.0, FAMILY)
    assert set(choice.scores) == {"0", "0.25", "0.5", "0.75", "1"}
    assert {"0", f"{choice.beta:g}"} == set(choice.certified_scores)


def test_the_uniform_row_is_one_clip_and_one_multiplier(moments):
    choice = choose_plan(gradients(1.6), moments, workload(), 1.0, (0,))
    assert choice.beta == 0
    assert len(set(choice.clips)) == len(set(choice.noise_multipliers)) == 1
    assert choice.certified_epsilon <= 1.0


def test_ties_go_to_the_smaller_beta(moments, monkeypatch):
    """Among all, and among those that beat uniform."""
    for uneven, expected in ((0.5, 0), (0.6, 0.25)):

        def level(public, clips, noise, load, uneven=uneven):
            return 0.5 if len(set(clips)) == 1 else uneven

        monkeypatch.setattr(planner, "proxy", level)
        assert choose_plan(gradients(), moments, workload(), 1.0, FAMILY).beta == expected


@pytest.mark.parametrize("step", ["rdp_scale", "calibrate_steps"])
def test_a_candidate_that_does_not_calibrate_is_discarded(moments, monkeypatch, step):
    """Appendix B.5, step 2: uniform remains."""
    real = getattr(planner, step)

    def fails(target, delta, releases, relative, *rest):
        if len(relative) > 1:
            raise ValueError("out of range")
        return real(target, delta, releases, relative, *rest)

    monkeypatch.setattr(planner, step, fails)
    choice = choose_plan(gradients(1.6), moments, workload(), 1.0, FAMILY)
    assert choice.beta == 0 and choice.certified_epsilon <= 1.0


def test_a_winner_of_the_ranking_that_loses_when_certified_gives_way(moments, monkeypatch):
    """Shrinking gradients want no growing clips, whatever a wrong ranking says."""
    monkeypatch.setattr(planner, "rdp_scale", lambda *a: 1e-6 if len(a[3]) > 1 else 1e3)
    choice = choose_plan(gradients(0.5), moments, workload(), 1.0, (0, 1))
    assert choice.scores["1"] > choice.scores["0"]
    assert choice.certified_scores["1"] < choice.certified_scores["0"]
    assert choice.beta == 0


def test_without_privacy_there_is_no_noise(moments):
    choice = choose_plan(gradients(1.6), moments, workload(math.inf), 1.0, FAMILY)
    assert choice.beta == 0 and set(choice.noise_multipliers) == {0.0}
    assert choice.certified_epsilon == math.inf
    assert json.loads(json.dumps(choice.to_dict(), allow_nan=False))["certified_epsilon"] == "inf"


def test_the_choice_is_deterministic_and_survives_json(moments):
    public = gradients(1.3)
    again = PublicGradients.from_dict(json.loads(json.dumps(public.to_dict())))
    one = choose_plan(public, moments, workload(), 1.0, (0, 0.5))
    two = choose_plan(again, moments, workload(), 1.0, (0, 0.5))
    assert one == two
    assert json.loads(json.dumps(one.to_dict()))["clips"] == list(one.clips)


def test_bad_requests_are_refused(moments):
    with pytest.raises(ValueError, match="must hold 0"):
        choose_plan(gradients(), moments, workload(), 1.0, (0.5, 1))
    spent = workload(releases=(GaussianRelease("a", 1.0, 0.5),))
    with pytest.raises(ValueError, match="whole budget"):
        choose_plan(gradients(), moments, spent, 1.0, FAMILY)
