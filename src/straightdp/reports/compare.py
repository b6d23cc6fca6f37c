"""What a table says of one row beside another: the best, relative gains, ratios of accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from straightdp.reports import style
from straightdp.reports.layout import Layout
from straightdp.reports.results import Entry
from straightdp.studies.rows import Key


def best(entries: Sequence[Entry], layout: Layout) -> set[tuple[Key, float, str]]:
    """(row, epsilon, metric) of the best per column within each block that the layout marks.

    Compared as printed, so that values that look equal are both marked (the paper's Table 1
    marks one of two that print as 63.3). A column with a single value has no best. The row that
    the layout calls strong is marked throughout.
    """
    marked = {
        (one.key, one.epsilon, name)
        for one, name in product(entries, layout.metrics)
        if one.key == layout.strong and one.n
    }
    for block, name in product(layout.bold, layout.metrics):
        metric = style.METRICS[name]
        for epsilon in {entry.epsilon for entry in entries}:
            shown = {
                one.key: float(f"{one.metrics[name].mean:.{metric.digits}f}")
                for one in entries
                if (one.block, one.epsilon) == (block, epsilon) and one.n
            }
            if len(shown) < 2:
                continue
            top = max(shown.values()) if metric.higher else min(shown.values())
            marked |= {(key, epsilon, name) for key, value in shown.items() if value == top}
    return marked


def _over(entries: Sequence[Entry], pair: tuple[Key, Key]) -> dict[float, float]:
    """Per budget, the second row's mean accuracy over the first one's; NaN over none."""
    base, other = (
        {one.epsilon: one.metrics["accuracy"].mean for one in entries if one.key == key}
        for key in pair
    )
    return {
        epsilon: other[epsilon] / value if value > 0 else math.nan
        for epsilon, value in base.items()
        if epsilon in other
    }


def gains(entries: Sequence[Entry], layout: Layout) -> dict[float, float]:
    """Per budget, the signed relative gain in mean accuracy that the layout asks for."""
    if layout.gain is None:
        return {}
    return {epsilon: one - 1 for epsilon, one in _over(entries, layout.gain).items()}


def ratios(entries: Sequence[Entry], layout: Layout) -> dict[Key, dict[float, float]]:
    """Row, budget: its mean accuracy over that of the row that it is compared with."""
    return {pair[1]: _over(entries, pair) for pair in layout.ratios}
