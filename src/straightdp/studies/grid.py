"""The studies: which rows a table has, and the cells that fill them.

A study is a list of rows; each row is one method in one space, crossed with budgets and with
the preset's seeds. The budgets are the preset's, unless the study is about certain ones.
Reading this file tells what a table needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from straightdp.config import Preset
from straightdp.studies.cells import Cell, resolve


@dataclass(frozen=True)
class Row:
    """A line of a table: its block, its method, the space it runs in, and its budgets.

    No budgets: the study's own.
    """

    block: str
    method: str
    space: str
    epsilons: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from the study's other rows."""
        return self.block, self.method, self.space


@dataclass(frozen=True)
class Study:
    """A table's rows and budgets, in the paper's order. No budgets: the preset's."""

    name: str
    title: str
    rows: tuple[Row, ...]
    epsilons: tuple[float, ...] = ()

    def columns(self, preset: Preset) -> tuple[float, ...]:
        """The budgets that head the table's columns."""
        return self.epsilons or preset.grid.epsilons


# The prior methods under our protocol: budgets, accountant, calibration, evaluation.
PRIOR = ("dp_merf", "dp_hp", "dp_ntk", "private_evolution")


def _prior() -> tuple[Row, ...]:
    return tuple(Row("prior", name, "pixel") for name in PRIOR)


def _pipeline(space: str) -> tuple[Row, ...]:
    names = ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0")
    return tuple(Row(space, name, space) for name in names)


TABLE1 = Study(
    name="table1",
    title="Main results",
    rows=(
        *_prior(),
        # The released moments alone live in pixel space, as the paper's FID of them shows.
        Row("release", "release_samples", "pixel"),
        Row("release", "prior_guidance", "pixel"),
        *_pipeline("pixel"),
        *_pipeline("latent"),
    ),
)

TABLE2 = Study(
    name="table2",
    title="The low-B0 backbone",
    rows=(
        Row("backbones", "tha_moments", "pixel"),
        Row("backbones", "late_only", "pixel", epsilons=(0.3,)),
        Row("backbones", "clamp_only", "pixel", epsilons=(0.3,)),
        Row("backbones", "low_b0", "pixel"),
    ),
    epsilons=(3.0, 1.0, 0.5, 0.3),
)

TABLE5 = Study(
    name="table5",
    title="Label-aware metrics",
    rows=(
        Row("methods", "release_samples", "pixel"),
        Row("methods", "uniform", "pixel"),
        Row("methods", "tha_moments", "pixel"),
        Row("methods", "low_b0", "pixel"),
    ),
    epsilons=(1.0,),
)

TABLE6 = Study(
    name="table6",
    title="FID by budget",
    rows=(
        Row("training", "uniform", "pixel"),
        Row("training", "tha_moments", "pixel"),
        Row("training", "tha_moments", "latent"),
        *_prior(),
    ),
    epsilons=(0.3, 1.0, 3.0, 10.0),
)

TABLE7 = Study(
    name="table7",
    title="Improved precision and recall by budget",
    rows=(
        Row("methods", "uniform", "pixel"),
        Row("methods", "tha", "pixel"),
        Row("methods", "tha_moments", "pixel"),
        Row("methods", "low_b0", "pixel"),
        Row("methods", "tha_moments", "latent"),
    ),
)

STUDIES: dict[str, Study] = {
    study.name: study for study in (TABLE1, TABLE2, TABLE5, TABLE6, TABLE7)
}


def row_cells(preset: Preset, study: Study, row: Row) -> list[Cell]:
    """The row's cells, budgets first, then seeds."""
    return [
        resolve(preset, row.method, row.space, epsilon, seed)
        for epsilon in row.epsilons or study.columns(preset)
        for seed in preset.grid.seeds
    ]


@cache
def study_cells(preset: Preset, study: Study) -> tuple[Cell, ...]:
    """Every cell that a study needs, each once."""
    cells = {cell.id: cell for row in study.rows for cell in row_cells(preset, study, row)}
    return tuple(cells.values())


def all_cells(preset: Preset) -> dict[str, Cell]:
    """Every cell of every study, by id."""
    return {cell.id: cell for study in STUDIES.values() for cell in study_cells(preset, study)}
