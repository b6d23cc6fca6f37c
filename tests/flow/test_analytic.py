"""The analytic field against Gaussian conditioning, Monte Carlo, and brute-force posteriors.

The references below are dense numpy or scipy expressions written from the definitions; none
uses the eigenbasis that the module under test relies on.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import multivariate_normal

from straightdp.files import load_tensors, save_tensors
from straightdp.flow.analytic import (
    MomentModel,
    noise_end_slope,
    posterior_mean,
    posterior_mean_unconditional,
    posterior_variance_trace,
    responsibilities,
    sample_marginal,
    velocity,
    velocity_unconditional,
)

TIMES = (0.0, 0.05, 0.3, 0.7, 0.95)


def random_model(d=5, rank=2, classes=3, floor=0.3, seed=0) -> MomentModel:
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, rank)))
    priors = rng.dirichlet(np.full(classes, 2.0))
    return MomentModel(
        torch.from_numpy(priors),
        torch.from_numpy(rng.standard_normal((classes, d))),
        torch.from_numpy(basis),
        torch.from_numpy(rng.uniform(0.5, 2.5, rank)),
        floor,
    )


def single_precision(m: MomentModel) -> MomentModel:
    return MomentModel(
        m.priors.float(), m.means.float(), m.basis.float(), m.variances.float(), m.floor
    )


def dense(m: MomentModel) -> np.ndarray:
    """Sigma from its definition: variances on the basis, the floor on its complement."""
    basis = m.basis.numpy().astype(float)
    outside = np.eye(len(basis)) - basis @ basis.T
    return basis @ np.diag(m.variances.numpy().astype(float)) @ basis.T + m.floor * outside


def conditioned(mean, sigma, x, t):
    """(E[z | x_t = x], E[xi | x_t = x], Cov[z | x_t]) from the joint Gaussian of (z, xi, x_t)."""
    d = len(mean)
    eye, zero = np.eye(d), np.zeros((d, d))
    prior = np.block([[sigma, zero], [zero, eye]])  # of (z, xi)
    read = np.hstack([t * eye, (1 - t) * eye])  # x_t = read (z, xi)
    gain = prior @ read.T @ np.linalg.inv(read @ prior @ read.T)
    center = np.concatenate([mean, np.zeros(d)])
    posterior = center + gain @ (x - read @ center)
    return posterior[:d], posterior[d:], (prior - gain @ read @ prior)[:d, :d]


def points(d=5, count=6, seed=1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, d)) * 1.5)


def test_the_dense_covariance():
    m = random_model()
    np.testing.assert_allclose(m.covariance().numpy(), dense(m), atol=1e-14)


@pytest.mark.parametrize("t", TIMES)
def test_equation_3_is_gaussian_conditioning(t):
    m, x = random_model(), points()
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    found = posterior_mean(m, x, t, labels)
    for row, label in enumerate(labels):
        expected, _, _ = conditioned(m.means[label].numpy(), dense(m), x[row].numpy(), t)
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("t", TIMES)
def test_equation_4_weighs_classes_by_their_densities(t):
    m, x = random_model(), points()
    sigma = dense(m)
    marginal = (1 - t) ** 2 * np.eye(5) + t**2 * sigma
    means = m.means.numpy()
    density = np.stack(
        [multivariate_normal(t * mean, marginal).pdf(x.numpy()) for mean in means], axis=1
    )
    weights = density * m.priors.numpy()
    weights /= weights.sum(1, keepdims=True)
    np.testing.assert_allclose(responsibilities(m, x, t).numpy(), weights, atol=1e-12)
    expected = [
        sum(w * conditioned(mean, sigma, row, t)[0] for w, mean in zip(ws, means, strict=True))
        for ws, row in zip(weights, x.numpy(), strict=True)
    ]
    found = posterior_mean_unconditional(m, x, t)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("t", TIMES)
def test_velocities_are_the_posterior_means_of_data_less_noise(t):
    """E[z - xi | x_t], each term conditioned on its own: Equation 2 is not used."""
    m, x = random_model(), points()
    labels = torch.tensor([2, 1, 0, 2, 1, 0])
    sigma, means = dense(m), m.means.numpy()
    fields = np.empty((len(x), 3, 5))
    for row in range(len(x)):
        for label in range(3):
            z, xi, _ = conditioned(means[label], sigma, x[row].numpy(), t)
            fields[row, label] = z - xi
    found = velocity(m, x, t, labels).numpy()
    np.testing.assert_allclose(found, fields[np.arange(6), labels.numpy()], atol=1e-11)
    marginal = (1 - t) ** 2 * np.eye(5) + t**2 * sigma
    weights = m.priors.numpy() * np.stack(
        [multivariate_normal(t * mean, marginal).pdf(x.numpy()) for mean in means], axis=1
    )
    weights /= weights.sum(1, keepdims=True)
    expected = (weights[:, :, None] * fields).sum(1)
    np.testing.assert_allclose(velocity_unconditional(m, x, t).numpy(), expected, atol=1e-11)


def test_both_equations_against_weighted_monte_carlo():
    """Draws of the mixture, weighted by the interpolation's kernel at x: 5 standard errors."""
    rng = np.random.default_rng(5)
    m, t, count = random_model(d=3), 0.4, 500_000
    root = np.linalg.cholesky(dense(m))
    labels = rng.choice(3, size=count, p=m.priors.numpy())
    z = m.means.numpy()[labels] + rng.standard_normal((count, 3)) @ root.T
    for x in points(d=3, count=3):
        kernel = np.exp(-((x.numpy() - t * z) ** 2).sum(1) / (2 * (1 - t) ** 2))
        for label in (None, 0, 1, 2):
            w = kernel if label is None else kernel * (labels == label)
            w = w / w.sum()
            estimate = w @ z
            error = np.sqrt((w**2) @ (z - estimate) ** 2)  # delta method
            if label is None:
                exact = posterior_mean_unconditional(m, x[None], t)[0]
            else:
                exact = posterior_mean(m, x[None], t, torch.tensor([label]))[0]
            assert error.max() < 0.02
            assert np.all(np.abs(estimate - exact.numpy()) < 5 * error)


def test_the_noise_end_is_exact_in_float32():
    """At t = 0 the targets are mu_y and sum_y pi_y mu_y (Proposition 3.1)."""
    m = single_precision(random_model())
    x, labels = points().float(), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.equal(posterior_mean(m, x, 0.0, labels), m.means[labels])
    assert torch.equal(velocity(m, x, torch.zeros(6), labels), m.means[labels] - x)
    average = (m.priors[:, None] * m.means).sum(0)
    torch.testing.assert_close(velocity_unconditional(m, x, 0.0), average - x)


def test_the_data_end_keeps_float32_precision():
    """At 1 - t = 1e-4 dividing a difference by 1 - t would lose four digits; at 1, v = x."""
    m = random_model(d=5)
    single = single_precision(m)
    t, labels = 1 - 1e-4, torch.tensor([0, 1, 2, 0, 1, 2])
    x = m.means[labels] + 0.3 * points()
    expected = np.stack(
        [
            np.subtract(*conditioned(m.means[label].numpy(), dense(m), row.numpy(), t)[:2])
            for row, label in zip(x, labels, strict=True)
        ]
    )
    found = velocity(single, x.float(), torch.full((6,), t, dtype=torch.float64), labels)
    assert np.abs(found.double().numpy() - expected).max() < 3e-6 * np.abs(expected).max()
    torch.testing.assert_close(velocity(m, x, 1.0, labels), x)
    torch.testing.assert_close(velocity_unconditional(m, x, 1.0), x)
    torch.testing.assert_close(posterior_mean(m, x, 1.0, labels), x)


def test_far_points_leave_no_nan():
    m = random_model()
    single = single_precision(m)
    x = points().float() * 1e4
    for t in (0.0, 0.5, 0.9999, 1.0):
        weights = responsibilities(single, x, t)
        torch.testing.assert_close(weights.sum(1), torch.ones(6, dtype=torch.float64))
        assert torch.isfinite(velocity_unconditional(single, x, t)).all()


def test_batched_times_are_scalar_times_row_by_row():
    m, x = random_model(), points()
    t, labels = torch.linspace(0, 0.99, 6).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    for field in (posterior_mean, velocity):
        rows = [field(m, x[i : i + 1], float(t[i]), labels[i : i + 1]) for i in range(6)]
        torch.testing.assert_close(field(m, x, t, labels), torch.cat(rows))
    for field in (posterior_mean_unconditional, velocity_unconditional):
        rows = [field(m, x[i : i + 1], float(t[i])) for i in range(6)]
        torch.testing.assert_close(field(m, x, t), torch.cat(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fields_follow_the_dtype_of_x(dtype):
    m, labels = random_model(), torch.tensor([0, 1, 2, 0, 1, 2])
    single = single_precision(m)
    x = points().to(dtype)
    for model in (m, single):
        results = (
            posterior_mean(model, x, 0.3, labels),
            velocity(model, x, 0.3, labels),
            posterior_mean_unconditional(model, x, 0.3),
            velocity_unconditional(model, x, 0.3),
            sample_marginal(model, labels, 0.3, x),
        )
        assert {result.dtype for result in results} == {dtype}


def skewed_atoms(sigma: np.ndarray, seed=3) -> tuple[np.ndarray, np.ndarray]:
    """A bounded, skewed law of 9 atoms with mean 0 and covariance exactly `sigma`."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(9))
    atoms = rng.exponential(size=(9, len(sigma))) ** 1.5
    atoms -= probabilities @ atoms
    covariance = (atoms * probabilities[:, None]).T @ atoms
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), atoms.T).T
    return whitened @ np.linalg.cholesky(sigma).T, probabilities


def brute_posterior(atoms, probabilities, x, t):
    """E[z | x_t = x] of a discrete law, by Bayes' rule."""
    distances = ((x - t * atoms) ** 2).sum(1)
    return softmax(np.log(probabilities) - distances / (2 * (1 - t) ** 2)) @ atoms


def field_errors(m: MomentModel, sigma, times, kind) -> list[float]:
    """Worst error over classes and points in |x| <= 2 against a law of covariance `sigma`."""
    atoms, probabilities = skewed_atoms(sigma)
    x = points(d=m.dimension)
    x = x / x.norm(dim=1, keepdim=True) * torch.linspace(0.3, 2, 6)[:, None].double()
    errors = []
    for t in times:
        worst = 0.0
        for label in range(3):
            named = torch.full((6,), label)
            found = {"mean": posterior_mean, "velocity": velocity}[kind](m, x, t, named)
            for row in range(6):
                law = atoms + m.means[label].numpy()
                exact = brute_posterior(law, probabilities, x[row].numpy(), t)
                if kind == "velocity":
                    exact = (exact - x[row].numpy()) / (1 - t)
                worst = max(worst, np.linalg.norm(found[row].numpy() - exact))
        errors.append(worst)
    return errors


HALVINGS = [0.004 / 2**k for k in range(4)]


@pytest.mark.parametrize("kind", ["mean", "velocity"])
def test_first_order_is_distribution_free(kind):
    """Corollary 3.2: for a skewed discrete law of covariance Sigma the error is O(t^2).

    Halving t divides it by four. With another covariance it is O(t) alone, and halves: the
    test can tell the two orders apart.
    """
    m = random_model()
    matched = field_errors(m, dense(m), HALVINGS, kind)
    for coarse, fine in zip(matched, matched[1:], strict=False):
        assert coarse / fine == pytest.approx(4, rel=0.1)
    other = field_errors(m, dense(m) + 0.5 * np.eye(5), HALVINGS, kind)
    for coarse, fine in zip(other, other[1:], strict=False):
        assert coarse / fine == pytest.approx(2, rel=0.1)


def test_the_first_order_terms_themselves():
    """mu + t Sigma x and (mu - x) + t (mu - x + Sigma x), by a difference quotient at t = 0."""
    m, x, h = random_model(), points(), 1e-5
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    means, spread = m.means[labels], x @ torch.from_numpy(dense(m))
    slope = (posterior_mean(m, x, h, labels) - means) / h
    torch.testing.assert_close(slope, spread, atol=1e-3, rtol=1e-3)
    slope = (velocity(m, x, h, labels) - (means - x)) / h
    torch.testing.assert_close(slope, means - x + spread, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bandwidth", [0.5, 1e-4])
def test_one_component_a_record_is_the_kernel_field(bandwidth):
    """Remark B.5: Sigma = h^2 I and a class a record give Gaussian kernel weights."""
    rng = np.random.default_rng(7)
    records, x, t = rng.standard_normal((12, 4)), rng.standard_normal((5, 4)), 0.6
    square = bandwidth**2
    m = MomentModel(
        torch.full((12,), 1 / 12, dtype=torch.float64),
        torch.from_numpy(records),
        torch.eye(4, dtype=torch.float64)[:, :2],
        torch.full((2,), square, dtype=torch.float64),
        square,
    )
    variance = (1 - t) ** 2 + t**2 * square
    distances = ((x[:, None] - t * records) ** 2).sum(2)
    weights = softmax(-distances / (2 * variance), axis=1)
    shifted = records + t * square / variance * (x[:, None] - t * records)
    expected = (weights[:, :, None] * shifted).sum(1)
    found = posterior_mean_unconditional(m, torch.from_numpy(x), t).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    if bandwidth < 1e-3:
        np.testing.assert_allclose(found, weights @ records, atol=1e-6)


@pytest.mark.parametrize("t", TIMES)
def test_the_variance_trace_is_that_of_the_conditional_covariance(t):
    m = random_model()
    _, _, covariance = conditioned(m.means[0].numpy(), dense(m), np.zeros(5), t)
    trace = np.trace(covariance)
    assert posterior_variance_trace(m, t) == pytest.approx(trace, rel=1e-10)
    assert noise_end_slope(m, t) == pytest.approx(math.sqrt(trace) / (1 - t), rel=1e-10)


def test_the_variance_at_the_ends():
    m = random_model()
    assert posterior_variance_trace(m, 0.0) == pytest.approx(np.trace(dense(m)))
    assert posterior_variance_trace(m, 1.0) == 0
    assert noise_end_slope(m, 1.0) == pytest.approx(math.sqrt(5))  # tr(Sigma Sigma^-1) = d


@pytest.mark.parametrize("t", [0.0, 0.2, 1.0])
def test_the_marginal_sampler_has_the_marginals_moments(t):
    """It is affine in the normals, so its law is read off it exactly."""
    m, label = random_model(), torch.tensor([1])
    center = sample_marginal(m, label, t, torch.zeros(1, 5).double())
    linear = sample_marginal(m, label.expand(5), t, torch.eye(5).double()) - center
    np.testing.assert_allclose(center[0].numpy(), t * m.means[1].numpy(), atol=1e-14)
    expected = t**2 * dense(m) + (1 - t) ** 2 * np.eye(5)
    np.testing.assert_allclose((linear.T @ linear).numpy(), expected, atol=1e-12)
    x, y = points(count=2)
    sums = sample_marginal(m, label, t, (2 * x - y)[None])
    single = sample_marginal(m, label, t, x[None]), sample_marginal(m, label, t, y[None])
    torch.testing.assert_close(sums, 2 * single[0] - single[1])  # affine indeed


def test_a_model_survives_its_file(tmp_path):
    m = random_model()
    save_tensors(tmp_path / "moments.pt", m.to_tensors())
    loaded = MomentModel.from_tensors(load_tensors(tmp_path / "moments.pt"))
    x, labels = points(), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.equal(velocity(loaded, x, 0.4, labels), velocity(m, x, 0.4, labels))
    assert torch.equal(velocity_unconditional(loaded, x, 0.4), velocity_unconditional(m, x, 0.4))
