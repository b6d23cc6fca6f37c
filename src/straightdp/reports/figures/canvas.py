"""An empty figure in the project's style, the line that says whose run it is, and its files.

What is written depends on the numbers alone: no date, no user's matplotlib settings.
"""

from __future__ import annotations

import io
import textwrap
from contextlib import contextmanager
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from straightdp.config import Preset
from straightdp.files import replacing
from straightdp.reports.figures import style
from straightdp.reports.style import PAPER_PRESET, number

FORMATS = {  # suffix: the metadata without which a file has no date in it
    "pdf": {"CreationDate": None, "ModDate": None},
    "png": {"Software": None},
}
LETTER = 0.54  # the mean width of a letter, in font sizes


@contextmanager
def styled():
    """Matplotlib's own defaults and the project's style, whatever the user's settings."""
    with matplotlib.style.context(["default", style.SETTINGS]):
        yield


def blank(size: tuple[float, float]) -> Figure:
    """An empty figure of (width, height) inches, laid out by itself."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def run_line(preset: Preset, seeds: tuple[int, ...], *more: str) -> str:
    """Whose numbers these are, so that a small preset's never pass for the paper's."""
    privacy, every = preset.privacy, preset.grid.seeds
    which = ", ".join(map(str, seeds))
    if len(seeds) < len(every):
        which += f", the first of the preset's {len(every)}"
    parts = [
        f"Preset {preset.name} ({preset.data.public} \u2192 {preset.data.private}, "
        f"\u03b4 = {number(privacy.delta)}, {privacy.adjacency.replace('_', ' ')}), "
        f"n = {len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({which}).",
        *more,
    ]
    if preset.name != PAPER_PRESET:
        parts.append("Not the paper's setting: not comparable with the paper's numbers.")
    return " ".join(part for part in parts if part)


def caption_lines(width: float, text: str) -> tuple[list[str], float]:
    """`text` as lines that fit into `width` inches, and the height that they take, in inches."""
    lines = textwrap.wrap(text, int(width * 72 / (LETTER * style.CAPTION_SIZE)))
    return lines, (len(lines) * 1.3 + 0.6) * style.CAPTION_SIZE / 72


def captioned(figure: Figure, text: str) -> None:
    """`text` in small letters below everything else, which makes room for it."""
    width, height = figure.get_size_inches()
    lines, room = caption_lines(width, text)
    room /= height
    figure.get_layout_engine().set(rect=(0, room, 1, 1 - room))
    figure.text(
        0.06 / width,
        0.04 / height,
        "\n".join(lines),
        fontsize=style.CAPTION_SIZE,
        color=style.CAPTION_COLOUR,
        va="bottom",
        linespacing=1.25,
        parse_math=False,
        gid="caption",
    )


def hole(axes: Axes) -> None:
    """A panel of which nothing is there: said so, in an empty box."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(style.HOLE_FACE)
    for spine in axes.spines.values():
        spine.set(visible=True, color=style.HOLE_EDGE, linestyle="--")
    axes.text(0.5, 0.5, style.HOLE, transform=axes.transAxes, ha="center", va="center", color="0.4")


def written(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.pdf and STEM.png, each whole or not at all."""
    rendered = {}
    for suffix, metadata in FORMATS.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, metadata=metadata)
        rendered[stem.parent / f"{stem.name}.{suffix}"] = buffer.getvalue()
    for path, content in rendered.items():
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    return list(rendered)
