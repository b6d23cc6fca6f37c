"""Votes: brute force, sensitivity by search, charges and noise, and what follows a release."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy.stats import chisquare, kstest

from straightdp.mechanisms import votes as module
from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.transcript import Ledger, replay
from straightdp.mechanisms.votes import (
    VoteReleases,
    nearest,
    resample,
    sensitivity,
    survivors,
    vote_histogram,
)
from straightdp.rng import Role, Streams

CLASSES, CANDIDATES, F = 3, 7, 4
ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


class Charges(list):
    charge = list.append


def setting(count=60, seed=0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Records (n, F), labels (n,) and candidates (Y, M, F)."""
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.standard_normal((count, F))).float()
    labels = torch.from_numpy(rng.integers(CLASSES, size=count))
    candidates = torch.from_numpy(rng.standard_normal((CLASSES, CANDIDATES, F))).float()
    return features, labels, candidates


# ---- the histogram


@pytest.mark.parametrize("chunk", [1, 7, 2000])
def test_votes_against_a_loop(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    features, labels, candidates = setting()
    expected = np.zeros((CLASSES, CANDIDATES))
    for record, label in zip(features.numpy(), labels.tolist(), strict=True):
        distances = [math.dist(record, one) for one in candidates[label].numpy()]
        expected[label, distances.index(min(distances))] += 1
    histogram = vote_histogram(features, labels, candidates)
    assert histogram.dtype == torch.float64
    assert np.array_equal(histogram.numpy(), expected)


def test_close_candidates_far_from_the_origin_are_told_apart():
    """In float32 the expanded square would lose distances of 0.01 at norms of 1,000."""
    candidates = 1000 + torch.tensor([[0.0], [0.125], [0.25]]).expand(3, F)
    records = candidates + 0.03125
    assert nearest(records, candidates).tolist() == [0, 1, 2]


def test_every_record_votes_once_in_its_class_whatever_it_holds():
    features, labels, candidates = setting()
    plain = vote_histogram(features, labels, candidates)
    assert plain.sum(1).tolist() == [int((labels == label).sum()) for label in range(CLASSES)]
    wild = features.clone()
    wild[3], wild[5], wild[8] = float("nan"), float("inf"), -1e30
    wild[9, 0] = -float("inf")
    histogram = vote_histogram(wild, labels, candidates)
    assert histogram.sum(1).tolist() == plain.sum(1).tolist()
    kept = [row for row in range(60) if row not in (3, 5, 8, 9)]
    part = vote_histogram(features[kept], labels[kept], candidates)
    assert bool((histogram >= part).all())  # the other records' votes stay where they were
    assert vote_histogram(features[:0], labels[:0], candidates).sum() == 0


def test_bad_labels_are_refused():
    features, labels, candidates = setting()
    with pytest.raises(ValueError, match="60 records have 59 labels"):
        vote_histogram(features, labels[:59], candidates)
    for wrong in (-1, CLASSES):
        labels[4] = wrong
        with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2"):
            vote_histogram(features, labels, candidates)


def test_no_neighbour_moves_the_histogram_further_than_declared():
    """Search over data sets and neighbours: the worst case is found, and nothing beyond it."""
    rng = np.random.default_rng(5)
    worst = {ADD: 0.0, REPLACE: 0.0}
    for trial in range(200):
        features, labels, candidates = setting(int(rng.integers(1, 8)), seed=trial)
        whole = vote_histogram(features, labels, candidates)
        row = int(rng.integers(len(features)))
        kept = [other for other in range(len(features)) if other != row]
        without = vote_histogram(features[kept], labels[kept], candidates)
        distance = float((whole - without).norm())
        assert distance == 1.0  # a record never votes twice, and never not at all
        worst[ADD] = max(worst[ADD], distance)
        features[row] = torch.from_numpy(rng.standard_normal(F) * 10.0 ** rng.integers(-2, 3))
        labels[row] = int(rng.integers(CLASSES))
        replaced = vote_histogram(features, labels, candidates)
        worst[REPLACE] = max(worst[REPLACE], float((whole - replaced).norm()))
    for adjacency, found in worst.items():
        assert found == pytest.approx(sensitivity(adjacency), rel=1e-12)


# ---- the budget

PAPERS = {0.3: 35.54, 1.0: 11.80, 3.0: 4.40, 10.0: 1.58}  # ten rounds at delta 1e-5


@pytest.mark.parametrize(("epsilon", "expected"), PAPERS.items())
def test_noise_of_ten_rounds(epsilon, expected):
    sigma = calibrate_releases(epsilon, 1e-5, 10)
    assert round(sigma, 2) == pytest.approx(expected, abs=0.0101)
    # Another composition of the same ten: numerical, and an upper bound by a hair.
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(ComposedDpEvent([GaussianDpEvent(sigma)] * 10))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize("epsilon", [0.3, 10.0])
def test_the_transcript_holds_a_line_a_histogram_and_replays_within_the_budget(
    tmp_path, adjacency, epsilon
):
    path = tmp_path / "transcript.jsonl"
    ledger = Ledger(path, epsilon, 1e-5, adjacency, 60, "fixed")
    releases = VoteReleases(
        10, calibrate_releases(epsilon, 1e-5, 10), adjacency, Streams.from_seed(0), ledger
    )
    histogram = vote_histogram(*setting())
    for index in range(10):
        releases.release(histogram, index)
        assert len(path.read_text().splitlines()) == 1 + index + 1
    found = replay(path)
    assert found.ok and found.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert [one.sensitivity for one in found.mechanisms] == [sensitivity(adjacency)] * 10
    with pytest.raises(ValueError, match="round 11 is beyond the declared 10"):
        releases.release(histogram, 10)
    assert len(path.read_text().splitlines()) == 11


def test_a_resumed_run_charges_the_rounds_before_it_and_draws_the_same_noise():
    histogram, seed = vote_histogram(*setting()), Streams.from_seed(0)
    whole, late = Charges(), Charges()
    undisturbed = VoteReleases(5, 2.0, ADD, seed, whole)
    drawn = [undisturbed.release(histogram, index) for index in range(5)]
    resumed = VoteReleases(5, 2.0, ADD, seed, late)
    assert torch.equal(resumed.release(histogram, 3), drawn[3])
    assert late == whole[:4]
    resumed.charge_to(5)
    resumed.charge_to(5)
    assert late == whole


def test_each_round_is_charged_before_its_noise_is_drawn():
    events = []

    class Recording(Streams):
        def generator(self, role, step=0, sub=0):
            events.append((role, step))
            return super().generator(role, step, sub)

    class Book:
        def charge(self, line):
            events.append(line["name"])

    releases = VoteReleases(2, 1.0, ADD, Recording(1), Book())
    for index in range(2):
        releases.release(torch.zeros(CLASSES, CANDIDATES), index)
    assert events == ["votes_round_1", (Role.VOTES, 0), "votes_round_2", (Role.VOTES, 1)]


def test_a_refused_charge_draws_no_noise():
    class Refusing:
        def charge(self, line):
            raise RuntimeError("spent")

    class Silent(Streams):
        def generator(self, *address):
            raise AssertionError("noise was drawn")

    with pytest.raises(RuntimeError, match="spent"):
        VoteReleases(2, 1.0, ADD, Silent(1), Refusing()).release(torch.zeros(2, 2), 0)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_noise_has_the_charged_deviation_and_rounds_share_none(adjacency):
    charges = Charges()
    releases = VoteReleases(3, 2.5, adjacency, Streams.from_seed(4), charges)
    histogram = torch.full((10, 400), 6.0, dtype=torch.float64)
    noise = [(releases.release(histogram, i) - histogram).numpy().ravel() for i in range(3)]
    deviation = 2.5 * sensitivity(adjacency)
    assert [line["noise_std"] for line in charges] == pytest.approx([deviation] * 3)
    for values in noise:
        assert kstest(values / deviation, "norm").pvalue > 0.01
    correlations = np.corrcoef(noise)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(4000)


@pytest.mark.parametrize("multiplier", [-1.0, math.inf, math.nan])
def test_noise_that_is_none_is_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        VoteReleases(2, multiplier, ADD, Streams(1), Charges())
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        VoteReleases(0, 1.0, ADD, Streams(1), Charges())


# ---- after the noise


def test_survivors_are_what_stands_above_the_threshold():
    noisy = torch.tensor([[5.0, 2.0, 9.0, -7.0], [1.0, 2.0, 1.5, -1.0]])
    expected = [[3 / 10, 0, 7 / 10, 0], [0.25] * 4]  # nothing left: all equally likely
    assert survivors(noisy, 2.0).tolist() == [pytest.approx(row) for row in expected]
    without = survivors(noisy, 0.0)[1].tolist()
    assert without == pytest.approx([1 / 4.5, 2 / 4.5, 1.5 / 4.5, 0])


def test_candidates_are_drawn_as_often_as_they_are_likely():
    chances = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    drawn = resample(chances, 20_000, Streams.from_seed(1).generator(Role.EVOLVE))
    assert drawn.shape == (2, 20_000)
    counts = torch.bincount(drawn[0], minlength=4).numpy()
    assert counts[1] == 0
    assert chisquare(counts[[0, 2, 3]], 20_000 * np.array([0.5, 0.3, 0.2])).pvalue > 0.01
    assert set(drawn[1].tolist()) == {1}


def test_the_ends_of_the_distribution_draw_a_survivor():
    """Draws of 0 and just below 1, with survivors neither first nor last, and rounding."""

    class Ends:
        def random(self, shape):
            return np.resize([0.0, np.nextafter(1.0, 0.0)], shape)

    chances = survivors(torch.tensor([[0.0, *[0.1] * 7, 0.0, 0.0]], dtype=torch.float64), 0.0)
    assert resample(chances, 2, Ends()).tolist() == [[1, 7]]
