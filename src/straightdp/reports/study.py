"""A study's table files from the metrics files of its cells.

A metrics file enters a table only if it can be read, has today's schema, says `status: ok`,
belongs to its cell and lies within the declared budget; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from straightdp.config import Preset
from straightdp.files import DamagedFile, read_json, write_text
from straightdp.reports.table import (
    Caption,
    CellResult,
    Missing,
    summarise,
    to_csv,
    to_latex,
    to_markdown,
)
from straightdp.studies.cells import Cell, evaluation_config, metrics_name
from straightdp.studies.grid import Row, Study, row_cells

TABLES = Path("tables")
SCHEMA = 1


class UnusableMetrics(ValueError):
    """Metrics files that no table may use; one line each."""


def read_metrics(path: Path, cell: Cell, row: Row, evaluation: dict) -> CellResult:
    """One cell's result; :class:`DamagedFile` names the file and what is wrong with it."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise DamagedFile(f"{path}: not a metrics file")
    checks = {
        "schema": record.get("schema") == SCHEMA,
        "status": record.get("status") == "ok",
        "cell": isinstance(record.get("cell"), dict) and record["cell"].get("id") == cell.id,
        "evaluation": record.get("evaluation") == evaluation,
    }
    wrong = [name for name, good in checks.items() if not good]
    if wrong:
        raise DamagedFile(f"{path}: its {' and '.join(wrong)} is not what it should be")
    try:
        if not float(record["replayed_epsilon"]) <= cell.epsilon * (1 + 1e-9):
            raise DamagedFile(f"{path}: replayed epsilon is above the declared {cell.epsilon:g}")
        return CellResult(
            row.block,
            row.method,
            cell.epsilon,
            cell.seed,
            float(record["accuracy"]),
            float(record["fid"]),
            str(record["extractor"]),
            str(record["extractor_checksum"]),
            int(record["n_samples"]),
        )
    except DamagedFile:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: lacks or garbles {error}") from error


def not_there(cell: Cell) -> str:
    """The reason of a hole whose caller knows no better one."""
    return "no metrics file yet"


def write_study(
    preset: Preset,
    study: Study,
    root: Path,
    partial: bool = False,
    reason: Callable[[Cell], str] = not_there,
) -> tuple[list[Path], str]:
    """Write md, csv and tex; returns their paths and the Markdown.

    A cell without metrics is a hole under `partial` (the files are then TABLE.partial.*), listed
    below the table with its `reason`, and refused otherwise. A damaged file is refused always.
    """
    name, evaluation = metrics_name(preset), evaluation_config(preset)
    results: list[CellResult] = []
    missing: list[Missing] = []
    troubles = []
    for row in study.rows:
        for cell in row_cells(preset, row):
            path = cell.folder(root) / name
            try:
                results.append(read_metrics(path, cell, row, evaluation))
            except FileNotFoundError:
                missing.append(
                    Missing(row.block, row.method, cell.epsilon, cell.seed, reason(cell))
                )
                if not partial:
                    troubles.append(f"{path}: not there; `straightdp status` says why")
            except DamagedFile as error:
                troubles.append(f"{error}; run `straightdp rerun {cell.id}`")
    if troubles:
        raise UnusableMetrics("\n".join(troubles))
    entries = summarise(
        results,
        [(row.block, row.method) for row in study.rows],
        preset.grid.epsilons,
        preset.grid.seeds,
    )
    caption = Caption(
        title=study.title,
        preset=preset.name,
        public=preset.data.public,
        private=preset.data.private,
        delta=preset.privacy.delta,
        adjacency=preset.privacy.adjacency,
        seeds=preset.grid.seeds,
    )
    texts = {
        "md": to_markdown(entries, results, caption, missing),
        "csv": to_csv(entries, results, caption),
        "tex": to_latex(entries, results, caption, missing),
    }
    stem = f"{study.name}.partial" if partial else study.name
    paths = [TABLES / preset.name / f"{stem}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths, texts["md"]
