"""The horizon tau: how far from the noise end the moments speak for the data (Section 3.1).

On PUBLIC data, the moment model's velocity is compared with the exact empirical one (the
kernel field of Remark B.5 at bandwidth zero) by their cosine, over t, for each class and for
the null branch (Figure 2a). The velocity cosine has no visible knee on image data, so tau is
taken as the last grid time up to which even the worst class stays above a threshold.

Points x_t are built from held-out records: were a query's own record among the references,
the kernel field would point at it as soon as it is the nearest one.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Computed in float64, since the weights' exponents grow as (1-t)^-2.
    """
    records, x = records.double(), x.double()
    squares = records.square().sum(1)
    logits = (t * (x @ records.T) - t**2 * squares / 2) / (1 - t) ** 2
    return (torch.softmax(logits, dim=1) @ records - x) / (1 - t)


def mean_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean over rows of the cosine between a (B, d) and b (B, d)."""
    return float(torch.cosine_similarity(a.double(), b.double(), dim=1).mean())


def last_time_above(
    times: Sequence[float], cosines: Sequence[float], threshold: float, cap: float
) -> float:
    """The last of `times`, at most `cap`, before a cosine first falls below `threshold`.

    Where none qualifies it is the first time, or `cap` if that is smaller.
    """
    last = times[0]
    for time, cosine in zip(times, cosines, strict=True):
        if cosine < threshold or time > cap:
            break
        last = time
    return min(last, cap)


def _split(z: torch.Tensor, streams: Streams, step: int) -> tuple[torch.Tensor, torch.Tensor]:
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

    The decision is the conditional pair's (Equation 3); the null branch's cosines (Equation 4,
    over all references) are reported. Raises ValueError where a class has fewer than two records.
    """
    classes = len(moments.priors)
    splits = []
    for label in range(classes):
        members = z[labels == label]
        if len(members) < 2:
            raise ValueError(f"class {label} has {len(members)} public records; 2 are needed")
        splits.append(_split(members, streams, label))
    references = torch.cat([reference for _, reference in splits])
    worst, null = [], []
    for index, t in enumerate(grid):
        cosines, points = [], []
        for label, (queries, reference) in enumerate(splits):
            xi = streams.normal(Role.CALIBRATE, 1000 * (index + 1) + label, queries.shape)
            x = interpolate(queries, xi, torch.tensor(t))
            named = torch.full((len(x),), label)
            cosines.append(
                mean_cosine(velocity(moments, x, t, named), empirical_velocity(reference, x, t))
            )
            points.append(x[: max(1, QUERIES // classes)])
        mixed = torch.cat(points)
        worst.append(min(cosines))
        null.append(
            mean_cosine(
                velocity_unconditional(moments, mixed, t), empirical_velocity(references, mixed, t)
            )
        )
    tau = last_time_above(grid, worst, threshold, cap)
    return Horizon(tau, grid, tuple(worst), tuple(null))
