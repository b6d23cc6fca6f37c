"""The horizon tau: how far from the noise end the moments speak for the data (Section 3.1).

On PUBLIC data, the moment model's velocity is compared with the exact empirical one (the
kernel field of Remark B.5 at bandwidth zero) by their cosine, over t, for each class and for
the null branch (Figure 2a). The velocity cosine has no visible knee on image data, so tau is
taken as the last grid time up to which even the worst class stays above a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from straightdp.flow.analytic import MomentModel, velocity, velocity_unconditional
from straightdp.flow.path import interpolate
from straightdp.rng import Role, Streams

GRID = tuple(round(0.05 * k, 2) for k in range(1, 20))
QUERIES = 200  # held-out records per class and time, at most
REFERENCES = 1500  # records per class in the empirical field, at most


@dataclass(frozen=True)
class Horizon:
    """tau and the cosines it was read from, by grid time."""

    tau: float
    times: tuple[float, ...]
    worst_class: tuple[float, ...]
    null_branch: tuple[float, ...]

    def to_dict(self) -> dict:
        return {
            "tau": self.tau,
            "times": list(self.times),
            "worst_class": list(self.worst_class),
            "null_branch": list(self.null_branch),
        }


def empirical_velocity(records: torch.Tensor, x: torch.Tensor, t: float) -> torch.Tensor:
    """The exact field of the uniform law on `records` (M, d) at x (B, d), for t < 1.

    E[z | x_t = x] weighs record z by N(x; t z, (1-t)^2 I); Equation 2 gives the velocity.
    """
    squares = records.square().sum(1)
    logits = (t * (x @ records.T) - t**2 * squares / 2) / (1 - t) ** 2
    return (torch.softmax(logits, dim=1) @ records - x) / (1 - t)


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Cosine of two fields over a sample: <a, b> / (|a| |b|), summed over points."""
    return float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-30))


def _halves(z: torch.Tensor, streams: Streams, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and reference records: disjoint, so that no query finds itself in the field."""
    order = torch.from_numpy(streams.generator(Role.CALIBRATE, step).permutation(len(z)))
    queries = max(1, min(QUERIES, len(z) // 4))
    return z[order[:queries]], z[order[queries : queries + REFERENCES]]


def calibrate_horizon(
    moments: MomentModel,
    z: torch.Tensor,
    labels: torch.Tensor,
    streams: Streams,
    cap: float,
    threshold: float,
    grid: tuple[float, ...] = GRID,
) -> Horizon:
    """tau from public vectors z (N, d) and labels (N,); at least the first grid time.

    Raises ValueError where a class has fewer than two records.
    """
    classes = len(moments.priors)
    splits = []
    for label in range(classes):
        members = z[labels == label]
        if len(members) < 2:
            raise ValueError(f"class {label} has {len(members)} public records; 2 are needed")
        splits.append(_halves(members, streams, label))
    references = torch.cat([reference for _, reference in splits])
    worst, null = [], []
    for index, t in enumerate(grid):
        cosines, points = [], []
        for label, (queries, reference) in enumerate(splits):
            xi = streams.normal(Role.CALIBRATE, 1000 * (index + 1) + label, queries.shape)
            x = interpolate(queries, xi, torch.tensor(t))
            named = torch.full((len(x),), label)
            cosines.append(
                _cosine(velocity(moments, x, t, named), empirical_velocity(reference, x, t))
            )
            points.append(x[: max(1, QUERIES // classes)])
        mixed = torch.cat(points)
        worst.append(min(cosines))
        null.append(
            _cosine(
                velocity_unconditional(moments, mixed, t), empirical_velocity(references, mixed, t)
            )
        )
    tau = grid[0]
    for t, cosine in zip(grid, worst, strict=True):
        if cosine < threshold or t > cap:
            break
        tau = t
    return Horizon(min(tau, cap), grid, tuple(worst), tuple(null))
