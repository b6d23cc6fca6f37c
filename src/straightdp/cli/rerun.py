"""Running cells again: failed ones from where they were, named ones from their start."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from straightdp.cli.driver import last_driver
from straightdp.cli.find import find_cell
from straightdp.cli.queue import Queue
from straightdp.cli.status import CellState, cell_state
from straightdp.cli.units import FAILURE, Workspace
from straightdp.config import ConfigError, Preset, load_preset
from straightdp.evaluation.record import PUBLISHED, RUN, SAMPLES, TRANSCRIPT, NotPassed, passed
from straightdp.files import DamagedFile, read_arrays
from straightdp.studies.cells import Cell, cell_base, extractor, metrics_name
from straightdp.studies.grid import STUDIES, all_cells, study_cells

LOCKS = Path(".snakemake") / "locks"


def rerun(arguments) -> int:
    if not Path("Snakefile").is_file():
        raise ConfigError("no Snakefile here: run it in the project's folder")
    preset = load_preset(arguments.preset)
    workspace, cells = Workspace.of(preset), all_cells(preset)
    name, queue, reference = metrics_name(preset), Queue(), extractor(preset)
    states = {key: cell_state(one, workspace, name, queue, reference) for key, one in cells.items()}
    named = {find_cell(preset, text, arguments.preset).id for text in arguments.cells}
    for key in sorted(named):
        _refuse(cells[key], workspace, states[key])
    chosen = set(named)
    if arguments.failed:
        chosen |= {key for key, found in states.items() if found.broken}
    if not chosen:
        if not arguments.failed:
            raise ConfigError("name a CELL, or --failed")
        print("no failed cells")
        return 0
    command = rerun_command(
        arguments, preset, workspace, states, [cells[key] for key in sorted(chosen)], named
    )
    print(shlex.join(command), flush=True)
    if arguments.dry_run:
        return 0
    for key in named:
        folder = workspace.folder(cells[key])
        shutil.rmtree(folder / "state", ignore_errors=True)
        (folder / FAILURE).unlink(missing_ok=True)
    folders = [workspace.folder(cells[key]) for key in chosen]
    queue.forget([folder / part for folder in folders for part in (RUN, name)])
    status = subprocess.run(command, check=False).returncode
    driver = last_driver()
    if status and any(LOCKS.glob("*")) and not (driver and driver.alive):
        print("a killed workflow left its lock: `straightdp recover`, then again", file=sys.stderr)
    return status


def _refuse(cell: Cell, workspace: Workspace, state: CellState) -> None:
    """A cell at work is not begun anew, nor one that has spent budget on data of one's own."""
    folder = workspace.folder(cell)
    if state.kind in {"running", "pending"}:
        raise ConfigError(f"{cell.id}: {state.kind}, {state.detail}; stop it first")
    if not _once(cell):
        return
    for part in (PUBLISHED, TRANSCRIPT, f"state/{TRANSCRIPT}"):
        if (folder / part).exists():
            raise ConfigError(
                f"{cell.id}: {folder / part} says what it released, with noise of its own; a run "
                "from its start would release the private data again, at a cost that adds to "
                f"the first. `rerun --failed` goes on from where it was; remove {folder} if a "
                "second release is meant"
            )


def _once(cell: Cell) -> bool:
    """Whether running the cell twice would be a second release of one's own data."""
    return cell.config["privacy"]["noise_seed"] == "system" and cell_base(cell.config) is None


def _stands(cell: Cell, workspace: Workspace) -> bool:
    """Whether a cell's run needs no other: it passes, and its samples can be read."""
    folder = workspace.folder(cell)
    if _once(cell) and (folder / PUBLISHED).exists():
        return True
    try:
        passed(folder, cell.config)
        read_arrays(folder / SAMPLES)
    except (NotPassed, DamagedFile, OSError):
        return False
    return True


def rerun_command(
    arguments,
    preset: Preset,
    workspace: Workspace,
    states: dict[str, CellState],
    chosen: list[Cell],
    named: set[str],
) -> list[str]:
    """The Snakemake call that runs just the chosen cells, and the tables they complete.

    A failed cell whose run stands is only evaluated again.
    """
    forced = []
    for cell in chosen:
        part = RUN if cell.id in named or not _stands(cell, workspace) else metrics_name(preset)
        if (workspace.folder(cell) / part).exists():
            forced.append(str(workspace.folder(cell) / part))
    targets = [str(workspace.folder(cell) / metrics_name(preset)) for cell in chosen]
    keys = {cell.id for cell in chosen}
    for study in STUDIES.values():
        needed = {one.id for one in study_cells(preset, study)}
        others = needed - keys
        if needed & keys and all(states[key].kind in {"done", "stale"} for key in others):
            targets.append(f"tables/{preset.name}/{study.name}.md")
    command = [sys.executable, "-m", "snakemake", "--profile", arguments.profile]
    command += ["--config", f"preset={arguments.preset}"]
    if forced:
        command += ["--forcerun", *forced]
    return [*command, "--", *targets]
