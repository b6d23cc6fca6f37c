"""The figures: which cells and public stages each is drawn from.

A figure computes nothing of its own. Its rows are Table 1's, so a figure of a preset whose
Table 1 stands needs no further cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from straightdp.config import Preset
from straightdp.studies.cells import Cell, Unit, public_stage
from straightdp.studies.grid import TABLE1, Row, row_cells


@dataclass(frozen=True)
class Figure:
    """What a figure is drawn from, at the preset's budgets.

    `rows` are crossed with the preset's seeds, or with the first one alone; `spaces` name the
    public stages that it shows, of the standard backbone at the first seed.
    """

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    spaces: tuple[str, ...] = ()
    first_seed: bool = False

    def seeds(self, preset: Preset) -> tuple[int, ...]:
        """The seeds that it shows."""
        return preset.grid.seeds[:1] if self.first_seed else preset.grid.seeds


def _main(method: str, space: str) -> Row:
    """Table 1's row of a method in a space."""
    return next(row for row in TABLE1.rows if (row.method, row.space) == (method, space))


FIGURE2 = Figure(
    name="figure2",
    title="The geometry, on public data",
    spaces=("pixel",),
    first_seed=True,
)

FIGURE3 = Figure(
    name="figure3",
    title="Downstream accuracy by budget",
    rows=(
        _main("uniform", "pixel"),
        _main("tha_moments", "pixel"),
        _main("low_b0", "pixel"),
        _main("uniform", "latent"),
        _main("tha_moments", "latent"),
    ),
)

FIGURE5 = Figure(
    name="figure5",
    title="Samples by budget",
    rows=(
        _main("release_samples", "pixel"),
        _main("uniform", "pixel"),
        _main("tha_moments", "pixel"),
        _main("low_b0", "pixel"),
        _main("tha_moments", "latent"),
    ),
    first_seed=True,
)

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (FIGURE2, FIGURE3, FIGURE5)}


def figure_places(preset: Preset, figure: Figure) -> list[tuple[Row, Cell]]:
    """Every cell that a figure shows, beside its row: rows, then budgets, then seeds."""
    seeds = figure.seeds(preset)
    return [
        (row, cell)
        for row in figure.rows
        for cell in row_cells(preset, TABLE1, row)
        if cell.seed in seeds
    ]


def figure_stages(preset: Preset, figure: Figure) -> dict[str, Unit]:
    """Every public stage that a figure shows, by space."""
    seed = preset.grid.seeds[0]
    return {space: public_stage(preset, space, "standard", seed) for space in figure.spaces}
