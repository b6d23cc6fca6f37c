"""The cells of a report, read: what is there, what is missing, and what may not be used."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from straightdp.config import Preset
from straightdp.files import DamagedFile
from straightdp.reports.metrics import OldMetrics
from straightdp.reports.results import Missing
from straightdp.studies.cells import Cell, metrics_name
from straightdp.studies.rows import Row, Study

Read = TypeVar("Read")


class UnusableMetrics(ValueError):
    """Metrics files that no report may use; one line each."""


def not_there(cell: Cell) -> str:
    """The reason of a hole whose caller knows no better one."""
    return "no metrics file yet"


def on_preset(preset: Preset, named: str | None) -> str:
    """The option of a hint that names the preset as the user did."""
    return f"--preset {shlex.quote(named or preset.name)}"


def gather(
    preset: Preset,
    study: Study,
    places: Iterable[tuple[Row, Cell]],
    root: Path,
    read: Callable[[Path, Cell, Row], Read],
    partial: bool = False,
    reason: Callable[[Cell], str] = not_there,
    named: str | None = None,
) -> tuple[list[Read], list[Missing]]:
    """`read` of every place's metrics file, and the places that have none.

    `study` is the one whose `status` says more. A cell without metrics is missing under
    `partial`, with its `reason`; otherwise, and for a damaged file always,
    :class:`UnusableMetrics` has a line that names the file and a remedy.
    """
    name, on = metrics_name(preset), on_preset(preset, named)
    more = f"`straightdp status {study.name} {on}` says why"
    found: list[Read] = []
    missing: list[Missing] = []
    troubles = []
    for row, cell in places:
        path = cell.folder(root) / name
        try:
            found.append(read(path, cell, row))
        except FileNotFoundError:
            missing.append(Missing(*row.key, cell.epsilon, cell.seed, reason(cell)))
            if not partial:
                troubles.append(f"{path}: not there; {more}")
        except OldMetrics as error:
            troubles.append(f"{error}; run `straightdp evaluate {cell.id} {on}`")
        except DamagedFile as error:
            troubles.append(f"{error}; run `straightdp rerun {cell.id} {on}`")
    if troubles:
        raise UnusableMetrics("\n".join(dict.fromkeys(troubles)))  # a cell may stand in two rows
    return found, missing
