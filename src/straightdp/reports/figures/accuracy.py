"""Figure 3: downstream accuracy over the budget, each representation with its baseline.

Means over seeds, bands of one sample standard deviation where there are two seeds or more.
The bracket marks how many times the baseline's accuracy the moments give in pixel space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from straightdp.config import Preset
from straightdp.reports.figures import style
from straightdp.reports.figures.canvas import blank, captioned, hole, run_line
from straightdp.reports.results import CellResult, Entry, summarise
from straightdp.reports.style import number
from straightdp.studies.grid import Row

METRIC = "accuracy"
BASE, GAIN = ("uniform", "pixel"), ("tha_moments", "pixel")  # the bracket's ends
MARKED = 1.0  # the budget at which the paper's bracket stands


@dataclass(frozen=True)
class Curve:
    """A row's means and deviations, (budgets,) each; NaN is a hole, or a deviation of n < 2."""

    method: str
    space: str
    means: np.ndarray
    deviations: np.ndarray


@dataclass(frozen=True)
class Bracket:
    """Where the bracket stands, its two accuracies, and the second relative to the first."""

    epsilon: float
    base: float
    gain: float

    @property
    def ratio(self) -> float:
        return self.gain / self.base


def curves(entries: Sequence[Entry], rows: Sequence[Row], epsilons: Sequence[float]) -> list[Curve]:
    """The rows' curves over `epsilons`."""
    by_place = {(one.key, one.epsilon): one.metrics[METRIC] for one in entries}
    found = []
    for row in rows:
        summaries = [by_place[row.key, epsilon] for epsilon in epsilons]
        means = np.array([one.mean for one in summaries])
        deviations = np.array([one.std for one in summaries])
        found.append(Curve(row.method, row.space, means, deviations))
    return found


def bracket(found: Sequence[Curve], epsilons: Sequence[float]) -> Bracket | None:
    """At epsilon 1, or at the middle budget where 1 is none; None where an end is missing."""
    at = epsilons.index(MARKED) if MARKED in epsilons else len(epsilons) // 2
    ends = {(one.method, one.space): float(one.means[at]) for one in found}
    base, gain = ends.get(BASE, math.nan), ends.get(GAIN, math.nan)
    if not (base > 0 and gain > 0):
        return None
    return Bracket(epsilons[at], base, gain)


def draw_accuracy(
    preset: Preset, rows: Sequence[Row], results: Sequence[CellResult], missing: int = 0
) -> Figure:
    """The figure of the results at hand; `missing` cells are said in its line."""
    epsilons = sorted(preset.grid.epsilons)
    seeds = preset.grid.seeds
    entries = summarise(results, rows, epsilons, seeds, (METRIC,))
    found = curves(entries, rows, epsilons)
    figure = blank(style.ACCURACY_SIZE)
    axes = figure.subplots()
    if results:
        _plot(axes, found, epsilons)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2, columnspacing=1.2)
        used = results[0].measures[METRIC]
        measured = (
            f"Accuracy of {used.by} ({used.checksum}) trained on {used.n} samples a cell, tested "
            f"on {used.reference}."
        )
    else:
        hole(axes)
        measured = ""
    marked = bracket(found, epsilons)
    ratio = (
        f"Bracket: THA + moments over uniform DP-SGD, pixel space, at epsilon "
        f"{number(marked.epsilon)}."
        if marked
        else ""
    )
    spread = "Means; bands \u00b11 standard deviation over seeds." if len(seeds) > 1 else ""
    total = len(rows) * len(epsilons) * len(seeds)
    holes = f"{missing} of {total} cells are not there yet: over those that are." if missing else ""
    captioned(figure, run_line(preset, seeds, measured, spread, ratio, holes))
    return figure


def _places(epsilons: Sequence[float]) -> np.ndarray:
    """Where budgets stand on the axis: themselves, and infinity beyond the largest."""
    largest = max((one for one in epsilons if one < math.inf), default=1.0)
    return np.array([one if one < math.inf else 3 * largest for one in epsilons])


def _plot(axes: Axes, found: Sequence[Curve], epsilons: Sequence[float]) -> None:
    x = _places(epsilons)
    axes.set_xscale("log")
    for curve in found:
        look = style.ACCURACY[curve.method, curve.space]
        axes.plot(x, curve.means, **look.drawn(), gid=f"{curve.method} {curve.space}")
        _band(axes, x, curve, look.colour)
    marked = bracket(found, epsilons)
    if marked is not None:
        _mark(axes, float(x[list(epsilons).index(marked.epsilon)]), marked)
    axes.xaxis.set_major_locator(FixedLocator(x.tolist()))
    axes.xaxis.set_major_formatter(FixedFormatter([number(one) for one in epsilons]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(x.min() / 1.25, x.max() * 1.45)
    axes.set_ylim(0, 1)
    axes.set_xlabel("privacy budget $\\varepsilon$")
    axes.set_ylabel("downstream accuracy")
    axes.grid(True, axis="y")


def _band(axes: Axes, x: np.ndarray, curve: Curve, colour: str) -> None:
    """One deviation either way: an area, and a bar at a budget that has no neighbour in it."""
    low, high = curve.means - curve.deviations, curve.means + curve.deviations
    there = np.isfinite(low)
    if not there.any():
        return
    axes.fill_between(x, low, high, color=colour, alpha=style.BAND, linewidth=0, zorder=1)
    beside = np.convolve(there, [1, 0, 1])[1:-1] > 0
    alone = there & ~beside
    axes.vlines(x[alone], low[alone], high[alone], colors=colour, linewidth=1, zorder=1)


def _mark(axes: Axes, x: float, marked: Bracket) -> None:
    """A bracket beside the points at `x`, with the ratio."""
    beside = x * 1.1
    axes.annotate(
        "",
        (beside, marked.base),
        xytext=(beside, marked.gain),
        arrowprops={
            "arrowstyle": "|-|,widthA=0.25,widthB=0.25",
            "color": style.BRACKET,
            "linewidth": 0.8,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    axes.annotate(
        f"{marked.ratio:.1f}\u00d7",
        (beside, (marked.base + marked.gain) / 2),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=style.BRACKET,
        gid="ratio",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
    )
