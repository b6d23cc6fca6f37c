"""Where every cell stands: done, failed with its reason, interrupted, missing or stale."""

from __future__ import annotations

from dataclasses import dataclass

from straightdp.cli.units import FAILURE, LOG, Workspace
from straightdp.config import Preset
from straightdp.files import DamagedFile, read_json
from straightdp.studies.cells import Cell, number
from straightdp.studies.grid import Study, row_cells
from straightdp.version import source_hash

MARKS = {
    "done": "done",
    "stale": "stale",
    "unevaluated": "samples",
    "failed": "FAILED",
    "interrupted": "stopped",
    "missing": ".",
}
LEGEND = (
    "done; stale: computed by other code than today's; samples: not evaluated yet;\n"
    "FAILED: see below; stopped: interrupted, goes on from its checkpoint; .: not begun"
)


@dataclass(frozen=True)
class CellState:
    """`kind` is a key of MARKS; `detail` says why."""

    kind: str
    detail: str = ""

    @property
    def broken(self) -> bool:
        return self.kind in {"failed", "interrupted"}


def cell_state(cell: Cell, workspace: Workspace, metrics: str) -> CellState:
    """What the cell's folder says."""
    folder = workspace.folder(cell)
    try:
        if (folder / FAILURE).exists():
            failure = read_json(folder / FAILURE)
            return CellState(
                "failed", f"{failure['reason']}: {failure['message']} (log: {failure['log']})"
            )
        if (folder / "run.json").exists():
            run = read_json(folder / "run.json")
            if not (folder / metrics).exists():
                return CellState("unevaluated", "no metrics for today's evaluation settings")
            evaluated = read_json(folder / metrics)
            for name, record in (("run.json", run), (metrics, evaluated)):
                if record.get("status") != "ok":
                    return CellState("failed", f"{folder / name}: status is not ok")
            if run["code"]["source"] != source_hash():
                return CellState("stale", f"computed by source {run['code']['source']}")
            return CellState("done")
    except (DamagedFile, KeyError, TypeError, AttributeError) as error:
        text = str(error) if isinstance(error, DamagedFile) else f"{folder}: lacks {error}"
        return CellState("failed", f"damaged: {text}")
    checkpoints = sorted((folder / "state").glob("*.pt"), key=lambda path: path.stat().st_mtime)
    if checkpoints:
        phase, _, step = checkpoints[-1].stem.rpartition("-")
        return CellState("interrupted", f"at {phase} step {int(step)} (log: {folder / LOG})")
    if (folder / "state").exists():
        return CellState("interrupted", f"before its first checkpoint (log: {folder / LOG})")
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
    lines, troubles = [], []
    for row in study.rows:
        cells = row_cells(preset, study, row)
        marks = [
            " ".join(MARKS[states[cell.id].kind] for cell in cells if cell.epsilon == epsilon)
            for epsilon in columns
        ]
        space = "" if row.block == row.space else f" ({row.space})"
        lines.append([f"{row.block}: {row.method}{space}", *marks])
        troubles += [cell.id for cell in cells if states[cell.id].broken]
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
    reasons = [f"{key}\n    {states[key].kind}, {states[key].detail}" for key in troubles]
    return "\n".join([title, *shown, LEGEND, *reasons])
