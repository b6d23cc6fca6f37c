"""Appendix D.3: quantiles of per-example gradient norms, and how many of them are clipped.

From the logs that cells leave of benchmark data: medians over a run's steps, then means over
its seeds. The ratio is that of the two means, as 1.61 is of the paper's 2156 and 1337.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from straightdp.config import Preset
from straightdp.files import DamagedFile, read_json
from straightdp.reports import style
from straightdp.studies.cells import Cell
from straightdp.studies.grid import row_cells
from straightdp.studies.rows import Key, Row, Study

LOG = "gradients.json"
FIELDS = ("p50", "p90", "clip_fraction")
HEADS = {
    "p50": ("p50", 4),
    "p90": ("p90", 4),
    "ratio": ("p90/p50", 2),
    "clip_fraction": ("Clip", 2),
}
# By method, at epsilon 0.3: p50, p90, their ratio, clip fraction.
PAPER = {
    "tha_moments": {"p50": 1337, "p90": 2156, "ratio": 1.61, "clip_fraction": 0.14},
    "low_b0": {"p50": 1450, "p90": 2116, "ratio": 1.46, "clip_fraction": 0.13},
}
TITLE = "Per-example gradient norms over Stage 2 (Appendix D.3)"
NOTE = (
    "Medians over steps, mean over n seeds; in parentheses the paper's values. They describe "
    "private gradients without noise and are logged for published benchmark data alone."
)


@dataclass(frozen=True)
class Norms:
    """A row at one budget: means over its n seeds; NaN is a hole."""

    key: Key
    epsilon: float
    n: int
    values: dict[str, float]

    @property
    def paper(self) -> dict[str, float]:
        return PAPER.get(self.key.method, {}) if self.epsilon == 0.3 else {}


def medians(path: Path) -> dict[str, float]:
    """A run's medians over its steps; :class:`DamagedFile` where the log is none."""
    log = read_json(path)
    try:
        series = {name: np.asarray(log[name], dtype=float) for name in FIELDS}
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: lacks or garbles {error}") from error
    lengths = {array.shape for array in series.values()}
    whole = all(np.isfinite(array).all() for array in series.values())
    if len(lengths) != 1 or series["p50"].ndim != 1 or not len(series["p50"]) or not whole:
        raise DamagedFile(f"{path}: not a log of gradient norms, a number a step")
    return {name: float(np.median(array)) for name, array in series.items()}


def norms(row: Row, epsilon: float, found: Sequence[dict[str, float]]) -> Norms:
    """The means over the seeds that are there."""
    values = {
        name: float(np.mean([one[name] for one in found])) if found else math.nan for name in FIELDS
    }
    values["ratio"] = values["p90"] / values["p50"] if values["p50"] else math.nan
    return Norms(row.key, epsilon, len(found), values)


def logged(cell: Cell) -> bool:
    """Whether a finished run of the cell leaves a log: never of one's own data."""
    return cell.config["privacy"]["noise_seed"] == "fixed"


def read_norms(
    preset: Preset, study: Study, root: Path, partial: bool, on: str
) -> tuple[list[Norms], list[str]]:
    """The rows beside a study's table; and a line for each log that no table may use.

    A log that is missing is a hole under `partial`. `on` names the preset in the hints.
    """
    found: list[Norms] = []
    troubles = []
    for row in study.beside:
        logs: dict[float, list[dict[str, float]]] = {at: [] for at in row.epsilons}
        for cell in filter(logged, row_cells(preset, study, row)):
            path = cell.folder(root) / LOG
            try:
                logs[cell.epsilon].append(medians(path))
            except FileNotFoundError:
                if not partial:
                    troubles.append(f"{path}: not there; run `straightdp rerun {cell.id} {on}`")
            except DamagedFile as error:
                troubles.append(f"{error}; run `straightdp rerun {cell.id} {on}`")
        found += [norms(row, epsilon, values) for epsilon, values in logs.items()]
    return found, troubles


def gradients_csv(rows: Sequence[Norms]) -> str:
    """One line a row and budget, with the paper's values."""
    lines = [
        {
            "method": one.key.method,
            "space": one.key.space,
            "epsilon": one.epsilon,
            "n": one.n,
            **{name: one.values[name] for name in HEADS},
            **{f"paper_{name}": one.paper.get(name, math.nan) for name in HEADS},
        }
        for one in rows
    ]
    return pd.DataFrame(lines).to_csv(index=False)


def _cells(one: Norms) -> list[str]:
    shown = []
    for name, (_, digits) in HEADS.items():
        value, paper = one.values[name], one.paper.get(name)
        style_of = f".{digits}g" if name.startswith("p") else f".{digits}f"
        text = style.HOLE if math.isnan(value) else f"{value:{style_of}}"
        shown.append(text if paper is None else f"{text} ({paper:g})")
    return [style.label(*one.key), style.number(one.epsilon), str(one.n), *shown]


def _heads() -> list[str]:
    return ["Backbone", "\u03b5", "n", *(head for head, _ in HEADS.values())]


def gradients_markdown(rows: Sequence[Norms]) -> str:
    lines = [_heads(), *map(_cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = [
        f"| {' | '.join(text.ljust(width) for text, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"{TITLE}. {NOTE}", "", shown[0], rule, *shown[1:], ""])


def gradients_latex(rows: Sequence[Norms]) -> str:
    def line(cells: Sequence[str]) -> str:
        text = " & ".join(cells) + r" \\"
        return text.replace("ow-B0", "ow-$B_0$").replace(style.HOLE, "---")

    heads = [r"$\varepsilon$" if head == "\u03b5" else head for head in _heads()]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{TITLE}. {NOTE}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
            r"\toprule",
            line(heads),
            r"\midrule",
            *(line(_cells(one)) for one in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
