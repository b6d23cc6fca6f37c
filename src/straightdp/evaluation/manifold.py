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
BLOCK = 2**24  # distances formed at once: 64 MiB of float32


@dataclass(frozen=True)
class PrecisionRecall:
    precision: float
    recall: float
    n: int  # of each set


def _distances(a: torch.Tensor, b: torch.Tensor):
    """Euclidean distances (rows, len(b)), some rows of `a` at a time.

    From differences, not from inner products: equal rows are at exactly 0, and a pair's
    distance is the same number wherever it is computed.
    """
    for part in a.split(max(1, BLOCK // len(b))):
        yield torch.cdist(part, b, compute_mode="donot_use_mm_for_euclid_dist")


def radii(features: torch.Tensor, k: int = NEIGHBOURS) -> torch.Tensor:
    """(n,): the distance of each of (n, F) to its k-th neighbour, itself excluded."""
    if not 1 <= k < len(features):
        raise ValueError(f"n = {len(features)} points have no neighbour number {k}")
    # A point is at 0 from itself, so with itself its k-th neighbour is number k + 1.
    return torch.cat([part.kthvalue(k + 1).values for part in _distances(features, features)])


def _covered(points: torch.Tensor, centres: torch.Tensor, reach: torch.Tensor) -> float:
    """The part of `points` that lies in a ball (closed) around one of `centres`."""
    inside = sum(int((part <= reach).any(1).sum()) for part in _distances(points, centres))
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
    ours, theirs = (
        torch.from_numpy(np.ascontiguousarray(one, np.float32)).to(device)
        for one in (samples, real)
    )
    return PrecisionRecall(
        precision=_covered(ours, theirs, radii(theirs, k)),
        recall=_covered(theirs, ours, radii(ours, k)),
        n=len(samples),
    )


def fixed_subset(count: int, size: int) -> np.ndarray:
    """`size` of the row numbers 0..count-1, always the same ones."""
    if not 0 < size <= count:
        raise ValueError(f"no {size} of {count} rows")
    order = Streams.from_seed("manifold").generator(Role.EVALUATE).permutation(count)
    return np.sort(order[:size])
