"""The studies: which rows a table has, and the cells that fill them.

A study is a list of rows; each row is one method in one space, crossed with budgets and with
the preset's seeds. The budgets are the preset's, unless the study is about certain ones.
Reading this file tells what a table needs.
"""

from __future__ import annotations

from functools import cache

from straightdp.config import Preset
from straightdp.studies.cells import Cell
from straightdp.studies.controls import CONTROLS
from straightdp.studies.rows import Row as Row
from straightdp.studies.rows import Study as Study
from straightdp.studies.variants import variant_cell

# Prior methods under the same protocol: budgets, accountant, calibration, evaluation.
PRIOR = tuple(
    Row("prior", name, "pixel") for name in ("dp_merf", "dp_hp", "dp_ntk", "private_evolution")
)


def _pipeline(space: str) -> tuple[Row, ...]:
    names = ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0")
    return tuple(Row(space, name, space) for name in names)


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
        *PRIOR,
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
    study.name: study for study in (TABLE1, TABLE2, TABLE5, TABLE6, TABLE7, CONTROLS)
}


def row_cells(preset: Preset, study: Study, row: Row) -> list[Cell]:
    """The row's cells, budgets first, then seeds."""
    return [
        variant_cell(preset, row.method, row.space, epsilon, seed, row.variant)
        for epsilon in row.epsilons or study.columns(preset)
        for seed in row.seeds(preset.grid.seeds)
    ]


@cache
def study_cells(preset: Preset, study: Study) -> tuple[Cell, ...]:
    """Every cell that a study needs, each once."""
    rows = (*study.rows_on(preset), *study.beside)
    cells = {cell.id: cell for row in rows for cell in row_cells(preset, study, row)}
    return tuple(cells.values())


def all_cells(preset: Preset) -> dict[str, Cell]:
    """Every cell of every study, by id."""
    return {cell.id: cell for study in STUDIES.values() for cell in study_cells(preset, study)}
