"""Made-up results that several tests of the reports share."""

from straightdp.reports.results import CellResult, Measure
from straightdp.studies.grid import Row

ROWS = (
    Row("release", "release_samples", "pixel"),
    Row("pixel", "uniform", "pixel"),
    Row("pixel", "tha_moments", "pixel"),
)
BUDGETS, SEEDS = (0.3, 1.0), (0, 1, 2)
USED = {"n": 3000, "by": "fid_lenet", "checksum": "0123abcd", "reference": "mnist test, n = 10000"}


def measure(value: float, **other) -> Measure:
    return Measure(value, **USED | other)


def result(row: Row, epsilon: float, seed: int, other=None, **values: float) -> CellResult:
    """A cell with the named metrics; `other` says what was different about measuring them."""
    measures = {name: measure(value, **other or {}) for name, value in values.items()}
    return CellResult(*row.key, epsilon, seed, measures)


def full() -> list[CellResult]:
    """Accuracy 0.1, 0.2, 0.3 over the seeds, and FID 10, 20, 60, in every row and budget."""
    return [
        result(row, epsilon, seed, accuracy=0.1 + seed / 10, fid=(10.0, 20.0, 60.0)[seed])
        for row in ROWS
        for epsilon in BUDGETS
        for seed in SEEDS
    ]
