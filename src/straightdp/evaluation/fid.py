"""The Fréchet distance between two sets of features (Heusel et al. 2017).

The trace of the matrix root goes through symmetric eigendecompositions in float64, so it is
never complex and rank-deficient covariances are fine.
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
