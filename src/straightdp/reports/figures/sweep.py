"""Figure 4: the sampling port's start time t_0, of one model trained without distillation.

Accuracy and FID of that model's samples over t_0, at a total budget of 1.2; t_0 = 0 is sampling
from noise, without guidance. Dotted: distillation (THA + moments) at epsilon 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from straightdp.config import Preset
from straightdp.reports.figures import style
from straightdp.reports.figures.canvas import blank, captioned, hole, run_line
from straightdp.reports.results import CellResult, Measure, same_instrument
from straightdp.studies.variants import SWEEP, start_time

METRICS = ("accuracy", "fid")
HEADS = {"accuracy": "downstream accuracy", "fid": "FID"}


def sweep(found: Sequence[CellResult], metric: str) -> tuple[list[float], list[float]]:
    """Starting times in order, and the metric's values at them."""
    points = [(start_time(one.variant), one.measures[metric].value) for one in found if one.variant]
    points.sort()
    return [time for time, _ in points], [value for _, value in points]


def level(found: Sequence[CellResult], metric: str) -> float | None:
    """Distillation's value; None where its cell is not there."""
    values = [one.measures[metric].value for one in found if not one.variant]
    return values[0] if values else None


def draw_sweep(preset: Preset, found: Sequence[CellResult], seed: int, missing: int = 0) -> Figure:
    """Both panels; a metric of which nothing is there is a hole.

    Raises :class:`straightdp.reports.results.MixedExtractors` for values measured differently.
    """
    figure = blank(style.SWEEP_SIZE)
    for axes, metric, title in zip(
        figure.subplots(1, 2), METRICS, ("(a) accuracy", "(b) FID (lower is better)"), strict=True
    ):
        same_instrument(found, metric)
        axes.set_title(title, loc="left")
        if found:
            _panel(axes, preset, found, metric)
        else:
            hole(axes)
    release, gradients = SWEEP
    text = run_line(
        preset,
        (seed,),
        f"One model, trained by uniform DP-SGD without distillation in pixel space, at a total "
        f"epsilon of {release + gradients:g} ({release:g} of it the release's); the dotted level "
        "is another model's, at epsilon 1.",
        f"FID in the features of {_by(found)}." if found else "",
        f"{missing} cells are not there yet." if missing else "",
    )
    captioned(figure, text)
    return figure


def _by(found: Sequence[CellResult]) -> str:
    measure: Measure = found[0].measures["fid"]
    return (
        f"{measure.by} ({measure.checksum}), {measure.n} samples a cell against {measure.reference}"
    )


def _panel(axes: Axes, preset: Preset, found: Sequence[CellResult], metric: str) -> None:
    times, values = sweep(found, metric)
    axes.plot(times, values, **style.SWEPT.drawn(), gid="sweep")
    distilled = level(found, metric)
    if distilled is not None:
        look = style.DISTILLED
        axes.axhline(
            distilled, color=look.colour, linestyle=look.dashes, label=look.label, gid="level"
        )
    own = preset.stage1.guidance_start
    if own in times:
        at = values[times.index(own)]
        axes.plot([own], [at], **style.OWN_START.drawn(), gid="own")
    axes.set_xlim(-0.03, max([*times, own]) + 0.05)
    highest = max([*values, distilled or 0.0])
    axes.set_ylim(0, 1 if metric == "accuracy" else 1.15 * highest)
    axes.set_xlabel("start time $t_0$ (0: from noise)")
    axes.set_ylabel(HEADS[metric])
    axes.grid(True, axis="y")
    if metric == "fid":  # its axis begins at 0, so there is room below the curve
        axes.legend(loc="lower left")
