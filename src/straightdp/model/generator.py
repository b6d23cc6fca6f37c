"""The prior methods' generator: a class-conditional perceptron (Table 9: 2 x 512)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Module):
    """(code, class) -> pixels in [0, 1]: `depth` ReLU layers of `width`, then a sigmoid."""

    def __init__(self, code: int, classes: int, width: int, depth: int, pixels: int):
        super().__init__()
        self.code, self.classes = code, classes
        sizes = [code + classes] + [width] * depth
        self.hidden = nn.ModuleList(
            nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.out = nn.Linear(width, pixels)

    def forward(self, codes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """codes (B, c), labels (B,) -> (B, d)."""
        h = torch.cat([codes, F.one_hot(labels, self.classes).to(codes)], dim=1)
        for layer in self.hidden:
            h = layer(h).relu()
        return self.out(h).sigmoid()
