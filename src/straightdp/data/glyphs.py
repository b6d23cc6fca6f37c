"""Stroke-like public images that need no network: letters drawn from matplotlib's fonts.

`glyphs` are ten Georgian and Armenian letters that resemble no digit, in DejaVu faces; they
stand in for KMNIST where that cannot be had. `letters` are ten small Latin letters in the STIX
and Computer Modern faces: another domain, to rehearse a transfer on that touches no private
image. Both come in random faces, sizes and stroke widths, rotated, sheared, scaled and deformed
elastically (Simard et al. 2003), then averaged down to 28 x 28 and centred by mass, as MNIST
is. Each image is a function of (set, seed, split, index) alone: a larger set begins with the
smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from straightdp.data.sources import ImageSet, Split
from straightdp.rng import Role, Streams


@dataclass(frozen=True)
class Alphabet:
    """Ten letters and the faces that they are drawn in."""

    letters: str
    faces: tuple[str, ...]


ALPHABETS = {
    "glyphs": Alphabet(
        "\u10d3\u10d7\u10db\u10dd\u10e0\u10e3\u10e5\u10ee\u0583\u0571",
        (
            "DejaVuSans.ttf",
            "DejaVuSans-Bold.ttf",
            "DejaVuSerif.ttf",
            "DejaVuSerif-Bold.ttf",
            "DejaVuSansMono.ttf",
        ),
    ),
    "letters": Alphabet(
        "adefghkmrw",
        ("STIXGeneral.ttf", "STIXGeneralItalic.ttf", "cmr10.ttf", "cmss10.ttf", "cmmi10.ttf"),
    ),
}
CANVAS, IMAGE = 56, 28  # drawn at twice the final size
SIZES = (36, 47)  # font size in canvas pixels
STROKES = 3  # extra stroke widths 0, 1, 2; bold faces get none, or their counters fill up
ROTATION, SHEAR, SCALE = 0.15, 0.2, (0.8, 1.1)  # radians; fraction; factors
ELASTIC_SIGMA, ELASTIC_AMPLITUDE = 4.5, 26.0  # canvas pixels


@cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / face), size)


@cache
def _covers(face: str, letter: str) -> bool:
    """Whether a face has a glyph of its own for a letter."""
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ord(letter) in FT2Font(str(folder / face)).get_charmap()


@cache
def _stroke(face: str, size: int, letter: str, width: int) -> np.ndarray:
    """One letter drawn in the middle of the canvas, float32 in [0, 1]."""
    image = Image.new("L", (CANVAS, CANVAS))
    draw = ImageDraw.Draw(image)
    draw.text(
        (CANVAS / 2, CANVAS / 2),
        letter,
        fill=255,
        font=_font(face, size),
        anchor="mm",
        stroke_width=width,
    )
    return np.asarray(image, np.float32) / 255


def _image(generator: np.random.Generator, letter: str, possible: tuple[str, ...]) -> np.ndarray:
    """(28, 28) uint8: one random drawing of a letter in one of the possible faces."""
    faces = [face for face in possible if _covers(face, letter)]
    face = faces[generator.integers(len(faces))]
    size, thicker = int(generator.integers(*SIZES)), int(generator.integers(STROKES))
    drawn = _stroke(face, size, letter, 0 if "Bold" in face else thicker)
    angle, shear = generator.normal(0, ROTATION), generator.normal(0, SHEAR)
    scale = generator.uniform(*SCALE, size=2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag(1 / scale)
    noise = generator.standard_normal((2, CANVAS // 2, CANVAS // 2))
    # The field is smooth, so it is drawn at half the canvas's resolution.
    field = ndimage.gaussian_filter(noise, (0, ELASTIC_SIGMA / 2, ELASTIC_SIGMA / 2))
    field = np.repeat(np.repeat(field, 2, axis=1), 2, axis=2) * (ELASTIC_AMPLITUDE / 2)
    middle = (CANVAS - 1) / 2
    grid = np.indices((CANVAS, CANVAS)).reshape(2, -1) - middle
    places = (matrix @ grid).reshape(2, CANVAS, CANVAS) + middle + field
    bent = ndimage.map_coordinates(drawn, places, order=1)
    small = bent.reshape(IMAGE, 2, IMAGE, 2).mean((1, 3))
    mass = small.sum()
    if mass > 0:
        centre = np.array(ndimage.center_of_mass(small))
        shift = np.rint((IMAGE - 1) / 2 - centre).astype(int)
        small = _moved(small, shift)
    peak = small.max()
    return np.rint(small * (255 / peak if peak > 0 else 0)).astype(np.uint8)


def _moved(image: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The image moved by whole pixels, with background coming in."""
    moved = np.zeros_like(image)
    (dy, dx), (h, w) = shift, image.shape
    moved[max(dy, 0) : h + min(dy, 0), max(dx, 0) : w + min(dx, 0)] = image[
        max(-dy, 0) : h - max(dy, 0), max(-dx, 0) : w - max(dx, 0)
    ]
    return moved


def draw(size: int, seed: int = 0, split: Split = "train", name: str = "glyphs") -> ImageSet:
    """Draw `size` letters of a set; image i shows letter i mod 10, which is its label."""
    if size < 1:
        raise ValueError(f"{name}: size must be at least 1, not {size}")
    alphabet, streams = ALPHABETS[name], Streams.from_seed(name, split, seed)
    images = np.empty((size, IMAGE, IMAGE), np.uint8)
    labels = np.arange(size) % len(alphabet.letters)
    for index in range(size):
        letter = alphabet.letters[labels[index]]
        images[index] = _image(streams.generator(Role.DRAW, index), letter, alphabet.faces)
    return ImageSet(name, images, labels.astype(np.int64))
