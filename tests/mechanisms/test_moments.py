"""The moment release: sensitivities by search, charges and noise by measurement, numpy moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from straightdp.mechanisms import moments as module
from straightdp.mechanisms.moments import (
    FeatureMap,
    ReleaseSpec,
    count_sum_statistic,
    exact_moments,
    fit_feature_map,
    post_process,
    release,
    second_moment_statistic,
)
from straightdp.rng import Streams

D, P, CLASSES = 6, 4, 3


class Charges(list):
    charge = list.append


def feature_map(clip=2.0, d=D, p=P, seed=0) -> FeatureMap:
    rng = np.random.default_rng(seed)
    rows = np.linalg.qr(rng.standard_normal((d, p)))[0].T
    mean = rng.standard_normal(d)
    return FeatureMap(torch.from_numpy(mean).float(), torch.from_numpy(rows).float(), clip)


def mixture(count=600, d=D, seed=1) -> tuple[torch.Tensor, torch.Tensor]:
    """Unequal classes with different means and one correlated covariance."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=count, p=[0.5, 0.3, 0.2])
    means = 1.5 * rng.standard_normal((CLASSES, d))
    z = means[labels] + rng.standard_normal((count, d)) @ rng.standard_normal((d, d))
    return torch.from_numpy(z).float(), torch.from_numpy(labels)


# ---- public feature map


def test_features_are_projected_then_clipped():
    f, z = feature_map(clip=1.5), mixture()[0]
    projected = (z.numpy() - f.mean.numpy()).astype(float) @ f.components.numpy().T
    norms = np.linalg.norm(projected, axis=1)
    assert 0.1 < (norms > 1.5).mean() < 1  # both sides of the clip are exercised
    expected = projected * np.minimum(1, 1.5 / norms)[:, None]
    np.testing.assert_allclose(f.features(z).numpy(), expected, atol=1e-5)


def test_no_record_escapes_the_clip_or_touches_another():
    f, z = feature_map(clip=1.5), mixture(20)[0]
    wild = z.clone()
    wild[3], wild[5], wild[7] = float("nan"), float("inf"), 1e30
    wild[9, 0] = -float("inf")
    features = f.features(wild)
    assert float(features.norm(dim=1).max()) <= 1.5 * (1 + 1e-12)
    kept = [row for row in range(20) if row not in (3, 5, 7, 9)]
    assert torch.equal(features[kept], f.features(z)[kept])


def test_the_public_basis_spans_the_leading_directions():
    z = mixture()[0]
    f = fit_feature_map(z, P, quantile=0.5)
    centred = z.numpy().astype(float) - z.numpy().astype(float).mean(0)
    leading = np.linalg.svd(centred, full_matrices=False)[2][:P]
    rows = f.components.numpy().astype(float)
    np.testing.assert_allclose(rows @ rows.T, np.eye(P), atol=1e-6)
    np.testing.assert_allclose(rows.T @ rows, leading.T @ leading, atol=1e-5)
    assert f.clip == pytest.approx(np.median(np.linalg.norm(centred @ leading.T, axis=1)), rel=1e-5)
    clipped = f.features(z).norm(dim=1) >= f.clip * (1 - 1e-9)
    assert float(clipped.double().mean()) == pytest.approx(0.5, abs=0.01)


def test_bad_public_settings_are_named():
    z = mixture(10)[0]
    with pytest.raises(ValueError, match=r"components must lie in 1\.\.6 for 10 vectors"):
        fit_feature_map(z, 7, 0.9)
    with pytest.raises(ValueError, match="clip_quantile 0.9 .* not positive"):
        fit_feature_map(torch.ones(10, D), 2, 0.9)


# ---- statistics and their sensitivities (Proposition B.9)


def test_statistics_against_a_loop():
    f, (z, labels) = feature_map(), mixture(50)
    features = f.features(z)
    counts, sums, second = np.zeros(CLASSES), np.zeros((CLASSES, P)), np.zeros((P, P))
    for row, label in zip(features.numpy(), labels.tolist(), strict=True):
        counts[label] += 1
        sums[label] += row
        second += np.outer(row, row)
    u = count_sum_statistic(features, labels, CLASSES, f.clip)
    np.testing.assert_allclose(u[:, 0].numpy(), counts)
    np.testing.assert_allclose(u[:, 1:].numpy(), sums / (2 * f.clip), atol=1e-12)
    # N is what was declared, here more than there is
    np.testing.assert_allclose(second_moment_statistic(features, 80).numpy(), second / 80)


def moved(f: FeatureMap, data, other, declared: int) -> tuple[float, float]:
    """How far both statistics lie apart on two data sets."""
    u, m = [], []
    for z, labels in (data, other):
        features = f.features(z)
        u.append(count_sum_statistic(features, labels, CLASSES, f.clip))
        m.append(second_moment_statistic(features, declared))
    return float((u[0] - u[1]).norm()), float((m[0] - m[1]).norm())


def neighbours(f: FeatureMap, rng):
    """Records to swap: wild, antipodal, orthogonal at the maximal norm, and null."""
    lift = f.components.numpy().astype(float)
    for trial in range(400):
        directions = np.linalg.qr(rng.standard_normal((P, P)))[0]
        first, second = directions[0], directions[1]
        if trial % 3 == 0:
            second = -first
        elif trial % 3 == 1:
            second = rng.standard_normal(P)
        lengths = rng.choice([0.0, 0.5, 1.0, 40.0], size=2) * f.clip
        pair = np.stack([first, second]) * lengths[:, None] @ lift + f.mean.numpy()
        yield pair + (trial % 5 == 0) * rng.standard_normal((2, D)), rng.integers(CLASSES, size=2)


@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_no_pair_of_neighbours_exceeds_the_declared_sensitivities(clip):
    f, (z, labels), rng = feature_map(clip), mixture(40), np.random.default_rng(2)
    declared = 41
    spec = ReleaseSpec(CLASSES, declared, 2, 0.01)
    worst = {"replace": [0.0, 0.0], "add": [0.0, 0.0]}
    for pair, ys in neighbours(f, rng):
        records = torch.from_numpy(pair).float()
        one, two = (
            (torch.cat([z, records[i : i + 1]]), torch.cat([labels, torch.tensor([int(ys[i])])]))
            for i in range(2)
        )
        for name, other in (("replace", two), ("add", (z, labels))):
            for index, size in enumerate(moved(f, one, other, declared)):
                worst[name][index] = max(worst[name][index], size)
    bound = (module.COUNT_SUM_SENSITIVITY, spec.second_moment_sensitivity(clip))
    assert bound == (2.0, pytest.approx(2 * clip**2 / declared))
    # The exact worst cases are found by the search, and none lies above what is declared.
    square = clip**2 / declared
    exact = {
        "replace": (math.sqrt(5 / 2), math.sqrt(2) * square),
        "add": (math.sqrt(5) / 2, square),
    }
    for name, sizes in worst.items():
        assert sizes == [pytest.approx(value, rel=1e-5) for value in exact[name]]
        assert all(size <= limit for size, limit in zip(sizes, bound, strict=True))


# ---- the mechanism


def captured(monkeypatch, z, labels, f, spec, sigma, seed):
    """The noised statistics of a release and its count deviation, as post-processing gets them."""
    seen = []
    monkeypatch.setattr(module, "post_process", lambda *arguments: seen.append(arguments))
    charges = Charges()
    release(z, labels, f, spec, sigma, Streams.from_seed("noise", seed), charges)
    u, m, _, _, count_deviation = seen[0]
    return u, m, count_deviation, charges


def test_noise_has_the_charged_deviation_on_every_entry(monkeypatch):
    f, sigma, declared = feature_map(clip=1.7, d=40, p=30), 2.5, 500
    z, labels = mixture(400, d=40)
    spec = ReleaseSpec(CLASSES, declared, 5, 0.01)
    features = f.features(z).numpy()
    whitened = np.zeros((CLASSES, 31))
    for row, label in zip(features, labels.tolist(), strict=True):
        whitened[label] += np.concatenate([[1], row / (2 * 1.7)])
    second = features.T @ features / declared
    parts = {"counts": [], "sums": [], "second": []}
    for seed in range(40):
        u, m, count_deviation, charges = captured(monkeypatch, z, labels, f, spec, sigma, seed)
        parts["counts"].append(u.numpy()[:, 0] - whitened[:, 0])
        parts["sums"].append(u.numpy()[:, 1:] - whitened[:, 1:])
        parts["second"].append(m.numpy() - second)
    deviation = {"counts": 2 * sigma, "sums": 2 * sigma, "second": sigma * 2 * 1.7**2 / declared}
    assert [line["noise_std"] for line in charges] == pytest.approx([5.0, deviation["second"]])
    assert count_deviation == pytest.approx(deviation["counts"])  # what decides on small classes
    for name, values in parts.items():
        standard = np.stack(values) / deviation[name]
        assert kstest(standard.ravel(), "norm").pvalue > 0.01
        assert standard.std() == pytest.approx(1, abs=4 / math.sqrt(2 * standard.size))
    # The second moment's noise is a full matrix: entries across the diagonal are independent.
    noise = np.stack(parts["second"])
    upper = np.triu_indices(30, 1)
    across = np.corrcoef(noise[:, upper[0], upper[1]].ravel(), noise[:, upper[1], upper[0]].ravel())
    assert abs(across[0, 1]) < 4 / math.sqrt(40 * 435)
    # The mechanisms share no numbers: neither in the order drawn, nor anywhere.
    first = np.concatenate([np.stack(parts["counts"])[:, :, None], np.stack(parts["sums"])], axis=2)
    first, second = (x.reshape(40, -1) / x.std() for x in (first, noise))
    shared = np.corrcoef(first.ravel(), second[:, : first.shape[1]].ravel())[0, 1]
    assert abs(shared) < 4 / math.sqrt(first.size)
    assert np.abs(first[0][:, None] - second[0]).min() > 1e-9


def test_each_mechanism_is_charged_before_its_noise_is_drawn():
    events = []

    class Recording(Streams):
        def generator(self, role, step=0, sub=0):
            events.append("noise")
            return super().generator(role, step, sub)

    class Ledger:
        def charge(self, line):
            events.append(line["name"])

    z, labels = mixture()
    spec = ReleaseSpec(CLASSES, 600, 2, 0.01)
    release(z, labels, feature_map(), spec, 1.0, Recording(Streams.from_seed(0).key), Ledger())
    assert events == ["class_counts_and_sums", "noise", "second_moment", "noise"]


def test_a_refused_charge_draws_no_noise():
    class Refusing:
        def charge(self, line):
            raise RuntimeError("spent")

    class Silent(Streams):
        def generator(self, *address):
            raise AssertionError("noise was drawn")

    z, labels = mixture()
    with pytest.raises(RuntimeError, match="spent"):
        release(
            z, labels, feature_map(), ReleaseSpec(CLASSES, 600, 2, 0.01), 1.0, Silent(1), Refusing()
        )


def test_charges_depend_on_public_constants_alone():
    """Sensitivity, deviation and multiplier from R_feat and the declared N, on any data."""
    spec = ReleaseSpec(CLASSES, 1000, 2, 0.01)
    lines = []
    for count, seed in ((600, 1), (1, 2)):
        charges = Charges()
        release(*mixture(count, seed=seed), feature_map(), spec, 3.0, Streams(seed), charges)
        lines.append(charges)
    assert lines[0] == lines[1]
    for line, sensitivity in zip(lines[0], (2.0, 2 * 2.0**2 / 1000), strict=True):
        assert line["kind"] == "gaussian"
        assert line["sensitivity"] == pytest.approx(sensitivity)
        assert line["noise_std"] == pytest.approx(3.0 * sensitivity)
        assert line["noise_multiplier"] == 3.0
        assert isinstance(line["normalised_by"], str) and line["normalised_by"]


def test_a_release_repeats_under_its_key_only():
    z, labels = mixture()
    spec = ReleaseSpec(CLASSES, 600, 2, 0.01)
    first, again, other = (
        release(z, labels, feature_map(), spec, 1.0, Streams(key), Charges()) for key in (1, 1, 2)
    )
    assert torch.equal(first.means, again.means) and torch.equal(first.basis, again.basis)
    assert not torch.equal(first.means, other.means)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": 599}, "600 records, more than the declared 599"),
        ({"classes": 2}, r"labels must lie in 0\.\.1"),
        ({"rank": P + 1}, r"rank must lie in 1\.\.4 \(the components\), not 5"),
        ({"floor": 0.0}, "floor must be positive"),
        ({"noise": -1.0}, "noise_multiplier must be finite and not negative"),
        ({"noise": math.nan}, "noise_multiplier must be finite and not negative"),
        ({"labels": 10}, "600 records have 10 labels"),
    ],
)
def test_bad_input_is_refused_before_anything_is_charged(change, message):
    z, labels = mixture()
    fields = {"classes": CLASSES, "records": 600, "rank": 2, "floor": 0.01} | {
        key: value for key, value in change.items() if key not in ("noise", "labels")
    }
    charges = Charges()
    with pytest.raises(ValueError, match=message):
        release(
            z,
            labels[: change.get("labels")],
            feature_map(),
            ReleaseSpec(**fields),
            change.get("noise", 1.0),
            Streams(0),
            charges,
        )
    assert charges == []


# ---- post-processing


def numpy_moments(z, labels, f: FeatureMap):
    """Priors, means and pooled within-class covariance of the lifted features."""
    projected = f.features(z).numpy() @ f.components.numpy().astype(float)
    priors, means, within = [], [], 0.0
    for label in range(CLASSES):
        members = projected[labels.numpy() == label]
        priors.append(len(members) / len(z))
        means.append(f.mean.numpy() + members.mean(0))
        within = within + priors[-1] * np.cov(members.T, bias=True)
    return np.array(priors), np.stack(means), within


@pytest.mark.parametrize("clip", [1.5, 100.0])
@pytest.mark.parametrize("private", [False, True])
def test_without_noise_they_are_the_class_moments(clip, private):
    """The public moments, and the release as its noise vanishes, at full rank."""
    f, (z, labels) = feature_map(clip), mixture()
    spec = ReleaseSpec(CLASSES, len(z), P, 1e-3)
    if private:
        m = release(z, labels, f, spec, 1e-9, Streams(3), Charges())
    else:
        m = exact_moments(z, labels, f, spec)
    priors, means, within = numpy_moments(z, labels, f)
    np.testing.assert_allclose(m.priors.numpy(), priors, atol=1e-6)
    np.testing.assert_allclose(m.means.numpy(), means, atol=1e-5)
    rows = f.components.numpy().astype(float)
    sigma = within + 1e-3 * (np.eye(D) - rows.T @ rows)  # the floor outside the basis
    np.testing.assert_allclose(m.covariance().numpy(), sigma, atol=1e-5 * np.abs(sigma).max())


def test_public_moments_divide_by_the_realised_count():
    f, (z, labels) = feature_map(), mixture()
    declared = [exact_moments(z, labels, f, ReleaseSpec(CLASSES, n, 2, 0.01)) for n in (600, 9000)]
    assert torch.equal(declared[0].variances, declared[1].variances)


def test_rank_keeps_the_largest_variances_and_the_floor_the_rest():
    f, (z, labels) = feature_map(clip=100.0), mixture()
    _, _, within = numpy_moments(z, labels, f)
    values, vectors = np.linalg.eigh(within)
    m = exact_moments(z, labels, f, ReleaseSpec(CLASSES, len(z), 2, 0.05))
    top = vectors[:, -2:]
    expected = 0.05 * (np.eye(D) - top @ top.T) + (top * values[-2:]) @ top.T
    np.testing.assert_allclose(m.covariance().numpy(), expected, atol=1e-4)
    assert m.basis.shape == (D, 2) and m.floor == 0.05
    torch.testing.assert_close(m.basis.T @ m.basis, torch.eye(2), atol=1e-5, rtol=0)


def processed(counts, sums, second=None, deviation=0.0, clip=2.0, rank=P, floor=0.01):
    """Post-process plain (not whitened) counts and sums."""
    f = feature_map(clip)
    counts, sums = np.asarray(counts, float), np.asarray(sums, float)
    whitened = torch.from_numpy(np.column_stack([counts, sums / (2 * clip)]))
    second = torch.eye(P).double() if second is None else torch.from_numpy(second)
    spec = ReleaseSpec(CLASSES, 100, rank, floor)
    m = post_process(whitened, second, f, spec, deviation)
    offsets = (m.means - f.mean).double().numpy() @ f.components.numpy().T
    return m, offsets


def test_empty_and_negative_classes_take_the_global_mean():
    sums = np.array([[40.0, 0, 0, 0], [0.1, 0, 0, 0], [0, 9.0, 0, 0]])
    for count in (0.0, -7.3, 0.4):
        m, offsets = processed([80.0, count, 19.0], sums)
        total = 80 + 1 + 19  # the small count is clamped at 1
        np.testing.assert_allclose(m.priors.numpy(), np.array([80, 1, 19]) / total, atol=1e-6)
        np.testing.assert_allclose(offsets[0], sums[0] / 80, atol=1e-5)
        np.testing.assert_allclose(offsets[1], sums.sum(0) / total, atol=1e-5)
        np.testing.assert_allclose(offsets[2], sums[2] / 19, atol=1e-5)


def test_a_count_within_three_deviations_of_noise_counts_as_small():
    sums = np.array([[40.0, 0, 0, 0], [20.0, 0, 0, 0], [0, 9.0, 0, 0]])
    for count, falls_back in ((29.9, True), (30.1, False)):
        _, offsets = processed([80.0, count, 45.0], sums, deviation=10.0)
        expected = sums.sum(0) / (125 + count) if falls_back else sums[1] / count
        np.testing.assert_allclose(offsets[1], expected, atol=1e-5)


def test_noisy_means_stay_within_the_feature_ball():
    sums = np.array([[9000.0, 0, 0, 0], [-300.0, 400.0, 0, 0], [1.0, 1, 0, 0]])
    m, offsets = processed([10.0, 20.0, 20.0], sums, clip=2.0)
    np.testing.assert_allclose(offsets[0], [2, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(offsets[1], [-1.2, 1.6, 0, 0], atol=1e-5)
    np.testing.assert_allclose(offsets[2], [0.05, 0.05, 0, 0], atol=1e-5)
    assert torch.isfinite(m.means).all()


def test_an_indefinite_asymmetric_moment_becomes_the_nearest_floored_one():
    """Eigenvalues of the symmetric part, below the floor raised to it; asymmetry drops out."""
    rng = np.random.default_rng(4)
    directions = np.linalg.qr(rng.standard_normal((P, P)))[0]
    symmetric = (directions * [3.0, 0.5, -0.2, -4.0]) @ directions.T
    skew = rng.standard_normal((P, P))
    m, _ = processed([50.0, 30.0, 20.0], np.zeros((3, P)), symmetric + skew - skew.T)
    rows = feature_map().components.numpy().astype(float)
    inside = rows @ m.covariance().double().numpy() @ rows.T
    expected = (directions * [3.0, 0.5, 0.01, 0.01]) @ directions.T
    np.testing.assert_allclose(inside, expected, atol=1e-5)
    assert np.linalg.eigvalsh(m.covariance().double().numpy()).min() > 0.0099


def test_overwhelming_noise_still_gives_a_usable_model():
    """At any noise the result is a law: priors, bounded means, positive definite Sigma."""
    f, (z, labels) = feature_map(), mixture()
    for key in range(5):
        m = release(z, labels, f, ReleaseSpec(CLASSES, 600, 3, 0.01), 1e5, Streams(key), Charges())
        assert float(m.priors.min()) > 0 and float(m.priors.sum()) == pytest.approx(1, abs=1e-6)
        assert float((m.means - f.mean).norm(dim=1).max()) <= 2.0 * (1 + 1e-5)
        assert np.linalg.eigvalsh(m.covariance().double().numpy()).min() > 0
