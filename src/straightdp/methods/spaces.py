"""The two representations of a record: pixels, and the code of a public autoencoder.

A codec turns images into flat vectors z and back. Both directions are fixed before private
data is touched, so encoding a private record is per-record pre-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from straightdp.data.pixels import from_pixels, to_pixels
from straightdp.data.sources import ImageSet
from straightdp.device import Compute
from straightdp.files import load_tensors, save_tensors, write_json
from straightdp.methods.progress import Progress
from straightdp.methods.training import Phase, one_cycle, run_phase
from straightdp.model.adam import AdamW
from straightdp.model.autoencoder import Autoencoder
from straightdp.model.tokens import PatchTokens, VectorTokens
from straightdp.resolved import AutoencoderConfig, LatentSpace, PixelSpace
from straightdp.rng import Role, Streams

IMAGE = 28
CHUNK = 500  # images a pass of the autoencoder


@dataclass(frozen=True)
class PixelCodec:
    """z is the image itself, area-averaged to image_size squared values in [-1, 1]."""

    image_size: int

    def encode(self, images: np.ndarray) -> torch.Tensor:
        """(N, 28, 28) uint8 -> (N, image_size^2)."""
        return to_pixels(images, self.image_size)

    def decode(self, z: torch.Tensor) -> np.ndarray:
        """(N, image_size^2) -> (N, 28, 28) uint8."""
        return from_pixels(z, self.image_size)


@dataclass(frozen=True)
class LatentCodec:
    """z is the autoencoder's code divided by one global standard deviation (public)."""

    autoencoder: Autoencoder
    scale: float

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> torch.Tensor:
        """(N, 28, 28) uint8 -> (N, d)."""
        device = next(self.autoencoder.parameters()).device
        pixels = to_pixels(images, IMAGE).view(-1, 1, IMAGE, IMAGE)
        codes = [self.autoencoder.encode(part.to(device)).cpu() for part in pixels.split(CHUNK)]
        return torch.cat(codes) / self.scale

    @torch.no_grad()
    def decode(self, z: torch.Tensor) -> np.ndarray:
        """(N, d) -> (N, 28, 28) uint8."""
        device = next(self.autoencoder.parameters()).device
        parts = [
            self.autoencoder.decode(part.to(device) * self.scale).cpu() for part in z.split(CHUNK)
        ]
        return from_pixels(torch.cat(parts).view(-1, IMAGE * IMAGE), IMAGE)


Codec = PixelCodec | LatentCodec


def token_layout(space: PixelSpace | LatentSpace) -> PatchTokens | VectorTokens:
    """How a vector of the space is cut into the backbone's image tokens."""
    if isinstance(space, PixelSpace):
        return PatchTokens(space.image_size, space.patch)
    return VectorTokens(space.size, space.tokens)


def load_codec(space: PixelSpace | LatentSpace, folder: Path | None, compute: Compute) -> Codec:
    """The space's codec; the latent one is read from the autoencoder's folder."""
    if isinstance(space, PixelSpace):
        return PixelCodec(space.image_size)
    if folder is None:
        raise ValueError("the latent space needs its autoencoder's folder")
    state = load_tensors(folder / "autoencoder.pt")
    network = Autoencoder(space.size, state["channels"])
    network.load_state_dict(state["network"])
    return LatentCodec(network.eval().to(compute.device), state["scale"])


def train_autoencoder(
    config: AutoencoderConfig, data: ImageSet, folder: Path, compute: Compute, progress: Progress
) -> None:
    """Train the latent space's autoencoder on PUBLIC images and freeze it into `folder`.

    Squared reconstruction error, one-cycle learning rate; the published scale is the
    standard deviation of all code entries over the public set.
    """
    settings = config.autoencoder
    streams = Streams.from_seed("autoencoder", config.seed)
    torch.manual_seed(streams.torch_seed(Role.INIT))
    network = Autoencoder(config.size, settings.channels).to(compute.device)
    optimizer = AdamW(network.parameters(), settings.learning_rate)
    pixels = to_pixels(data.images, IMAGE).view(-1, 1, IMAGE, IMAGE)

    def step(index: int) -> str:
        draw = streams.generator(Role.PRETRAIN, index).integers(len(pixels), size=settings.batch)
        batch = pixels[torch.from_numpy(draw)].to(compute.device)
        rate = settings.learning_rate * one_cycle(index, settings.steps)
        optimizer.lr = rate
        loss = F.mse_loss(network.decode(network.encode(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return f"loss {loss.item():.4f}"

    parts = {"network": network, "optimizer": optimizer}
    phase = Phase("autoencoder", settings.steps, parts, step)
    run_phase(phase, folder / "state", compute, progress)
    network.eval()
    codes = LatentCodec(network, 1.0).encode(data.images)
    scale = float(codes.std())
    state = {"network": network.state_dict(), "channels": settings.channels, "scale": scale}
    save_tensors(folder / "autoencoder.pt", state)
    error = F.mse_loss(
        to_pixels(LatentCodec(network, 1.0).decode(codes[:CHUNK]), IMAGE),
        pixels[:CHUNK].view(-1, IMAGE * IMAGE),
    )
    write_json(folder / "result.json", {"scale": scale, "reconstruction_mse": float(error)})
