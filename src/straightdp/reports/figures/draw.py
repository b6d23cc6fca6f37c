"""A figure's files from what the grid has computed, and the source files that decide its looks.

Matplotlib, and for Figure 2 torch, are imported only when a figure is drawn: Snakemake asks
for the source files alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from straightdp.config import Preset
from straightdp.reports.gather import gather, not_there
from straightdp.reports.metrics import read_metrics
from straightdp.reports.results import CellResult, Missing
from straightdp.studies.cells import Cell
from straightdp.studies.figures import Figure, figure_places, figure_stages
from straightdp.studies.grid import Row

FIGURES = Path("figures")
MODULES = {
    "figure2": "geometry",
    "figure3": "accuracy",
    "figure4": "sweep",
    "figure5": "samples",
}


class NothingToDraw(ValueError):
    """A figure whose public stage is not there."""


@dataclass(frozen=True)
class Inputs:
    """Where a figure's numbers come from, and how what is missing is told."""

    root: Path  # results/PRESET
    partial: bool = False
    reason: Callable[[Cell], str] = not_there
    named: str | None = None


def sources(figure: Figure) -> tuple[Path, ...]:
    """The files that decide how a figure looks: its style, its canvas, its own module."""
    here = Path(__file__).parent
    return tuple(here / f"{name}.py" for name in ("style", "canvas", MODULES[figure.name]))


def write_figure(
    preset: Preset,
    figure: Figure,
    root: Path,
    partial: bool = False,
    reason: Callable[[Cell], str] = not_there,
    named: str | None = None,
) -> tuple[list[Path], list[Missing]]:
    """Draw a figure into figures/PRESET; returns its paths, and the cells that are holes in it.

    What is not there is a hole under `partial` (the files are then FIGURE.partial.*), and
    refused otherwise; a damaged file is refused always. `named` is how the user named the
    preset, for the hints.
    """
    from straightdp.reports.figures.canvas import styled, written

    inputs = Inputs(root, partial, reason, named)
    stem = FIGURES / preset.name / (f"{figure.name}.partial" if partial else figure.name)
    with styled():
        drawn, missing = _DRAW[figure.name](preset, figure, inputs)
        return written(drawn, stem), missing


def _geometry(preset: Preset, figure: Figure, inputs: Inputs):
    from straightdp.reports.figures.geometry import draw_geometry, read_geometry

    (space, unit), *_ = figure_stages(preset, figure).items()
    folder, geometry = unit.folder(inputs.root), None
    lacking = [name for name in ("public.pt", "calibration.json") if not (folder / name).exists()]
    if not lacking:
        geometry = read_geometry(folder, space)
    elif not inputs.partial:
        on = shlex.quote(f"preset={inputs.named or preset.name}")
        raise NothingToDraw(
            f"{folder / lacking[0]}: not there; run `snakemake --profile profiles/local "
            f"{figure.name} --config {on}`"
        )
    return draw_geometry(preset, geometry, figure.seeds(preset)[0]), []


def _accuracy(preset: Preset, figure: Figure, inputs: Inputs):
    from straightdp.reports.figures.accuracy import METRIC, draw_accuracy

    def read(path: Path, cell: Cell, row: Row) -> CellResult:
        return read_metrics(path, cell, row, (METRIC,))

    found, missing = _gathered(preset, figure, inputs, read)
    return draw_accuracy(preset, figure.rows_on(preset), found, len(missing)), missing


def _sweep(preset: Preset, figure: Figure, inputs: Inputs):
    from straightdp.reports.figures.sweep import METRICS, draw_sweep

    def read(path: Path, cell: Cell, row: Row) -> CellResult:
        return read_metrics(path, cell, row, METRICS)

    found, missing = _gathered(preset, figure, inputs, read)
    return draw_sweep(preset, found, figure.seeds(preset)[0], len(missing)), missing


def _samples(preset: Preset, figure: Figure, inputs: Inputs):
    from straightdp.reports.figures.samples import draw_samples, read_samples

    found, missing = _gathered(preset, figure, inputs, read_samples)
    return draw_samples(preset, figure.rows_on(preset), found, figure.seeds(preset)[0]), missing


def _gathered(preset: Preset, figure: Figure, inputs: Inputs, read: Callable):
    places = figure_places(preset, figure)
    how = (inputs.root, read, inputs.partial, inputs.reason, inputs.named)
    return gather(preset, figure.study, places, *how)


_DRAW = {"figure2": _geometry, "figure3": _accuracy, "figure4": _sweep, "figure5": _samples}
