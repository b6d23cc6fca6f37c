"""The THA planner: how clip and noise are shared among time buckets (Section 3.2, B.5).

For each beta of a finite family that holds 0, the uniform plan, clips follow
C_beta(t) ~ (w(t) sqrt(V(t)) / (1 - t))^beta with w = 1 and V the posterior-variance trace of
the PUBLIC moments; one noise scale is calibrated for the whole declared workload; a public
proxy scores the candidate; the best score wins. No private data is read.

Where the paper is silent:

* buckets take the shape at their midpoints, normalised to a geometric mean of 1, times
  C_uniform = C_ref x (the median public per-example gradient norm over all buckets);
* the noise's absolute deviation is the same in every bucket, nu = s C_uniform, so
  sigma_k = s / shape_k: a bucket with a larger clip spends more of the budget;
* the proxy is the mean over buckets of signal^2 / (signal^2 + noise^2), where signal is the
  norm of the mean public gradient times the mean clip factor, and noise is nu sqrt(P) / (q N)
  over the P parameters: the part of a step's energy that is not noise;
* candidates are ranked with scales from Renyi accounting (Table 9); the chosen one and the
  uniform one are then calibrated and certified by the exact joint composition, and compared
  again, so the winner is never below uniform at its certified noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np

from straightdp.flow.analytic import MomentModel, noise_end_slope
from straightdp.mechanisms.accounting import (
    Adjacency,
    GaussianRelease,
    SubsampledSteps,
    calibrate_steps,
    epsilon,
    rdp_scale,
)


@dataclass(frozen=True)
class PublicGradients:
    """Public per-example gradient norms by bucket, at the pretrained model.

    Where the release is distilled, training starts elsewhere: one set of public norms an interval
    serves every method.
    """

    edges: tuple[float, ...]  # K + 1 times
    norms: tuple[tuple[float, ...], ...]  # K x records
    mean_norms: tuple[float, ...]  # K: the norm of the mean gradient
    parameters: int  # P

    @property
    def median(self) -> float:
        return float(np.median(np.concatenate([np.array(row) for row in self.norms])))

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> PublicGradients:
        return cls(
            edges=tuple(values["edges"]),
            norms=tuple(tuple(row) for row in values["norms"]),
            mean_norms=tuple(values["mean_norms"]),
            parameters=values["parameters"],
        )


@dataclass(frozen=True)
class Workload:
    """What is declared whatever the shape."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    releases: tuple[GaussianRelease, ...]
    steps: int
    sampling_rate: float
    records: int  # N

    def bucket_steps(self, buckets: int) -> list[int]:
        """Steps go round the buckets in turn: T_k differ by at most one."""
        return [len(range(k, self.steps, buckets)) for k in range(buckets)]


@dataclass(frozen=True)
class PlanChoice:
    """The chosen plan and the evidence for it."""

    beta: float
    clips: tuple[float, ...]
    noise_multipliers: tuple[float, ...]
    scale: float  # s
    certified_epsilon: float  # exact joint composition with the releases
    scores: dict[str, float]  # proxy by beta, at Renyi-calibrated noise
    certified_scores: dict[str, float]  # of the chosen and the uniform plan

    def to_dict(self) -> dict:
        values = asdict(self)
        if self.certified_epsilon == math.inf:
            values["certified_epsilon"] = "inf"
        return values


def shape(moments: MomentModel, edges: Sequence[float], beta: float) -> np.ndarray:
    """(K,) the clip profile at bucket midpoints, of geometric mean 1; beta = 0 is uniform."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    logs = beta * np.log([noise_end_slope(moments, t) for t in middles])
    return np.exp(logs - logs.mean())


def proxy(
    gradients: PublicGradients, clips: Sequence[float], noise: float, workload: Workload
) -> float:
    """U in [0, 1]: the mean over buckets of the signal's share of a step's energy."""
    expected = workload.sampling_rate * workload.records
    deviation = noise * math.sqrt(gradients.parameters) / expected
    shares = []
    for norms, mean, clip in zip(gradients.norms, gradients.mean_norms, clips, strict=True):
        factors = np.minimum(1.0, clip / np.maximum(np.array(norms), 1e-30))
        signal = mean * factors.mean()
        energy = signal**2 + deviation**2
        shares.append(signal**2 / energy if energy > 0 else 0.0)
    return float(np.mean(shares))


def choose_plan(
    gradients: PublicGradients,
    moments: MomentModel,
    workload: Workload,
    clip_reference: float,
    shapes: Sequence[float],
) -> PlanChoice:
    """The plan of the family `shapes` (which must hold 0) with the best public proxy.

    Raises ValueError where the budget leaves nothing for the steps.
    """
    if 0 not in shapes:
        raise ValueError("the family must hold 0, the uniform plan")
    buckets = len(gradients.norms)
    uniform = clip_reference * gradients.median
    counts = workload.bucket_steps(buckets)
    profiles = {beta: shape(moments, gradients.edges, beta) for beta in sorted(set(shapes))}

    def relative(beta: float) -> list[tuple[float, int]]:
        if beta == 0:
            return [(1.0, workload.steps)]
        return [(1 / part, count) for part, count in zip(profiles[beta], counts, strict=True)]

    def score(beta: float, scale: float) -> float:
        return proxy(gradients, uniform * profiles[beta], scale * uniform, workload)

    def calibrated(by, beta: float) -> float:
        return by(
            workload.epsilon,
            workload.delta,
            workload.releases,
            relative(beta),
            workload.sampling_rate,
            workload.adjacency,
        )

    scores: dict[float, float] = {}
    if len(profiles) > 1:
        for beta in profiles:
            with suppress(ValueError):  # out of range: the candidate is discarded (B.5, step 2)
                scores[beta] = score(beta, calibrated(rdp_scale, beta))
    best = max(scores, key=lambda beta: (scores[beta], -beta)) if scores else 0.0
    certified: dict[float, tuple[float, float]] = {}
    for beta in sorted({0.0, float(best)}):
        try:
            scale = calibrated(calibrate_steps, beta)
        except ValueError:
            if beta == 0:
                raise
            continue
        certified[beta] = (score(beta, scale), scale)
    chosen = max(certified, key=lambda beta: (certified[beta][0], -beta))
    scale = certified[chosen][1]
    multipliers = tuple(float(scale / part) for part in profiles[chosen])
    spent = epsilon(
        [
            *workload.releases,
            *(
                SubsampledSteps(f"bucket {k}", workload.sampling_rate, multipliers[k], counts[k])
                for k in range(buckets)
            ),
        ],
        workload.delta,
        workload.adjacency,
    )
    return PlanChoice(
        beta=float(chosen),
        clips=tuple(float(uniform * part) for part in profiles[chosen]),
        noise_multipliers=multipliers,
        scale=float(scale),
        certified_epsilon=spent,
        scores={f"{beta:g}": value for beta, value in scores.items()},
        certified_scores={f"{beta:g}": value for beta, (value, _) in certified.items()},
    )
