"""Which metrics files a table takes.

One enters a table only if it can be read, has today's schema, says `status: ok`, belongs to
its cell, lies within the declared budget, and was computed from the files that lie beside it
today; anything else is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from straightdp.evaluation.record import unchanged
from straightdp.files import DamagedFile, read_json
from straightdp.reports.results import CellResult, Measure
from straightdp.studies.cells import EVALUATION_SCHEMA, Cell, evaluation_name
from straightdp.studies.rows import Row

MARGIN = 1 + 1e-9  # on epsilon, for rounding


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
        right=float(record["real_accuracy"]) if "real_accuracy" in record else None,
    )


def read_record(path: Path, cell: Cell) -> dict:
    """A cell's metrics file, fit for a table; :class:`DamagedFile` says why one is not.

    So it is where one of the files that it was computed from has changed since. The file's
    name holds the digest of the evaluation's settings.
    """
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
        "evaluation": evaluation_name(record.get("evaluation")) == path.name,
    }
    wrong = [name for name, good in checks.items() if not good]
    if wrong:
        raise DamagedFile(f"{path}: its {' and '.join(wrong)} is not what it should be")
    try:
        within = float(record["replayed_epsilon"]) <= cell.epsilon * MARGIN
        values = {name: float(one["value"]) for name, one in record["metrics"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: lacks or garbles {error}") from error
    if not within:
        raise DamagedFile(f"{path}: replayed epsilon is above the declared {cell.epsilon:g}")
    for name, value in values.items():
        if not math.isfinite(value):
            raise DamagedFile(f"{path}: its {name} is {value}, not a number")
    unchanged(path.parent, record.get("files"))
    return record


def read_metrics(path: Path, cell: Cell, row: Row, metrics: Sequence[str]) -> CellResult:
    """One cell's result; :class:`DamagedFile` names the file and what is wrong with it."""
    record = read_record(path, cell)
    try:
        measures = {name: _measure(record["metrics"][name]) for name in metrics}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: lacks or garbles {error}") from error
    return CellResult(*row.key, cell.epsilon, cell.seed, measures)
