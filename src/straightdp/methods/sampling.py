"""Samples of a finished cell: from the model, from a tilted start, or from the release itself."""

from __future__ import annotations

import numpy as np
import torch

from straightdp.device import Compute
from straightdp.flow.analytic import MomentModel, sample_marginal
from straightdp.flow.path import euler, guided
from straightdp.methods.public_stage import CLASSES
from straightdp.resolved import Sampling
from straightdp.rng import Role, Streams

CHUNK = 500  # samples integrated together


def sample_labels(count: int) -> torch.Tensor:
    """(count,) labels, the same number of each class."""
    return torch.arange(count) % CLASSES


@torch.no_grad()
def sample_vectors(
    model: torch.nn.Module | None,
    table: torch.Tensor,
    dimension: int,
    settings: Sampling,
    streams: Streams,
    compute: Compute,
    released: MomentModel | None = None,
    start: float | None = None,
) -> tuple[torch.Tensor, np.ndarray]:
    """Draw `settings.count` vectors; returns ((n, d), labels (n,)).

    Without a model they are drawn from the released Gaussian itself (t = 1). With `start`
    = t_0, from N(t_0 mu_y, t_0^2 Sigma + (1 - t_0)^2 I) and integrated over [t_0, 1]; else
    from noise over [0, 1]. Euler steps with classifier-free guidance.
    """
    labels = sample_labels(settings.count)
    parts = []
    for index, part in enumerate(labels.split(CHUNK)):
        noise = streams.normal(Role.SAMPLE, index, (len(part), dimension))
        if model is None:
            parts.append(sample_marginal(released, part, 1.0, noise).float())
            continue
        begin = 0.0
        if start is not None:
            begin = start
            noise = sample_marginal(released, part, start, noise).float()
        parts.append(
            integrate(model, table, noise, part, begin, settings.steps, settings.guidance, compute)
        )
    return torch.cat(parts), labels.numpy()


@torch.no_grad()
def integrate(
    model: torch.nn.Module,
    table: torch.Tensor,
    x: torch.Tensor,
    labels: torch.Tensor,
    start: float,
    steps: int,
    guidance: float,
    compute: Compute,
) -> torch.Tensor:
    """x (B, d) at time `start` to t = 1 by guided Euler steps; (B, d) on the CPU."""
    branch, rows = guided(model, table, guidance), labels.to(compute.device)

    def field(x, t):
        with compute.autocast():
            return branch(x, t, rows).float()

    return euler(field, x.to(compute.device), start, 1.0, steps).cpu()
