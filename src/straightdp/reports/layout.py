"""What each study's table shows: its metrics, what it marks, and what its caption adds."""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, str, str]  # block, method, space


@dataclass(frozen=True)
class Layout:
    """`bold` names the blocks within which the best per column is marked; `gain` a last line
    with the second row's accuracy relative to the first one's.
    """

    metrics: tuple[str, ...]
    bold: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gain: tuple[Key, Key] | None = None


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
        ),
        gain=(("backbones", "tha_moments", "pixel"), ("backbones", "low_b0", "pixel")),
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
}
