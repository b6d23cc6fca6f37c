"""Improved precision and recall (Kynkaanniemi et al. 2019) in any features.

A set's manifold is the union of balls around its points, each reaching to the point's k-th
neighbour, itself excluded. Precision is the part of the samples inside the real manifold;
recall, the part of the real images inside the samples'. Both depend on n, so both sets are
given the same size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from straightdp.rng import Role, Streams

NEIGHBOURS = 3
BLOCK = 2**22  # squared distances formed at once: 32 MiB of float64
SLACK = 1e-10  # on squared distances, in units of the points' squared norms: rounding


@dataclass(frozen=True)
class PrecisionRecall:
    precision: float
    recall: float
    n: int  # of each set


def _squares(a: torch.Tensor, b: torch.Tensor):
    """Squared distances (rows, len(b)) and their rounding, some rows of `a` at a time.

    By inner products in float64, which costs a hundredth of differences at 2,048 features; the
    rounding of |a|^2 + |b|^2 is all that is lost.
    """
    norms = b.square().sum(1)
    for part in a.split(max(1, BLOCK // len(b))):
        size = part.square().sum(1, keepdim=True) + norms
        yield torch.addmm(size, part, b.T, alpha=-2).clamp_(min=0), size.mul_(SLACK)


def square_radii(features: torch.Tensor, k: int = NEIGHBOURS) -> torch.Tensor:
    """(n,): the squared distance of each of (n, F) to its k-th neighbour, itself excluded.

    `features` are in float64; copies of a point are neighbours like any other.
    """
    if not 1 <= k < len(features):
        raise ValueError(f"n = {len(features)} points have no neighbour number {k}")
    found, start = [], 0
    for squares, _ in _squares(features, features):
        rows = torch.arange(len(squares), device=squares.device)
        squares[rows, start + rows] = torch.inf
        found.append(squares.topk(k, largest=False).values[:, -1])
        start += len(squares)
    return torch.cat(found)


def _covered(points: torch.Tensor, centres: torch.Tensor, square_reach: torch.Tensor) -> float:
    """The part of `points` that lies in a ball (closed) around one of `centres`."""
    inside = sum(
        int((squares <= slack.add_(square_reach)).any(1).sum())
        for squares, slack in _squares(points, centres)
    )
    return inside / len(points)


def precision_recall(
    samples: np.ndarray, real: np.ndarray, k: int = NEIGHBOURS, device: str | None = None
) -> PrecisionRecall:
    """Of features (n, F) and (n, F); ValueError unless the shapes agree and n > k."""
    if samples.shape != real.shape or samples.ndim != 2:
        raise ValueError(f"features of shape {samples.shape} and {real.shape}: sizes must agree")
    if not (np.isfinite(samples).all() and np.isfinite(real).all()):
        raise ValueError("features hold values that are not finite")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    centre = real.mean(0, dtype=np.float64)  # distances stay; rounding shrinks
    ours, theirs = (torch.from_numpy(one - centre).to(device) for one in (samples, real))
    return PrecisionRecall(
        precision=_covered(ours, theirs, square_radii(theirs, k)),
        recall=_covered(theirs, ours, square_radii(ours, k)),
        n=len(samples),
    )


def fixed_subset(count: int, size: int) -> np.ndarray:
    """`size` of the row numbers 0..count-1, always the same ones."""
    if not 0 < size <= count:
        raise ValueError(f"no {size} of {count} rows")
    order = Streams.from_seed("manifold").generator(Role.EVALUATE).permutation(count)
    return np.sort(order[:size])
