"""A study's table in three forms: CSV, Markdown and LaTeX.

A number that is not there is a hole and shown as one, with its reason below the table where
one is known; a budget that a row is not asked at is left blank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from straightdp.reports import style
from straightdp.reports.compare import best, gains, ratios
from straightdp.reports.layout import Layout
from straightdp.reports.paper import paper_gain, paper_ratio, paper_value
from straightdp.reports.results import CellResult, Entry, Measure, Missing, Summary
from straightdp.studies.rows import Key


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
    notes: tuple[str, ...] = ()  # of this run alone


@dataclass(frozen=True)
class Table:
    """A study's summarised cells, and how they are shown. `study` is its name."""

    study: str
    layout: Layout
    columns: tuple[float, ...]
    entries: Sequence[Entry]
    results: Sequence[CellResult]
    caption: Caption
    missing: Sequence[Missing] = ()

    def instrument(self, metric: str) -> Measure | None:
        """What the column was measured with, if anything is there."""
        return self.results[0].measures[metric] if self.results else None

    def blocks(self) -> dict[str, dict[Key, dict[float, Entry]]]:
        """Block, row, budget."""
        found: dict[str, dict[Key, dict[float, Entry]]] = {}
        for entry in self.entries:
            rows = found.setdefault(entry.block, {})
            rows.setdefault(entry.key, {})[entry.epsilon] = entry
        return found


def to_csv(table: Table) -> str:
    """Tidy: one line a row and budget, with the paper's value where it has one."""
    caption, gain = table.caption, gains(table.entries, table.layout)
    ratio = ratios(table.entries, table.layout)
    varied = any(entry.variant for entry in table.entries)
    lines = []
    for entry in table.entries:
        line = {
            "preset": caption.preset,
            "block": entry.block,
            "method": entry.method,
            "space": entry.space,
            **({"variant": entry.variant} if varied else {}),
            "label": style.label(*entry.key),
            "epsilon": entry.epsilon,
            "delta": caption.delta,
            "adjacency": caption.adjacency,
            "n": entry.n,
            "seeds_expected": entry.expected,
        }
        for name in table.layout.metrics:
            used = table.instrument(name) if entry.n else None
            paper = paper_value(table.study, entry.key, entry.epsilon, name)
            found = entry.metrics[name]
            line |= {
                f"{name}_mean": found.mean,
                f"{name}_std": found.std,
                **{f"{name}_class{i}": value for i, value in enumerate(found.parts)},
                f"{name}_n": str(used.n) if used else "",
                f"{name}_by": used.by if used else "",
                f"{name}_checksum": used.checksum if used else "",
                f"{name}_reference": used.reference if used else "",
                f"paper_{name}_mean": paper[0] if paper else math.nan,
                f"paper_{name}_std": paper[1] if paper else math.nan,
            }
        if table.layout.gain is not None:
            second = entry.key == table.layout.gain[1]
            paper_change = paper_gain(table.study, entry.epsilon) if second else None
            line |= {
                "accuracy_gain": gain.get(entry.epsilon, math.nan) if second else math.nan,
                "paper_accuracy_gain": math.nan if paper_change is None else paper_change,
            }
        if ratio:
            low, high = paper_ratio(table.study, entry.key) or (math.nan, math.nan)
            line |= {
                "accuracy_ratio": ratio.get(entry.key, {}).get(entry.epsilon, math.nan),
                "paper_accuracy_ratio_low": low,
                "paper_accuracy_ratio_high": high,
            }
        lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False)


def _text(
    entry: Entry,
    found: Summary,
    digits: int,
    bold: bool,
    marks: tuple[str, str],
    plus_minus: str,
    seeds: int,
) -> str:
    missing = f" ({entry.n}/{entry.expected} seeds)" if entry.n < entry.expected else ""
    if not missing and entry.n < seeds:  # fewer than in the other rows, and meant to be
        missing = f" (n = {entry.n})"
    if not entry.n:
        return style.HOLE + missing
    text = f"{found.mean:.{digits}f}"
    if not math.isnan(found.std):
        text += f"{plus_minus}{found.std:.{digits}f}"
    return (marks[0] + text + marks[1] if bold else text) + missing


def _cells(
    table: Table,
    group: dict[float, Entry],
    epsilons: Sequence[float],
    marked: set,
    marks: tuple[str, str],
    plus_minus: str,
) -> list[str]:
    """A row's cells, metrics within budgets; blank at budgets that it is not asked at."""
    cells = []
    for epsilon, name in product(epsilons, table.layout.metrics):
        entry = group.get(epsilon)
        if entry is None:
            cells.append("")
            continue
        bold, digits = (entry.key, epsilon, name) in marked, style.METRICS[name].digits
        found, seeds = entry.metrics[name], max(one.expected for one in table.entries)
        cells.append(_text(entry, found, digits, bold, marks, plus_minus, seeds))
    return cells


def _line(
    table: Table,
    found: dict[float, float],
    show: Callable[[float], str],
    epsilons: Sequence[float],
) -> list[str]:
    """A line's cells: a number under each budget's accuracy, and blanks."""
    return [
        ""
        if name != "accuracy" or epsilon not in found
        else style.HOLE
        if math.isnan(found[epsilon])
        else show(found[epsilon])
        for epsilon, name in product(epsilons, table.layout.metrics)
    ]


def _gain_row(table: Table) -> list[str]:
    found = {at: math.nan for at in table.columns} | gains(table.entries, table.layout)
    return _line(table, found, lambda gain: f"{100 * gain:+.0f}%", table.columns)


def _lines(
    table: Table,
    key: Key,
    group: dict[float, Entry],
    marked: set,
    marks: tuple[str, str],
    plus_minus: str,
) -> list[list[str]]:
    """A row as lines of text: its own, one a budget in a narrow table, and its ratio's below."""
    name, found = style.label(*key), ratios(table.entries, table.layout).get(key)
    lines = []
    for epsilons in [(one,) for one in group] if table.layout.narrow else [table.columns]:
        budget = [style.number(epsilons[0])] if table.layout.narrow else []
        cells = _cells(table, group, epsilons, marked, marks, plus_minus)
        lines.append([name, *budget, *cells])
        if found is not None:
            ratio = _line(table, found, lambda one: f"{one:.1f}x", epsilons)
            lines.append(["Ratio", *[""] * len(budget), *ratio])
    return lines


def caption_text(table: Table) -> str:
    """One paragraph that keeps a small preset's numbers from passing for the paper's."""
    caption = table.caption
    first = table.instrument(table.layout.metrics[0])
    seeds = ", ".join(map(str, caption.seeds))
    parts = [
        f"{caption.title}, preset {caption.preset} ({caption.public} to {caption.private}, "
        f"delta {style.number(caption.delta)}, {caption.adjacency.replace('_', ' ')}, "
        f"seed{'s' if len(caption.seeds) > 1 else ''} {seeds}"
        + (f", {first.n} samples a cell)." if first else ").")
    ]
    if caption.preset != style.PAPER_PRESET:
        parts.append("Not the paper's setting: these numbers are not comparable with the paper's.")
    for name in table.layout.metrics:
        sentence, used = style.METRICS[name].sentence, table.instrument(name)
        if not used:
            sentence = sentence if "{" not in sentence else ""
        else:
            low, high = min(used.part_n, default=0), max(used.part_n, default=0)
            counts = str(low) if low == high else f"{low} to {high}"
            score = used.right
            right = "" if score is None else f", {score:.3f} right on real held-out images"
            sentence = sentence.format(
                by=used.by,
                checksum=used.checksum,
                reference=used.reference,
                n=used.n,
                parts=counts,
                right=right,
            )
        if sentence:
            parts.append(sentence)
    if len(caption.seeds) > 1:
        parts.append("Mean and sample standard deviation over seeds.")
    parts += [*caption.notes, *table.layout.notes]
    if not all(one.n for one in table.entries):
        parts.append(f"{style.HOLE}: not there yet.")
    if any(one.n < one.expected for one in table.entries):
        parts.append("(k/m seeds): over the k of m seeds that are there.")
    return " ".join(parts)


def _head(table: Table, name: str) -> str:
    metric, used = style.METRICS[name], table.instrument(name)
    return f"{metric.head} ({used.by})" if metric.named and used else metric.head


def to_markdown(table: Table) -> str:
    """As the paper lays it out: blocks of rows, the metrics under each budget."""
    marked, blocks = best(table.entries, table.layout), table.blocks()
    narrow = table.layout.narrow
    lines = [["Method", "\u03b5"] if narrow else ["Method"]]
    for epsilon, name in product((None,) if narrow else table.columns, table.layout.metrics):
        arrow = "" if style.METRICS[name].higher else "\u2193"
        budget = "" if epsilon is None else f", \u03b5 = {style.number(epsilon)}"
        lines[0].append(f"{_head(table, name)}{arrow}{budget}")
    for block, rows in blocks.items():
        if len(blocks) > 1:
            lines.append([f"*{style.BLOCKS.get(block, block)}*", *[""] * (len(lines[0]) - 1)])
        for key, group in rows.items():
            lines += _lines(table, key, group, marked, ("**", "**"), " \u00b1 ")
    if table.layout.gain is not None:
        lines.append(["Gain", *_gain_row(table)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    shown = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    reasons = ["", "Not there:", "", *(f"- {one}" for one in table.missing)]
    below = reasons if table.missing else []
    return "\n".join([caption_text(table), "", shown[0], rule, *shown[1:], *below, ""])


MARKS = (r"\textbf{", "}")  # around the best, in LaTeX
_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "_&%#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {style.HOLE: "---", "\u221e": r"$\infty$", "\u2212": "$-$"}
)


def _latex(text: str) -> str:
    plain = text.translate(_ESCAPES).replace("ow-B0", "ow-$B_0$").replace(" + ", " $+$ ")
    return "$+$ " + plain.removeprefix("+ ") if plain.startswith("+ ") else plain


def to_latex(table: Table) -> str:
    """A booktabs table; the reasons of what is missing are comments below it."""
    marked, blocks = best(table.entries, table.layout), table.blocks()
    metrics, narrow = len(table.layout.metrics), table.layout.narrow
    span = 2 + metrics if narrow else 1 + metrics * len(table.columns)
    budgets = [style.number(epsilon).replace("\u221e", r"\infty") for epsilon in table.columns]
    heads = " & ".join(
        rf"\multicolumn{{{metrics}}}{{c}}{{$\varepsilon{{=}}{text}$}}" for text in budgets
    )
    rules = "".join(rf"\cmidrule(lr){{{i}-{i + metrics - 1}}}" for i in range(2, span, metrics))
    names = ""
    for name in table.layout.metrics:
        arrow = "" if style.METRICS[name].higher else r"$\downarrow$"
        names += f" & {_latex(_head(table, name))}{arrow}"
    above = [] if narrow else [rf" & {heads} \\", rules]
    first = r"Method & $\varepsilon$" + names if narrow else "Method" + names * len(table.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption_text(table))}}}",
        rf"\begin{{tabular}}{{l{'c' * (span - 1)}}}",
        r"\toprule",
        *above,
        first + r" \\",
    ]
    for block, rows in blocks.items():
        lines.append(r"\midrule")
        if len(blocks) > 1:
            heading = _latex(style.BLOCKS.get(block, block))
            lines.append(rf"\multicolumn{{{span}}}{{l}}{{\emph{{{heading}}}}} \\")
        for key, group in rows.items():
            for label, *cells in _lines(table, key, group, marked, MARKS, r"\,$\pm$\,"):
                cells = [
                    one.replace(style.HOLE, "---").replace("\u221e", r"$\infty$") for one in cells
                ]
                lines.append(" & ".join([_latex(label), *cells]) + r" \\")
    if table.layout.gain is not None:
        cells = [_latex(cell.replace("-", "\u2212")) for cell in _gain_row(table)]
        lines += [r"\midrule", " & ".join(["Gain", *cells]) + r" \\"]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    lines += [*(f"% not there: {one}" for one in table.missing), ""]
    return "\n".join(lines)
