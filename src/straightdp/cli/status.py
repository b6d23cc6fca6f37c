"""Where every cell stands: done, running, pending, failed, interrupted, missing or stale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_submitit.journal import log_tail
from straightdp.cli.queue import FAILURE as JOB_FAILED
from straightdp.cli.queue import Queue
from straightdp.cli.units import FAILURE, LOG, Workspace
from straightdp.config import Preset
from straightdp.evaluation.record import NotPassed, digests, finished_run
from straightdp.files import DamagedFile, read_json
from straightdp.reports.metrics import read_record
from straightdp.studies.cells import Cell, number
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
    "done; stale: computed by other code than today's; samples: not evaluated yet;\n"
    "running, pending: jobs of a cluster, see below; FAILED: see below;\n"
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
    cell: Cell, workspace: Workspace, metrics: str, queue: Queue | None = None
) -> CellState:
    """What the cluster says of the cell, if it has it; what the cell's folder says, if not."""
    folder = workspace.folder(cell)
    jobs = [queue.job(folder / name) if queue else None for name in ("run.json", metrics)]
    for job in jobs:
        if job is not None and job.kind != JOB_FAILED:
            return CellState(job.kind, job.detail, job.log)
    state = _folder_state(cell, folder, metrics)
    failed = jobs[1 if state.kind == "unevaluated" else 0]
    if failed is not None and state.kind in {"unevaluated", "interrupted", "missing"}:
        return CellState("failed", failed.detail, failed.log)
    return state


def _folder_state(cell: Cell, folder: Path, metrics: str) -> CellState:
    try:
        if (folder / FAILURE).exists():
            failure = read_json(folder / FAILURE)
            detail = f"{failure['reason']}: {failure['message']} (log: {failure['log']})"
            return CellState("failed", detail, str(failure["log"]))
        if (folder / "run.json").exists():
            run = finished_run(folder)
            if not (folder / metrics).exists():
                digests(folder)
                return CellState("unevaluated", "no metrics for today's evaluation settings")
            read_record(folder / metrics, cell)
            if run["code"]["source"] != source_hash():
                return CellState("stale", f"computed by source {run['code']['source']}")
            return CellState("done")
    except (DamagedFile, NotPassed, KeyError, TypeError, AttributeError) as error:
        known = isinstance(error, DamagedFile | NotPassed)
        text = str(error) if known else f"{folder}: lacks {error}"
        return CellState("failed", f"damaged: {text}")
    log = str(folder / LOG)
    checkpoints = sorted((folder / "state").glob("*.pt"), key=lambda path: path.stat().st_mtime)
    if checkpoints:
        phase, _, step = checkpoints[-1].stem.rpartition("-")
        return CellState("interrupted", f"at {phase} step {int(step)} (log: {log})", log)
    if (folder / "state").exists():
        return CellState("interrupted", f"before its first checkpoint (log: {log})", log)
    return CellState("missing")


def render_list(states: dict[str, CellState]) -> str:
    """One line a cell."""
    return "\n".join(
        f"{MARKS[state.kind]:8} {key}{'  ' + state.detail if state.detail else ''}"
        for key, state in states.items()
    )


def render_grid(preset: Preset, study: Study, states: dict[str, CellState]) -> str:
    """Rows by budgets, a mark a seed, and the reason of every cell that failed."""
    columns = study.columns(preset)
    heads = [f"eps {number(epsilon)}" for epsilon in columns]
    lines, troubles, out = [], [], []
    for row in study.rows:
        cells = row_cells(preset, study, row)
        marks = [
            " ".join(MARKS[states[cell.id].kind] for cell in cells if cell.epsilon == epsilon)
            for epsilon in columns
        ]
        space = "" if row.block == row.space else f" ({row.space})"
        lines.append([f"{row.block}: {row.method}{space}", *marks])
        troubles += [cell.id for cell in cells if states[cell.id].broken]
        out += [cell.id for cell in cells if states[cell.id].kind in {"running", "pending"}]
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
