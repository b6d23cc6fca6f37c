"""The paper's printed values, for comparison beside ours; never inputs to anything.

Table 1 (MNIST, delta 1e-5, 3 seeds): for each row, at epsilon 0.3, 1 and 3, accuracy and
Inception FID, each as mean and standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

EPSILONS = (0.3, 1.0, 3.0)


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
