"""A study's table files from the metrics files of its cells.

A metrics file enters a table only if it can be read, has today's schema, says `status: ok`,
belongs to its cell and lies within the declared budget; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from straightdp.config import Preset
from straightdp.files import DamagedFile, read_json, write_text
from straightdp.reports.layout import LAYOUTS
from straightdp.reports.results import CellResult, Measure, Missing, summarise
from straightdp.reports.table import Caption, Table, to_csv, to_latex, to_markdown
from straightdp.studies.cells import EVALUATION_SCHEMA, Cell, evaluation_config, metrics_name
from straightdp.studies.grid import Row, Study, row_cells

TABLES = Path("tables")
MARGIN = 1 + 1e-9  # on epsilon, for rounding


class UnusableMetrics(ValueError):
    """Metrics files that no table may use; one line each."""


class OldMetrics(DamagedFile):
    """A metrics file of another release's schema: whole, but not what a table reads."""


def _measure(record: dict) -> Measure:
    return Measure(
        value=float(record["value"]),
        n=int(record["n"]),
        by=str(record["by"]),
        checksum=str(record["checksum"]),
        reference=str(record["reference"]),
        parts=tuple(map(float, record.get("classes", ()))),
        part_n=tuple(map(int, record.get("class_n", ()))),
    )


def read_metrics(
    path: Path, cell: Cell, row: Row, evaluation: dict, metrics: Sequence[str]
) -> CellResult:
    """One cell's result; :class:`DamagedFile` names the file and what is wrong with it."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise DamagedFile(f"{path}: not a metrics file")
    if record.get("schema") != EVALUATION_SCHEMA:
        raise OldMetrics(
            f"{path}: its schema is {record.get('schema')!r}, not {EVALUATION_SCHEMA}: written by "
            "another release"
        )
    checks = {
        "status": record.get("status") == "ok",
        "cell": isinstance(record.get("cell"), dict) and record["cell"].get("id") == cell.id,
        "evaluation": record.get("evaluation") == evaluation,
    }
    wrong = [name for name, good in checks.items() if not good]
    if wrong:
        raise DamagedFile(f"{path}: its {' and '.join(wrong)} is not what it should be")
    try:
        if not float(record["replayed_epsilon"]) <= cell.epsilon * MARGIN:
            raise DamagedFile(f"{path}: replayed epsilon is above the declared {cell.epsilon:g}")
        measures = {name: _measure(record["metrics"][name]) for name in metrics}
    except DamagedFile:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: lacks or garbles {error}") from error
    return CellResult(*row.key, cell.epsilon, cell.seed, measures)


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
    layout, columns = LAYOUTS[study.name], study.columns(preset)
    results: list[CellResult] = []
    missing: list[Missing] = []
    troubles = []
    for row in study.rows:
        for cell in row_cells(preset, study, row):
            path = cell.folder(root) / name
            try:
                results.append(read_metrics(path, cell, row, evaluation, layout.metrics))
            except FileNotFoundError:
                missing.append(Missing(*row.key, cell.epsilon, cell.seed, reason(cell)))
                if not partial:
                    troubles.append(f"{path}: not there; `straightdp status` says why")
            except OldMetrics as error:
                troubles.append(f"{error}; run `straightdp evaluate {cell.id}`")
            except DamagedFile as error:
                troubles.append(f"{error}; run `straightdp rerun {cell.id}`")
    if troubles:
        raise UnusableMetrics("\n".join(troubles))
    caption = Caption(
        title=study.title,
        preset=preset.name,
        public=preset.data.public,
        private=preset.data.private,
        delta=preset.privacy.delta,
        adjacency=preset.privacy.adjacency,
        seeds=preset.grid.seeds,
    )
    entries = summarise(results, study.rows, columns, preset.grid.seeds, layout.metrics)
    table = Table(study.name, layout, columns, entries, results, caption, missing)
    texts = {"md": to_markdown(table), "csv": to_csv(table), "tex": to_latex(table)}
    stem = f"{study.name}.partial" if partial else study.name
    paths = [TABLES / preset.name / f"{stem}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths, texts["md"]
