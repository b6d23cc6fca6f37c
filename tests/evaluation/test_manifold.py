"""Precision and recall against a hand-made case, brute force and torch-fidelity."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch_fidelity.metric_prc import calculate_precision_recall_full

from straightdp.evaluation import manifold
from straightdp.evaluation.manifold import fixed_subset, precision_recall, square_radii


def clouds(n: int = 200, size: int = 5, shift: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping Gaussian clouds, the second one narrower and moved."""
    generator = np.random.default_rng(0)
    wide, narrow = generator.normal(size=(2, n, size))
    return wide.astype(np.float32), (0.6 * narrow + shift).astype(np.float32)


def brute_force(samples, real, k):
    """Kynkaanniemi et al. 2019, equations 1 and 2, a pair at a time."""

    def inside(points, centres):
        reach = [
            sorted(np.linalg.norm(a - b) for j, b in enumerate(centres.astype(float)) if j != i)[
                k - 1
            ]
            for i, a in enumerate(centres.astype(float))
        ]
        return np.mean(
            [
                any(np.linalg.norm(p - c) <= r for c, r in zip(centres, reach, strict=True))
                for p in points.astype(float)
            ]
        )

    return inside(samples, real), inside(real, samples)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_agrees_with_brute_force(k):
    a, b = (one[:60] for one in clouds())
    found = precision_recall(a, b, k)
    assert (found.precision, found.recall) == pytest.approx(brute_force(a, b, k))
    assert 0 < found.precision < 1 or 0 < found.recall < 1
    assert found.n == 60


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_agrees_with_torch_fidelity(shift):
    a, b = clouds(400, 24, shift)
    found = precision_recall(a, b)
    theirs = calculate_precision_recall_full(torch.from_numpy(a), torch.from_numpy(b), 3)
    assert (found.precision, found.recall) == pytest.approx(theirs, abs=1.5 / 400)


def test_five_points_on_a_line():
    """Real at 0, 1, 2, 3, 9: third neighbours at 3, 2, 2, 3, 8, so the balls cover [-3, 17]."""
    real = np.array([[0.0], [1], [2], [3], [9]], np.float32)
    assert square_radii(torch.from_numpy(real).double()).tolist() == [9, 4, 4, 9, 64]
    # Samples' third neighbours are at 19, 13, 13, 21, 33: they reach every real point.
    samples = np.array([[-4.0], [-3], [15], [17], [30]], np.float32)
    found = precision_recall(samples, real)
    assert (found.precision, found.recall) == (3 / 5, 1)


def test_a_set_against_itself_is_perfect():
    a, _ = clouds()
    repeated = np.concatenate([np.repeat(a[:2], 20, axis=0), a])  # radius 0 around copies
    for one in (a, repeated, 1000 + a, np.zeros((9, 3))):
        found = precision_recall(one, one.copy())
        assert (found.precision, found.recall) == (1, 1)


def test_far_sets_share_nothing():
    a, b = clouds(shift=1000)
    found = precision_recall(a, b)
    assert (found.precision, found.recall) == (0, 0)


def test_a_collapsed_generator_has_precision_without_recall():
    real, _ = clouds()
    samples = np.repeat(real[:1], len(real), axis=0)
    found = precision_recall(samples, real)
    assert (found.precision, found.recall) == (1, 1 / len(real))


def test_the_parts_of_the_distance_matrix_change_nothing(monkeypatch):
    a, b = clouds()
    points, others = (torch.from_numpy(one).double() for one in (a, b))
    whole, reach = precision_recall(a, b), square_radii(others)
    monkeypatch.setattr(manifold, "BLOCK", 7 * len(a))
    assert precision_recall(a, b) == whole
    assert square_radii(others).numpy() == pytest.approx(reach.numpy(), rel=1e-9)
    seen = [len(squares) for squares, _ in manifold._squares(points, others)]
    assert max(seen) == 7 and sum(seen) == len(a)


def test_radii_are_those_of_scipy():
    a, _ = clouds()
    expected = np.sort(cdist(a, a), axis=1)[:, 3]  # number 0 is the point itself
    found = square_radii(torch.from_numpy(a).double()).sqrt().numpy()
    assert found == pytest.approx(expected, rel=1e-6)


def test_rounding_does_not_decide_far_from_the_origin():
    """The clouds as they are, and moved to where inner products lose most of their digits."""
    a, b = clouds()
    moved = precision_recall(a.astype(float) + 1e5, b.astype(float) + 1e5)
    assert moved == precision_recall(a, b)


def test_the_subset_is_fixed_and_without_repeats():
    rows = fixed_subset(500, 200)
    assert np.array_equal(rows, fixed_subset(500, 200))
    assert len(np.unique(rows)) == 200 and 0 <= rows.min() and rows.max() < 500
    assert np.array_equal(fixed_subset(30, 30), np.arange(30))
    assert abs(rows.mean() - 249.5) < 5 * 500 / (12 * 200) ** 0.5  # not the first ones
    for size in (0, 31):
        with pytest.raises(ValueError, match=f"no {size} of 30"):
            fixed_subset(30, size)


def test_refusals_name_what_is_wrong():
    a, b = clouds(10)
    with pytest.raises(ValueError, match="sizes must agree"):
        precision_recall(a, b[:9])
    with pytest.raises(ValueError, match="n = 3 points have no neighbour number 3"):
        precision_recall(a[:3], b[:3])
    with pytest.raises(ValueError, match="not finite"):
        precision_recall(np.where(a > 0, np.nan, a), b)
