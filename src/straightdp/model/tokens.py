"""How a flat vector is cut into image tokens, and put together again."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PatchTokens:
    """A square image of image_size^2 values, cut into non-overlapping square patches."""

    image_size: int
    patch: int

    def __post_init__(self):
        if self.image_size % self.patch:
            raise ValueError(f"patch {self.patch} does not divide image_size {self.image_size}")

    @property
    def size(self) -> int:
        return self.image_size**2

    @property
    def dim(self) -> int:
        return self.patch**2

    @property
    def count(self) -> int:
        return (self.image_size // self.patch) ** 2

    def to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """(B, size) -> (B, count, dim), patches row by row."""
        side, p = self.image_size // self.patch, self.patch
        x = x.reshape(-1, side, p, side, p).transpose(2, 3)  # (B, side, side, p, p)
        return x.reshape(-1, self.count, self.dim)

    def from_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, count, dim) -> (B, size)."""
        side, p = self.image_size // self.patch, self.patch
        return tokens.reshape(-1, side, side, p, p).transpose(2, 3).reshape(-1, self.size)


@dataclass(frozen=True)
class VectorTokens:
    """A code of `size` values, cut into `count` consecutive pieces."""

    size: int
    count: int

    def __post_init__(self):
        if self.size % self.count:
            raise ValueError(f"count {self.count} does not divide size {self.size}")

    @property
    def dim(self) -> int:
        return self.size // self.count

    def to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """(B, size) -> (B, count, dim)."""
        return x.reshape(-1, self.count, self.dim)

    def from_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, count, dim) -> (B, size)."""
        return tokens.reshape(-1, self.size)
