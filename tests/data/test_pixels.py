"""The pixel range, the sizes and the ball that the privacy statement rests on."""

import numpy as np
import pytest
import torch

from straightdp.data.pixels import from_pixels, project_to_ball, to_pixels


def noise(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def test_black_is_minus_one_and_white_is_one():
    images = np.zeros((1, 28, 28), np.uint8)
    images[0, 0, 1] = 255
    z = to_pixels(images, 28)
    assert z.shape == (1, 784) and z.dtype == torch.float32
    assert z[0, 0] == -1 and z[0, 1] == 1  # rows first: (0, 1) is component 1


def test_every_grey_level_survives_the_way_there_and_back():
    images = np.resize(np.arange(256, dtype=np.uint8), (1, 28, 28))
    np.testing.assert_array_equal(from_pixels(to_pixels(images, 28), 28), images)


def test_half_the_size_is_the_mean_of_two_by_two_blocks():
    images = noise()
    expected = images.reshape(5, 14, 2, 14, 2).mean((2, 4)) / 127.5 - 1
    np.testing.assert_allclose(to_pixels(images, 14).view(5, 14, 14), expected, atol=1e-6)


@pytest.mark.parametrize("size", [8, 14, 16, 20, 28])
def test_no_image_leaves_the_declared_ball(size):
    images = np.concatenate([noise(), np.zeros((1, 28, 28)), np.full((1, 28, 28), 255)])
    z = to_pixels(images.astype(np.uint8), size)
    assert z.shape == (7, size * size)
    assert z.double().norm(dim=1).max() <= size
    assert torch.equal(z[5], -torch.ones(size * size)) and torch.equal(z[6], -z[5])


def test_images_of_another_layout_in_memory_are_read_alike():
    images = np.asfortranarray(noise())
    assert torch.equal(to_pixels(images, 16), to_pixels(noise(), 16))


def test_writing_clamps_rounds_and_enlarges():
    z = torch.tensor([[-5.0] * 256, [5.0] * 256, [0.0] * 256])
    images = from_pixels(z, 16)
    assert images.shape == (3, 28, 28) and images.dtype == np.uint8
    assert np.unique(images[0]).tolist() == [0] and np.unique(images[1]).tolist() == [255]
    assert np.unique(images[2]).tolist() == [128]  # 127.5, to the even neighbour


def test_a_ramp_stays_a_ramp_when_enlarged():
    ramp = torch.linspace(-1, 1, 14).expand(14, 14).reshape(1, 196)
    row = from_pixels(ramp, 14)[0, 10].astype(float)
    # Output pixel i is at (i + 1/2) / 2 - 1/2 of the input, held at the two ends.
    places = np.clip((np.arange(28) + 0.5) / 2 - 0.5, 0, 13)
    np.testing.assert_allclose(row, places / 13 * 255, atol=0.51)


def test_the_projection_moves_only_what_is_outside():
    z = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)) * 2
    z[0] *= 1e-3
    radius = 6.0
    out = project_to_ball(z, radius)
    norms = z.norm(dim=1)
    inside = norms <= radius
    assert inside.any() and (~inside).any()
    assert torch.equal(out[inside], z[inside])
    torch.testing.assert_close(out[~inside].norm(dim=1), torch.full_like(norms[~inside], radius))
    cosine = torch.nn.functional.cosine_similarity(out, z)
    torch.testing.assert_close(cosine, torch.ones(50))


def test_no_value_escapes_the_projection():
    z = torch.zeros(5, 3)
    z[0, 0], z[1, 1], z[2, 2], z[3] = float("nan"), float("inf"), -float("inf"), 3e38
    out = project_to_ball(z, 2.0)
    assert torch.isfinite(out).all()
    assert out.double().norm(dim=1).max() <= 2 * (1 + 1e-6)
    assert torch.equal(out[:3], torch.zeros(3, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("size", [14, 28])
def test_what_is_no_number_is_no_pixel(value, size):
    z = torch.zeros(3, size * size)
    z[1, 5] = value
    with pytest.raises(FloatingPointError, match="1 of 3 samples are not finite"):
        from_pixels(z, size)
