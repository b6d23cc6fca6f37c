"""The inline controls of Section 4 as a study of its own, and Appendix D.3's gradient norms.

Each block holds one control. Its rows at epsilon 1 compare with the first block's, which are
Table 1's cells; the sweep over the guided start (Figure 4) has a total budget of 1.2.
"""

from __future__ import annotations

from straightdp.config import Preset
from straightdp.studies.rows import Row, Study
from straightdp.studies.variants import NOISE, SWEPT, start, weight

ONE, SWEPT_ONLY = (1.0,), (SWEPT,)
GUIDED = "guided_uniform"


def _compared(block: str, variant: str = "") -> tuple[Row, ...]:
    return tuple(
        Row(block, method, space, ONE, variant)
        for space in ("pixel", "latent")
        for method in ("uniform", "tha_moments")
    )


def control_rows(preset: Preset) -> tuple[Row, ...]:
    """The rows on a preset, whose `controls` section lists the weights and the starts."""
    settings = preset.controls
    starts = sorted({*settings.starts, preset.stage1.guidance_start})
    return (
        *_compared("first_domain"),
        *_compared("second_domain", "second-domain"),
        *(Row("weights", "tha_moments", "pixel", ONE, weight(one)) for one in settings.weights),
        Row("posthoc", "tha_moments", "pixel", ONE, "posthoc-clamp"),
        Row("posthoc", "tha_moments", "pixel", ONE, "posthoc-low_b0"),
        Row("scratch", "uniform", "pixel", ONE, "from-scratch"),
        Row("guidance", GUIDED, "pixel", ONE, "matched"),
        Row("starts", GUIDED, "pixel", SWEPT_ONLY, NOISE, one_seed=True),
        *(Row("starts", GUIDED, "pixel", SWEPT_ONLY, start(t), one_seed=True) for t in starts),
        Row("evolution", "private_evolution", "pixel", ONE),
        Row("evolution", "private_evolution_aggressive", "pixel", ONE),
    )


CONTROLS = Study(
    name="controls",
    title="Controls",
    by_preset=control_rows,
    epsilons=(1.0, SWEPT),
    beside=(
        Row("gradients", "tha_moments", "pixel", (0.3,)),
        Row("gradients", "low_b0", "pixel", (0.3,)),
    ),
)
