"""What a user names on the command line, found."""

from __future__ import annotations

import shlex

from straightdp.config import ConfigError, Preset
from straightdp.studies.cells import Cell
from straightdp.studies.figures import FIGURES, Figure
from straightdp.studies.grid import STUDIES, Study, all_cells


def find_cell(preset: Preset, text: str, named: str | None = None) -> Cell:
    """The one cell whose id is, or contains, `text`; whole parts first: eps1 before eps10.

    `named` is how the user named the preset, for the hints.
    """
    if not text:
        raise ConfigError("a CELL's id is empty")
    cells = all_cells(preset)
    if text in cells:
        return cells[text]
    matches = [cell for cell in cells.values() if text in cell.id]
    whole = [cell for cell in matches if f"-{text}-" in f"-{cell.id}-"]
    matches = whole or matches
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise ConfigError(
            f"{text}: no such cell on preset {preset.name}; "
            f"`straightdp status --ids --preset {shlex.quote(named or preset.name)}` lists them"
        )
    names = ", ".join(cell.id for cell in matches[:4])
    raise ConfigError(f"{text}: {len(matches)} cells match ({names}, ...); give more of the id")


def find_study(name: str) -> Study:
    if name in FIGURES:
        study = FIGURES[name].study.name
        raise ConfigError(f"{name}: a figure, drawn from what {study} computes; name that")
    if name not in STUDIES:
        raise ConfigError(f"{name}: no such study; known: {', '.join(STUDIES)}")
    return STUDIES[name]


def find_report(name: str) -> Study | Figure:
    """A table's study, or a figure."""
    reports = STUDIES | FIGURES
    if name not in reports:
        raise ConfigError(f"{name}: no such table or figure; known: {', '.join(reports)}")
    return reports[name]
