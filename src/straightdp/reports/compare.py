"""What a table says of one row beside another: relative gains, and ratios of mean accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from straightdp.reports.layout import Layout
from straightdp.reports.results import Entry
from straightdp.studies.rows import Key


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
