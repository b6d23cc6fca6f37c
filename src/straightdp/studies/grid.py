"""The studies: which rows a table has, and the cells that fill them.

A study is a list of rows; each row is one method in one space, crossed with the preset's
budgets and seeds. Reading this file tells what a table needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from straightdp.config import Preset
from straightdp.studies.cells import Cell, resolve


@dataclass(frozen=True)
class Row:
    """A line of a table: its block, its method and the space it runs in."""

    block: str
    method: str
    space: str


@dataclass(frozen=True)
class Study:
    """A table's rows, in the paper's order."""

    name: str
    title: str
    rows: tuple[Row, ...]


def _pipeline(space: str) -> tuple[Row, ...]:
    names = ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0")
    return tuple(Row(space, name, space) for name in names)


# Prior methods under the same protocol: budgets, accountant, calibration, evaluation.
PRIOR = tuple(
    Row("prior", name, "pixel") for name in ("dp_merf", "dp_hp", "dp_ntk", "private_evolution")
)

TABLE1 = Study(
    name="table1",
    title="Main results",
    rows=(
        *PRIOR,
        # The released moments alone live in pixel space, as the paper's FID of them shows.
        Row("release", "release_samples", "pixel"),
        Row("release", "prior_guidance", "pixel"),
        *_pipeline("pixel"),
        *_pipeline("latent"),
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in (TABLE1,)}


def row_cells(preset: Preset, row: Row) -> list[Cell]:
    """The row's cells, budgets first, then seeds."""
    return [
        resolve(preset, row.method, row.space, epsilon, seed)
        for epsilon in preset.grid.epsilons
        for seed in preset.grid.seeds
    ]


@cache
def study_cells(preset: Preset, study: Study) -> tuple[Cell, ...]:
    """Every cell that a study needs, each once."""
    cells = {cell.id: cell for row in study.rows for cell in row_cells(preset, row)}
    return tuple(cells.values())


def all_cells(preset: Preset) -> dict[str, Cell]:
    """Every cell of every study, by id."""
    return {cell.id: cell for study in STUDIES.values() for cell in study_cells(preset, study)}
