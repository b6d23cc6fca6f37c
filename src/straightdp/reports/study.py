"""A study's table files from the metrics files of its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from straightdp.config import Preset
from straightdp.files import write_text
from straightdp.reports.gather import UnusableMetrics, gather, not_there, on_preset
from straightdp.reports.gradients import (
    gradients_csv,
    gradients_latex,
    gradients_markdown,
    read_norms,
)
from straightdp.reports.layout import LAYOUTS, Layout
from straightdp.reports.metrics import read_metrics
from straightdp.reports.results import CellResult, summarise
from straightdp.reports.table import Caption, Table, to_csv, to_latex, to_markdown
from straightdp.studies.cells import Cell
from straightdp.studies.grid import Row, Study, row_cells

TABLES = Path("tables")


def write_study(
    preset: Preset,
    study: Study,
    root: Path,
    partial: bool = False,
    reason: Callable[[Cell], str] = not_there,
    named: str | None = None,
) -> tuple[list[Path], str]:
    """Write md, csv and tex; returns their paths and the Markdown.

    A cell without metrics is a hole under `partial` (the files are then TABLE.partial.*), listed
    below the table with its `reason`, and refused otherwise. A damaged file is refused always.
    A study with rows beside its table gets their gradient norms below it, and in a CSV file.
    `named` is how the user named the preset, for the hints.
    """
    layout, columns, rows = LAYOUTS[study.name], study.columns(preset), study.rows_on(preset)

    def read(path: Path, cell: Cell, row: Row) -> CellResult:
        return read_metrics(path, cell, row, layout.metrics)

    places = [(row, cell) for row in rows for cell in row_cells(preset, study, row)]
    results, missing = gather(preset, study, places, root, read, partial, reason, named)
    layout = _beside_inception(layout, results)
    beside, troubles = read_norms(preset, study, root, partial, on_preset(preset, named))
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
        notes=_notes(preset, study),
    )
    entries = summarise(results, rows, columns, preset.grid.seeds, layout.metrics)
    table = Table(study.name, layout, columns, entries, results, caption, missing)
    texts = {"md": to_markdown(table), "csv": to_csv(table), "tex": to_latex(table)}
    part = ".partial" if partial else ""
    paths = [TABLES / preset.name / f"{study.name}{part}.{suffix}" for suffix in texts]
    if beside:
        texts["md"] += "\n" + gradients_markdown(beside)
        texts["tex"] += gradients_latex(beside)
        texts["gradients.csv"] = gradients_csv(beside)
        paths.append(paths[0].with_name(f"{study.name}_gradients{part}.csv"))
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths, texts["md"]


def _beside_inception(layout: Layout, results: list[CellResult]) -> Layout:
    """Without the label-blind FID where the FID's own features were made without our labels."""
    fid = results[0].measures.get("fid") if results else None
    if fid is None or fid.by != "inception_v3_tf":
        return layout
    return replace(layout, metrics=tuple(one for one in layout.metrics if one != "fid_blind"))


def _notes(preset: Preset, study: Study) -> tuple[str, ...]:
    """What the caption says of the preset's own settings."""
    if study.name != "controls":
        return ()
    settings = preset.controls
    return (
        f"Second public domain: {settings.public}.",
        f"Noise multiplicity: {settings.multiplicity} from scratch, {preset.stage2.multiplicity} "
        "elsewhere.",
    )
