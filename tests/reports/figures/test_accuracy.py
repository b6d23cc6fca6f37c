"""Figure 3's lines, bands and bracket against values computed here."""

import copy
import math
import statistics

import numpy as np
import pytest
from conftest import TINY

from straightdp.config import Preset
from straightdp.reports.figures.accuracy import bracket, curves, draw_accuracy
from straightdp.reports.results import CellResult, Measure, summarise
from straightdp.studies.figures import FIGURE3

ROWS = FIGURE3.rows


def preset(epsilons=(3, 0.3, 1), seeds=(0, 1, 2)):
    values = copy.deepcopy(TINY)
    values["grid"] = {"epsilons": list(epsilons), "seeds": list(seeds)}
    return Preset(**values)


def value(row, epsilon, seed):
    """A row's own level, growing with the budget, uneven over seeds."""
    level = 0.1 + 0.12 * ROWS.index(row)
    return level + 0.05 * min(epsilon, 9) / 3 + 0.02 * (seed - 1) ** 2


def results(which, leave_out=()):
    return [
        CellResult(
            *row.key,
            epsilon,
            seed,
            {"accuracy": Measure(value(row, epsilon, seed), 100, "lenet_probe", "01ab", "test")},
        )
        for row in ROWS
        for epsilon in which.grid.epsilons
        for seed in which.grid.seeds
        if (row.method, row.space, epsilon) not in leave_out
    ]


def named(figure):
    return {one.get_gid(): one for one in figure.axes[0].get_lines() if one.get_gid()}


def ratio(figure):
    return [one.get_text() for one in figure.axes[0].texts if one.get_gid() == "ratio"]


def test_a_line_is_its_rows_means_over_the_budgets_in_order():
    which = preset()
    figure = draw_accuracy(which, ROWS, results(which))
    found = named(figure)
    assert set(found) == {f"{row.method} {row.space}" for row in ROWS}
    for row in ROWS:
        x, y = found[f"{row.method} {row.space}"].get_data()
        assert list(x) == [0.3, 1, 3]
        expected = [statistics.mean(value(row, e, seed) for seed in (0, 1, 2)) for e in x]
        np.testing.assert_allclose(y, expected)
    assert figure.axes[0].get_xscale() == "log"


def test_a_band_is_one_sample_standard_deviation_either_way():
    which = preset()
    axes = draw_accuracy(which, ROWS, results(which)).axes[0]
    bands = [one for one in axes.collections if len(one.get_paths()) and len(one.get_facecolor())]
    assert len(bands) == len(ROWS)
    for row, band in zip(ROWS, bands, strict=True):
        points = np.concatenate([path.vertices for path in band.get_paths()])
        for epsilon in (0.3, 1, 3):
            values = [value(row, epsilon, seed) for seed in (0, 1, 2)]
            mean, std = statistics.mean(values), statistics.stdev(values)
            heights = points[np.isclose(points[:, 0], epsilon), 1]
            assert heights.min() == pytest.approx(mean - std)
            assert heights.max() == pytest.approx(mean + std)


def test_one_seed_has_no_band():
    which = preset(seeds=(0,))
    axes = draw_accuracy(which, ROWS, results(which)).axes[0]
    assert not axes.collections


def test_the_bracket_is_the_ratio_at_epsilon_one():
    which = preset()
    base = statistics.mean(value(ROWS[0], 1, seed) for seed in (0, 1, 2))
    gain = statistics.mean(value(ROWS[1], 1, seed) for seed in (0, 1, 2))
    assert ratio(draw_accuracy(which, ROWS, results(which))) == [f"{gain / base:.1f}\u00d7"]


@pytest.mark.parametrize(
    ("epsilons", "at"), [((0.3, 1, 3), 1), ((10, 2, 0.5), 2), ((2,), 2), ((1, 30), 1), ((2, 5), 5)]
)
def test_without_epsilon_one_it_stands_at_the_middle_budget(epsilons, at):
    which = preset(epsilons, seeds=(0,))
    in_order = sorted(which.grid.epsilons)
    entries = summarise(results(which), ROWS, in_order, (0,), ("accuracy",))
    found = bracket(curves(entries, ROWS, in_order), in_order)
    assert found.epsilon == at
    assert found.ratio == pytest.approx(value(ROWS[1], at, 0) / value(ROWS[0], at, 0))


def test_a_hole_is_a_gap_and_takes_the_bracket_with_it():
    which = preset()
    there = results(which, leave_out={("tha_moments", "pixel", 1)})
    figure = draw_accuracy(which, ROWS, there, 3)
    y = named(figure)["tha_moments pixel"].get_ydata()
    assert np.isnan(y).tolist() == [False, True, False]
    assert ratio(figure) == []
    assert any("3 of 45 cells" in one.get_text().replace("\n", " ") for one in figure.texts)


def test_a_budget_without_neighbours_has_a_bar_for_its_band():
    which = preset(epsilons=(1,))
    axes = draw_accuracy(which, ROWS, results(which)).axes[0]
    spans = [
        np.ptp(segment[:, 1])
        for one in axes.collections
        if hasattr(one, "get_segments")
        for segment in one.get_segments()
    ]
    deviation = statistics.stdev(value(ROWS[0], 1, seed) for seed in (0, 1, 2))
    np.testing.assert_allclose(spans, [2 * deviation] * len(ROWS))


def test_no_privacy_stands_beyond_the_largest_budget():
    which = preset(epsilons=(1, math.inf), seeds=(0,))
    figure = draw_accuracy(which, ROWS, results(which))
    x = named(figure)["uniform pixel"].get_xdata()
    assert np.isfinite(x).all() and x[1] > 1
    labels = [one.get_text() for one in figure.axes[0].get_xticklabels()]
    assert labels == ["1", "\u221e"]


def test_no_two_rows_share_dashes_and_marker():
    which = preset()
    looks = [
        (str(one._dash_pattern), one.get_marker())
        for one in named(draw_accuracy(which, ROWS, results(which))).values()
    ]
    assert len({dash for dash, _ in looks}) == len({marker for _, marker in looks}) == len(ROWS)
