"""The figures: which cells and public stages each is drawn from.

A figure computes nothing of its own. Its rows are those of Table 1, or of the controls, so a
figure of a preset whose tables stand needs no further cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from straightdp.config import Preset
from straightdp.studies.cells import Cell, Unit, public_stage
from straightdp.studies.controls import CONTROLS, control_rows
from straightdp.studies.grid import TABLE1, row_cells
from straightdp.studies.rows import Row, Study


@dataclass(frozen=True)
class Figure:
    """What a figure is drawn from, at the preset's budgets.

    `rows` are crossed with the preset's seeds, or with the first one alone; `by_preset` gives
    them where they follow from the preset's settings. `spaces` name the public stages that it
    shows, of the standard backbone at the first seed. `study` is the table that has its cells.
    """

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    spaces: tuple[str, ...] = ()
    first_seed: bool = False
    by_preset: Callable[[Preset], tuple[Row, ...]] | None = None
    study: Study = TABLE1

    def rows_on(self, preset: Preset) -> tuple[Row, ...]:
        """The figure's rows on a preset."""
        return self.rows if self.by_preset is None else self.by_preset(preset)

    def seeds(self, preset: Preset) -> tuple[int, ...]:
        """The seeds that it shows."""
        return preset.grid.seeds[:1] if self.first_seed else preset.grid.seeds


def _main(*places: tuple[str, str]) -> tuple[Row, ...]:
    """Table 1's rows of (method, space), in the order given."""
    rows = {(row.method, row.space): row for row in TABLE1.rows}
    return tuple(rows[place] for place in places)


FIGURE2 = Figure(
    name="figure2",
    title="The geometry, on public data",
    spaces=("pixel",),
    first_seed=True,
)

FIGURE3 = Figure(
    name="figure3",
    title="Downstream accuracy by budget",
    rows=_main(
        ("uniform", "pixel"),
        ("tha_moments", "pixel"),
        ("low_b0", "pixel"),
        ("uniform", "latent"),
        ("tha_moments", "latent"),
    ),
)


def _sweep(preset: Preset) -> tuple[Row, ...]:
    """The controls' sweep over t_0, and before it the row that it is compared with."""
    rows = control_rows(preset)
    level = next(
        row
        for row in rows
        if (row.block, row.method, row.space) == ("first_domain", "tha_moments", "pixel")
    )
    return (level, *(row for row in rows if row.block == "starts"))


FIGURE4 = Figure(
    name="figure4",
    title="The start of the guidance",
    by_preset=_sweep,
    first_seed=True,
    study=CONTROLS,
)

FIGURE5 = Figure(
    name="figure5",
    title="Samples by budget",
    rows=_main(
        ("release_samples", "pixel"),
        ("uniform", "pixel"),
        ("tha_moments", "pixel"),
        ("low_b0", "pixel"),
        ("tha_moments", "latent"),
    ),
    first_seed=True,
)

FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (FIGURE2, FIGURE3, FIGURE4, FIGURE5)
}


def figure_places(preset: Preset, figure: Figure) -> list[tuple[Row, Cell]]:
    """Every cell that a figure shows, beside its row: rows, then budgets, then seeds."""
    seeds = figure.seeds(preset)
    return [
        (row, cell)
        for row in figure.rows_on(preset)
        for cell in row_cells(preset, figure.study, row)
        if cell.seed in seeds
    ]


def figure_stages(preset: Preset, figure: Figure) -> dict[str, Unit]:
    """Every public stage that a figure shows, by space."""
    seed = preset.grid.seeds[0]
    return {space: public_stage(preset, space, "standard", seed) for space in figure.spaces}
