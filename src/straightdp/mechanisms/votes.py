"""Private Evolution's mechanism: noisy histograms of nearest-neighbour votes (Lin et al. 2024).

Each private record votes once, for the candidate of its own class that lies nearest to it in
a feature space fixed beforehand. The histograms of all classes are one vector, and a record
adds 1 to one entry of it: L2 sensitivity 1 for adding or removing a record, sqrt(2) for
replacing one (which may move its vote to any entry, of another class too).

A round releases one histogram through a Gaussian. The candidates of a round come from the
rounds before it, so the releases compose adaptively; T of them at multiplier s cost what one
does at s / sqrt(T). All that follows a release is post-processing.

>>> round(sensitivity(Adjacency.REPLACE_ONE), 4)
1.4142
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from straightdp.mechanisms.accounting import Adjacency
from straightdp.rng import Role, Streams

CHUNK = 2000  # records compared with all candidates at once


class Charges(Protocol):
    def charge(self, line: dict) -> None: ...


def sensitivity(adjacency: Adjacency) -> float:
    """L2 sensitivity of the joint histogram, exact under either adjacency."""
    return math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0


def nearest(features: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """(n, F) and (M, F) -> (n,): the index of each row's nearest candidate, Euclidean.

    Every row gets one index, whatever it holds: a distance that is not a number counts as
    infinite. Distances are formed in float64.
    """
    candidates = candidates.double()
    norms = candidates.square().sum(1)
    found = []
    for part in features.split(CHUNK):
        scores = norms - 2 * (part.double() @ candidates.T)  # less |part|^2, equal in a row
        found.append(scores.nan_to_num(nan=math.inf).argmin(1))
    return torch.cat(found)


def vote_histogram(
    features: torch.Tensor, labels: torch.Tensor, candidates: torch.Tensor
) -> torch.Tensor:
    """Votes of records (n, F), labels (n,), for candidates (Y, M, F): (Y, M) in float64.

    Rows sum to the classes' record counts. Raises ValueError, before any vote, where labels
    and records do not match or a label lies outside the classes.
    """
    classes, count = candidates.shape[:2]
    if len(labels) != len(features):
        raise ValueError(f"{len(features)} records have {len(labels)} labels")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}")
    histogram = torch.zeros(classes, count, dtype=torch.float64)
    for label in range(classes):
        own = features[labels == label]
        if len(own):
            votes = nearest(own, candidates[label]).cpu()
            histogram[label] = torch.bincount(votes, minlength=count).double()
    return histogram


class VoteReleases:
    """The histograms of one run, one a round; each is charged before its noise is drawn.

    A resumed run begins at a later round: the rounds before it are charged again first,
    which the ledger compares with what is on record.
    """

    def __init__(
        self,
        rounds: int,
        noise_multiplier: float,
        adjacency: Adjacency,
        streams: Streams,
        ledger: Charges,
    ):
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, not {rounds}")
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier must be finite and not negative: {noise_multiplier}"
            )
        self.rounds, self.noise_multiplier = rounds, noise_multiplier
        self.sensitivity = sensitivity(adjacency)
        self.noise_std = noise_multiplier * self.sensitivity  # on a count, in votes
        self._streams, self._ledger, self._charged = streams, ledger, 0

    def charge_to(self, end: int) -> None:
        """Charge every round below `end` that this object has not charged yet."""
        if end > self.rounds:
            raise ValueError(f"round {end} is beyond the declared {self.rounds}")
        while self._charged < end:
            self._charged += 1
            self._ledger.charge(
                {
                    "kind": "gaussian",
                    "name": f"votes_round_{self._charged}",
                    "sensitivity": self.sensitivity,
                    "noise_std": self.noise_std,
                    "noise_multiplier": self.noise_multiplier,
                    "normalised_by": "nothing (votes)",
                }
            )

    def release(self, histogram: torch.Tensor, index: int) -> torch.Tensor:
        """The noisy histogram (Y, M) of round `index`, from 0; float64."""
        self.charge_to(index + 1)
        draws = self._streams.generator(Role.VOTES, index).standard_normal(tuple(histogram.shape))
        return histogram + self.noise_std * torch.from_numpy(np.asarray(draws))


def survivors(noisy: torch.Tensor, threshold: float) -> torch.Tensor:
    """Probabilities (Y, M) with which candidates are drawn again; touches no data.

    Noisy counts less a declared `threshold` (in votes), clamped at 0, over their class's sum.
    Where nothing of a class is left, all its candidates are equally likely.
    """
    kept = (noisy - threshold).clamp_min(0.0)
    empty = kept.sum(1, keepdim=True) == 0
    kept = torch.where(empty, torch.ones_like(kept), kept)
    return kept / kept.sum(1, keepdim=True)


def resample(
    probabilities: torch.Tensor, count: int, generator: np.random.Generator
) -> torch.Tensor:
    """(Y, M) -> (Y, count) indices: independent draws, by inverting each class's distribution."""
    drawn = torch.from_numpy(generator.random((len(probabilities), count)))
    edges = probabilities.double().cumsum(1)
    # By its own last edge, so that rounding never draws beyond the last survivor.
    return torch.searchsorted(edges, drawn * edges[:, -1:], right=True)
