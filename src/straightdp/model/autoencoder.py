"""The convolutional autoencoder of the latent variant (Section 4.1): 28 x 28 to a code and back.

Trained on public images alone and then frozen, so encoding a private record touches no
other record.
"""

from __future__ import annotations

import torch
from torch import nn


class Autoencoder(nn.Module):
    """28 x 28 -> 14 x 14 -> 7 x 7 -> `dim`, and back."""

    def __init__(self, dim: int = 32, channels: int = 32):
        super().__init__()
        c = channels
        self.encoder = nn.Sequential(
            nn.Conv2d(1, c, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(c, 2 * c, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * c * 49, dim),
        )
        self.decoder = nn.Sequential(
            nn.Linear(dim, 2 * c * 49),
            nn.SiLU(),
            nn.Unflatten(1, (2 * c, 7, 7)),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(2 * c, c, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(c, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 1, 28, 28) in [-1, 1] -> (B, dim)."""
        return self.encoder(images)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """(B, dim) -> (B, 1, 28, 28) in [-1, 1]."""
        return self.decoder(codes)
