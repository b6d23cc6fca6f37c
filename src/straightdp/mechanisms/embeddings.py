"""The embedding family's mechanism: one class-wise mean embedding, released once.

M = (1/N) sum_i onehot(y_i) phi(x_i)^T (Harder et al. 2021), with N the declared constant
and phi a public map of norm at most 1 (:mod:`straightdp.mechanisms.feature_maps`). A record
contributes one row of norm at most 1/N, so adding or removing one moves M by at most 1/N,
and replacing one by at most 2/N (two opposite features in one class reach it). One Gaussian
mechanism; all that follows is post-processing.
"""

from __future__ import annotations

import math

import torch

from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.feature_maps import FeatureMap
from straightdp.mechanisms.moments import Charges
from straightdp.rng import Role, Streams

CHUNK = 1000  # records whose features are formed together


def embedding_sensitivity(records: int, adjacency: Adjacency) -> float:
    """Of the mean embedding, in Euclidean norm, under the run's own adjacency."""
    return (2 if adjacency is Adjacency.REPLACE_ONE else 1) / records


def embedding_charge(records: int, noise_multiplier: float, adjacency: Adjacency) -> dict:
    """The release's line in the transcript."""
    sensitivity = embedding_sensitivity(records, adjacency)
    return {
        "kind": "gaussian",
        "name": "mean_embedding",
        "sensitivity": sensitivity,
        "noise_std": noise_multiplier * sensitivity,
        "noise_multiplier": noise_multiplier,
        "normalised_by": "declared records",
    }


def into_cube(x: torch.Tensor) -> torch.Tensor:
    """Each value onto [0, 1], what is not a number to 0: so that no feature escapes norm 1."""
    return torch.nan_to_num(x, nan=0.0).clamp(0, 1)


@torch.no_grad()
def mean_embedding(
    feature_map: FeatureMap, x: torch.Tensor, labels: torch.Tensor, classes: int, records: int
) -> torch.Tensor:
    """M, (Y, F) in float64 on the CPU, of x (n, d) and labels (n,), over the declared `records`.

    Values of x outside [0, 1] are brought there first, record by record.
    """
    total = torch.zeros(classes, feature_map.size, dtype=torch.float64)
    for part, ys in zip(x.split(CHUNK), labels.split(CHUNK), strict=True):
        total += feature_map.class_sums(into_cube(part), ys, classes).double().cpu()
    return total / records


def release_embedding(
    x: torch.Tensor,
    labels: torch.Tensor,
    feature_map: FeatureMap,
    classes: int,
    records: int,
    noise_multiplier: float,
    adjacency: Adjacency,
    streams: Streams,
    ledger: Charges,
) -> torch.Tensor:
    """Release the embedding of private x (n, d) in [0, 1], labels (n,): (Y, F) in float64.

    The Gaussian noise has `noise_multiplier` times the declared sensitivity for deviation and
    is charged to `ledger` before it is drawn. Raises ValueError, before any charge, where
    there are more records than the declared N, or a label is outside the classes.
    """
    if len(x) > records:
        raise ValueError(
            f"the private set has {len(x)} records, more than the declared {records} "
            "(data.private_records)"
        )
    if not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be finite and not negative: {noise_multiplier}")
    if len(labels) != len(x):
        raise ValueError(f"{len(x)} records have {len(labels)} labels")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}")
    value = mean_embedding(feature_map, x, labels, classes, records)
    line = embedding_charge(records, noise_multiplier, adjacency)
    ledger.charge(line)
    draws = streams.generator(Role.RELEASE).standard_normal(tuple(value.shape))
    return value + line["noise_std"] * torch.from_numpy(draws)
