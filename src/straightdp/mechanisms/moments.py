"""Stage 1's mechanism: class-conditional moments, released once (Section 3.1, Appendix B.3).

Each record contributes its class indicator and one feature vector, P(z - m) clipped to
R_feat, where the basis P and the centre m are PUBLIC. Projection and clip come before the
noise, so the proof of Proposition B.9 holds with R_feat in the place of R:

* counts and sums, whitened to (n_y, S_y / (2 R_feat)): declared joint sensitivity 2 (the
  exact worst case is sqrt(5/2) for replacement, sqrt(5)/2 for adding or removing a record);
* the second moment (1/N) sum f f^T: declared 2 R_feat^2 / N (exactly, sqrt(2) R_feat^2 / N
  for replacement, R_feat^2 / N for adding or removing), N being a public constant and never
  a realised count.

Both get Gaussian noise of the same multiplier. All that follows is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from straightdp.data.pixels import project_to_ball
from straightdp.flow.analytic import MomentModel
from straightdp.rng import Role, Streams

COUNT_SUM_SENSITIVITY = 2.0
SMALL_CLASS = 3.0  # a class below this many noise deviations falls back to the global mean


class Charges(Protocol):
    def charge(self, line: dict) -> None: ...


@dataclass(frozen=True)
class FeatureMap:
    """f(z) = clip(P (z - m), R_feat), record by record: everything in it is public."""

    mean: torch.Tensor  # m, (d,)
    components: torch.Tensor  # P, (p, d), orthonormal rows
    clip: float  # R_feat

    def features(self, z: torch.Tensor) -> torch.Tensor:
        """(N, d) -> (N, p) in float64, every row of norm at most `clip`."""
        return project_to_ball(((z - self.mean) @ self.components.T).double(), self.clip)


@dataclass(frozen=True)
class ReleaseSpec:
    """What is declared of the release before any private record is read."""

    classes: int  # Y
    records: int  # N, the declared public constant
    rank: int  # r, applied after the noise
    floor: float  # lambda_0

    def second_moment_sensitivity(self, clip: float) -> float:
        return 2 * clip**2 / self.records


def fit_feature_map(z: torch.Tensor, components: int, quantile: float) -> FeatureMap:
    """PCA basis and feature clip from PUBLIC vectors z (N, d).

    R_feat is the `quantile` of ||P(z - m)|| over these vectors. Raises ValueError where they
    do not span `components` directions or all coincide.
    """
    if not 1 <= components <= min(z.shape):
        raise ValueError(
            f"components must lie in 1..{min(z.shape)} for {len(z)} vectors of {z.shape[1]} "
            f"dimensions, not {components}"
        )
    mean = z.double().mean(0)
    centred = z.double() - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    rows = vectors.T.flip(0)[:components].contiguous()
    clip = float(np.quantile((centred @ rows.T).norm(dim=1).numpy(), quantile))
    if not clip > 0:
        raise ValueError(f"clip_quantile {quantile} of the public norms is {clip}, not positive")
    return FeatureMap(mean.float(), rows.float(), clip)


def count_sum_statistic(
    features: torch.Tensor, labels: torch.Tensor, classes: int, radius: float
) -> torch.Tensor:
    """u of Proposition B.9, (Y, 1 + p) in float64: counts, then sums over 2 R."""
    features = features.double() / (2 * radius)
    rows = torch.cat([features.new_ones(len(features), 1), features], dim=1)
    return torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, labels, rows)


def second_moment_statistic(features: torch.Tensor, records: int) -> torch.Tensor:
    """(1/N) sum_i f_i f_i^T, (p, p) in float64, with the declared N."""
    features = features.double()
    return features.T @ features / records


def release_charges(spec: ReleaseSpec, clip: float, noise_multiplier: float) -> list[dict]:
    """The transcript's lines of a release, in the order of its two mechanisms."""
    mechanisms = (
        ("class_counts_and_sums", COUNT_SUM_SENSITIVITY, "nothing (sums, whitened)"),
        ("second_moment", spec.second_moment_sensitivity(clip), "declared records"),
    )
    return [
        {
            "kind": "gaussian",
            "name": name,
            "sensitivity": sensitivity,
            "noise_std": noise_multiplier * sensitivity,
            "noise_multiplier": noise_multiplier,
            "normalised_by": normaliser,
        }
        for name, sensitivity, normaliser in mechanisms
    ]


def release(
    z: torch.Tensor,
    labels: torch.Tensor,
    feature_map: FeatureMap,
    spec: ReleaseSpec,
    noise_multiplier: float,
    streams: Streams,
    ledger: Charges,
) -> MomentModel:
    """Release the moments of private z (N, d), labels (N,): two Gaussian mechanisms.

    Each has noise of deviation `noise_multiplier` times its declared sensitivity and is
    charged to `ledger` before that noise is drawn. Raises ValueError, before any charge, where
    there are more records than the declared N, a label outside the classes, or a rank above p.
    """
    if len(z) > spec.records:
        raise ValueError(
            f"the private set has {len(z)} records, more than the declared {spec.records} "
            "(data.private_records)"
        )
    if not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be finite and not negative: {noise_multiplier}")
    _check(z, labels, feature_map, spec)
    features, clip = feature_map.features(z), feature_map.clip
    values = (
        count_sum_statistic(features, labels, spec.classes, clip),
        second_moment_statistic(features, spec.records),
    )
    noisy = []
    for index, line in enumerate(release_charges(spec, clip, noise_multiplier)):
        ledger.charge(line)
        draws = streams.generator(Role.RELEASE, index).standard_normal(tuple(values[index].shape))
        noisy.append(values[index] + line["noise_std"] * torch.from_numpy(draws))
    return post_process(
        noisy[0], noisy[1], feature_map, spec, noise_multiplier * COUNT_SUM_SENSITIVITY
    )


def _check(
    z: torch.Tensor, labels: torch.Tensor, feature_map: FeatureMap, spec: ReleaseSpec
) -> None:
    components = len(feature_map.components)
    if not 1 <= spec.rank <= components:
        raise ValueError(f"rank must lie in 1..{components} (the components), not {spec.rank}")
    if not spec.floor > 0:
        raise ValueError(f"floor must be positive, not {spec.floor}")
    if len(labels) != len(z):
        raise ValueError(f"{len(z)} records have {len(labels)} labels")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < spec.classes:
        raise ValueError(f"labels must lie in 0..{spec.classes - 1}")


def exact_moments(
    z: torch.Tensor, labels: torch.Tensor, feature_map: FeatureMap, spec: ReleaseSpec
) -> MomentModel:
    """The same moments without noise, over the realised count: for PUBLIC data only."""
    _check(z, labels, feature_map, spec)
    features = feature_map.features(z)
    counts = count_sum_statistic(features, labels, spec.classes, feature_map.clip)
    second = second_moment_statistic(features, len(z))
    return post_process(counts, second, feature_map, spec, 0.0)


def post_process(
    whitened: torch.Tensor,
    second: torch.Tensor,
    feature_map: FeatureMap,
    spec: ReleaseSpec,
    count_deviation: float,
) -> MomentModel:
    """From the two noised statistics to a moment model; touches no data.

    Counts are clamped at 1. A class whose noisy count does not stand out of the noise takes
    the released global mean. Offsets are clipped to R_feat again. Sigma is the second moment
    less the part between classes, symmetrised, projected onto the positive semi-definite
    matrices, cut to rank r, and floored at lambda_0 in every direction (the floor is positive,
    so it includes that projection). `count_deviation` is the noise on a count.
    """
    clip, rank = feature_map.clip, spec.rank
    raw, sums = whitened[:, 0], whitened[:, 1:] * (2 * clip)
    counts = raw.clamp_min(1.0)
    offsets = project_to_ball(sums / counts[:, None], clip)
    overall = project_to_ball((sums.sum(0) / counts.sum())[None], clip)
    small = raw < max(1.0, SMALL_CLASS * count_deviation)
    offsets = torch.where(small[:, None], overall, offsets)
    priors = counts / counts.sum()
    between = (offsets * priors[:, None]).T @ offsets
    within = second - between
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    components = feature_map.components.double()
    return MomentModel(
        priors=priors.float(),
        means=(feature_map.mean.double() + offsets @ components).float(),
        basis=(components.T @ vectors).float(),
        variances=values.clamp_min(spec.floor).float(),
        floor=spec.floor,
    )
