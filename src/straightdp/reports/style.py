"""How tables look: names, headings, digits. Changing it changes no number and runs no cell."""

from __future__ import annotations

BLOCKS = {
    "prior": "Prior methods",
    "release": "Released moments only (no private gradient)",
    "pixel": "Pixel space",
    "latent": "Latent space (frozen public autoencoder)",
}
BOLD_BLOCKS = ("pixel", "latent")  # the best is marked within each of these
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
}
ACCURACY_DIGITS, FID_DIGITS = 3, 1
HOLE = "\u2014"
PAPER_PRESET = "paper"
