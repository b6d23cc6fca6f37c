"""Figure 2: the geometry, on public data. (a) Cosines over t, tau; (b) the clip-prior family.

The cosines are the horizon's (calibration.json of the public stage): between the velocities
of the moment model and of the exact empirical field. The family is the planner's own shape,
C_beta(t) ~ (sqrt(V(t)) / (1 - t))^beta, on fine buckets in place of the plan's, with a
geometric mean of 1 over [0, 1] (Appendix B.5).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from straightdp.config import Preset
from straightdp.files import DamagedFile, made_by, read_json
from straightdp.flow.analytic import MomentModel
from straightdp.flow.horizon import Horizon
from straightdp.mechanisms.planner import shape
from straightdp.methods.public_stage import load_public
from straightdp.reports.figures import style
from straightdp.reports.figures.canvas import blank, captioned, hole, run_line

FINE = 200  # buckets on [0, 1] at whose midpoints the family is drawn
NARROW = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)  # ticks of a range below a factor of 4
SERIES = ("times", "worst_class", "null_branch")  # of a calibration's horizon


@dataclass(frozen=True)
class Geometry:
    """What a public stage knows of its space: the horizon with its cosines, the moments."""

    space: str
    horizon: Horizon
    moments: MomentModel


def read_geometry(folder: Path, space: str) -> Geometry:
    """Of a finished public stage; :class:`DamagedFile` names what cannot be read."""
    with made_by(folder):
        moments = load_public(folder).moments
        return Geometry(space, _horizon(folder / "calibration.json"), moments)


def _horizon(path: Path) -> Horizon:
    """The horizon of a calibration: as many cosines as times, all of them numbers."""
    found = read_json(path)["horizon"]
    try:
        tau = float(found["tau"])
        series = [tuple(map(float, found[name])) for name in SERIES]
    except ValueError as error:
        raise DamagedFile(f"{path}: its horizon: {error}") from error
    whole = all(map(math.isfinite, itertools.chain([tau], *series)))
    if not (whole and series[0] and len(set(map(len, series))) == 1):
        raise DamagedFile(f"{path}: its horizon is not one cosine a time")
    return Horizon(tau, *series)


def clip_family(moments: MomentModel, betas: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Times (FINE,) and C_beta there, (betas, FINE), each of geometric mean 1."""
    edges = np.linspace(0, 1, FINE + 1).tolist()
    times = np.array([(low + high) / 2 for low, high in itertools.pairwise(edges)])
    return times, np.array([shape(moments, edges, beta) for beta in betas])


def draw_geometry(preset: Preset, geometry: Geometry | None, seed: int) -> Figure:
    """Both panels; `geometry` None is a public stage that is not there, and both are holes."""
    figure = blank(style.GEOMETRY_SIZE)
    left, right = figure.subplots(1, 2)
    left.set_title("(a) moment model against exact field", loc="left")
    right.set_title("(b) clip-prior family", loc="left")
    if geometry is None:
        hole(left)
        hole(right)
        where = "On public data alone."
    else:
        _cosines(left, geometry.horizon)
        _family(right, geometry, sorted(set(preset.stage2.shapes)))
        where = (
            f"On public data alone: exact moments of {preset.data.public}, {geometry.space} space."
        )
    captioned(figure, run_line(preset, (seed,), where))
    return figure


def _over_time(axes: Axes, tau: float, at: int) -> None:
    """The time axis, from the noise end to the data, with tau; named at the bottom (0) or top.

    Its line ends where the legend, at the other end of the axis, begins.
    """
    axes.set_xlim(0, 1)
    axes.set_xlabel("$t$ (0: noise, 1: data)")
    axes.grid(True, axis="y")
    low, high = (0.3, 1.0) if at else (0.0, 0.5)
    colour, dashes = style.TAU.colour, style.TAU.dashes
    axes.axvline(tau, low, high, color=colour, linestyle=dashes, gid="tau", zorder=1)
    axes.annotate(
        f"$\\tau$ = {tau:g}",
        (tau, at),
        xycoords=("data", "axes fraction"),
        xytext=(2.5, -1 if at else 1.5),
        textcoords="offset points",
        va="top" if at else "bottom",
        color=style.TAU.colour,
    )


def _cosines(axes: Axes, horizon: Horizon) -> None:
    for start, look, cosines in (
        (0, style.NULL_BRANCH, horizon.null_branch),
        (1, style.WORST_CLASS, horizon.worst_class),
    ):
        axes.plot(horizon.times, cosines, **look.drawn(), markevery=(start, 2))
    low = min(0.0, *horizon.worst_class, *horizon.null_branch)
    axes.set_ylim(low, 1.09)
    axes.set_ylabel("cosine of the velocities")
    _over_time(axes, horizon.tau, at=1)
    axes.legend(loc="lower left")


def _family(axes: Axes, geometry: Geometry, betas: Sequence[float]) -> None:
    times, family = clip_family(geometry.moments, betas)
    colours = matplotlib.colormaps[style.FAMILY_COLOURS](
        np.linspace(*style.FAMILY_RANGE, max(len(betas), 2))
    )
    dashes = itertools.cycle(style.FAMILY_DASHES)
    for beta, values, colour, dash in zip(betas, family, colours, dashes, strict=False):
        label = f"$\\beta$ = {beta:g}" + (" (uniform)" if beta == 0 else "")
        axes.plot(times, values, label=label, color=colour, linestyle=dash)
    axes.set_yscale("log")
    narrow = family.max() < 4 * family.min()
    axes.yaxis.set_major_locator(LogLocator(subs=NARROW if narrow else (1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("$C_\\beta(t)$, geometric mean 1")
    _over_time(axes, geometry.horizon.tau, at=0)
    axes.legend(loc="upper left")
