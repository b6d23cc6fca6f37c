"""Figure 5: samples by method and budget, the first of each class as they lie in the file.

No sample is picked by its looks: of each class, in the digits' order, those with the smallest
index. A cell's samples are shown only where its metrics may stand in a table, which holds the
digest of the samples that were evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from straightdp.config import Preset
from straightdp.evaluation.record import SAMPLES
from straightdp.files import DamagedFile, read_arrays
from straightdp.reports.figures import style
from straightdp.reports.figures.canvas import blank, caption_lines, captioned, hole, run_line
from straightdp.reports.metrics import read_record
from straightdp.reports.style import number
from straightdp.studies.cells import Cell
from straightdp.studies.grid import Row

CLASSES, SIDE = 10, 28
NAMES, HEAD, GAP = 1.08, 0.3, 0.035  # inches left of the panels, above them, and between two


@dataclass(frozen=True)
class Shown:
    """A cell's samples: images (n, 28, 28) uint8 and labels (n,), in their place."""

    method: str
    space: str
    epsilon: float
    images: np.ndarray
    labels: np.ndarray


def read_samples(path: Path, cell: Cell, row: Row) -> Shown:
    """The samples beside a metrics file that is fit for a table; else as it is refused there."""
    read_record(path, cell)
    lying = path.parent / SAMPLES
    arrays = read_arrays(lying)
    images, labels = arrays.get("images"), arrays.get("labels")
    if (
        images is None
        or labels is None
        or images.dtype != np.uint8
        or images.shape != (len(labels), SIDE, SIDE)
    ):
        raise DamagedFile(f"{lying}: not images of {SIDE} x {SIDE} bytes with their labels")
    try:
        first_of_each(labels, 1)
    except ValueError as error:
        raise DamagedFile(f"{lying}: {error}") from error
    return Shown(row.method, row.space, cell.epsilon, images, labels)


def first_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """(rows, CLASSES) indices: column y holds the first samples of class y, in their order.

    rows is `count`, or less where a class has fewer. Raises ValueError where one has none.
    """
    places = [np.flatnonzero(labels == label)[:count] for label in range(CLASSES)]
    rows = min(map(len, places))
    if rows == 0:
        raise ValueError(f"no sample of class {min(range(CLASSES), key=lambda y: len(places[y]))}")
    return np.stack([place[:rows] for place in places], axis=1)


def mosaic(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(rows * 28, classes * 28): the chosen images, side by side as `chosen` has them."""
    rows, columns = chosen.shape
    tiles = images[chosen]  # (rows, columns, 28, 28)
    return tiles.transpose(0, 2, 1, 3).reshape(rows * SIDE, columns * SIDE)


def draw_samples(preset: Preset, rows: Sequence[Row], found: Sequence[Shown], seed: int) -> Figure:
    """A panel a row and budget; one whose cell is not there is a hole."""
    epsilons = sorted(preset.grid.epsilons)
    by_place = {(one.method, one.space, one.epsilon): one for one in found}
    holes = len(rows) * len(epsilons) - len(by_place)
    count = min(style.SAMPLE_ROWS, preset.sampling.count // CLASSES)
    side = min((style.SAMPLES_WIDTH - NAMES) / len(epsilons) / CLASSES, style.LARGEST)
    width = NAMES + len(epsilons) * side * CLASSES
    text = run_line(
        preset,
        (seed,),
        f"Each panel: the first {count} samples of each class, by the label asked for, classes 0 "
        "to 9 from left to right. Pixel space where a row names none.",
        f"{holes} of {len(rows) * len(epsilons)} cells are not there yet." if holes else "",
    )
    room = caption_lines(width, text)[1]
    height = HEAD + len(rows) * (side * count + GAP) + room
    figure = blank((width, height))
    figure.get_layout_engine().set(w_pad=GAP / 2, h_pad=GAP / 2, wspace=0, hspace=0)
    grid = figure.subplots(len(rows), len(epsilons), squeeze=False)
    for row, line in zip(rows, grid, strict=True):
        for epsilon, axes in zip(epsilons, line, strict=True):
            shown = by_place.get((row.method, row.space, epsilon))
            _panel(axes, shown, count)
        line[0].set_ylabel(
            style.SAMPLES[row.method, row.space],
            rotation=0,
            ha="right",
            va="center",
            labelpad=3,
        )
    for epsilon, axes in zip(epsilons, grid[0], strict=True):
        axes.set_title(f"$\\varepsilon$ = {number(epsilon)}", pad=10)
        for label in range(CLASSES if side >= style.LABELLED else 0):
            axes.annotate(
                str(label),
                ((label + 0.5) / CLASSES, 1),
                xycoords="axes fraction",
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="center",
                fontsize=style.CAPTION_SIZE,
                color=style.CAPTION_COLOUR,
            )
    captioned(figure, text)
    return figure


def _panel(axes: Axes, shown: Shown | None, count: int) -> None:
    if shown is None:
        hole(axes)
        axes.set_box_aspect(count / CLASSES)
        return
    picture = mosaic(shown.images, first_of_each(shown.labels, count))
    axes.imshow(picture, cmap=style.SAMPLES_MAP, vmin=0, vmax=255, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
