"""How tables look: names, headings, digits. Changing it changes no number and runs no cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

BLOCKS = {
    "prior": "Prior methods",
    "release": "Released moments only (no private gradient)",
    "pixel": "Pixel space",
    "latent": "Latent space (frozen public autoencoder)",
    "training": "Training configurations",
    "methods": "Methods",
    "backbones": "Backbones (pixel space, THA + moments)",
}
METHODS = {
    "dp_merf": "DP-MERF (kernel embedding)",
    "dp_hp": "DP-HP (Hermite embedding)",
    "dp_ntk": "DP-NTK (NTK embedding)",
    "private_evolution": "Private Evolution (frozen prior)",
    "private_evolution_aggressive": "Private Evolution (aggressive schedule)",
    "release_samples": "Sampled from the release",
    "prior_guidance": "Public prior + guidance",
    "uniform": "Uniform DP-SGD",
    "tha": "THA-planned DP-SGD",
    "uniform_moments": "Uniform + moments",
    "tha_moments": "THA + moments",
    "low_b0": "+ Low-B0 backbone",
    "late_only": "+ Late injection only",
    "clamp_only": "+ Stream clamp only",
}
IN_BLOCK = {  # where a block calls a method by another name
    ("backbones", "tha_moments"): "Unconstrained",
    ("backbones", "low_b0"): "Full backbone (low-B0)",
}
SPACED_BLOCKS = ("training", "methods")  # rows of several spaces: each says its own


@dataclass(frozen=True)
class Metric:
    """A metric's heading, digits, direction, largest possible value, and sentence.

    The sentence may name what it was measured with: {by}, {checksum}, {reference}, {n}, {parts}.
    """

    head: str
    digits: int
    sentence: str
    higher: bool = True
    top: float = 1.0
    named: bool = False  # whether the heading names what it was measured by


METRICS = {
    "accuracy": Metric(
        "Acc", 3, "Acc: accuracy of a probe trained on samples and tested on real images."
    ),
    "fid": Metric(
        "FID",
        1,
        "FID in the features of {by} ({checksum}), against {reference}.",
        higher=False,
        top=math.inf,
        named=True,
    ),
    "fid_blind": Metric(
        "FID",
        2,
        "FID ({by}): in the features of {by} ({checksum}), which depend on no label.",
        higher=False,
        top=math.inf,
        named=True,
    ),
    "fid_by_class": Metric(
        "pcFID",
        1,
        "pcFID: mean over classes of the FID between samples and real test images of the class, "
        "in the features of {by} ({checksum}), with {parts} samples a class: strongly biased at "
        "such n, and comparable with no FID of the marginal.",
        higher=False,
        top=math.inf,
        named=True,
    ),
    "label_consistency": Metric(
        "Label cons.",
        3,
        "Label cons.: part of the samples whose label {by} ({checksum}; {reference}) agrees with, "
        "0.1 by chance.",
    ),
    "domain_rate": Metric(
        "Domain",
        3,
        "Domain: part of the samples that {by} ({checksum}; {reference}) takes for private ones.",
    ),
    "precision": Metric(
        "P",
        3,
        "P, R: improved precision and recall (k = 3) of {n} samples against as many real images, "
        "a fixed part of {reference}, in the features of {by} ({checksum}).",
    ),
    "recall": Metric("R", 3, ""),
}
HOLE = "\u2014"
PAPER_PRESET = "paper"


def label(block: str, method: str, space: str) -> str:
    """A row's name in its block."""
    name = IN_BLOCK.get((block, method)) or METHODS.get(method, method)
    return f"{name} ({space})" if block in SPACED_BLOCKS else name


def number(value: float) -> str:
    """0.3, 1, 1e-5, or the sign for infinity."""
    return "\u221e" if value == math.inf else f"{value:g}".replace("e-0", "e-")
