"""The frozen public caption encoder (Section 2, Table 9).

Captions are read as bytes; every byte has a fixed random embedding, marked with its place
and mixed once over the caption by fixed random attention. Nothing is trained and nothing
depends on data: the weights are drawn from a constant seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from straightdp.rng import Role, Streams

PADDING = 0


@dataclass(frozen=True)
class CaptionSpec:
    width: int = 64
    length: int = 8
    vocabulary: int = 256


def class_caption(label: int) -> str:
    """The caption of class `label`; public and private sets share these templates."""
    return f"class {label}"


class CaptionEncoder:
    """Maps texts to (length, width) embeddings; the empty text is the null caption."""

    def __init__(self, spec: CaptionSpec):
        self.spec = spec
        streams = Streams.from_seed("caption encoder")
        width = spec.width
        self.tokens = streams.normal(Role.INIT, 0, (spec.vocabulary, width))
        self.places = streams.normal(Role.INIT, 1, (spec.length, width)) / 2
        self.mixing = streams.normal(Role.INIT, 2, (3, width, width)) / math.sqrt(width)

    def encode(self, texts: list[str]) -> torch.Tensor:
        """(len(texts), length, width); longer texts are cut, shorter ones padded."""
        rows = []
        for text in texts:
            codes = [1 + byte % (self.spec.vocabulary - 1) for byte in text.encode()]
            codes = codes[-self.spec.length :]
            rows.append(codes + [PADDING] * (self.spec.length - len(codes)))
        x = self.tokens[torch.tensor(rows)] + self.places  # (B, L, W)
        x = F.layer_norm(x, (self.spec.width,))
        query, key, value = (x @ matrix for matrix in self.mixing)
        mixed = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(self.spec.width), -1) @ value
        return F.layer_norm(x + mixed, (self.spec.width,))

    def table(self, classes: int) -> torch.Tensor:
        """(classes + 1, length, width): the classes' captions, then the null caption."""
        return self.encode([class_caption(label) for label in range(classes)] + [""])
