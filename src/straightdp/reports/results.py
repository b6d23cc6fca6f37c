"""Evaluated cells, and their summaries over seeds.

The deviation is the sample standard deviation (ddof 1), left out where n < 2. Values that
were measured differently (another network, sample size or real set) never share a column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from straightdp.reports import style
from straightdp.studies.rows import Key, Row


class MixedExtractors(ValueError):
    """Values that no column may mix: of different networks, sample sizes or references."""


@dataclass(frozen=True)
class Measure:
    """One metric of one cell, with what it was measured with; `parts` are its classes' values."""

    value: float
    n: int
    by: str
    checksum: str
    reference: str
    parts: tuple[float, ...] = ()
    part_n: tuple[int, ...] = ()
    right: float | None = None  # a classifier's accuracy on real held-out images

    @property
    def instrument(self) -> tuple:
        return self.by, self.checksum, self.n, self.reference, self.part_n


@dataclass(frozen=True)
class CellResult:
    """One evaluated cell in its place in a table."""

    block: str
    method: str
    space: str
    variant: str
    epsilon: float
    seed: int
    measures: Mapping[str, Measure] = field(hash=False)

    @property
    def key(self) -> Key:
        return Key(self.block, self.method, self.space, self.variant)


@dataclass(frozen=True)
class Missing:
    """A cell that should be there and is not, with why."""

    block: str
    method: str
    space: str
    variant: str
    epsilon: float
    seed: int
    reason: str

    def __str__(self) -> str:
        label = style.label(self.block, self.method, self.space, self.variant)
        return (
            f"{style.BLOCKS.get(self.block, self.block)}: {label}, epsilon {self.epsilon:g}, "
            f"seed {self.seed}: {' '.join(self.reason.split())}"
        )


@dataclass(frozen=True)
class Summary:
    """Mean and deviation over seeds; NaN is a hole. `parts` are the classes' means."""

    mean: float = math.nan
    std: float = math.nan
    parts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A row at one budget, over the n seeds that are there of `expected`."""

    block: str
    method: str
    space: str
    variant: str
    epsilon: float
    n: int
    expected: int
    metrics: Mapping[str, Summary] = field(hash=False)

    @property
    def key(self) -> Key:
        return Key(self.block, self.method, self.space, self.variant)


def summary(measures: Sequence[Measure]) -> Summary:
    """Over seeds; of none, a hole."""
    if not measures:
        return Summary()
    values = [one.value for one in measures]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    parts = np.mean([one.parts for one in measures], axis=0)
    return Summary(float(np.mean(values)), deviation, tuple(parts.tolist()))


def same_instrument(results: Sequence[CellResult], name: str) -> None:
    """:class:`MixedExtractors` where values of a metric were measured differently."""
    instruments = {one.measures[name].instrument for one in results}
    if len(instruments) > 1:
        shown = "; ".join(
            f"{by} ({check}), n = {n}, {reference}"
            for by, check, n, reference, _ in sorted(instruments)
        )
        raise MixedExtractors(
            f"values of {name} that were measured differently cannot share a column: {shown}; "
            "evaluate all cells anew"
        )


def _check(
    results: Sequence[CellResult],
    metrics: Sequence[str],
    places: Mapping[tuple[Key, float], tuple[int, ...]],
) -> None:
    for name in metrics:
        same_instrument(results, name)
    counts = Counter((one.key, one.epsilon, one.seed) for one in results)
    for (key, epsilon, seed), count in counts.items():
        cell = f"{' '.join(key).strip()} at epsilon {epsilon:g}, seed {seed}"
        if seed not in places.get((key, epsilon), ()):
            raise ValueError(f"{cell}: the table has no place for it")
        if count > 1:
            raise ValueError(f"{cell}: {count} results where there is one cell")
    for one in results:
        for name in metrics:
            value = one.measures[name].value
            if not (0 <= value <= style.METRICS[name].top and value < math.inf):
                raise ValueError(
                    f"{' '.join(one.key).strip()} at epsilon {one.epsilon:g}, seed {one.seed}: "
                    f"{name} {value} is out of range"
                )


def summarise(
    results: Sequence[CellResult],
    rows: Sequence[Row],
    epsilons: Sequence[float],
    seeds: Sequence[int],
    metrics: Sequence[str],
) -> list[Entry]:
    """One entry a row and budget of its own, in the given order.

    Raises :class:`MixedExtractors`, and ValueError for a cell that is not among the rows,
    stands twice, or has a value out of its metric's range or not finite.
    """
    places = {
        (row.key, epsilon): row.seeds(tuple(seeds))
        for row in rows
        for epsilon in row.epsilons or epsilons
    }
    _check(results, metrics, places)
    entries = []
    for (key, epsilon), expected in places.items():
        found = [one for one in results if (one.key, one.epsilon) == (key, epsilon)]
        summaries = {name: summary([one.measures[name] for one in found]) for name in metrics}
        entries.append(Entry(*key, epsilon, len(found), len(expected), summaries))
    return entries
