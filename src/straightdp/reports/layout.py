"""What each study's table shows: its metrics, what it marks, and what its caption adds."""

from __future__ import annotations

from dataclasses import dataclass

from straightdp.studies.rows import Key


@dataclass(frozen=True)
class Layout:
    """`bold` names the blocks within which the best per column is marked; `gain` a last line
    with the second row's accuracy relative to the first one's; `ratios` a line below the second
    row of each pair with its accuracy over the first one's. `narrow`: a line a budget that a row
    is asked at, with the budget in a column of its own, instead of columns under every budget.
    `strong` is a row that is bold whatever its values.
    """

    metrics: tuple[str, ...]
    bold: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gain: tuple[Key, Key] | None = None
    ratios: tuple[tuple[Key, Key], ...] = ()
    narrow: bool = False
    strong: Key | None = None


RATIOS = tuple(
    (Key(block, "uniform", space, variant), Key(block, "tha_moments", space, variant))
    for block, variant in (("first_domain", ""), ("second_domain", "second-domain"))
    for space in ("pixel", "latent")
)

FULL_BACKBONE = Key("backbones", "low_b0", "pixel")

LAYOUTS = {
    "table1": Layout(
        metrics=("accuracy", "fid"),
        bold=("pixel", "latent"),
        notes=("Bold: best per column within each pipeline block.",),
    ),
    "table2": Layout(
        metrics=("accuracy", "fid"),
        notes=(
            "Gain: the full backbone's mean accuracy relative to the unconstrained one's.",
            "Single constraints at epsilon 0.3 alone.",
            "Bold: the full backbone.",
        ),
        gain=(Key("backbones", "tha_moments", "pixel"), FULL_BACKBONE),
        strong=FULL_BACKBONE,
    ),
    "table5": Layout(
        metrics=("fid_by_class", "label_consistency", "domain_rate"),
        bold=("methods",),
        notes=("Bold: best per column.",),
    ),
    "table6": Layout(
        metrics=("fid", "fid_blind"),
        bold=("training",),
        notes=("Bold: best per column among the training configurations.",),
    ),
    "table7": Layout(metrics=("precision", "recall")),
    "controls": Layout(
        metrics=("accuracy", "fid", "label_consistency"),
        notes=(
            "Ratio: of mean accuracies, THA + moments over uniform DP-SGD.",
            "The sweep over t0: a post-hoc diagnostic, one trained model at a total budget of 1.2.",
            "Post-hoc constraints: imposed on the first block's trained model at sampling alone.",
        ),
        ratios=RATIOS,
        narrow=True,
    ),
}
