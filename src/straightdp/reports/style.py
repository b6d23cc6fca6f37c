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
    "first_domain": "Public domain of the other tables",
    "second_domain": "Second public domain",
    "weights": "Declared release weight (pixel)",
    "posthoc": "Constraints imposed after training (pixel)",
    "scratch": "From scratch, with noise multiplicity (pixel)",
    "guidance": "Guidance without distillation, at matched budget (pixel)",
    "starts": "Guidance without distillation, by start t0 (pixel)",
    "evolution": "Private Evolution's variation schedule",
    "gradients": "Per-example gradient norms (pixel)",
}
METHODS = {
    "dp_merf": "DP-MERF (kernel embedding)",
    "dp_hp": "DP-HP (Hermite embedding)",
    "dp_ntk": "DP-NTK (NTK embedding)",
    "private_evolution": "Private Evolution (frozen prior)",
    "private_evolution_aggressive": "Private Evolution (aggressive schedule)",
    "release_samples": "Sampled from the release",
    "prior_guidance": "Public prior + guidance",
    "guided_uniform": "Uniform DP-SGD, guided",
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
    ("gradients", "tha_moments"): "Unconstrained",
    ("gradients", "low_b0"): "Low-B0",
}
# Rows of several spaces: each says its own.
SPACED_BLOCKS = ("training", "methods", "first_domain", "second_domain")
VARIANTS = {  # what a row's variant adds to its name; of those with a value, their beginning
    "posthoc-clamp": "stream clamp alone",
    "posthoc-low_b0": "all low-B0 constraints",
    "from-scratch": "no public pretraining",
    "matched": "0.2 + 0.8 of the budget",
    "start-none": "from noise",
    "start-": "t0 = ",
    "weight-": "weight ",
    "second-domain": "",
}


@dataclass(frozen=True)
class Metric:
    """A metric's heading, digits, direction, largest possible value, and sentence.

    The sentence may name what it was measured with: {by}, {checksum}, {reference}, {n}, {parts},
    {right}.
    """

    head: str
    digits: int
    sentence: str
    higher: bool = True
    top: float = 1.0
    named: bool = False  # whether the heading names what it was measured by


METRICS = {
    "accuracy": Metric(
        "Acc",
        3,
        "Acc: accuracy of {by} ({checksum}) trained on the samples and tested on {reference}.",
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
        "Label cons.: part of the samples whose label {by} ({checksum}; {reference}{right}) agrees "
        "with, 0.1 by chance.",
    ),
    "domain_rate": Metric(
        "Domain",
        3,
        "Domain: part of the samples that {by} ({checksum}; {reference}{right}) "
        "takes for private ones.",
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


def variant_label(variant: str) -> str:
    """What a control sets, in words; numbers as :func:`number` shows them."""
    if variant in VARIANTS:
        return VARIANTS[variant]
    stem, _, value = variant.rpartition("-")
    return f"{VARIANTS[stem + '-']}{float(value):g}" if f"{stem}-" in VARIANTS else variant


def label(block: str, method: str, space: str, variant: str = "") -> str:
    """A row's name in its block."""
    name = IN_BLOCK.get((block, method)) or METHODS.get(method, method)
    if added := variant_label(variant):
        name += f", {added}"
    return f"{name} ({space})" if block in SPACED_BLOCKS else name


def number(value: float) -> str:
    """0.3, 1, 1e-5, or the sign for infinity."""
    return "\u221e" if value == math.inf else f"{value:g}".replace("e-0", "e-")
