"""How figures look: sizes, colours, line styles, markers, names. Changing it redraws, no more.

Every line has its own line style and marker, so that a figure reads in grey too. Sizes are
inches at the width that a paper gives a figure; fonts are matplotlib's own, so that a figure
looks the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMN, TEXT = 3.35, 6.75  # widths of a column and of the text
DPI = 300  # of the PNG
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "grid.color": "0.88",
    "lines.linewidth": 1.2,
    "lines.markersize": 4.2,
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.framealpha": 1,
    "legend.fancybox": False,
    "legend.borderpad": 0.2,
    "legend.handlelength": 3.2,
    "pdf.fonttype": 42,  # TrueType
    "savefig.dpi": DPI,
}
CAPTION_SIZE, CAPTION_COLOUR = 5.5, "0.25"
HOLE = "not there yet"
HOLE_FACE, HOLE_EDGE = "0.96", "0.75"


@dataclass(frozen=True)
class Look:
    """A line: its name, colour, dashes, and marker (open or filled)."""

    label: str
    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    marker: str = ""
    open: bool = False

    def drawn(self) -> dict[str, Any]:
        """As the arguments of a plotted line."""
        return {
            "label": self.label,
            "color": self.colour,
            "linestyle": self.dashes,
            "marker": self.marker or "None",
            "markerfacecolor": "white" if self.open else self.colour,
        }


# Figure 2: the pair's two branches, tau, and the clip-prior family from beta = 0 on.
GEOMETRY_SIZE = (TEXT, 2.35)
NULL_BRANCH = Look("null branch (Equation 4)", "#0072B2", "-", "o")
WORST_CLASS = Look("worst class (Equation 3)", "#D55E00", "--", "s", open=True)
TAU = Look("", "0.35", ":")
FAMILY_COLOURS = "viridis"  # a map whose lightness grows; its darker part is used
FAMILY_RANGE = (0.0, 0.8)
FAMILY_DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (4, 3)))

# Figure 3: rows by (method, space).
ACCURACY_SIZE = (COLUMN, 3.15)
ACCURACY = {
    ("uniform", "pixel"): Look("Uniform DP-SGD (pixel)", "#56B4E9", (0, (1, 1.2)), "v"),
    ("tha_moments", "pixel"): Look("THA + moments (pixel)", "#0072B2", "-", "o"),
    ("low_b0", "pixel"): Look("+ Low-$B_0$ backbone (pixel)", "#004468", "--", "s", open=True),
    ("uniform", "latent"): Look("Uniform DP-SGD (latent)", "#E69F00", "-.", "^"),
    ("tha_moments", "latent"): Look(
        "THA + moments (latent)", "#D55E00", (0, (6, 1, 1, 1, 1, 1)), "D"
    ),
}
BAND = 0.18  # its opacity
BRACKET = "0.15"

# Figure 4: the sweep, the preset's own start in it, and distillation's level.
SWEEP_SIZE = (TEXT, 2.35)
SWEPT = Look("guided, not distilled", "#0072B2", "-", "o")
OWN_START = Look("the preset's $t_0$", "#D55E00", "None", "s", open=True)
DISTILLED = Look("distilled, $\\varepsilon$ = 1", "0.25", ":")

# Figure 5: rows by (method, space).
SAMPLES_WIDTH = TEXT  # at most
LARGEST, LABELLED = 0.28, 0.09  # a sample's side, and from which one on its digit stands above it
SAMPLE_ROWS = 3  # samples of each class in a panel
SAMPLES = {
    ("release_samples", "pixel"): "Moments only",
    ("uniform", "pixel"): "Uniform DP-SGD",
    ("tha_moments", "pixel"): "StraightDP (pixel)",
    ("low_b0", "pixel"): "+ Low-$B_0$ backbone",
    ("tha_moments", "latent"): "StraightDP (latent)",
}
SAMPLES_MAP = "gray"
