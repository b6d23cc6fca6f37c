"""The autoencoder's shapes and range, its records' independence, and that it can learn."""

from __future__ import annotations

import torch

from straightdp.model.autoencoder import Autoencoder


def test_shapes_and_range():
    torch.manual_seed(0)
    network = Autoencoder(dim=20, channels=4)
    codes = network.encode(torch.rand(3, 1, 28, 28) * 2 - 1)
    assert codes.shape == (3, 20)
    images = network.decode(100 * codes)
    assert images.shape == (3, 1, 28, 28)
    assert images.abs().max() <= 1


def test_a_record_is_encoded_without_regard_to_the_others():
    torch.manual_seed(0)
    network = Autoencoder(dim=8, channels=4)  # in training mode: no batch statistics either way
    images = torch.rand(4, 1, 28, 28) * 2 - 1
    others = images.clone()
    others[1:] = torch.rand(3, 1, 28, 28) * 2 - 1
    assert torch.equal(network.encode(images)[0], network.encode(others)[0])


def test_it_learns_to_tell_bars_apart():
    torch.manual_seed(0)
    bars = torch.full((8, 1, 28, 28), -1.0)
    for index in range(8):
        bars[index, 0, :, 3 * index + 2 : 3 * index + 5] = 1.0
    network = Autoencoder(dim=8, channels=8)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(150):
        loss = (network.decode(network.encode(bars)) - bars).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The best constant image leaves the variance over the bars.
    constant = (bars - bars.mean(0)).square().mean()
    assert loss.item() < 0.1 * constant.item()
