"""Table 1 from evaluated cells: summaries over seeds, then CSV, Markdown and LaTeX.

The deviation is the sample standard deviation (ddof 1), left out where n < 2. A number that
is not there is a hole and shown as one, with its reason below the table where one is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from straightdp.reports import style
from straightdp.reports.paper import table1_value


class MixedExtractors(ValueError):
    """FIDs that no column may mix: of different extractors, or of different sample sizes."""


@dataclass(frozen=True)
class CellResult:
    """One evaluated cell."""

    block: str
    method: str
    epsilon: float
    seed: int
    accuracy: float
    fid: float
    extractor: str
    extractor_checksum: str
    n_samples: int


@dataclass(frozen=True)
class Missing:
    """A cell that should be there and is not, with why."""

    block: str
    method: str
    epsilon: float
    seed: int
    reason: str

    def __str__(self) -> str:
        label = style.METHODS.get(self.method, self.method)
        return (
            f"{style.BLOCKS.get(self.block, self.block)}: {label}, epsilon {self.epsilon:g}, "
            f"seed {self.seed}: {' '.join(self.reason.split())}"
        )


@dataclass(frozen=True)
class Caption:
    """What the caption says of the run."""

    title: str
    preset: str
    public: str
    private: str
    delta: float
    adjacency: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A row at one budget, over the n seeds that are there of `expected`; NaN is a hole."""

    block: str
    method: str
    epsilon: float
    n: int
    expected: int
    accuracy: float
    accuracy_std: float
    fid: float
    fid_std: float


def _mean_std(values: list[float]) -> tuple[float, float]:
    mean = float(np.mean(values)) if values else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _check(
    results: Sequence[CellResult],
    rows: Sequence[tuple[str, str]],
    epsilons: Sequence[float],
    seeds: Sequence[int],
) -> None:
    measures = {(one.extractor, one.extractor_checksum, one.n_samples) for one in results}
    if len(measures) > 1:
        names = ", ".join(f"{name} ({check}), n = {n}" for name, check, n in sorted(measures))
        raise MixedExtractors(
            "FIDs of different extractors or sample sizes cannot share a column: "
            f"{names}; evaluate all cells anew"
        )
    places = Counter((one.block, one.method, one.epsilon, one.seed) for one in results)
    for (block, method, epsilon, seed), count in places.items():
        cell = f"{block} {method} at epsilon {epsilon:g}, seed {seed}"
        if (block, method) not in rows or epsilon not in epsilons or seed not in seeds:
            raise ValueError(f"{cell}: the table has no place for it")
        if count > 1:
            raise ValueError(f"{cell}: {count} results where there is one cell")
    for one in results:
        if not (0 <= one.accuracy <= 1 and 0 <= one.fid < math.inf):
            raise ValueError(
                f"{one.block} {one.method} at epsilon {one.epsilon:g}, seed {one.seed}: "
                f"accuracy {one.accuracy} or FID {one.fid} is out of range"
            )


def summarise(
    results: Sequence[CellResult],
    rows: Sequence[tuple[str, str]],
    epsilons: Sequence[float],
    seeds: Sequence[int],
) -> list[Entry]:
    """One entry a (block, method) row and budget, in the given order.

    Raises :class:`MixedExtractors`, and ValueError for a cell that is not among the rows,
    stands twice, or has an accuracy outside [0, 1] or a FID that is negative or not finite.
    """
    _check(results, rows, epsilons, seeds)
    entries = []
    for block, method in rows:
        for epsilon in epsilons:
            found = [
                one
                for one in results
                if (one.block, one.method, one.epsilon) == (block, method, epsilon)
            ]
            accuracy = _mean_std([one.accuracy for one in found])
            fid = _mean_std([one.fid for one in found])
            entries.append(Entry(block, method, epsilon, len(found), len(seeds), *accuracy, *fid))
    return entries


def to_csv(entries: Sequence[Entry], results: Sequence[CellResult], caption: Caption) -> str:
    """Tidy: one line a row and budget, with the paper's value where it has one."""
    first = results[0] if results else None
    lines = []
    for entry in entries:
        paper = table1_value(entry.block, entry.method, entry.epsilon)
        lines.append(
            {
                "preset": caption.preset,
                "block": entry.block,
                "method": entry.method,
                "label": style.METHODS.get(entry.method, entry.method),
                "epsilon": entry.epsilon,
                "delta": caption.delta,
                "adjacency": caption.adjacency,
                "n": entry.n,
                "seeds_expected": entry.expected,
                "accuracy_mean": entry.accuracy,
                "accuracy_std": entry.accuracy_std,
                "fid_mean": entry.fid,
                "fid_std": entry.fid_std,
                "fid_extractor": first.extractor if first and entry.n else "",
                "fid_extractor_checksum": first.extractor_checksum if first and entry.n else "",
                "n_samples": str(first.n_samples) if first and entry.n else "",
                "paper_accuracy_mean": paper.accuracy if paper else math.nan,
                "paper_accuracy_std": paper.accuracy_std if paper else math.nan,
                "paper_fid_mean": paper.fid if paper else math.nan,
                "paper_fid_std": paper.fid_std if paper else math.nan,
            }
        )
    return pd.DataFrame(lines).to_csv(index=False)


def best(entries: Sequence[Entry]) -> set[tuple[str, str, float, str]]:
    """(block, method, epsilon, metric) of the best per column within each pipeline block.

    Compared as printed, so that values that look equal are both marked (the paper's Table 1
    marks one of two that print as 63.3). A column with a single value has no best.
    """
    marked = set()
    for block in style.BOLD_BLOCKS:
        for epsilon in {entry.epsilon for entry in entries}:
            column = [
                one for one in entries if (one.block, one.epsilon) == (block, epsilon) and one.n
            ]
            if len(column) < 2:
                continue
            top = max(_shown(one.accuracy, style.ACCURACY_DIGITS) for one in column)
            low = min(_shown(one.fid, style.FID_DIGITS) for one in column)
            for one in column:
                if _shown(one.accuracy, style.ACCURACY_DIGITS) == top:
                    marked.add((block, one.method, epsilon, "accuracy"))
                if _shown(one.fid, style.FID_DIGITS) == low:
                    marked.add((block, one.method, epsilon, "fid"))
    return marked


def _shown(value: float, digits: int) -> float:
    return float(f"{value:.{digits}f}")


def _cell(entry: Entry, metric: str, bold: bool, marks: tuple[str, str], plus_minus: str) -> str:
    digits = style.ACCURACY_DIGITS if metric == "accuracy" else style.FID_DIGITS
    mean, deviation = getattr(entry, metric), getattr(entry, f"{metric}_std")
    missing = f" ({entry.n}/{entry.expected} seeds)" if entry.n < entry.expected else ""
    if not entry.n:
        return style.HOLE + missing
    text = f"{mean:.{digits}f}"
    if not math.isnan(deviation):
        text += f"{plus_minus}{deviation:.{digits}f}"
    return (marks[0] + text + marks[1] if bold else text) + missing


def caption_text(caption: Caption, results: Sequence[CellResult], entries: Sequence[Entry]) -> str:
    """One paragraph that keeps a small preset's numbers from passing for the paper's."""
    first = results[0] if results else None
    seeds = ", ".join(map(str, caption.seeds))
    what = f"{caption.title}, preset {caption.preset} ({caption.public} to {caption.private}"
    text = (
        f"{what}, delta {_number(caption.delta)}, {caption.adjacency.replace('_', ' ')}, "
        f"seed{'s' if len(caption.seeds) > 1 else ''} {seeds}"
    )
    text += f", {first.n_samples} samples a cell)." if first else ")."
    if caption.preset != style.PAPER_PRESET:
        text += " Not the paper's setting: these numbers are not comparable with the paper's."
    text += " Acc: accuracy of a probe trained on samples and tested on real images."
    if first:
        text += f" FID in the features of {first.extractor} ({first.extractor_checksum})."
    if len(caption.seeds) > 1:
        text += " Mean and sample standard deviation over seeds."
    text += " Bold: best per column within each pipeline block."
    if not all(one.n for one in entries):
        text += f" {style.HOLE}: not there yet."
    if any(one.n < one.expected for one in entries):
        text += " (k/m seeds): over the k of m seeds that are there."
    return text


def _number(value: float) -> str:
    """0.3, 1, 1e-5, or the sign for infinity."""
    return "\u221e" if value == math.inf else f"{value:g}".replace("e-0", "e-")


def _fid_head(results: Sequence[CellResult]) -> str:
    return f"FID ({results[0].extractor})" if results else "FID"


def _columns(entries: Sequence[Entry]) -> list[float]:
    return list(dict.fromkeys(entry.epsilon for entry in entries))


def _grouped(entries: Sequence[Entry]) -> dict[str, dict[str, list[Entry]]]:
    blocks: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        blocks.setdefault(entry.block, {}).setdefault(entry.method, []).append(entry)
    return blocks


def to_markdown(
    entries: Sequence[Entry],
    results: Sequence[CellResult],
    caption: Caption,
    missing: Sequence[Missing] = (),
) -> str:
    """As the paper lays it out: blocks of rows, Acc and FID under each budget."""
    marked, epsilons = best(entries), _columns(entries)
    head = ["Method"]
    for epsilon in epsilons:
        budget = f"\u03b5 = {_number(epsilon)}"
        head += [f"Acc, {budget}", f"{_fid_head(results)}\u2193, {budget}"]
    lines = [head]
    for block, methods in _grouped(entries).items():
        lines.append([f"*{style.BLOCKS.get(block, block)}*", *[""] * (2 * len(epsilons))])
        for method, group in methods.items():
            line = [style.METHODS.get(method, method)]
            for entry in group:
                for metric in ("accuracy", "fid"):
                    bold = (block, method, entry.epsilon, metric) in marked
                    line.append(_cell(entry, metric, bold, ("**", "**"), " \u00b1 "))
            lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    shown = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    reasons = ["", "Not there:", "", *(f"- {one}" for one in missing)] if missing else []
    text = caption_text(caption, results, entries)
    return "\n".join([text, "", shown[0], rule, *shown[1:], *reasons, ""])


_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "_&%#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {style.HOLE: "---", "\u221e": r"$\infty$"}
)


def _latex(text: str) -> str:
    return text.translate(_ESCAPES).replace("Low-B0", "Low-$B_0$").replace(" + ", " $+$ ")


def to_latex(
    entries: Sequence[Entry],
    results: Sequence[CellResult],
    caption: Caption,
    missing: Sequence[Missing] = (),
) -> str:
    """A booktabs table; the reasons of what is missing are comments below it."""
    marked, epsilons = best(entries), _columns(entries)
    span = 1 + 2 * len(epsilons)
    budgets = [_number(epsilon).replace("\u221e", r"\infty") for epsilon in epsilons]
    heads = " & ".join(rf"\multicolumn{{2}}{{c}}{{$\varepsilon{{=}}{text}$}}" for text in budgets)
    rules = "".join(rf"\cmidrule(lr){{{i}-{i + 1}}}" for i in range(2, span, 2))
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption_text(caption, results, entries))}}}",
        rf"\begin{{tabular}}{{l{'cc' * len(epsilons)}}}",
        r"\toprule",
        rf" & {heads} \\",
        rules,
        "Method" + rf" & Acc & {_latex(_fid_head(results))}$\downarrow$" * len(epsilons) + r" \\",
    ]
    for block, methods in _grouped(entries).items():
        lines.append(r"\midrule")
        heading = _latex(style.BLOCKS.get(block, block))
        lines.append(rf"\multicolumn{{{span}}}{{l}}{{\emph{{{heading}}}}} \\")
        for method, group in methods.items():
            parts = [_latex(style.METHODS.get(method, method).removeprefix("+ "))]
            if style.METHODS.get(method, "").startswith("+ "):
                parts[0] = "$+$ " + parts[0]
            for entry in group:
                for metric in ("accuracy", "fid"):
                    bold = (block, method, entry.epsilon, metric) in marked
                    text = _cell(entry, metric, bold, (r"\textbf{", "}"), r"\,$\pm$\,")
                    parts.append(text.replace(style.HOLE, "---"))
            lines.append(" & ".join(parts) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    lines += [*(f"% not there: {one}" for one in missing), ""]
    return "\n".join(lines)
