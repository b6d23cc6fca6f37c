"""The plan's one truth for sampler, noise and accountant; and what a private step is made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import nn

from straightdp.mechanisms.dpsgd import Bucket, DpSgdPlan, private_gradient
from straightdp.rng import Streams

D, Y, L, W = 6, 3, 2, 4  # values of a record, classes, caption length and width
PLAN = DpSgdPlan(
    buckets=(Bucket(0.2, 0.5, 2.0, 1.5), Bucket(0.5, 0.6, 0.5, 3.0), Bucket(0.6, 1.0, 8.0, 0.7)),
    steps=20,
    sampling_rate=0.25,
    records=400,
    multiplicity=2,
)
TABLE = torch.arange(Y + 1.0)[:, None, None].expand(-1, L, W).contiguous()  # its rows say which
P_VALUE = 1e-4  # every draw below is fixed, so a test passes or fails once and for all


class Recorder(nn.Module):
    """One linear layer, and a memory of what it was called with."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(D, D)
        self.calls: list[tuple[torch.Tensor, ...]] = []

    def forward(self, x, t, caption):
        self.calls.append((x.detach().clone(), t.clone(), caption.clone()))
        return self.layer(x)


def records(size: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return scale * torch.randn(size, D), torch.arange(size) % Y


def gradient(plan, step, data, model=None, key=1, p_uncond=0.1, micro_batch=64, bf16=False):
    """(flat gradient in float64, log) of one step."""
    noise = Streams.from_seed("secret", key)
    found, log = private_gradient(
        model or Recorder(), *data, TABLE, plan, step, noise, p_uncond, micro_batch, bf16
    )
    return torch.cat([one.flatten() for one in found]).double(), log


def without_noise(plan: DpSgdPlan) -> DpSgdPlan:
    return replace(plan, buckets=tuple(replace(b, noise_multiplier=0.0) for b in plan.buckets))


def two_sided(chi_square: float, degrees: int) -> float:
    """The p-value of a chi-square statistic that may be too large or too small."""
    return 2 * min(stats.chi2.cdf(chi_square, degrees), stats.chi2.sf(chi_square, degrees))


def test_noise_has_the_declared_deviation():
    """Without records, q N x gradient is Gaussian with deviation sigma_k C_k, step for step."""
    draws = {k: [] for k in range(3)}
    for step in range(60):
        noise, log = gradient(PLAN, step, records(0))
        assert log.batch_size == 0
        draws[step % 3].append(noise * 0.25 * 400)
    for bucket, (sigma, clip) in enumerate([(1.5, 2.0), (3.0, 0.5), (0.7, 8.0)]):
        scaled = torch.cat(draws[bucket]) / (sigma * clip)
        assert two_sided(scaled.square().sum().item(), len(scaled)) > P_VALUE
        assert stats.kstest(scaled.numpy(), "norm").pvalue > P_VALUE
    by_step = torch.stack(draws[0])  # (20, P)
    correlation = torch.corrcoef(by_step)[~torch.eye(20, dtype=torch.bool)]
    assert correlation.abs().max() < 6 / by_step.shape[1] ** 0.5  # no step repeats another's


def test_noise_is_added_once_whatever_the_micro_batches():
    data = records(400)
    whole, log = gradient(PLAN, 4, data, micro_batch=1000)
    assert log.batch_size > 50
    for size in (1, 7):
        split, _ = gradient(PLAN, 4, data, micro_batch=size)
        assert torch.allclose(split, whole, rtol=1e-5, atol=1e-7)
    silent, _ = gradient(without_noise(PLAN), 4, data)
    alone, _ = gradient(PLAN, 4, records(0))
    assert torch.allclose(whole, silent + alone, rtol=1e-5, atol=1e-7)


def test_poisson_sample_has_its_rate():
    """Each record's count and the batch sizes are binomial, and neighbours are independent."""
    streams, size, steps, q = Streams.from_seed("rate"), 200, 800, 0.25
    masks = torch.zeros(steps, size)
    for step in range(steps):
        masks[step, PLAN.sample(streams, step, size)] = 1
    per_record = (masks.sum(0) - steps * q).square() / (steps * q * (1 - q))
    per_step = (masks.sum(1) - size * q).square() / (size * q * (1 - q))
    assert two_sided(per_record.sum().item(), size) > P_VALUE
    assert two_sided(per_step.sum().item(), steps) > P_VALUE
    both = (masks[:, 1:] * masks[:, :-1]).sum().item()
    trials = steps * (size - 1)
    assert abs(both - trials * q**2) < 5 * (trials * q**2) ** 0.5


def test_the_denominator_is_declared():
    """One record, always sampled, clipped: its share is C / N for the declared N, exactly."""
    for n in (1, 50, 400):
        plan = replace(without_noise(PLAN), sampling_rate=1.0, records=n)
        for step, clip in enumerate((2.0, 0.5, 8.0)):
            found, log = gradient(plan, step, records(1, scale=100.0))
            assert log.batch_size == 1 and log.clip_fraction == 1
            assert found.norm().item() == pytest.approx(clip / n, rel=1e-5)
    half, _ = gradient(without_noise(replace(PLAN, records=800)), 0, records(300))
    whole, log = gradient(without_noise(PLAN), 0, records(300))
    assert log.batch_size > 40
    assert torch.allclose(2 * half, whole)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_last_record_moves_the_sum_by_at_most_the_clip(bf16):
    plan = replace(without_noise(PLAN), sampling_rate=1.0)
    data = records(12, scale=5.0)
    for step, clip in enumerate((2.0, 0.5, 8.0)):
        more, _ = gradient(plan, step, data, bf16=bf16)
        less, _ = gradient(plan, step, [one[:-1] for one in data], bf16=bf16)
        moved = (more - less).norm().item() * plan.expected_batch
        assert 0.1 * clip < moved <= clip * 1.0001


def test_times_and_noise_of_the_flow():
    """t is uniform on the bucket, x_t = (1-t) xi + t z with xi standard normal."""
    z, labels = records(400)
    for step, (low, high) in enumerate([(0.2, 0.5), (0.5, 0.6), (0.6, 1.0)]):
        model = Recorder()
        _, log = gradient(PLAN, step, (z, labels), model, micro_batch=1000)
        [(x, t, _)] = model.calls
        assert len(t) == 2 * log.batch_size
        assert low <= t.min() and t.max() < high
        uniform = stats.uniform(low, high - low)
        assert stats.kstest(t.numpy(), uniform.cdf).pvalue > P_VALUE
        chosen = PLAN.sample(Streams.from_seed("secret", 1), step, 400)
        shown = z[chosen].repeat_interleave(2, 0)
        xi = (x - t[:, None] * shown) / (1 - t[:, None])
        keep = t < 0.99
        assert stats.kstest(xi[keep].flatten().numpy(), "norm").pvalue > P_VALUE
        pairs = xi.view(-1, 2, D)
        assert not torch.allclose(pairs[:, 0], pairs[:, 1])  # K draws, not one draw K times


def test_captions_are_dropped_once_an_example():
    z, labels = records(400)
    dropped, seen = 0, 0
    for step in range(12):
        model = Recorder()
        gradient(PLAN, step, (z, labels), model, p_uncond=0.3, micro_batch=1000)
        rows = model.calls[0][2][:, 0, 0].view(-1, 2)
        assert torch.equal(rows[:, 0], rows[:, 1])  # shared by the K draws
        chosen = PLAN.sample(Streams.from_seed("secret", 1), step, 400)
        null = rows[:, 0] == Y
        assert torch.equal(rows[~null, 0], labels[chosen][~null].float())
        dropped, seen = dropped + null.sum().item(), seen + len(null)
    assert stats.binomtest(dropped, seen, 0.3).pvalue > P_VALUE


def test_a_step_does_not_depend_on_the_steps_before_it():
    data, model = records(400), Recorder()
    run = [gradient(PLAN, step, data, model)[0] for step in range(6)]
    fresh, _ = gradient(PLAN, 5, data)
    assert torch.equal(run[5], fresh)
    assert not torch.equal(run[5], run[2])  # the same bucket, another step


def test_everything_random_hangs_on_the_secret_key():
    """Sample, flow draws and noise: with a published one, records would shift each other's."""
    z = torch.zeros(400, D)  # then x_t = (1 - t) xi
    labels, times, flows, noises = torch.zeros(400, dtype=torch.long), [], [], []
    for key in (1, 2):
        model = Recorder()
        gradient(PLAN, 0, (z, labels), model, key=key, micro_batch=1000)
        [(x, t, _)] = model.calls
        times.append(t[:100])
        flows.append((x / (1 - t[:, None]))[:100])
        noises.append(gradient(PLAN, 0, records(0), key=key)[0])
    for one, other in (times, flows, noises):
        assert torch.isclose(one, other, atol=0, rtol=1e-6).float().mean() < 0.02


def test_a_broken_record_changes_nothing_else():
    """A record that is not finite contributes zero; the log stays finite and counts it."""
    plan = replace(without_noise(PLAN), sampling_rate=1.0, buckets=(Bucket(0, 1, 1e6, 0.0),))
    z, labels = records(5)
    z[-1, 0] = math.nan
    with_it, log = gradient(plan, 0, (z, labels))
    without, _ = gradient(plan, 0, (z[:-1], labels[:-1]))
    assert torch.allclose(with_it, without, rtol=1e-5)
    assert math.isfinite(log.p50) and math.isfinite(log.p90)
    assert log.clip_fraction == 0.2 and log.batch_size == 5


def test_log_describes_the_norms_before_clipping():
    """On a model of zeros with one draw, a record's norm is 2 |z - xi| sqrt(|x|^2 + 1)."""
    plan = replace(without_noise(PLAN), sampling_rate=1.0, multiplicity=1)
    model = Recorder()
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.zero_()
    z, labels = records(40)
    _, log = gradient(plan, 2, (z, labels), model)
    x, t, _ = model.calls[0]
    residual = (z - x) / (1 - t[:, None])  # z - xi, from x_t = z - (1-t)(z - xi)
    norms = 2 * residual.norm(dim=1) * (x.square().sum(1) + 1).sqrt()
    assert log.bucket == 2
    assert log.p50 == pytest.approx(norms.quantile(0.5).item(), rel=1e-3)
    assert log.p90 == pytest.approx(norms.quantile(0.9).item(), rel=1e-3)
    assert log.clip_fraction == pytest.approx((norms > 8).float().mean().item())


def test_more_records_than_declared_are_refused():
    with pytest.raises(ValueError, match="401 private records, more than the declared 400"):
        gradient(PLAN, 0, records(401))


def test_labels_must_match_records():
    z, labels = records(10)
    with pytest.raises(ValueError, match="10 private records but 9 labels"):
        gradient(PLAN, 0, (z, labels[:-1]))


@pytest.mark.parametrize("first, count", [(0, 20), (0, 1), (7, 5), (19, 1), (3, 2)])
def test_charges_count_each_buckets_steps(first, count):
    """Against counting one by one which bucket every step belongs to."""
    walked = [PLAN.bucket_of(step) for step in range(first, first + count)]
    lines = PLAN.charges(first, count)
    assert {line["bucket"]: line["steps"] for line in lines} == {
        k: walked.count(k) for k in set(walked)
    }
    for line in lines:
        step = next(s for s in range(first, first + count) if s % 3 == line["bucket"])
        assert line["noise_std"] == PLAN.noise_std(step)
        assert line["noise_std"] / line["clip"] == line["noise_multiplier"]
        assert line["sampling_rate"] == 0.25
        before = [PLAN.bucket_of(one) for one in range(first)]
        assert line["first_step"] == before.count(line["bucket"])
    mechanisms = PLAN.mechanisms(first, count)
    assert [m.steps for m in mechanisms] == [walked.count(k) for k in range(3)]
    assert [m.noise_multiplier for m in mechanisms] == [1.5, 3.0, 0.7]


def test_charges_of_blocks_add_up_to_the_workload():
    total = [0, 0, 0]
    for first in range(0, 20, 7):
        for line in PLAN.charges(first, min(7, 20 - first)):
            total[line["bucket"]] += line["steps"]
    assert total == [m.steps for m in PLAN.mechanisms()] == [7, 7, 6]


def test_plan_survives_json():
    assert DpSgdPlan.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


@pytest.mark.parametrize(
    "change, words",
    [
        ({"buckets": ()}, "at least one bucket"),
        ({"sampling_rate": 0.0}, "sampling rate"),
        ({"sampling_rate": 1.5}, "sampling rate"),
        ({"sampling_rate": math.nan}, "sampling rate"),
        ({"steps": 0}, "steps"),
        ({"records": 0}, "records"),
        ({"multiplicity": 0}, "multiplicity"),
    ],
)
def test_impossible_plans_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"t_low": 0.5}, "no part of"),
        ({"t_high": 1.1}, "no part of"),
        ({"t_low": -0.1}, "no part of"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"noise_multiplier": -1.0}, "noise multiplier"),
        ({"noise_multiplier": math.nan}, "noise multiplier"),
        ({"noise_multiplier": math.inf}, "noise multiplier"),
    ],
)
def test_impossible_buckets_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAN.buckets[0], **change)
