"""The Fréchet distance against closed forms and two other implementations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import sqrtm
from torch_fidelity.metric_fid import fid_statistics_to_metric

from straightdp.evaluation.fid import (
    Statistics,
    class_distances,
    frechet_between,
    frechet_distance,
    gaussian_statistics,
)


def gaussian(mean, covariance) -> Statistics:
    return Statistics(np.asarray(mean, float), np.asarray(covariance, float), 1000)


def sampled(seed: int, n: int, size: int) -> Statistics:
    """Statistics of n correlated features."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(size, size))
    return gaussian_statistics(generator.normal(size=(n, size)) @ mixing + generator.normal())


@settings(deadline=None, max_examples=50)
@given(
    means=arrays(float, (2, 5), elements=st.floats(-10, 10)),
    deviations=arrays(float, (2, 5), elements=st.floats(0, 10)),
)
def test_diagonal_gaussians_have_a_closed_form(means, deviations):
    expected = np.square(means[0] - means[1]).sum() + np.square(deviations[0] - deviations[1]).sum()
    found = frechet_distance(
        *(gaussian(m, np.diag(s**2)) for m, s in zip(means, deviations, strict=True))
    )
    assert found == pytest.approx(expected, abs=1e-5)


def test_commuting_covariances_have_a_closed_form():
    """Covariances with shared eigenvectors: the squared gaps of the roots' eigenvalues."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    a, b = np.array([1.0, 4, 9, 0, 2, 3]), np.array([4.0, 1, 0, 0, 5, 3])
    found = frechet_distance(
        gaussian(np.zeros(6), basis * a @ basis.T), gaussian(np.zeros(6), basis * b @ basis.T)
    )
    assert found == pytest.approx(np.square(np.sqrt(a) - np.sqrt(b)).sum(), abs=1e-6)


def test_identical_gaussians_are_at_zero_and_a_shift_at_its_square():
    one = sampled(0, 500, 40)
    shift = np.linspace(-1, 2, 40)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-6)
    moved = Statistics(one.mean + shift, one.covariance, one.count)
    assert frechet_distance(one, moved) == pytest.approx(np.square(shift).sum(), rel=1e-8)


@pytest.mark.parametrize("n", [400, 30])  # of 24 features, and barely above
def test_agrees_with_scipy_and_with_torch_fidelity(n):
    a, b = sampled(1, n, 24), sampled(2, n, 24)
    by_scipy = (
        np.square(a.mean - b.mean).sum()
        + np.trace(a.covariance + b.covariance)
        - 2 * np.trace(sqrtm(a.covariance @ b.covariance)).real
    )
    by_fidelity = fid_statistics_to_metric(
        *({"mu": one.mean, "sigma": one.covariance} for one in (a, b)), False
    )
    assert frechet_distance(a, b) == pytest.approx(by_scipy, rel=1e-8)
    assert frechet_distance(a, b) == pytest.approx(
        by_fidelity["frechet_inception_distance"], rel=1e-8
    )


def test_fewer_samples_than_features_change_nothing_but_the_rank():
    """Low-rank Gaussians in 60 dimensions are as far apart as in the 8 that they live in."""
    a, b = sampled(3, 200, 8), sampled(4, 200, 8)
    frame = np.linalg.qr(np.random.default_rng(5).normal(size=(60, 8)))[0]

    def embedded(one):
        return Statistics(frame @ one.mean, frame @ one.covariance @ frame.T, one.count)

    expected = frechet_distance(a, b)
    assert frechet_distance(embedded(a), embedded(b)) == pytest.approx(expected, rel=1e-5)
    few = sampled(6, 10, 50)
    assert frechet_distance(few, few) == pytest.approx(0, abs=1e-4)
    assert frechet_distance(few, sampled(7, 12, 50)) == pytest.approx(
        frechet_distance(sampled(7, 12, 50), few), rel=1e-6
    )


def test_statistics_keep_their_precision_far_from_zero():
    """0..n-1 have mean (n - 1) / 2 and variance n (n + 1) / 12, wherever they are moved."""
    ramp = np.arange(1000, dtype=np.float32)
    found = gaussian_statistics(np.stack([ramp + 1e6, -ramp], axis=1).astype(np.float32))
    variance = 1000 * 1001 / 12
    assert found.mean == pytest.approx([1e6 + 499.5, -499.5], rel=1e-12)
    assert found.covariance == pytest.approx(
        np.array([[variance, -variance], [-variance, variance]]), rel=1e-9
    )
    assert found.covariance.dtype == np.float64
    assert found.count == 1000


def test_one_feature_is_enough():
    a = gaussian_statistics(np.array([[0.0], [2.0]]))  # mean 1, variance 2
    b = gaussian_statistics(np.array([[0.0], [4.0]]))  # mean 2, variance 8
    assert frechet_distance(a, b) == pytest.approx(1 + (8**0.5 - 2**0.5) ** 2)


def test_refusals_name_what_is_wrong():
    with pytest.raises(ValueError, match="n = 1 samples"):
        gaussian_statistics(np.zeros((1, 5)))
    with pytest.raises(ValueError, match="n = 0 samples"):
        gaussian_statistics(np.zeros((0, 5)))
    with pytest.raises(ValueError, match=r"shape \(5,\), not \(n, F\)"):
        gaussian_statistics(np.zeros(5))
    with pytest.raises(ValueError, match="not finite"):
        gaussian_statistics(np.array([[0.0], [np.nan]]))
    with pytest.raises(ValueError, match="3 and of 4 features"):
        frechet_distance(sampled(0, 9, 3), sampled(0, 9, 4))


def features(seed: int, n: int, size: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, size)) @ generator.normal(size=(size, size)) + seed


@pytest.mark.parametrize("counts", [(20, 30), (20, 200), (200, 20), (200, 150)])
def test_the_way_by_inner_products_gives_the_same_number(counts):
    """Fewer samples than the 50 features on both sides, on one, and on none."""
    a, b = (features(seed, n, 50) for seed, n in enumerate(counts))
    covariances = [np.cov(one, rowvar=False) for one in (a, b)]
    by_fidelity = fid_statistics_to_metric(
        *(
            {"mu": one.mean(0), "sigma": covariance}
            for one, covariance in zip((a, b), covariances, strict=True)
        ),
        False,
    )["frechet_inception_distance"]
    found = frechet_between(a, b)
    assert found == pytest.approx(
        frechet_distance(gaussian_statistics(a), gaussian_statistics(b)), rel=1e-5
    )
    assert found == pytest.approx(by_fidelity, rel=1e-3)
    assert found == pytest.approx(frechet_between(b, a), rel=1e-8)
    assert frechet_between(a, a) == pytest.approx(0, abs=1e-8)


def test_distances_by_class():
    """Classes that are moved by 0, 1, 2 in each of 4 features: their squared shifts, 0, 4, 16."""
    generator = np.random.default_rng(0)
    real_labels = np.repeat([0, 1, 2], 50)
    real = generator.normal(size=(150, 4))
    order = generator.permutation(150)
    samples, labels = (real + real_labels[:, None])[order], real_labels[order]
    found = class_distances(samples, labels, real, real_labels, 3)
    assert found.distances == pytest.approx((0, 4, 16), abs=1e-6)
    assert found.mean == pytest.approx(20 / 3)
    assert (found.samples, found.real) == ((50,) * 3, (50,) * 3)


def test_a_rare_class_counts_as_much_and_an_absent_one_is_named():
    labels = np.repeat([0, 1], [300, 10])
    real_labels = np.repeat([0, 1], 100)
    samples, real = features(1, 310, 4), features(1, 200, 4)
    found = class_distances(samples, labels, real, real_labels, 2)
    assert found.mean == pytest.approx(sum(found.distances) / 2)
    assert (found.samples, found.real) == ((300, 10), (100, 100))
    with pytest.raises(ValueError, match="class 1: 0 samples and 100 real images"):
        class_distances(samples, np.zeros(310, int), real, real_labels, 2)


def test_class_labels_that_are_swapped_are_seen_where_the_marginal_is_blind():
    """The paper's point (D.1): FID is zero for right images under wrong labels."""
    labels = np.repeat([0, 1], 200)
    real = np.concatenate([features(1, 200, 6), features(2, 200, 6) + 5])
    swapped = class_distances(real, 1 - labels, real, labels, 2)
    assert frechet_between(real, real) == pytest.approx(0, abs=1e-6)
    assert swapped.mean > 100
