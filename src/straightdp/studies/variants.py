"""What a control changes: the preset that a cell is resolved from, or how it is sampled.

A variant is a name in a row. A *varied* cell is resolved from a changed preset, so that its
configuration and its hash follow, and one that comes out equal is the same cell. A *resampled*
cell takes a finished cell's model and release and draws other samples from them, without
another look at private data (post-processing). The evaluation is always the preset's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from straightdp.config import Preset
from straightdp.studies.cells import Cell, named, plain, resampled, resolve
from straightdp.studies.methods import BACKBONES

MATCHED = (0.2, 0.8)  # Figure 4's split of epsilon 1 between the release and the gradients
SWEEP = (0.2, 1.0)  # of its total 1.2, the paper's 0.2 + 1, composed jointly here
SWEPT = sum(SWEEP)


def _with(preset: Preset, section: str, **values) -> Preset:
    """A copy with other values in one section; unchecked, for values that a preset has checked."""
    changed = getattr(preset, section).model_copy(update=values)
    return preset.model_copy(update={section: changed})


def _second_domain(preset: Preset) -> Preset:
    second = preset.controls
    return _with(preset, "data", public=second.public, glyph_count=second.glyph_count)


def _from_scratch(preset: Preset) -> Preset:
    """No public pretraining; the clips are still public, at the fresh backbone."""
    none = preset.pretraining.steps.model_copy(update={"pixel": 0, "latent": 0})
    fresh = _with(preset, "pretraining", steps=none)
    return _with(fresh, "stage2", multiplicity=preset.controls.multiplicity)


def _split(preset: Preset, weights: tuple[float, float]) -> Preset:
    release, gradients = weights
    return _with(_with(preset, "stage1", weight=release), "stage2", weight=gradients)


def _weighted(preset: Preset, release: float) -> Preset:
    """Another release weight; the two weights' sum stays, as the paper's shares show."""
    if release == preset.stage1.weight:
        return preset
    total = preset.stage1.weight + preset.stage2.weight
    return _split(preset, (release, round(total - release, 12)))


VARIED: dict[str, Callable[[Preset], Preset]] = {
    "second-domain": _second_domain,
    "from-scratch": _from_scratch,
    "matched": lambda preset: _split(preset, MATCHED),
    "sweep": lambda preset: _split(preset, SWEEP),
}
IMPOSED = {"posthoc-clamp": "clamp_only", "posthoc-low_b0": "low_b0"}  # backbone of each
WEIGHT, START, NOISE = "weight-", "start-", "start-none"


def weight(value: float) -> str:
    """The variant of a release weight."""
    return f"{WEIGHT}{float(value)!r}"


def start(value: float) -> str:
    """The variant of a guided start of the sweep."""
    return f"{START}{float(value)!r}"


def start_time(variant: str) -> float:
    """t_0 of a start's variant; 0, the noise end, of the one that is not guided."""
    return 0.0 if variant == NOISE else float(variant.removeprefix(START))


@cache
def vary(preset: Preset, variant: str) -> Preset:
    """The preset under a variant that changes it; ValueError for an unknown one."""
    if variant in VARIED:
        return VARIED[variant](preset)
    if variant.startswith(WEIGHT):
        return _weighted(preset, float(variant.removeprefix(WEIGHT)))
    raise ValueError(f"{variant}: no such variant of a preset")


def variant_cell(
    preset: Preset, method: str, space: str, epsilon: float, seed: int, variant: str = ""
) -> Cell:
    """The cell of a row at a budget and a seed, under the row's variant.

    A variant that changes nothing about a cell gives that cell itself, by its own name.
    """
    if variant in IMPOSED:
        base = resolve(preset, method, space, epsilon, seed)
        taken = BACKBONES[IMPOSED[variant]]
        imposed = plain(preset.backbone.low_b0.model_dump(include=taken))
        return resampled(base, variant, {"kind": "constraints", "constraints": imposed})
    if variant.startswith(START):
        base = variant_cell(preset, method, space, epsilon, seed, "sweep")
        given = None if variant == NOISE else plain(float(variant.removeprefix(START)))
        if given == base.config["stage1"]["guidance_start"]:
            return base
        return resampled(base, variant, {"kind": "start", "guidance_start": given})
    own = resolve(preset, method, space, epsilon, seed)
    if not variant:
        return own
    varied = resolve(vary(preset, variant), method, space, epsilon, seed)
    return own if varied.config == own.config else named(varied, variant)
