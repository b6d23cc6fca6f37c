"""The paper's printed values, for comparison beside ours; never inputs to anything.

MNIST, delta 1e-5, 3 seeds; each value as mean and standard deviation. FID, per-class FID,
precision and recall are in Inception's features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from straightdp.studies.rows import Key

EPSILONS = (0.3, 1.0, 3.0)
PRIOR_METHODS = ("dp_merf", "dp_hp", "dp_ntk", "private_evolution")


@dataclass(frozen=True)
class PaperValue:
    accuracy: float
    accuracy_std: float
    fid: float
    fid_std: float


# (block, method): ((accuracy, std, FID, std) at each of EPSILONS)
_TABLE1: dict[tuple[str, str], tuple[tuple[float, float, float, float], ...]] = {
    ("prior", "dp_merf"): (
        (0.823, 0.004, 280.6, 0.8), (0.856, 0.005, 182.8, 5.0), (0.842, 0.011, 109.1, 2.4),
    ),
    ("prior", "dp_hp"): (
        (0.762, 0.010, 284.3, 5.0), (0.751, 0.008, 219.8, 4.5), (0.780, 0.006, 167.3, 5.6),
    ),
    ("prior", "dp_ntk"): (
        (0.737, 0.019, 333.8, 3.0), (0.786, 0.012, 292.7, 3.4), (0.811, 0.012, 249.1, 5.7),
    ),
    ("prior", "private_evolution"): (
        (0.044, 0.026, 122.4, 2.1), (0.059, 0.025, 81.4, 0.8), (0.082, 0.022, 52.8, 2.0),
    ),
    ("release", "release_samples"): (
        (0.741, 0.020, 301.0, 5.2), (0.762, 0.015, 236.6, 1.6), (0.797, 0.020, 241.9, 0.7),
    ),
    ("release", "prior_guidance"): (
        (0.246, 0.018, 97.1, 1.4), (0.236, 0.026, 89.3, 0.8), (0.222, 0.008, 87.0, 0.4),
    ),
    ("pixel", "uniform"): (
        (0.055, 0.005, 72.5, 0.3), (0.207, 0.011, 62.7, 0.1), (0.620, 0.003, 51.6, 0.1),
    ),
    ("pixel", "tha"): (
        (0.056, 0.002, 74.5, 0.5), (0.226, 0.050, 63.5, 1.1), (0.641, 0.086, 51.8, 2.1),
    ),
    ("pixel", "uniform_moments"): (
        (0.484, 0.024, 88.4, 2.0), (0.706, 0.005, 63.6, 0.7), (0.859, 0.005, 49.3, 0.5),
    ),
    ("pixel", "tha_moments"): (
        (0.443, 0.047, 94.1, 2.7), (0.724, 0.033, 66.7, 0.6), (0.848, 0.004, 51.5, 0.3),
    ),
    ("pixel", "low_b0"): (
        (0.561, 0.038, 100.3, 2.6), (0.697, 0.003, 75.1, 1.1), (0.788, 0.004, 69.5, 0.7),
    ),
    ("latent", "uniform"): (
        (0.434, 0.027, 63.3, 0.6), (0.709, 0.016, 58.4, 0.4), (0.808, 0.010, 51.7, 0.5),
    ),
    ("latent", "tha"): (
        (0.408, 0.016, 63.3, 0.3), (0.695, 0.024, 59.2, 0.6), (0.798, 0.013, 53.1, 0.5),
    ),
    ("latent", "uniform_moments"): (
        (0.695, 0.015, 63.8, 1.7), (0.814, 0.002, 55.7, 0.6), (0.843, 0.006, 49.6, 0.3),
    ),
    ("latent", "tha_moments"): (
        (0.682, 0.010, 64.1, 1.3), (0.811, 0.002, 56.5, 0.8), (0.839, 0.007, 50.2, 0.1),
    ),
    ("latent", "low_b0"): (
        (0.633, 0.012, 64.7, 1.6), (0.792, 0.006, 57.6, 0.2), (0.835, 0.006, 51.5, 0.2),
    ),
}  # fmt: skip


def table1_value(block: str, method: str, epsilon: float) -> PaperValue | None:
    """The paper's Table 1 entry, or None where it has none."""
    values = _TABLE1.get((block, method))
    if values is None or epsilon not in EPSILONS:
        return None
    return PaperValue(*values[EPSILONS.index(epsilon)])


Pair = tuple[float, float]

# Table 2, by backbone: (accuracy, FID) at some of its budgets; and its signed gain.
_TABLE2: dict[str, dict[float, tuple[Pair, Pair]]] = {
    "tha_moments": {
        3.0: ((0.848, 0.004), (51.5, 0.3)),
        1.0: ((0.724, 0.033), (66.7, 0.6)),
        0.5: ((0.584, 0.032), (81.2, 5.0)),
        0.3: ((0.443, 0.047), (94.1, 2.7)),
    },
    "late_only": {0.3: ((0.402, 0.014), (103.0, 1.2))},
    "clamp_only": {0.3: ((0.535, 0.014), (98.7, 1.5))},
    "low_b0": {
        3.0: ((0.788, 0.004), (69.5, 0.7)),
        1.0: ((0.697, 0.003), (75.1, 1.1)),
        0.5: ((0.606, 0.014), (85.7, 3.9)),
        0.3: ((0.561, 0.038), (100.3, 2.6)),
    },
}
_TABLE2_GAIN = {3.0: -0.07, 1.0: -0.04, 0.5: 0.04, 0.3: 0.27}

# Table 5, at epsilon 1: per-class FID, label consistency, domain rate.
_TABLE5: dict[str, tuple[Pair, Pair, Pair]] = {
    "release_samples": ((264.4, 2.9), (0.621, 0.005), (0.944, 0.059)),
    "uniform": ((107.1, 0.2), (0.170, 0.006), (0.649, 0.072)),
    "tha_moments": ((101.4, 2.4), (0.444, 0.049), (0.689, 0.049)),
    "low_b0": ((112.6, 0.3), (0.348, 0.017), (0.795, 0.069)),
}

# Table 6: FID at epsilon 0.3, 1, 3 and 10.
_TABLE6: dict[tuple[str, str], tuple[Pair, ...]] = {
    ("uniform", "pixel"): ((72.5, 0.3), (62.7, 0.1), (51.6, 0.1), (41.4, 0.2)),
    ("tha_moments", "pixel"): ((94.1, 2.7), (66.7, 0.6), (51.5, 0.3), (41.3, 0.6)),
    ("tha_moments", "latent"): ((64.1, 1.3), (56.5, 0.8), (50.2, 0.1), (44.9, 0.4)),
    ("dp_merf", "pixel"): ((280.6, 0.8), (182.8, 5.0), (109.1, 2.4), (97.4, 1.9)),
    ("dp_hp", "pixel"): ((284.3, 5.0), (219.8, 4.5), (167.3, 5.6), (158.5, 3.7)),
    ("dp_ntk", "pixel"): ((333.8, 3.0), (292.7, 3.4), (249.1, 5.7), (229.8, 11.1)),
    ("private_evolution", "pixel"): ((122.4, 2.1), (81.4, 0.8), (52.8, 2.0), (35.4, 0.4)),
}

# Table 7: (precision, recall) at epsilon 0.3, 1 and 3.
_TABLE7: dict[tuple[str, str], tuple[tuple[Pair, Pair], ...]] = {
    ("uniform", "pixel"): (
        ((0.164, 0.002), (0.443, 0.016)),
        ((0.219, 0.002), (0.510, 0.015)),
        ((0.246, 0.001), (0.543, 0.004)),
    ),
    ("tha", "pixel"): (
        ((0.167, 0.013), (0.443, 0.022)),
        ((0.219, 0.002), (0.506, 0.012)),
        ((0.248, 0.008), (0.548, 0.011)),
    ),
    ("tha_moments", "pixel"): (
        ((0.149, 0.017), (0.381, 0.038)),
        ((0.207, 0.013), (0.471, 0.012)),
        ((0.258, 0.003), (0.519, 0.013)),
    ),
    ("low_b0", "pixel"): (
        ((0.138, 0.014), (0.314, 0.027)),
        ((0.228, 0.013), (0.405, 0.020)),
        ((0.233, 0.005), (0.459, 0.013)),
    ),
    ("tha_moments", "latent"): (
        ((0.032, 0.001), (0.331, 0.013)),
        ((0.039, 0.003), (0.337, 0.007)),
        ((0.046, 0.002), (0.320, 0.009)),
    ),
}


# Section 4's inline controls, by (method, space, variant): accuracies, at epsilon 1 all of them;
# a deviation that the text leaves out is NaN.
_CONTROLS: dict[tuple[str, str, str], Pair] = {
    ("tha_moments", "pixel", "weight-0.1"): (0.700, math.nan),
    ("tha_moments", "pixel", "weight-0.2"): (0.724, 0.033),
    ("tha_moments", "pixel", "weight-0.3"): (0.735, math.nan),
    ("tha_moments", "pixel", "posthoc-clamp"): (0.02, math.nan),
    ("guided_uniform", "pixel", "matched"): (0.696, 0.005),
    ("private_evolution_aggressive", "pixel", ""): (0.134, math.nan),
}
_SECOND_DOMAIN = (3.0, 3.2)  # the gain on Fashion-MNIST, over both of its rows


def _control_value(key: Key, epsilon: float) -> dict[str, Pair]:
    """A control's values; those of its plain rows are Table 1's and Table 5's."""
    if epsilon != 1:
        return {}
    given = (key.method, key.space, key.variant)
    if key.variant or given in _CONTROLS:
        return {"accuracy": _CONTROLS[given]} if given in _CONTROLS else {}
    block = "prior" if key.method in PRIOR_METHODS else key.space
    shared = {
        "accuracy": paper_value("table1", Key(block, key.method, key.space), epsilon, "accuracy"),
        "fid": paper_value("table1", Key(block, key.method, key.space), epsilon, "fid"),
        "label_consistency": paper_value("table5", key, epsilon, "label_consistency"),
    }
    return {name: value for name, value in shared.items() if value}


def paper_ratio(study: str, key: Key) -> tuple[float, float] | None:
    """The range of the paper's ratio over uniform DP-SGD, for the rows that it gives one for."""
    compared = (key.method, key.variant) == ("tha_moments", "second-domain")
    return _SECOND_DOMAIN if study == "controls" and compared else None


def paper_value(study: str, key: Key, epsilon: float, metric: str) -> Pair | None:
    """The paper's (mean, deviation) for a row, or None."""
    block, method, space, _ = key
    found: dict[str, Pair] = {}
    if study == "table1" and (value := table1_value(block, method, epsilon)):
        found = {
            "accuracy": (value.accuracy, value.accuracy_std),
            "fid": (value.fid, value.fid_std),
        }
    elif study == "table2" and space == "pixel" and epsilon in _TABLE2.get(method, {}):
        found = dict(zip(("accuracy", "fid"), _TABLE2[method][epsilon], strict=True))
    elif study == "table5" and space == "pixel" and epsilon == 1 and method in _TABLE5:
        names = ("fid_by_class", "label_consistency", "domain_rate")
        found = dict(zip(names, _TABLE5[method], strict=True))
    elif study == "table6" and (method, space) in _TABLE6:
        values = dict(zip((*EPSILONS, 10.0), _TABLE6[method, space], strict=True))
        found = {"fid": values[epsilon]} if epsilon in values else {}
    elif study == "table7" and (method, space) in _TABLE7 and epsilon in EPSILONS:
        values = _TABLE7[method, space][EPSILONS.index(epsilon)]
        found = dict(zip(("precision", "recall"), values, strict=True))
    elif study == "controls":
        found = _control_value(key, epsilon)
    return found.get(metric)


def paper_gain(study: str, epsilon: float) -> float | None:
    """Table 2's signed accuracy gain of the low-B0 backbone, as a fraction."""
    return _TABLE2_GAIN.get(epsilon) if study == "table2" else None
