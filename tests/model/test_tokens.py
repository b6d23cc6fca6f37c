"""Cutting vectors into tokens loses nothing and puts each value where it belongs."""

from __future__ import annotations

import pytest
import torch

from straightdp.model.tokens import PatchTokens, VectorTokens

LAYOUTS = [
    (PatchTokens(28, 4), 784, 49, 16),
    (PatchTokens(16, 4), 256, 16, 16),
    (PatchTokens(6, 6), 36, 1, 36),
    (VectorTokens(32, 8), 32, 8, 4),
]


@pytest.mark.parametrize("layout, size, count, dim", LAYOUTS)
def test_round_trip(layout, size, count, dim):
    x = torch.randn(3, size)
    tokens = layout.to_tokens(x)
    assert tokens.shape == (3, count, dim)
    assert (layout.size, layout.count, layout.dim) == (size, count, dim)
    assert torch.equal(layout.from_tokens(tokens), x)


def test_a_patch_is_a_square_of_the_image():
    image = torch.arange(2 * 12 * 12).view(2, 12, 12)
    tokens = PatchTokens(12, 4).to_tokens(image.view(2, -1))
    for record in range(2):
        for row in range(3):
            for column in range(3):
                square = image[record, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                assert torch.equal(tokens[record, 3 * row + column].view(4, 4), square)


def test_vector_tokens_are_consecutive_pieces():
    code = torch.arange(32)[None]
    assert VectorTokens(32, 8).to_tokens(code)[0, 3].tolist() == [12, 13, 14, 15]


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="patch 5 does not divide image_size 28"):
        PatchTokens(28, 5)
    with pytest.raises(ValueError, match="count 5 does not divide size 32"):
        VectorTokens(32, 5)
