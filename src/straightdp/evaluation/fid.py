"""The Fréchet distance between two sets of features (Heusel et al. 2017).

The trace of the matrix root goes through symmetric eigendecompositions in float64, so it is
never complex and rank-deficient covariances are fine. Where there are fewer samples than
features, as in a class, the same number comes from the samples' inner products (Mathiasen and
Hvilshoj 2020), without a covariance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Statistics:
    """Mean (F,) and covariance (F, F, divisor n - 1) of n features, in float64."""

    mean: np.ndarray
    covariance: np.ndarray
    count: int


def gaussian_statistics(features: np.ndarray) -> Statistics:
    """Of features (n, F); ValueError where n < 2 or a value is not finite."""
    values = np.asarray(features, np.float64)
    if values.ndim != 2:
        raise ValueError(f"features have shape {values.shape}, not (n, F)")
    if len(values) < 2:
        raise ValueError(f"n = {len(values)} samples: a covariance needs at least 2")
    if not np.isfinite(values).all():
        raise ValueError("features hold values that are not finite")
    covariance = np.atleast_2d(np.cov(values, rowvar=False))
    return Statistics(values.mean(0), covariance, len(values))


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric root of a positive semi-definite (F, F), rounding below 0 cut off."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a^1/2 C_b C_a^1/2)^1/2), at least 0.

    ValueError where the two differ in their number of features.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"statistics of {len(a.mean)} and of {len(b.mean)} features")
    root = _root(a.covariance)
    inner = root @ b.covariance @ root
    eigenvalues = np.linalg.eigvalsh((inner + inner.T) / 2)
    cross = np.sqrt(np.clip(eigenvalues, 0, None)).sum()
    gap = np.square(a.mean - b.mean).sum()
    return float(max(gap + np.trace(a.covariance) + np.trace(b.covariance) - 2 * cross, 0.0))


def _samples(features: np.ndarray) -> np.ndarray:
    values = np.asarray(features, np.float64)
    if values.ndim != 2 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"features of shape {values.shape}: finite (n, F) with n of at least 2 are needed"
        )
    return values


def frechet_between(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance of the Gaussians of features (n, F) and (m, F).

    With A and B centred, tr (C_a^1/2 C_b C_a^1/2)^1/2 is the nuclear norm of
    A B^T / sqrt((n - 1) (m - 1)), whose size does not depend on F.
    """
    a, b = _samples(a), _samples(b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features of size {a.shape[1]} and of size {b.shape[1]}")
    if min(len(a), len(b)) > a.shape[1]:
        return frechet_distance(gaussian_statistics(a), gaussian_statistics(b))
    centre_a, centre_b = a.mean(0), b.mean(0)
    a, b = (a - centre_a) / np.sqrt(len(a) - 1), (b - centre_b) / np.sqrt(len(b) - 1)
    cross = np.linalg.svd(a @ b.T, compute_uv=False).sum()
    gap = np.square(centre_a - centre_b).sum()
    return float(max(gap + np.square(a).sum() + np.square(b).sum() - 2 * cross, 0.0))


@dataclass(frozen=True)
class ClassDistances:
    """Per-class FID: a distance, a number of samples and of real images a class.

    A covariance of few samples is far from the truth: at these numbers the distance is
    strongly biased upwards, so it compares with nothing but the same measure at the same n.
    """

    distances: tuple[float, ...]
    samples: tuple[int, ...]
    real: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean over classes, each counting the same."""
        return float(np.mean(self.distances))


def class_distances(
    features: np.ndarray,
    labels: np.ndarray,
    real_features: np.ndarray,
    real_labels: np.ndarray,
    classes: int,
) -> ClassDistances:
    """FID between samples and real images of the same class, for each of 0..classes-1.

    Features (n, F) with labels (n,), and (m, F) with (m,). ValueError names a class of which
    either side has fewer than two.
    """
    distances, counts = [], []
    for label in range(classes):
        ours, theirs = features[labels == label], real_features[real_labels == label]
        if min(len(ours), len(theirs)) < 2:
            raise ValueError(
                f"class {label}: {len(ours)} samples and {len(theirs)} real images; "
                "a covariance needs at least 2 of each"
            )
        distances.append(frechet_between(ours, theirs))
        counts.append((len(ours), len(theirs)))
    return ClassDistances(tuple(distances), *map(tuple, zip(*counts, strict=True)))
