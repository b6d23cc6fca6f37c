"""The label-blind features: what they are, that they are fixed, and that they rank images."""

import numpy as np
import pytest
from scipy.signal import correlate

from straightdp.data.glyphs import draw
from straightdp.data.sources import load
from straightdp.evaluation.blind import RandomExtractor
from straightdp.evaluation.fid import frechet_distance, gaussian_statistics


@pytest.fixture(scope="module")
def digits():
    return load("embedded", "train").images[::10], load("embedded", "test").images


def by_hand(image: np.ndarray, weights) -> np.ndarray:
    """The network in numpy and scipy, a channel at a time."""
    maps = [image.astype(float) / 127.5 - 1]
    *kernels, last = [np.asarray(one, float) for one in weights]
    for kernel in kernels:
        summed = [
            sum(correlate(x, k, mode="same") for x, k in zip(maps, out, strict=True))
            for out in kernel
        ]
        side = len(summed[0]) // 2
        maps = [
            np.maximum(x, 0)[: 2 * side, : 2 * side].reshape(side, 2, side, 2).mean((1, 3))
            for x in summed
        ]
    return last @ np.concatenate([x.ravel() for x in maps])


def test_features_are_those_of_the_network_described(digits):
    extractor, images = RandomExtractor(), digits[1][:3]
    features = extractor.features(images)
    assert features.shape == (3, 64) and features.dtype == np.float32
    for image, found in zip(images, features, strict=True):
        assert found == pytest.approx(by_hand(image, extractor.weights), abs=1e-4)


def test_the_network_is_the_same_everywhere():
    extractor = RandomExtractor()
    assert (extractor.name, extractor.checksum) == ("fid_random", "b85a57ac52f8")
    for weights in extractor.weights:
        fan_in = np.prod(weights.shape[1:])
        gain = 2 if weights.ndim == 4 else 1
        assert float(weights.square().mean()) == pytest.approx(gain / fan_in, rel=0.3)


def test_worse_images_are_further_away(digits):
    train, test = digits
    extractor = RandomExtractor()
    reference = gaussian_statistics(extractor.features(test))

    def distance(images):
        return frechet_distance(gaussian_statistics(extractor.features(images)), reference)

    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, size=train.shape, dtype=np.uint8)
    place = generator.random(train.shape)
    noisy = [distance(np.where(place < part, noise, train)) for part in (0, 0.1, 0.3, 1)]
    assert noisy == sorted(noisy) and noisy[0] < 0.5 * noisy[1]
    assert distance(test) == pytest.approx(0, abs=1e-5)
    assert distance(draw(500).images) > 3 * noisy[0]
    blurred = (train.astype(int) + np.roll(train, 1, 1) + np.roll(train, 1, 2)) // 3
    assert distance(blurred.astype(np.uint8)) > 3 * noisy[0]
