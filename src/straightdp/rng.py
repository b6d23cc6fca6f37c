"""Counter-based random numbers: every draw is a function of (seed, role, step).

Nothing has to be saved to resume a run: the numbers of step 812 are the same whether
or not the 811 before it were drawn in this process. Philox4x64 (Salmon et al. 2011) is
a statistical generator, not a cryptographic one: with a published seed the Gaussian
noise can be recomputed, which voids the formal guarantee. That is why a key for real
private data comes from :meth:`Streams.from_system` and is never published.

>>> import torch
>>> a = Streams.from_seed(0).normal(Role.NOISE, 5, (2, 3))
>>> torch.equal(a, Streams.from_seed(0).normal(Role.NOISE, 5, (2, 3)))
True
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch


class Role(IntEnum):
    """What a stream of draws is for; two roles never share numbers."""

    INIT = 1  # network initialisation
    POISSON = 2  # which records a private step sees
    FLOW = 3  # (t, xi, caption drop) of a private step
    NOISE = 4  # DP-SGD noise
    RELEASE = 5  # noise of the one-shot releases
    PRETRAIN = 6  # public training: batches, t, xi, caption drop
    DISTILL = 7  # distillation on generated inputs
    REPLAY = 8  # public replay during distillation
    SAMPLE = 9  # final samples
    CALIBRATE = 10  # public calibrations
    EVALUATE = 11  # probes and extractors
    DRAW = 12  # synthetic public images
    VOTES = 16  # noise of vote histograms
    EVOLVE = 17  # resampling and renoising of an evolved population


@dataclass(frozen=True)
class Streams:
    """A 128-bit key; its generators are addressed by role and step."""

    key: int = field(repr=False)

    @classmethod
    def from_seed(cls, *parts: int | str) -> Streams:
        """Key from a published seed (and any labels that separate its uses)."""
        text = ":".join(["straightdp", *map(str, parts)])
        return cls(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little"))

    @classmethod
    def from_system(cls) -> Streams:
        """Key from the operating system's entropy; keep it private."""
        return cls(int.from_bytes(os.urandom(16), "little"))

    def generator(self, role: Role, step: int = 0, sub: int = 0) -> np.random.Generator:
        """The generator at one address; `sub` separates draws within a step."""
        words = [self.key & (2**64 - 1), self.key >> 64]
        counter = [0, 0, (int(role) << 32) | sub, step]
        return np.random.Generator(
            np.random.Philox(key=np.array(words, np.uint64), counter=np.array(counter, np.uint64))
        )

    def normal(self, role: Role, step: int, shape, sub: int = 0) -> torch.Tensor:
        """Standard normal draws in float32 (drawn in float64, then cast)."""
        draws = self.generator(role, step, sub).standard_normal(tuple(shape))
        return torch.from_numpy(np.asarray(draws, dtype=np.float32))

    def uniform(self, role: Role, step: int, shape, sub: int = 0) -> torch.Tensor:
        """Uniform draws on [0, 1) in float32."""
        draws = self.generator(role, step, sub).random(tuple(shape))
        return torch.from_numpy(np.asarray(draws, dtype=np.float32)).clamp_(max=1 - 2**-24)

    def torch_seed(self, role: Role, step: int = 0) -> int:
        """A seed for torch's own generator (network initialisation)."""
        return int(self.generator(role, step).integers(2**31 - 1))
