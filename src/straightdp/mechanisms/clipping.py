"""Clipped per-example gradients by book-keeping (Bu et al. 2023), in one backward pass.

One forward pass keeps every linear layer's input a, one backward pass gives every output's
gradient g; per-example gradients are never formed. For an example with T rows per layer
(K draws x T tokens) the layer's gradient is g^T a, with squared norm

    sum over row pairs of (a a^T + 1) * (g g^T)      (the 1 is the bias),

computed in that Gram form or, where cheaper, from g^T a itself. The clipped sum is then one
weighted product a layer. The contract: each example's contribution has norm at most `clip`.

| case                          | contribution                                     |
|-------------------------------|--------------------------------------------------|
| norm <= clip                  | its gradient, unchanged                          |
| norm > clip                   | scaled to norm clip (1 - MARGIN)                 |
| loss or gradient not finite   | zero                                             |
| empty batch                   | a sum of zeros                                   |
| clip = inf                    | the plain sum (public calibration only)          |

Norms and sums are formed in float32 whatever the forward pass ran in, so bfloat16 rounding
cannot lift a contribution above the clip; MARGIN covers float32 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

MARGIN = 2e-6  # relative: above the rounding of a float32 norm over all layers


@dataclass
class _Record:
    """One layer's input and output in the current pass."""

    inputs: torch.Tensor | None = None
    output: torch.Tensor | None = None


@dataclass
class BookKeeper:
    """Hooks on a model's linear layers; use as a context manager around forward passes."""

    model: nn.Module
    layers: list[nn.Linear] = field(init=False)

    def __post_init__(self):
        self.layers = [one for one in self.model.modules() if isinstance(one, nn.Linear)]
        covered = {id(p) for layer in self.layers for p in layer.parameters(recurse=False)}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in covered:
                raise TypeError(
                    f"{name} belongs to no nn.Linear: its per-example gradient would be missed"
                )

    def __enter__(self) -> BookKeeper:
        self._records = {layer: _Record() for layer in self.layers}
        self._handles = [layer.register_forward_hook(self._keep) for layer in self.layers]
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()
        self._records = {}

    def _keep(self, layer: nn.Linear, inputs: tuple, output: torch.Tensor) -> None:
        record = self._records[layer]
        if record.output is not None:
            raise TypeError("a linear layer is applied twice in one pass: norms would be wrong")
        record.inputs, record.output = inputs[0].detach(), output

    def gradients(self, losses: torch.Tensor) -> list[tuple[nn.Linear, torch.Tensor, torch.Tensor]]:
        """(layer, a, g) of the pass just made, as (B, T', i) and (B, T', o) in float32.

        `losses` (B,) are per-example and independent of each other. Layers that the losses
        do not depend on are left out; the records are cleared.
        """
        examples = len(losses)
        used = [layer for layer in self.layers if self._records[layer].output is not None]
        outputs = [self._records[layer].output for layer in used]
        grads = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        found = []
        for layer, grad in zip(used, grads, strict=True):
            if grad is not None:
                a = self._records[layer].inputs.float().reshape(examples, -1, layer.in_features)
                g = grad.float().reshape(examples, -1, layer.out_features)
                found.append((layer, a, g))
        self._records = {layer: _Record() for layer in self.layers}
        return found


def _squared_norms(layer: nn.Linear, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """(B,) squared norms of each example's gradient for one layer, bias included."""
    rows, i, o = a.shape[1], a.shape[2], g.shape[2]
    if rows == 1:
        bias = 1.0 if layer.bias is not None else 0.0
        return (a.square().sum((1, 2)) + bias) * g.square().sum((1, 2))
    if rows * (i + o) <= i * o:
        gram_a = (
            torch.baddbmm(torch.ones((), device=a.device), a, a.transpose(1, 2))
            if layer.bias is not None
            else a @ a.transpose(1, 2)
        )
        return (gram_a * (g @ g.transpose(1, 2))).sum((1, 2))
    total = (g.transpose(1, 2) @ a).square().sum((1, 2))
    return total + g.sum(1).square().sum(1) if layer.bias is not None else total


def clipped_gradient_sum(
    model: nn.Module,
    x: torch.Tensor,
    t: torch.Tensor,
    captions: torch.Tensor,
    target: torch.Tensor,
    clip: float,
    micro_batch: int,
    bf16: bool = False,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Sum over examples of clip_C(grad of the example's flow loss), and the norms before.

    x, target (B, K, d), t (B, K), captions (B, L, W). An example's loss is the mean over its
    K draws of the squared error summed over d (Equation 1 with noise multiplicity,
    Dockhorn et al. 2023): the draws are averaged before the clip, so K costs no privacy.
    Returns gradients aligned with model.parameters(), and (B,) norms. `micro_batch` bounds
    memory and changes the result by rounding alone.
    """
    if not clip > 0:
        raise ValueError(f"clip must be above 0, not {clip}")
    sums = {id(p): torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()}
    norms = []
    draws = x.shape[1]
    with BookKeeper(model) as keeper:
        for start in range(0, len(x), micro_batch):
            part = slice(start, start + micro_batch)
            size = len(x[part])
            shared = captions[part]
            if draws > 1:
                shared = shared.repeat_interleave(draws, dim=0)
            with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=bf16):
                predicted = model(x[part].flatten(0, 1), t[part].flatten(), shared)
            errors = (predicted.float().view(size, draws, -1) - target[part]).square()
            kept = keeper.gradients(errors.sum(2).mean(1))
            norms.append(_add_clipped(kept, clip, sums, size, x.device))
    empty = torch.zeros(0, device=x.device)
    return [sums[id(p)] for p in model.parameters()], torch.cat(norms) if norms else empty


def _add_clipped(kept, clip: float, sums: dict, size: int, device) -> torch.Tensor:
    """Add one micro-batch's clipped sum to `sums`; returns its (size,) norms."""
    squares = torch.zeros(size, device=device)
    for layer, a, g in kept:
        squares += _squared_norms(layer, a, g)
    norms = squares.clamp_min(0).sqrt()
    finite = torch.isfinite(norms)
    factors = (clip * (1 - MARGIN) / norms.clamp_min(1e-30)).clamp(max=1.0)
    factors = torch.where(finite, factors, torch.zeros_like(factors))
    whole = bool(finite.all())
    for layer, a, g in kept:
        if not whole:  # zero times NaN is NaN: blank both sides
            a = torch.where(finite[:, None, None], a, torch.zeros_like(a))
            g = torch.where(finite[:, None, None], g, torch.zeros_like(g))
        weighted = (g * factors[:, None, None]).flatten(0, 1)
        sums[id(layer.weight)].addmm_(weighted.T, a.flatten(0, 1))
        if layer.bias is not None:
            sums[id(layer.bias)] += weighted.sum(0)
    return norms
