"""Drawn letters: reproducible whatever the size, like MNIST in look, and tellable apart."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from straightdp.data import glyphs
from straightdp.data.glyphs import ALPHABETS, draw
from straightdp.data.sources import load


@pytest.fixture(scope="module")
def drawn():
    return draw(600, 0)


def test_images_are_white_on_black_with_labels_in_turn(drawn):
    assert drawn.images.shape == (600, 28, 28) and drawn.images.dtype == np.uint8
    assert drawn.labels.dtype == np.int64
    assert drawn.labels.tolist() == [i % 10 for i in range(600)]
    peaks = drawn.images.reshape(600, -1).max(1)
    assert (peaks == 255).all()
    assert (drawn.images == 0).mean() > 0.6


def test_a_larger_set_begins_with_the_smaller_whatever_was_drawn_before(drawn):
    np.random.seed(3)
    draw(7, 5)
    np.testing.assert_array_equal(draw(33, 0).images, drawn.images[:33])
    np.testing.assert_array_equal(load("glyphs", "train", size=4).images, drawn.images[:4])


def test_splits_seeds_and_indices_give_different_images(drawn):
    others = [drawn.images[:30], draw(30, 1).images, draw(30, 0, "test").images]
    together = np.concatenate(others).reshape(90, -1)
    assert len(np.unique(together, axis=0)) == 90


@pytest.mark.parametrize("name", sorted(ALPHABETS))
def test_every_face_has_a_glyph_of_its_own_for_every_letter(name):
    alphabet = ALPHABETS[name]

    def drawing(face: str, letter: str) -> bytes:
        path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face
        image = Image.new("L", (64, 64))
        ImageDraw.Draw(image).text((8, 4), letter, 255, ImageFont.truetype(str(path), 40))
        return image.tobytes()

    for face in alphabet.faces:
        missing = drawing(face, "\U0010fffd")  # a private code point: the replacement box
        shapes = {
            drawing(face, letter) for letter in alphabet.letters if glyphs._covers(face, letter)
        }
        assert missing not in shapes
        assert len(shapes) == len(alphabet.letters) == 10


def test_letters_are_centred_by_mass_as_mnist_is(drawn):
    middles = np.array([ndimage.center_of_mass(image) for image in drawn.images])
    assert np.quantile(np.abs(middles - 13.5).max(1), 0.95) < 1


def test_ink_and_stroke_width_are_near_the_digits(drawn):
    def widths(images: np.ndarray) -> np.ndarray:
        found = []
        for image in images:
            ink = ndimage.zoom(image / 255, 4, order=1) > 0.5
            depth = ndimage.distance_transform_edt(ink)
            ridge = ink & (depth == ndimage.maximum_filter(depth, 3))
            found.append(2 * np.median(depth[ridge]) / 4)
        return np.array(found)

    digits = load("embedded", "train").images[:200]
    letters = drawn.images[:200]
    assert letters.mean() == pytest.approx(digits.mean(), rel=0.15)
    digit_widths, letter_widths = widths(digits), widths(letters)
    for quantile in (0.25, 0.5, 0.75):
        expected = np.quantile(digit_widths, quantile)
        assert np.quantile(letter_widths, quantile) == pytest.approx(expected, rel=0.25)


def test_the_letters_can_be_told_apart_across_the_splits(drawn):
    other = draw(300, 0, "test")
    flat = drawn.images.reshape(600, -1).astype(float)
    means = np.stack([flat[drawn.labels == letter].mean(0) for letter in range(10)])
    distances = ((other.images.reshape(300, 1, -1) - means) ** 2).sum(2)
    assert (distances.argmin(1) == other.labels).mean() > 0.5  # chance is 0.1


def test_no_size_is_refused():
    with pytest.raises(ValueError, match="glyphs: size must be at least 1, not 0"):
        draw(0)


def test_the_sets_share_no_image_and_no_class_look(drawn):
    """A probe of mean images, right on its own set, is near chance on the other one."""
    other = draw(300, 0, name="letters")
    assert load("letters", "train", size=3).name == other.name == "letters"
    flat = drawn.images.reshape(600, -1).astype(float)
    means = np.stack([flat[drawn.labels == letter].mean(0) for letter in range(10)])
    distances = ((other.images.reshape(300, 1, -1) - means) ** 2).sum(2)
    assert (distances.argmin(1) == other.labels).mean() < 0.3
    assert len(np.unique(np.concatenate([drawn.images[:300], other.images]), axis=0)) == 600
