"""DP-SGD over pre-declared time buckets (Section 3.2, Appendix B.5).

One frozen plan gives the sampler its rate, the noise its deviation and the accountant its
mechanisms, so that none can differ from the others. A step belongs to one bucket (steps go
round the buckets in turn) and is: a Poisson sample of the records, K draws of (t, xi) an
example with t in the bucket, one caption drop an example, the clipped sum, Gaussian noise of
deviation sigma_k C_k, and division by the declared q N (never by the realised batch). An
empty sample is a step of pure noise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from straightdp.flow.path import interpolate, velocity_target
from straightdp.mechanisms.accounting import SubsampledSteps
from straightdp.mechanisms.clipping import clipped_gradient_sum
from straightdp.rng import Role, Streams


@dataclass(frozen=True)
class Bucket:
    """Times [t_low, t_high) with their clip C_k and noise multiplier sigma_k."""

    t_low: float
    t_high: float
    clip: float
    noise_multiplier: float

    def __post_init__(self):
        if not 0 <= self.t_low < self.t_high <= 1:
            raise ValueError(f"bucket [{self.t_low}, {self.t_high}) is no part of [0, 1]")
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ValueError(f"clip must be a positive number, not {self.clip}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise multiplier must be 0 or more, not {self.noise_multiplier}")


@dataclass(frozen=True)
class DpSgdPlan:
    """The declared workload of Stage 2."""

    buckets: tuple[Bucket, ...]
    steps: int
    sampling_rate: float  # q
    records: int  # N, declared
    multiplicity: int  # K draws of (t, xi) an example
    beta: float = 0.0  # the shape it was planned with; 0 is uniform

    def __post_init__(self):
        if not self.buckets:
            raise ValueError("a plan needs at least one bucket")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling rate must lie in (0, 1], not {self.sampling_rate}")
        for name in ("steps", "records", "multiplicity"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def expected_batch(self) -> float:
        """q N, the denominator of every step."""
        return self.sampling_rate * self.records

    def bucket_of(self, step: int) -> int:
        return step % len(self.buckets)

    def noise_std(self, step: int) -> float:
        """sigma_k C_k, the deviation of the noise on the clipped sum."""
        bucket = self.buckets[self.bucket_of(step)]
        return bucket.noise_multiplier * bucket.clip

    def sample(self, streams: Streams, step: int, available: int) -> torch.Tensor:
        """Poisson sample: each of `available` records with probability q, independently."""
        draws = streams.generator(Role.POISSON, step).random(available)
        return torch.from_numpy((draws < self.sampling_rate).nonzero()[0])

    def bucket_steps(self, bucket: int, first: int = 0, count: int | None = None) -> int:
        """How many of steps first .. first + count - 1 belong to a bucket."""
        end = self.steps if count is None else first + count
        k = len(self.buckets)
        return len(range(first + (bucket - first) % k, end, k))

    def mechanisms(self, first: int = 0, count: int | None = None) -> list[SubsampledSteps]:
        """What the accountant composes for a range of steps."""
        return [
            SubsampledSteps(
                f"bucket {k}",
                self.sampling_rate,
                bucket.noise_multiplier,
                self.bucket_steps(k, first, count),
            )
            for k, bucket in enumerate(self.buckets)
        ]

    def charges(self, first: int, count: int) -> list[dict]:
        """Transcript lines for a range of steps, one a bucket that has any."""
        lines = []
        for k, bucket in enumerate(self.buckets):
            steps = self.bucket_steps(k, first, count)
            if steps:
                deviation = bucket.noise_multiplier * bucket.clip
                lines.append(
                    {
                        "kind": "subsampled_gaussian",
                        "name": "dp-sgd",
                        "bucket": k,
                        "clip": bucket.clip,
                        "noise_std": deviation,
                        "noise_multiplier": deviation / bucket.clip,
                        "sampling_rate": self.sampling_rate,
                        "first_step": self.bucket_steps(k, 0, first),  # of this bucket's own
                        "steps": steps,
                        "normalised_by": "sampling rate x declared records",
                    }
                )
        return lines

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> DpSgdPlan:
        return cls(**{**values, "buckets": tuple(Bucket(**one) for one in values["buckets"])})


@dataclass(frozen=True)
class StepLog:
    """Statistics of one step's private gradients (Appendix D.3).

    No noise protects them, the realised batch size included: never show or keep them where
    the records are private in earnest. They are for benchmark data sets.
    """

    bucket: int
    p50: float  # quantiles of the per-example norms before clipping, of the finite ones
    p90: float
    clip_fraction: float  # examples whose contribution is not their whole gradient
    batch_size: int


def _log(bucket: int, norms: torch.Tensor, clip: float) -> StepLog:
    finite = norms[norms.isfinite()]
    levels = torch.tensor([0.5, 0.9], device=norms.device)
    quantiles = torch.quantile(finite, levels).tolist() if len(finite) else (0.0, 0.0)
    changed = (~(norms <= clip)).sum().item()  # a norm of NaN is not below the clip
    return StepLog(bucket, *quantiles, changed / max(len(norms), 1), len(norms))


def private_gradient(
    model: torch.nn.Module,
    z: torch.Tensor,
    labels: torch.Tensor,
    table: torch.Tensor,
    plan: DpSgdPlan,
    step: int,
    noise: Streams,
    p_uncond: float,
    micro_batch: int,
    bf16: bool = False,
) -> tuple[list[torch.Tensor], StepLog]:
    """The noised mean gradient of one step, aligned with model.parameters().

    z (n, d) and labels (n,) are the private records, n <= the declared N (ValueError
    otherwise); `table` (Y + 1, L, W) has the null caption last. `noise` is the step's one key,
    to be kept secret: of the Poisson sample, the flow's draws and the privacy noise. The
    flow's draws go to the sampled records in their order, so if they were published, one
    record's absence would visibly shift the draws of all after it, and move the sum by more
    than a clip; unknown, they are exchangeable and the sensitivity is one clip.
    """
    if len(z) > plan.records:
        raise ValueError(
            f"{len(z)} private records, more than the declared {plan.records} "
            "(data.private_records)"
        )
    if len(labels) != len(z):
        raise ValueError(f"{len(z)} private records but {len(labels)} labels")
    index = plan.bucket_of(step)
    bucket = plan.buckets[index]
    device = table.device
    chosen = plan.sample(noise, step, len(z))
    shape = (len(chosen), plan.multiplicity)
    width = bucket.t_high - bucket.t_low
    t = bucket.t_low + width * noise.uniform(Role.FLOW, step, shape, 0)
    xi = noise.normal(Role.FLOW, step, (*shape, z.shape[1]), 1).to(device)
    dropped = noise.uniform(Role.FLOW, step, (len(chosen),), 2) < p_uncond
    rows = labels[chosen].masked_fill(dropped, len(table) - 1)
    batch = z[chosen].to(device)[:, None].expand(-1, plan.multiplicity, -1)
    t = t.to(device)
    sums, norms = clipped_gradient_sum(
        model,
        interpolate(batch, xi, t[..., None]),
        t,
        table[rows.to(device)],
        velocity_target(batch, xi),
        clip=bucket.clip,
        micro_batch=micro_batch,
        bf16=bf16,
    )
    deviation = plan.noise_std(step)
    gradient = []
    for place, value in enumerate(sums):
        drawn = noise.normal(Role.NOISE, step, value.shape, place).to(device)
        gradient.append((value + deviation * drawn) / plan.expected_batch)
    return gradient, _log(index, norms, bucket.clip)
