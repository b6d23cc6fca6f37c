"""A private step against the non-private step of the same model, and against peers.

Every way of clipping is first checked to give the norms that ours gives. Ways that clip:

* ours: book-keeping (straightdp.mechanisms.clipping);
* vmap: per-example gradients by torch.func, on the attention kernel that vmap handles best;
* opacus-hooks: per-example gradients by Opacus's GradSampleModule;
* opacus-ghost: norms by ghost clipping, then a second backward pass.

Opacus takes the first axis as the example, so it is compared at one draw a record.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from timing import interleaved, ratio
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from straightdp.flow.path import interpolate, velocity_target
from straightdp.mechanisms.clipping import clipped_gradient_sum
from straightdp.mechanisms.dpsgd import Bucket, DpSgdPlan, private_gradient
from straightdp.model.adam import AdamW
from straightdp.model.caption import CaptionEncoder, CaptionSpec
from straightdp.model.mmdit import BackboneSpec, MMDiT
from straightdp.model.tokens import PatchTokens, VectorTokens
from straightdp.rng import Role, Streams

CLIP = 100.0  # below the norms here: every example is clipped
CLASSES = 10


@dataclass(frozen=True)
class Size:
    """A backbone with its batch; `opacus` where peers that know no draws are compared."""

    name: str
    spec: BackboneSpec
    tokens: PatchTokens | VectorTokens
    records: int
    draws: int
    micro_batch: int
    opacus: bool = False


LAB = (BackboneSpec(64, 3, 4), PatchTokens(16, 4))
PAPER = (BackboneSpec(192, 6, 6), PatchTokens(28, 4))
SIZES = (
    Size("lab, 256 records x 1 draw", *LAB, 256, 1, 64, opacus=True),
    Size("lab, 64 records x 4 draws", *LAB, 64, 4, 16),
    Size("paper, 16 records x 1 draw", *PAPER, 16, 1, 16, opacus=True),
    Size("paper, 8 records x 4 draws", *PAPER, 8, 4, 8),
)
WHOLE = (  # whole steps, at the presets' expected batch where one core can
    Size("lab, 1200 records x 1 draw", *LAB, 1200, 1, 64),
    Size("paper, 32 of 1200 records x 4 draws", *PAPER, 32, 4, 8),
)


class Problem:
    """A model off its initial zeros, random records, and one batch of flow inputs."""

    def __init__(self, size: Size):
        torch.manual_seed(0)
        self.size = size
        self.model = MMDiT(size.spec, size.tokens, CaptionSpec().length, CaptionSpec().width)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        self.table = CaptionEncoder(CaptionSpec()).table(CLASSES)
        self.z = torch.randn(size.records, size.tokens.size)
        self.labels = torch.arange(size.records) % CLASSES
        self.inputs = self.flow_inputs(Streams.from_seed(0), 0)

    def flow_inputs(self, streams: Streams, step: int) -> tuple[torch.Tensor, ...]:
        """x, t, captions and target of all records, as a training step draws them."""
        shape = (self.size.records, self.size.draws)
        t = streams.uniform(Role.FLOW, step, shape, 0)
        xi = streams.normal(Role.FLOW, step, (*shape, self.z.shape[1]), 1)
        z = self.z[:, None].expand_as(xi)
        x = interpolate(z, xi, t[..., None])
        return x, t, self.table[self.labels], velocity_target(z, xi)

    def losses(self, model, x, t, captions, target) -> torch.Tensor:
        shared = captions.repeat_interleave(self.size.draws, 0)
        predicted = model(x.flatten(0, 1), t.flatten(), shared)
        return (predicted.view_as(target) - target).square().sum(2).mean(1)

    def parts(self, inputs):
        for start in range(0, self.size.records, self.size.micro_batch):
            yield [one[start : start + self.size.micro_batch] for one in inputs]

    # ---- gradients of one batch; the clipping ones return the norms ----

    def non_private(self, inputs=None) -> None:
        self.model.zero_grad(set_to_none=True)
        for part in self.parts(inputs or self.inputs):
            self.losses(self.model, *part).sum().backward()

    def ours(self) -> torch.Tensor:
        return clipped_gradient_sum(self.model, *self.inputs, CLIP, self.size.micro_batch)[1]

    def vmapped(self) -> torch.Tensor:
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}

        def loss(parameters, x, t, caption, target):
            call = (x, t, caption.expand(len(x), -1, -1))
            predicted = functional_call(self.model, parameters, call)
            return (predicted - target).square().sum(1).mean()

        each = vmap(grad(loss), (None, 0, 0, 0, 0))
        sums, norms = [torch.zeros_like(p) for p in parameters.values()], []
        for part in self.parts(self.inputs):
            with sdpa_kernel(SDPBackend.MATH):
                found = list(each(parameters, *part).values())
            norms.append(_clip_and_add(sums, found))
        return torch.cat(norms)

    def opacus_hooks(self) -> Callable[[], torch.Tensor]:
        from opacus.grad_sample import GradSampleModule

        wrapped = GradSampleModule(copy.deepcopy(self.model), loss_reduction="sum", strict=False)
        parameters = list(wrapped.parameters())

        def step() -> torch.Tensor:
            sums, norms = [torch.zeros_like(p) for p in parameters], []
            for part in self.parts(self.inputs):
                self.losses(wrapped, *part).sum().backward()
                norms.append(_clip_and_add(sums, [p.grad_sample for p in parameters]))
                wrapped.zero_grad(set_to_none=True)
            return torch.cat(norms)

        return step

    def opacus_ghost(self) -> Callable[[], torch.Tensor]:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        wrapped = GradSampleModuleFastGradientClipping(
            copy.deepcopy(self.model), loss_reduction="sum", strict=False, max_grad_norm=CLIP
        )

        def step() -> torch.Tensor:
            wrapped.zero_grad(set_to_none=True)
            norms = []
            for part in self.parts(self.inputs):
                kept = [p.grad for p in wrapped.parameters()]
                losses = self.losses(wrapped, *part)
                losses.sum().backward(retain_graph=True)
                norms.append(wrapped.get_norm_sample().detach().clone())
                factors = wrapped.get_clipping_coef().detach()
                for parameter, before in zip(wrapped.parameters(), kept, strict=True):
                    parameter.grad = before  # the first pass's unclipped sums are no part
                wrapped.disable_hooks()
                (losses * factors).sum().backward()
                wrapped.enable_hooks()
            return torch.cat(norms)

        return step

    # ---- whole steps: draws, gradient, noise, optimizer ----

    def whole_non_private(self, optimizer: AdamW) -> None:
        self.non_private(self.flow_inputs(Streams.from_seed(0), 0))
        optimizer.step()

    def whole_private(self, optimizer: AdamW, plan: DpSgdPlan) -> None:
        noise = Streams.from_seed(0)
        gradient, _ = private_gradient(
            self.model,
            self.z,
            self.labels,
            self.table,
            plan,
            0,
            noise,
            p_uncond=0.1,
            micro_batch=self.size.micro_batch,
        )
        for parameter, value in zip(self.model.parameters(), gradient, strict=True):
            parameter.grad = value
        optimizer.step()


def _clip_and_add(sums: list[torch.Tensor], each: list[torch.Tensor]) -> torch.Tensor:
    """Add the clipped sum of per-example gradients, in place; their (B,) norms."""
    norms = sum(g.flatten(1).square().sum(1) for g in each).sqrt()
    factors = (CLIP / norms).clamp(max=1.0)
    for total, g in zip(sums, each, strict=True):
        total.view(-1).addmv_(g.flatten(1).T, factors)
    return norms


def gradients(rounds: int) -> None:
    for size in SIZES:
        problem = Problem(size)
        ways = {"non-private": problem.non_private, "ours": problem.ours, "vmap": problem.vmapped}
        if size.opacus:
            try:
                ways["opacus-hooks"] = problem.opacus_hooks()
                ways["opacus-ghost"] = problem.opacus_ghost()
            except ImportError:
                print(f"{size.name}: Opacus left out, it is not installed (pip install opacus)")
        right = problem.ours()
        for name, way in ways.items():
            if name != "non-private" and not torch.allclose(way(), right, rtol=1e-3):
                raise AssertionError(f"{name} disagrees on the norms: the comparison is void")
        times = interleaved(ways, rounds)
        base = statistics.median(times["non-private"])
        print(f"gradient, {size.name} (non-private {base:.3f} s)")
        print(f"  ours / non-private {ratio(times, 'ours', 'non-private'):.2f}  (aim: at most 1.3)")
        for name in list(ways)[2:]:
            print(
                f"  {name} / ours {ratio(times, name, 'ours'):.2f},"
                f" {name} / non-private {ratio(times, name, 'non-private'):.2f}"
            )


def whole_steps(rounds: int) -> None:
    for size in WHOLE:
        problem = Problem(size)
        optimizer = AdamW(problem.model.parameters(), 1e-9)
        plan = DpSgdPlan((Bucket(0, 1, CLIP, 1.0),), 1, 1.0, size.records, size.draws)
        times = interleaved(
            {
                "non-private": partial(problem.whole_non_private, optimizer),
                "private": partial(problem.whole_private, optimizer, plan),
            },
            rounds,
        )
        base = statistics.median(times["non-private"])
        print(f"whole step, {size.name} (non-private {base:.3f} s)")
        found = ratio(times, "private", "non-private")
        print(f"  private / non-private {found:.2f}  (aim: at most 1.3)")
