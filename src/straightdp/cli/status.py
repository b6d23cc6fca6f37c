"""Where every cell stands: done, running, pending, failed, interrupted, missing or stale."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_submitit.journal import log_tail
from straightdp.cli.queue import FAILURE as JOB_FAILED
from straightdp.cli.queue import Queue
from straightdp.cli.units import (
    FAILURE,
    LOG,
    Workspace,
    evaluation_failure,
    held,
    prerequisites,
)
from straightdp.config import Preset
from straightdp.evaluation.record import RUN, WEIGHTS, NotPassed, digests, finished_run
from straightdp.files import DamagedFile, read_json
from straightdp.reports.metrics import read_record
from straightdp.studies.cells import Cell, Unit, cell_base, number
from straightdp.studies.grid import Study, row_cells
from straightdp.version import source_hash

MARKS = {
    "done": "done",
    "stale": "stale",
    "unevaluated": "samples",
    "running": "running",
    "pending": "pending",
    "failed": "FAILED",
    "interrupted": "stopped",
    "missing": ".",
}
LEGEND = (
    "done; stale: by other code, or from other weights, than today's; samples: not evaluated yet;\n"
    "running, pending: at work, or a cluster's jobs, see below; FAILED: see below;\n"
    "stopped: interrupted, goes on from its checkpoint; .: not begun"
)
SHOWN_TAILS = 5  # failed cells whose log's end is shown; the others have its path


@dataclass(frozen=True)
class CellState:
    """`kind` is a key of MARKS; `detail` says why, `log` is where to look."""

    kind: str
    detail: str = ""
    log: str = ""

    @property
    def broken(self) -> bool:
        return self.kind in {"failed", "interrupted"}


def cell_state(
    cell: Cell,
    workspace: Workspace,
    metrics: str,
    queue: Queue | None = None,
    reference: Unit | None = None,
) -> CellState:
    """What the cluster says of the cell, if it has it; what the cell's folder says, if not.

    A cell that is not begun, or not evaluated, has failed where what it waits for has:
    a shared unit, or the evaluation's `reference`.
    """
    folder = workspace.folder(cell)
    jobs = [queue.job(folder / name) if queue else None for name in (RUN, metrics)]
    for job in jobs:
        if job is not None and job.kind != JOB_FAILED:
            return CellState(job.kind, job.detail, job.log)
    state = _folder_state(cell, folder, metrics)
    if state.kind == "done" and _outdated(cell, workspace):
        state = CellState("stale", "drawn from a cell that has other weights now")
    failed = jobs[1 if state.kind == "unevaluated" else 0]
    if failed is not None and state.kind in {"unevaluated", "interrupted", "missing"}:
        return CellState("failed", failed.detail, failed.log)
    waits = {"missing": prerequisites(cell), "unevaluated": [reference] if reference else []}
    for unit in waits.get(state.kind, []):
        found = None if workspace.done(unit) else _failure(workspace.folder(unit) / FAILURE)
        if found is not None:
            return CellState("failed", f"{unit.kind} {unit.id}: {found.detail}", found.log)
    return state


def _failure(path: Path) -> CellState | None:
    """A failure's record as a state; None where nothing failed."""
    try:
        failure = read_json(path)
        detail = f"{failure['reason']}: {failure['message']} (log: {failure['log']})"
        return CellState("failed", detail, str(failure["log"]))
    except FileNotFoundError:
        return None
    except (DamagedFile, KeyError, TypeError) as error:
        text = str(error) if isinstance(error, DamagedFile) else f"{path}: lacks {error}"
        return CellState("failed", f"damaged: {text}")


def _folder_state(cell: Cell, folder: Path, metrics: str) -> CellState:
    log = str(folder / LOG)
    if held(folder):
        return CellState("running", f"on this machine or another one (log: {log})", log)
    failure = _failure(folder / FAILURE)
    if failure is not None:
        return failure
    if (folder / RUN).exists():
        return _finished_state(cell, folder, metrics)
    at = _newest_checkpoint(folder / "state")
    if at is not None:
        return CellState("interrupted", f"at {at} (log: {log})", log)
    if (folder / "state").exists():
        return CellState("interrupted", f"before its first checkpoint (log: {log})", log)
    return CellState("missing")


def _finished_state(cell: Cell, folder: Path, metrics: str) -> CellState:
    try:
        run = finished_run(folder)
        if not (folder / metrics).exists():
            digests(folder)
            failure = _failure(evaluation_failure(folder / metrics))
            if failure is None:
                return CellState("unevaluated", "no metrics for today's evaluation settings")
            return CellState("failed", f"evaluation: {failure.detail}", failure.log)
        read_record(folder / metrics, cell)
        if run["code"]["source"] != source_hash():
            return CellState("stale", f"computed by source {run['code']['source']}")
        return CellState("done")
    except (DamagedFile, NotPassed, KeyError, TypeError, AttributeError) as error:
        known = isinstance(error, DamagedFile | NotPassed)
        text = str(error) if known else f"{folder}: lacks {error}"
        return CellState("failed", f"damaged: {text}")


def _outdated(cell: Cell, workspace: Workspace) -> bool:
    """Whether a cell's samples were drawn from weights that their own cell no longer has."""
    base = cell_base(cell.config)
    if base is None:
        return False
    try:
        ours, theirs = (read_json(workspace.folder(one) / RUN) for one in (cell, base))
        return theirs.get(WEIGHTS, ours[WEIGHTS]) != ours[WEIGHTS]
    except (OSError, DamagedFile, KeyError, AttributeError):
        return False  # the other cell's own state says what is wrong with it


def _newest_checkpoint(state: Path) -> str | None:
    """Phase and step of the newest checkpoint; a run may remove one while this looks."""
    found = []
    for path in state.glob("*.pt"):
        phase, _, step = path.stem.rpartition("-")
        with suppress(FileNotFoundError):
            if phase and step.isdecimal():
                found.append((path.stat().st_mtime, f"{phase} step {int(step)}"))
    return max(found)[1] if found else None


def render_list(states: dict[str, CellState]) -> str:
    """One line a cell."""
    return "\n".join(
        f"{MARKS[state.kind]:8} {key}{'  ' + state.detail if state.detail else ''}"
        for key, state in states.items()
    )


def render_grid(preset: Preset, study: Study, states: dict[str, CellState]) -> str:
    """Rows by budgets, a mark a seed, and the reason of every cell that failed."""
    rows = (*study.rows_on(preset), *study.beside)
    budgets = {epsilon for row in study.beside for epsilon in row.epsilons}
    columns = (*study.columns(preset), *sorted(budgets - {*study.columns(preset)}))
    heads = [f"eps {number(epsilon)}" for epsilon in columns]
    lines, troubles, out = [], [], []
    for row in rows:
        cells = row_cells(preset, study, row)
        marks = [
            " ".join(MARKS[states[cell.id].kind] for cell in cells if cell.epsilon == epsilon)
            for epsilon in columns
        ]
        space = "" if row.block == row.space else f" ({row.space})"
        variant = f", {row.variant}" if row.variant else ""
        lines.append([f"{row.block}: {row.method}{space}{variant}", *marks])
        troubles += [cell.id for cell in cells if states[cell.id].broken]
        out += [cell.id for cell in cells if states[cell.id].kind in {"running", "pending"}]
    troubles, out = list(dict.fromkeys(troubles)), list(dict.fromkeys(out))
    widths = [max(len(line[i]) for line in [["", *heads], *lines]) for i in range(len(heads) + 1)]
    shown = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [["", *heads], *lines]
    ]
    finished = sum(state.kind in {"done", "stale"} for state in states.values())
    title = (
        f"{study.name} on preset {preset.name}: {finished} of {len(states)} cells done"
        f" (seeds {', '.join(map(str, preset.grid.seeds))})"
    )
    queued = [f"{states[key].kind:8} {key}  {states[key].detail}" for key in out]
    reasons = [f"{key}\n    {states[key].kind}, {states[key].detail}" for key in troubles]
    tails = [_tail(states[key].log) if states[key].kind == "failed" else "" for key in troubles]
    for i, tail in enumerate(tails[:SHOWN_TAILS]):
        reasons[i] += tail
    return "\n".join([title, *shown, LEGEND, *queued, *reasons])


def _tail(log: str) -> str:
    """The last 20 lines of a log, indented under their cell."""
    return "".join(f"\n      | {line}" for line in log_tail(log)) if log else ""
