"""Clipped per-example gradients by book-keeping (Bu et al. 2023), in one backward pass.

One forward pass keeps every linear layer's input a, one backward pass gives every output's
gradient g, and no weight gradient is formed in it. For an example with T rows in a layer
(K draws x tokens) the layer's gradient is g^T a, and sum(g) for the bias. Each layer takes
the cheaper of two forms:

* direct: g^T a is formed for every example; it gives the norm, and the clipped sum is a
  weighted sum of it. Taken where it has few entries for its rows, as in the token layers;
* Gram: |g^T a|^2 = sum of (a a^T) * (g g^T) over row pairs, and the clipped sum is one product
  of the kept a and g. Taken where rows are few, as in the layers that see the time alone.

The contract: each example's contribution to the sum has norm at most `clip`.

| case                          | contribution                                     |
|-------------------------------|--------------------------------------------------|
| norm <= clip (1 - MARGIN)     | its gradient, unchanged                          |
| norm above that               | scaled to norm clip (1 - MARGIN)                 |
| loss or gradient not finite   | zero, and nobody else's contribution changes     |
| empty batch                   | a sum of zeros                                   |
| clip = inf                    | the plain sum (public calibration only)          |

Norms and sums are formed in float32 at full precision whatever the forward pass ran in, so
that bfloat16 cannot lift a contribution above the clip. MARGIN covers float32 rounding, and
GRAM_ROUNDING the Gram form's cancellation, where a small norm is a difference of large terms.
The model must treat its examples independently (no batch statistics).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

MARGIN = 2e-6  # relative: above the rounding of a float32 norm over all layers
GRAM_ROUNDING = 2.0**-20  # of (sum over rows of |a| |g|)^2, the scale of the Gram form's terms
ENTRY_COST = 16  # passing over one entry of g^T a costs about as much as this many products


@dataclass(frozen=True)
class _Call:
    """A layer's one application in a pass."""

    inputs: torch.Tensor
    version: int  # of the inputs' memory: it must not be overwritten before it is read
    output: GradientEdge


@dataclass
class BookKeeper:
    """Hooks on a model's linear layers; use as a context manager around forward passes.

    Exactness is guarded: a TypeError names what would make the norms wrong. That is a
    trainable parameter outside a plain nn.Linear, tied or half-frozen ones, a layer applied
    twice in a pass, to rows that are not the batch's, or by-passed by using its weight.
    """

    model: nn.Module
    layers: dict[nn.Linear, str] = field(init=False)

    def __post_init__(self):
        self.layers = {}
        self._trainable: dict[int, str] = {}
        for path, module in self.model.named_modules():
            own = dict(module.named_parameters(path, recurse=False))
            active = {id(p): name for name, p in own.items() if p.requires_grad}
            for key, name in active.items():
                # A subclass may compute something else than the product that is assumed here.
                if type(module) is not nn.Linear:
                    raise TypeError(f"{name} belongs to no nn.Linear: its gradient would be missed")
                if key in self._trainable:
                    raise TypeError(f"{name} is tied to {self._trainable[key]}: untie them")
                if len(active) < len(own):
                    raise TypeError(f"{name} is trainable alone: freeze all of {path} or nothing")
            if active:
                self.layers[module] = path
                self._trainable.update(active)

    def __enter__(self) -> BookKeeper:
        self._calls: dict[nn.Linear, _Call] = {}
        self._checked = False
        self._handles = [layer.register_forward_hook(self._keep) for layer in self.layers]
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()
        self._calls = {}

    def _keep(self, layer: nn.Linear, inputs: tuple, output: torch.Tensor) -> None:
        if layer in self._calls:
            raise TypeError(f"{self.layers[layer]} is applied twice in one pass")
        self._calls[layer] = _Call(inputs[0], inputs[0]._version, get_gradient_edge(output))

    def gradients(
        self, losses: torch.Tensor, draws: int = 1
    ) -> list[tuple[nn.Linear, torch.Tensor, torch.Tensor]]:
        """(layer, a, g) of the pass just made, as (B, T, i) and (B, T, o) in float32.

        `losses` (B,) are one an example; the model saw B x `draws` rows, an example's draws
        in succession. Layers that the losses do not depend on are left out.
        """
        calls, self._calls = self._calls, {}
        if not self._checked:  # once: the graph of a pass is that of the next
            self._refuse_bypass(losses, calls)
            self._checked = True
        edges = [call.output for call in calls.values()]
        grads = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        found = []
        for (layer, call), g in zip(calls.items(), grads, strict=True):
            a = call.inputs.detach()
            if len(a) != len(losses) * draws:
                raise TypeError(f"{self.layers[layer]} sees {len(a)} rows, not the batch's")
            if a._version != call.version:
                raise TypeError(f"the input of {self.layers[layer]} is overwritten in the pass")
            if g is not None:
                a = a.reshape(len(losses), -1, layer.in_features)
                g = g.reshape(len(losses), -1, layer.out_features)
                found.append((layer, a.float(), g.float()))
        return found

    def _refuse_bypass(self, losses: torch.Tensor, calls: dict[nn.Linear, _Call]) -> None:
        """Walk the graph from the losses; parameters may be met inside kept calls alone."""
        outputs = {call.output.node: call.inputs.grad_fn for call in calls.values()}
        waiting, seen = [losses.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in outputs:
                waiting.append(outputs[node])
                continue
            name = self._trainable.get(id(getattr(node, "variable", None)))
            if name is not None:
                raise TypeError(f"{name} is used outside its layer: its gradient would be missed")
            waiting.extend(follower for follower, _ in node.next_functions)


@contextmanager
def _full_precision(device: torch.device):
    """True float32 products, whatever autocast or TF32 setting surrounds them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class _GramForm:
    """One layer's contributions, as the kept a (B, T, i) and g (B, T, o)."""

    def __init__(self, a: torch.Tensor, g: torch.Tensor):
        self.a, self.g = a, g

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(B,) squared norms, and (B,) bounds on the rounding in them."""
        if self.a.shape[1] == 1:  # a product of two norms: nothing cancels
            squares = self.a.square().sum((1, 2)) * self.g.square().sum((1, 2))
            return squares, torch.zeros_like(squares)
        gram_a, gram_g = self.a @ self.a.transpose(1, 2), self.g @ self.g.transpose(1, 2)
        diagonals = gram_a.diagonal(dim1=1, dim2=2) * gram_g.diagonal(dim1=1, dim2=2)
        scale = diagonals.clamp_min(0).sqrt().sum(1).square()
        return gram_a.mul_(gram_g).sum((1, 2)), GRAM_ROUNDING * scale

    def blank(self, finite: torch.Tensor) -> None:
        self.a = torch.where(finite[:, None, None], self.a, 0.0)
        self.g = torch.where(finite[:, None, None], self.g, 0.0)

    def add_to(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """total (o, i) += sum over examples of factor x g^T a."""
        a, g = self.a, self.g
        if a.shape[2] < g.shape[2]:
            a = a * factors[:, None, None]
        else:
            g = g * factors[:, None, None]
        total.addmm_(g.flatten(0, 1).T, a.flatten(0, 1))


class _DirectForm:
    """One layer's contributions, formed: (B, o, i), or (B, o) of a bias."""

    def __init__(self, formed: torch.Tensor):
        self.formed = formed

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(B,) squared norms, and their rounding beyond MARGIN: none, since nothing cancels.

        Row by row: one long float32 sum would lose four digits at o i = 200,000.
        """
        rows = torch.linalg.vector_norm(self.formed, dim=-1).square()
        squares = rows.flatten(1).sum(1) if rows.dim() > 1 else rows
        return squares, torch.zeros_like(squares)

    def blank(self, finite: torch.Tensor) -> None:
        shape = (-1,) + (1,) * (self.formed.dim() - 1)
        self.formed = torch.where(finite.view(shape), self.formed, 0.0)

    def add_to(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """total += sum over examples of factor x contribution."""
        total.view(-1).addmv_(self.formed.flatten(1).T, factors)


def _form(a: torch.Tensor, g: torch.Tensor) -> _GramForm | _DirectForm:
    """The cheaper form: T^2 (i + o) products and T i o in the sum, or entries of g^T a."""
    rows, i, o = a.shape[1], a.shape[2], g.shape[2]
    if rows == 1 or rows * rows * (i + o) <= ENTRY_COST * i * o:
        return _GramForm(a, g)
    return _DirectForm(g.transpose(1, 2) @ a)


def _add_clipped(kept, clip: float, sums: dict[int, torch.Tensor]) -> torch.Tensor:
    """Add one micro-batch's clipped sum to `sums` (by parameter id); its (B,) norms."""
    parts = []
    while kept:  # a and g of a direct layer are let go at once
        layer, a, g = kept.pop()
        parts.append((layer.weight, _form(a, g)))
        if layer.bias is not None:
            parts.append((layer.bias, _DirectForm(g.sum(1))))
    squares, rounding = (sum(each) for each in zip(*(p.squares() for _, p in parts), strict=True))
    norms = squares.clamp_min(0).sqrt()
    finite = torch.isfinite(norms)
    upper = (squares.clamp_min(0) + rounding).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    factors = (clip * (1 - MARGIN) / upper).clamp(max=1.0)
    if not finite.all():
        factors = torch.where(finite, factors, 0.0)
        for _, part in parts:  # zero times NaN is NaN
            part.blank(finite)
    for parameter, part in parts:
        part.add_to(sums[id(parameter)], factors)
    return norms


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
    memory and changes the result by rounding alone. `bf16` runs the forward and backward
    passes under autocast. ValueError on a bad clip, micro-batch or shape; TypeError as in
    :class:`BookKeeper`.
    """
    size, draws = t.shape
    if not clip > 0:
        raise ValueError(f"clip must be above 0, not {clip}")
    if micro_batch < 1:
        raise ValueError(f"micro_batch must be at least 1, not {micro_batch}")
    if not (x.shape[:2] == t.shape and target.shape == x.shape and len(captions) == size):
        shapes = ", ".join(str(tuple(one.shape)) for one in (x, t, captions, target))
        raise ValueError(f"x, t, captions and target disagree on (B, K, d): {shapes}")
    sums = {id(p): torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()}
    norms = [torch.zeros(0, device=x.device)]
    with BookKeeper(model) as keeper:
        for start in range(0, size, micro_batch):
            part = slice(start, start + micro_batch)
            shared = captions[part].repeat_interleave(draws, dim=0)
            with (
                torch.enable_grad(),
                torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=bf16),
            ):
                predicted = model(x[part].flatten(0, 1), t[part].flatten(), shared)
                errors = (predicted.float().view_as(target[part]) - target[part]).square()
                losses = errors.sum(2).mean(1)
            kept = keeper.gradients(losses, draws)
            with _full_precision(x.device):
                norms.append(_add_clipped(kept, clip, sums))
    return [sums[id(p)] for p in model.parameters()], torch.cat(norms)
