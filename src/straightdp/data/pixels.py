"""Between images and vectors: the stated pixel range, sizes, and the radius R.

Pixels are scaled to [-1, 1] (background -1), so a vector of d pixels has norm at most
sqrt(d), the declared R of the pixel space. The projection enforces R whatever comes in.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

IMAGE_SIZE = 28


def to_pixels(images: np.ndarray, image_size: int) -> torch.Tensor:
    """(N, 28, 28) uint8 -> (N, image_size^2) in [-1, 1], averaged over areas when smaller."""
    x = torch.from_numpy(np.ascontiguousarray(images)).float()[:, None] / 127.5 - 1
    if image_size != IMAGE_SIZE:
        x = F.interpolate(x, size=(image_size, image_size), mode="area")
    return x.flatten(1)


def from_pixels(z: torch.Tensor, image_size: int) -> np.ndarray:
    """(N, image_size^2) -> (N, 28, 28) uint8: clamped to [-1, 1], bilinear when larger.

    Raises FloatingPointError where a value is not finite: no pixel stands for it.
    """
    broken = int((~torch.isfinite(z)).any(1).sum())
    if broken:
        raise FloatingPointError(f"{broken} of {len(z)} samples are not finite")
    x = z.detach().float().cpu().clamp(-1, 1).view(-1, 1, image_size, image_size)
    if image_size != IMAGE_SIZE:
        x = F.interpolate(x, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", align_corners=False)
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)[:, 0].numpy()


def project_to_ball(z: torch.Tensor, radius: float) -> torch.Tensor:
    """Each row onto the centred ball of `radius`: the declared ||z|| <= R, enforced.

    The row's norm is at most `radius` afterwards, up to float32 rounding; a row that is not
    finite becomes zero, so that no record can escape the bound.
    """
    norms = z.double().norm(dim=1, keepdim=True)
    scaled = z * (radius / norms.clamp_min(radius)).to(z.dtype)
    return torch.where(torch.isfinite(norms), scaled, torch.zeros_like(z))
