"""AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019), in the few lines that are used here.

It equals torch.optim.AdamW to rounding (a test sees to it) and is here because importing
torch's costs each of a grid's many short jobs over a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

BETAS, EPS = (0.9, 0.999), 1e-8


class AdamW:
    """Decoupled weight decay; `lr` may be set before each step."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float, weight_decay: float = 0.0):
        self.parameters = list(parameters)
        self.lr, self.weight_decay, self.steps = lr, weight_decay, 0
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter by its `grad`; one without counts as having a gradient of 0."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.steps += 1
        slow, slower = BETAS
        torch._foreach_lerp_(self.first, grads, 1 - slow)
        torch._foreach_mul_(self.second, slower)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - slower)
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_div_(roots, (1 - slower**self.steps) ** 0.5)
        torch._foreach_add_(roots, EPS)
        if self.weight_decay:
            torch._foreach_mul_(self.parameters, 1 - self.lr * self.weight_decay)
        scale = -self.lr / (1 - slow**self.steps)
        torch._foreach_addcdiv_(self.parameters, self.first, roots, scale)

    def state_dict(self) -> dict:
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]
        for mine, theirs in ((self.first, state["first"]), (self.second, state["second"])):
            for tensor, value in zip(mine, theirs, strict=True):
                tensor.copy_(value)
