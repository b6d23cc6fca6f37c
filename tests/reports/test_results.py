"""Summaries over seeds, and the values that no column takes."""

import math

import pytest
from measured import BUDGETS, ROWS, SEEDS, full, result

from straightdp.reports.results import MixedExtractors, summarise
from straightdp.studies.grid import Row

METRICS = ("accuracy", "fid")


def entries_of(results, rows=ROWS, metrics=METRICS):
    return summarise(results, rows, BUDGETS, SEEDS, metrics)


def one(row=ROWS[1], epsilon=1.0, seed=0, accuracy=0.5, fid=100.0, other=None):
    return result(row, epsilon, seed, other, accuracy=accuracy, fid=fid)


def test_means_and_sample_deviations():
    for entry in entries_of(full()):
        accuracy, fid = entry.metrics["accuracy"], entry.metrics["fid"]
        assert entry.n == 3
        assert accuracy.mean == pytest.approx(0.2)
        assert accuracy.std == pytest.approx(0.1)  # divisor n - 1: (0.01 + 0 + 0.01) / 2
        assert fid.mean == pytest.approx(30)
        assert fid.std == pytest.approx(700**0.5)  # (400 + 100 + 900) / 2


def test_holes_are_not_numbers():
    for entry in entries_of([]):
        assert entry.n == 0
        assert all(math.isnan(found.mean) for found in entry.metrics.values())


def test_rows_of_one_method_in_two_spaces_are_two():
    rows = tuple(Row("training", "tha_moments", space) for space in ("pixel", "latent"))
    results = [one(row, accuracy=value) for row, value in zip(rows, (0.2, 0.7), strict=True)]
    found = {
        entry.space: entry.metrics["accuracy"].mean
        for entry in entries_of(results, rows)
        if entry.epsilon == 1.0
    }
    assert found == {"pixel": 0.2, "latent": 0.7}


def test_a_row_with_budgets_of_its_own_has_no_others():
    rows = (ROWS[1], Row("pixel", "late_only", "pixel", epsilons=(0.3,)))
    assert [(entry.method, entry.epsilon) for entry in entries_of([], rows)] == [
        ("uniform", 0.3),
        ("uniform", 1.0),
        ("late_only", 0.3),
    ]
    with pytest.raises(ValueError, match="the table has no place for it"):
        entries_of([one(rows[1], 1.0)], rows)


@pytest.mark.parametrize(
    "other",
    [
        {"by": "inception_v3_tf"},
        {"checksum": "4567cdef"},
        {"n": 10_000},
        {"reference": "embedded test, n = 4000"},
    ],
)
def test_values_that_were_measured_differently_never_share_a_column(other):
    results = [one(), one(ROWS[2], other=other)]
    with pytest.raises(MixedExtractors, match="cannot share a column") as caught:
        entries_of(results)
    for value in ("0123abcd", *map(str, other.values())):
        assert value in str(caught.value)


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([one()] * 2, "2 results where there is one cell"),
        ([one(Row("pixel", "low_b0", "pixel"))], "the table has no place for it"),
        ([one(Row("pixel", "uniform", "latent"))], "the table has no place for it"),
        ([one(epsilon=3.0)], "the table has no place for it"),
        ([one(seed=7)], "the table has no place for it"),
        ([one(accuracy=math.nan)], "accuracy nan is out of range"),
        ([one(accuracy=72.4)], "accuracy 72.4 is out of range"),
        ([one(fid=math.inf)], "fid inf is out of range"),
        ([one(fid=-1.0)], "fid -1.0 is out of range"),
    ],
)
def test_results_that_cannot_be_right_are_refused(results, words):
    with pytest.raises(ValueError, match=words):
        entries_of(results)
