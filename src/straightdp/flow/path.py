"""The rectified flow's path, target and sampler (Section 2); t = 0 is the noise end.

>>> import torch
>>> z, xi = torch.ones(1, 2), torch.zeros(1, 2)
>>> interpolate(z, xi, torch.tensor([[0.25]]))
tensor([[0.2500, 0.2500]])
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Field = Callable[[torch.Tensor, float], torch.Tensor]


def interpolate(z: torch.Tensor, xi: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """x_t = (1 - t) xi + t z; `t` broadcasts against the vectors."""
    return torch.lerp(xi, z, t)


def velocity_target(z: torch.Tensor, xi: torch.Tensor) -> torch.Tensor:
    """v = z - xi, the regression target of Equation 1."""
    return z - xi


def guided(
    model: Callable, table: torch.Tensor, guidance: float
) -> Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]:
    """Classifier-free guidance: v_null + g (v_class - v_null), both branches in one pass.

    `table` is (Y + 1, L, W) with the null caption last; the result takes x (B, d), a time
    and labels (B,). At g = 1 the null branch is not computed.
    """

    def field(x: torch.Tensor, t: float, labels: torch.Tensor) -> torch.Tensor:
        if guidance == 1:
            return model(x, torch.full((len(x),), t, device=x.device), table[labels])
        captions = torch.cat([table[labels], table[-1:].expand(len(x), -1, -1)])
        times = torch.full((2 * len(x),), t, device=x.device)
        conditional, null = model(torch.cat([x, x]), times, captions).chunk(2)
        return null + guidance * (conditional - null)

    return field


def euler(
    field: Field, x: torch.Tensor, start: float, end: float, steps: int, states: bool = False
) -> torch.Tensor:
    """Integrate dx/dt = field(x, t) from `start` to `end` in equal Euler steps.

    Returns the last state (B, d), or with `states` all of them, (steps + 1, B, d).
    """
    width = (end - start) / steps
    passed = [x]
    for index in range(steps):
        x = x + width * field(x, start + index * width)
        if states:
            passed.append(x)
    return torch.stack(passed) if states else x


@torch.no_grad()
def ema_update_(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    """average <- decay average + (1 - decay) model, parameter by parameter, in place."""
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
