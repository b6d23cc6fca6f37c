"""What each verb does; each function takes the parsed arguments and returns an exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from straightdp.cli.status import CellState, cell_state, render_grid, render_list
from straightdp.cli.units import Workspace, cell_from_file, prerequisites, run_evaluation, run_unit
from straightdp.config import ConfigError, Preset, load_preset
from straightdp.studies.cells import Cell, Unit, extractor, metrics_name
from straightdp.studies.grid import STUDIES, Study, all_cells, study_cells

TABLES = Path("tables")


def _threads() -> int | None:
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def find_cell(preset: Preset, text: str) -> Cell:
    """The one cell whose id is, or contains, `text`."""
    cells = all_cells(preset)
    if text in cells:
        return cells[text]
    matches = [cell for cell in cells.values() if text in cell.id]
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
    if not workspace.output(reference).exists():
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
        path = path / "transcript.jsonl"
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
    workspace = Workspace.of(preset)
    states = {
        one.id: cell_state(one, workspace, metrics_name(preset))
        for one in study_cells(preset, study)
    }
    print(render_list(states) if arguments.ids else render_grid(preset, study, states))
    return 0


def rerun(arguments) -> int:
    preset, workspace = load_preset(arguments.preset), None
    workspace = Workspace.of(preset)
    name = metrics_name(preset)
    states = {key: cell_state(one, workspace, name) for key, one in all_cells(preset).items()}
    chosen = {find_cell(preset, text).id for text in arguments.cells}
    if arguments.failed:
        chosen |= {key for key, found in states.items() if found.broken}
    if not chosen:
        if not arguments.failed:
            raise ConfigError("name a CELL, or --failed")
        print("no failed cells")
        return 0
    command = rerun_command(arguments, preset, workspace, states, sorted(chosen))
    print(shlex.join(command), flush=True)
    return 0 if arguments.dry_run else subprocess.run(command, check=False).returncode


def rerun_command(
    arguments, preset: Preset, workspace: Workspace, states: dict[str, CellState], chosen: list[str]
) -> list[str]:
    """The Snakemake call that runs just the chosen cells, and the tables they complete."""
    folder = workspace.root / "cells"
    targets = [str(folder / key / metrics_name(preset)) for key in chosen]
    forced = [
        str(folder / key / "run.json") for key in chosen if (folder / key / "run.json").exists()
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
