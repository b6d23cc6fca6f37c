"""What each verb does; each function takes the parsed arguments and returns an exit code."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from straightdp.cli.driver import last_driver
from straightdp.cli.find import find_cell, find_report, find_study
from straightdp.cli.queue import Queue
from straightdp.cli.rerun import rerun as rerun
from straightdp.cli.status import cell_state, render_grid, render_list
from straightdp.cli.units import (
    RESULTS,
    Workspace,
    cell_from_file,
    prerequisites,
    run_evaluation,
    run_unit,
)
from straightdp.config import ConfigError, Preset, load_preset
from straightdp.evaluation.record import TRANSCRIPT
from straightdp.reports.figures.draw import FIGURES, write_figure
from straightdp.studies.cells import Cell, Unit, extractor, metrics_name
from straightdp.studies.figures import Figure
from straightdp.studies.grid import Study, all_cells, study_cells
from straightdp.threads import granted

TABLES = Path("tables")


def _units(preset: Preset) -> dict[str, Unit]:
    units = [extractor(preset)]
    for cell in all_cells(preset).values():
        units.extend(prerequisites(cell))
    return {unit.id: unit for unit in units if unit.kind != "cells"}


def fetch(arguments) -> int:
    from straightdp.data.fetch import fetch as download

    print(download(arguments.name, arguments.root))
    return 0


def cell(arguments) -> int:
    preset = load_preset(arguments.preset)
    if (arguments.id is None) == (arguments.config is None):
        raise ConfigError("name a cell's id, or --config FILE (one of the two)")
    if arguments.config is not None:
        if not (RESULTS.is_dir() or Path("Snakefile").is_file()):
            raise ConfigError("no results/ and no Snakefile here: run it in the project's folder")
        unit: Unit = cell_from_file(arguments.config)
    else:
        unit = find_cell(preset, arguments.id, arguments.preset)
    workspace = Workspace.of(preset)
    run_unit(unit, workspace, preset.execution, granted(), arguments.wait)
    print(workspace.folder(unit))
    return 0


def prepare(arguments) -> int:
    preset = load_preset(arguments.preset)
    units = _units(preset)
    if arguments.id not in units:
        raise ConfigError(f"{arguments.id}: no such unit on preset {preset.name}")
    run_unit(units[arguments.id], Workspace.of(preset), preset.execution, granted(), arguments.wait)
    return 0


def evaluate(arguments) -> int:
    preset = load_preset(arguments.preset)
    found, workspace = find_cell(preset, arguments.id, arguments.preset), Workspace.of(preset)
    reference = extractor(preset)
    if not workspace.done(reference):
        run_unit(reference, workspace, preset.execution, granted())
    run_evaluation(found, workspace, preset, granted())
    return 0


def report(arguments) -> int:
    from straightdp.reports.study import write_study

    preset = load_preset(arguments.preset)
    wanted = find_report(arguments.study)
    workspace, name = Workspace.of(preset), metrics_name(preset)

    def reason(cell: Cell) -> str:
        state = cell_state(cell, workspace, name, reference=extractor(preset))
        return f"{state.kind}, {state.detail}" if state.detail else state.kind

    how = (workspace.root, arguments.partial, reason, arguments.preset)
    if isinstance(wanted, Figure):
        paths, missing = write_figure(preset, wanted, *how)
        print("\n".join([*map(str, paths), *(f"not there: {one}" for one in missing)]))
        return 0
    paths, text = write_study(preset, wanted, *how)
    print(text if arguments.partial else "\n".join(str(path) for path in paths))
    return 0


def show(arguments) -> int:
    preset, wanted = load_preset(arguments.preset), find_report(arguments.study)
    drawn = isinstance(wanted, Figure)
    stem = (FIGURES if drawn else TABLES) / preset.name / wanted.name
    path = stem.parent / f"{stem.name}.{'png' if drawn else 'md'}"
    if not path.exists():
        raise ConfigError(
            f"{path}: not written yet; snakemake --profile profiles/local {wanted.name} "
            f"--config {shlex.quote(f'preset={arguments.preset}')}"
        )
    if drawn:
        print(f"{stem}.{{pdf,png}}")
        return 0
    print(path.read_text(encoding="utf-8"))
    print(f"{path.with_suffix('')}.{{md,csv,tex}}")
    return 0


def replay(arguments) -> int:
    from straightdp.mechanisms.transcript import replay as recompute

    path = Path(arguments.cell)
    if not path.exists():
        preset = load_preset(arguments.preset)
        path = Workspace.of(preset).folder(find_cell(preset, arguments.cell, arguments.preset))
    if path.is_dir():  # of a cell under way, what it has charged so far
        under_way = path / "state" / TRANSCRIPT
        path = path / TRANSCRIPT
        if not path.exists() and under_way.exists():
            path = under_way
    if not path.exists():
        raise ConfigError(f"{path}: no transcript; has the cell finished?")
    result = recompute(path)
    verdict = "within" if result.ok else "ABOVE"
    print(
        f"epsilon {result.epsilon:.6g} at delta {result.delta:g} ({result.adjacency.value}), "
        f"{verdict} the declared {result.declared_epsilon:g}"
    )
    for line in result.describe():
        print(f"  {line}")
    return 0 if result.ok else 1


def status(arguments) -> int:
    preset, study = load_preset(arguments.preset), find_study(arguments.study)
    while True:
        text = _status_text(preset, study, arguments.ids)
        if not arguments.watch:
            print(text)
            return 0
        clear = "\033[2J\033[H" if sys.stdout.isatty() else ""
        print(f"{clear}{time.strftime('%H:%M:%S')}  {text}", flush=True)
        time.sleep(arguments.watch)


def _status_text(preset: Preset, study: Study, ids: bool) -> str:
    workspace, queue, driver = Workspace.of(preset), Queue(), last_driver()
    name, reference = metrics_name(preset), extractor(preset)
    states = {
        one.id: cell_state(one, workspace, name, queue, reference)
        for one in study_cells(preset, study)
    }
    if ids:
        return render_list(states)
    at_work = f"\ndriver: {driver.describe()}" if driver and driver.alive else "\ndriver: none"
    return render_grid(preset, study, states) + at_work


def recover(arguments) -> int:
    """After a crash: unlock, and start the last driver's command again."""
    driver = last_driver()
    if driver is None:
        raise ConfigError(
            "no workflow has run in this folder; begin with snakemake --profile PROFILE table1"
        )
    if driver.alive:
        raise ConfigError(
            f"{driver.describe()}, is alive and at work here; nothing to recover. "
            "Stop it first if that is meant"
        )
    base = [sys.executable, "-m", "snakemake", *driver.arguments]
    again = [*base] if "--rerun-incomplete" in base else _inserted(base, "--rerun-incomplete")
    print(shlex.join(again), flush=True)
    if arguments.dry_run:
        return 0
    unlocked = subprocess.run(_inserted(base, "--unlock"), capture_output=True, text=True)
    if unlocked.returncode != 0:
        raise ConfigError(f"could not unlock: {(unlocked.stderr or unlocked.stdout).strip()}")
    return subprocess.run(again, check=False).returncode


def _inserted(command: list[str], flag: str) -> list[str]:
    """The command with a flag before its own arguments, which may end in targets."""
    return [*command[:3], flag, *command[3:]]
