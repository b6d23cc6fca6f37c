"""Conditional distillation of the released field into the weights (Section 3.1).

For t <= tau the backbone learns the analytic velocity of the release on inputs that it
generates itself: states of its own Euler trajectories from noise, refreshed as it changes.
The conditional branch learns Equation 3, the null branch Equation 4. On [tau, 1] public
flow matching is replayed so that the backbone keeps what it knew. All of it is
post-processing of the release.
"""

from __future__ import annotations

import torch

from straightdp.device import Compute
from straightdp.flow.analytic import MomentModel, velocity, velocity_unconditional
from straightdp.methods.public_stage import CLASSES, flow_loss
from straightdp.methods.training import Phase
from straightdp.model.adam import AdamW
from straightdp.model.mmdit import MMDiT
from straightdp.resolved import Distillation
from straightdp.rng import Role, Streams


class GeneratedInputs:
    """A pool of (x, t, y) on the model's own trajectories; part of the training state."""

    def __init__(self, size: int, dimension: int, device: torch.device):
        self.x = torch.zeros(size, dimension, device=device)
        self.t = torch.zeros(size, device=device)
        self.labels = torch.zeros(size, dtype=torch.long, device=device)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"x": self.x, "t": self.t, "labels": self.labels}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name in ("x", "t", "labels"):
            getattr(self, name).copy_(state[name])

    @torch.no_grad()
    def refresh(self, model, table, streams: Streams, step: int, tau: float, steps: int) -> None:
        """Euler trajectories on [0, tau], without guidance, at jittered times."""
        batch = len(self.t) // steps
        generator = streams.generator(Role.DISTILL, step, 1)
        labels = torch.from_numpy(generator.integers(CLASSES, size=batch)).to(self.x.device)
        jitter = float(generator.random())
        x = streams.normal(Role.DISTILL, step, (batch, self.x.shape[1]), 2).to(self.x.device)
        reached = 0.0
        for index in range(steps):
            time = tau * (index + jitter) / steps
            if time > reached:
                now = torch.full((batch,), reached, device=x.device)
                x = x + (time - reached) * model(x, now, table[labels]).float()
                reached = time
            part = slice(index * batch, (index + 1) * batch)
            self.x[part], self.t[part], self.labels[part] = x, time, labels


def distillation_phase(
    model: MMDiT,
    released: MomentModel,
    tau: float,
    settings: Distillation,
    p_uncond: float,
    table: torch.Tensor,
    public_z: torch.Tensor,
    public_labels: torch.Tensor,
    streams: Streams,
    compute: Compute,
) -> Phase:
    """The phase that writes `released` into `model` for t <= tau."""
    released = released.to(compute.device)
    optimizer = AdamW(model.parameters(), settings.learning_rate)
    size = settings.batch * settings.euler_steps
    pool = GeneratedInputs(size, public_z.shape[1], compute.device)

    def step(index: int) -> str:
        if index % settings.refresh == 0:
            pool.refresh(model, table, streams, index, tau, settings.euler_steps)
        generator = streams.generator(Role.DISTILL, index)
        draw = torch.from_numpy(generator.integers(size, size=settings.batch))
        null = torch.from_numpy(generator.random(settings.batch) < p_uncond).to(compute.device)
        draw = draw.to(compute.device)
        x, t, labels = pool.x[draw], pool.t[draw], pool.labels[draw]
        target = velocity(released, x, t, labels)
        if null.any():
            target = torch.where(
                null[:, None], velocity_unconditional(released, x, t).to(target), target
            )
        with compute.autocast():
            predicted = model(x, t, table[labels.masked_fill(null, CLASSES)])
        loss = (predicted.float() - target.to(x)).square().mean()
        detail = f"loss {loss.item():.4f}"
        if settings.replay_weight:
            replay = streams.generator(Role.REPLAY, index)
            rows = torch.from_numpy(replay.integers(len(public_z), size=settings.batch))
            drop = torch.from_numpy(replay.random(settings.batch) < p_uncond)
            captions = table[public_labels[rows].masked_fill(drop, CLASSES).to(compute.device)]
            batch = public_z[rows].to(compute.device)
            loss = loss + settings.replay_weight * flow_loss(
                model, batch, captions, streams, Role.REPLAY, index, tau, compute
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.project_()
        return detail

    parts = {"model": model, "optimizer": optimizer, "pool": pool}
    return Phase("distillation", settings.steps, parts, step)
