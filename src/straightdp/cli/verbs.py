"""What each verb does; each function takes the parsed arguments and returns an exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from straightdp.cli.driver import last_driver
from straightdp.cli.queue import Queue
from straightdp.cli.status import CellState, cell_state, render_grid, render_list
from straightdp.cli.units import Workspace, cell_from_file, prerequisites, run_evaluation, run_unit
from straightdp.config import ConfigError, Preset, load_preset
from straightdp.evaluation.record import PUBLISHED, RUN, TRANSCRIPT
from straightdp.studies.cells import Cell, Unit, extractor, metrics_name
from straightdp.studies.grid import STUDIES, Study, all_cells, study_cells

TABLES = Path("tables")


def _threads() -> int | None:
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def find_cell(preset: Preset, text: str) -> Cell:
    """The one cell whose id is, or contains, `text`; whole parts first: eps1 before eps10."""
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
            f"{text}: no such cell on preset {preset.name}; `straightdp status --ids --preset "
            f"{preset.name}` lists them"
        )
    names = ", ".join(cell.id for cell in matches[:4])
    raise ConfigError(f"{text}: {len(matches)} cells match ({names}, ...); give more of the id")


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise ConfigError(f"{name}: no such study; known: {', '.join(STUDIES)}")
    return STUDIES[name]


def _units(preset: Preset) -> dict[str, Unit]:
    units = [extractor(preset)]
    for cell in all_cells(preset).values():
        units.extend(prerequisites(cell))
    return {unit.id: unit for unit in units}


def fetch(arguments) -> int:
    from straightdp.data.fetch import fetch as download

    print(download(arguments.name, arguments.root))
    return 0


def cell(arguments) -> int:
    preset = load_preset(arguments.preset)
    if (arguments.id is None) == (arguments.config is None):
        raise ConfigError("name a cell's id, or --config FILE (one of the two)")
    if arguments.config is not None:
        unit: Unit = cell_from_file(arguments.config)
    else:
        unit = find_cell(preset, arguments.id)
    workspace = Workspace.of(preset)
    run_unit(unit, workspace, preset.execution, _threads(), arguments.wait)
    print(workspace.folder(unit))
    return 0


def prepare(arguments) -> int:
    preset = load_preset(arguments.preset)
    units = _units(preset)
    if arguments.id not in units:
        raise ConfigError(f"{arguments.id}: no such unit on preset {preset.name}")
    run_unit(
        units[arguments.id], Workspace.of(preset), preset.execution, _threads(), arguments.wait
    )
    return 0


def evaluate(arguments) -> int:
    preset = load_preset(arguments.preset)
    found, workspace = find_cell(preset, arguments.id), Workspace.of(preset)
    reference = extractor(preset)
    if not workspace.done(reference):
        run_unit(reference, workspace, preset.execution, _threads())
    run_evaluation(found, workspace, preset, _threads())
    return 0


def report(arguments) -> int:
    from straightdp.reports.study import write_study

    preset = load_preset(arguments.preset)
    study = find_study(arguments.study)
    workspace, name = Workspace.of(preset), metrics_name(preset)

    def reason(cell: Cell) -> str:
        state = cell_state(cell, workspace, name)
        return f"{state.kind}, {state.detail}" if state.detail else state.kind

    paths, text = write_study(preset, study, workspace.root, arguments.partial, reason)
    print(text if arguments.partial else "\n".join(str(path) for path in paths))
    return 0


def show(arguments) -> int:
    preset, study = load_preset(arguments.preset), find_study(arguments.study)
    path = TABLES / preset.name / f"{study.name}.md"
    if not path.exists():
        raise ConfigError(
            f"{path}: not written yet; snakemake --profile profiles/local {study.name}"
        )
    print(path.read_text(encoding="utf-8"))
    print(f"{path.with_suffix('')}.{{md,csv,tex}}")
    return 0


def replay(arguments) -> int:
    from straightdp.mechanisms.transcript import replay as recompute

    path = Path(arguments.cell)
    if not path.exists():
        preset = load_preset(arguments.preset)
        path = Workspace.of(preset).folder(find_cell(preset, arguments.cell))
    if path.is_dir():
        path = path / TRANSCRIPT
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
    name = metrics_name(preset)
    states = {one.id: cell_state(one, workspace, name, queue) for one in study_cells(preset, study)}
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


def rerun(arguments) -> int:
    preset = load_preset(arguments.preset)
    workspace = Workspace.of(preset)
    name, queue = metrics_name(preset), Queue()
    states = {
        key: cell_state(one, workspace, name, queue) for key, one in all_cells(preset).items()
    }
    chosen = {find_cell(preset, text).id for text in arguments.cells}
    for key in sorted(chosen):
        _refuse_settled(preset, workspace.root / "cells" / key)
    if arguments.failed:
        chosen |= {key for key, found in states.items() if found.broken}
    if not chosen:
        if not arguments.failed:
            raise ConfigError("name a CELL, or --failed")
        print("no failed cells")
        return 0
    command = rerun_command(arguments, preset, workspace, states, sorted(chosen))
    print(shlex.join(command), flush=True)
    if arguments.dry_run:
        return 0
    folders = [workspace.root / "cells" / key for key in chosen]
    queue.forget([folder / part for folder in folders for part in (RUN, name)])
    return subprocess.run(command, check=False).returncode


def _refuse_settled(preset: Preset, folder: Path) -> None:
    """A cell published with noise of its own is no cell to run from its start."""
    if preset.privacy.noise_seed == "system" and (folder / PUBLISHED).exists():
        raise ConfigError(
            f"{folder.name}: finished, with noise of its own; a second run would release the "
            f"private data again, at a cost that adds to the first. Remove {folder} if that is "
            "meant"
        )


def rerun_command(
    arguments, preset: Preset, workspace: Workspace, states: dict[str, CellState], chosen: list[str]
) -> list[str]:
    """The Snakemake call that runs just the chosen cells, and the tables they complete."""
    folder = workspace.root / "cells"
    targets = [str(folder / key / metrics_name(preset)) for key in chosen]
    forced = [
        str(folder / key / RUN)
        for key in chosen
        if (folder / key / RUN).exists()
        and not (preset.privacy.noise_seed == "system" and (folder / key / PUBLISHED).exists())
    ]
    for study in STUDIES.values():
        needed = {one.id for one in study_cells(preset, study)}
        others = needed - set(chosen)
        if needed & set(chosen) and all(states[key].kind in {"done", "stale"} for key in others):
            targets.append(f"tables/{preset.name}/{study.name}.md")
    command = [sys.executable, "-m", "snakemake", "--profile", arguments.profile]
    command += ["--config", f"preset={arguments.preset}"]
    if forced:
        command += ["--forcerun", *forced]
    return [*command, "--", *targets]
