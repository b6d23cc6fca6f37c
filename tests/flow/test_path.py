"""The path's derivative is its target; Euler reaches the known law; guidance and averages."""

from __future__ import annotations

import math

import pytest
import torch

from straightdp.flow.path import ema_update_, euler, guided, interpolate, velocity_target


def test_the_ends_of_the_path_are_noise_and_data():
    z, xi = torch.randn(4, 3), torch.randn(4, 3)
    torch.testing.assert_close(interpolate(z, xi, torch.zeros(4, 1)), xi)
    torch.testing.assert_close(interpolate(z, xi, torch.ones(4, 1)), z)


def test_the_target_is_the_paths_derivative():
    z, xi = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    t = torch.rand(4, 1).double()
    slope = (interpolate(z, xi, t + 1e-3) - interpolate(z, xi, t - 1e-3)) / 2e-3
    torch.testing.assert_close(slope, velocity_target(z, xi), atol=1e-9, rtol=1e-9)


def test_regressing_the_target_finds_the_bayes_field():
    """Least squares of v on x_t must give the slope that Gaussian conditioning gives."""
    generator = torch.Generator().manual_seed(0)
    mean, scale, t = 1.5, 0.5, 0.3
    z = mean + scale * torch.randn(200_000, 1, generator=generator).double()
    xi = torch.randn(200_000, 1, generator=generator).double()
    x = interpolate(z, xi, torch.full((1, 1), t).double())
    design = torch.cat([x, torch.ones_like(x)], 1)
    slope, offset = torch.linalg.lstsq(design, velocity_target(z, xi)).solution[:, 0].tolist()
    variance = (1 - t) ** 2 + t**2 * scale**2
    expected = (t * scale**2 - (1 - t)) / variance  # Cov(z - xi, x_t) / Var(x_t)
    assert slope == pytest.approx(expected, abs=0.01)
    assert offset == pytest.approx(mean - expected * t * mean, abs=0.01)


def gaussian_field(mean: torch.Tensor, covariance: torch.Tensor):
    """E[z - xi | x_t = x] for z ~ N(mean, covariance), xi ~ N(0, I), by Gaussian conditioning."""
    eye = torch.eye(len(mean), dtype=mean.dtype)

    def field(x, t):
        gain = (t * covariance - (1 - t) * eye) @ torch.linalg.inv(
            t**2 * covariance + (1 - t) ** 2 * eye
        )
        return mean + (x - t * mean) @ gain.T

    return field


MEAN = torch.tensor([1.0, -2.0]).double()
COVARIANCE = torch.tensor([[1.3, 0.6], [0.6, 0.5]]).double()


def law_at_the_end(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance that Euler gives N(0, I): its map is affine, so three points tell."""
    points = torch.cat([torch.zeros(1, 2), torch.eye(2)]).double()
    ends = euler(gaussian_field(MEAN, COVARIANCE), points, 0.0, 1.0, steps)
    linear = (ends[1:] - ends[0]).T
    return ends[0], linear @ linear.T


def test_euler_reaches_the_law_with_an_error_of_one_over_steps():
    errors = []
    for steps in (50, 100, 200, 400):
        mean, covariance = law_at_the_end(steps)
        errors.append(float((mean - MEAN).norm() + (covariance - COVARIANCE).norm()))
    assert errors[-1] < 0.02
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert math.log2(coarse / fine) == pytest.approx(1.0, abs=0.15)


def test_euler_from_a_later_start_and_its_states():
    """From the marginal at t_0 the flow is the linear map between marginals (one dimension)."""
    scale, start = 0.4, 0.25
    field = gaussian_field(torch.zeros(1).double(), torch.tensor([[scale**2]]).double())
    x = torch.tensor([[-1.0], [0.5], [2.0]]).double()
    states = euler(field, x, start, 1.0, 300, states=True)
    assert states.shape == (301, 3, 1)
    assert torch.equal(states[0], x)
    assert torch.equal(states[-1], euler(field, x, start, 1.0, 300))
    at_start = math.sqrt(start**2 * scale**2 + (1 - start) ** 2)
    for index in (100, 200, 300):
        t = start + index * 0.75 / 300
        spread = math.sqrt(t**2 * scale**2 + (1 - t) ** 2)
        torch.testing.assert_close(states[index], x * spread / at_start, atol=0.01, rtol=0.01)


def test_euler_asks_for_the_left_ends_of_its_steps():
    times = []

    def field(x, t):
        times.append(t)
        return torch.ones_like(x)

    end = euler(field, torch.zeros(1, 1), 0.2, 1.0, 4)
    assert times == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert end.item() == pytest.approx(0.8)


class Counting:
    """v = (a number that names the caption) + x + t, counting rows and passes."""

    def __init__(self):
        self.rows = []

    def __call__(self, x, t, caption):
        self.rows.append(len(x))
        return caption.mean((1, 2))[:, None] + x + t[:, None]


TABLE = torch.tensor([10.0, 20.0, 30.0, -5.0])[:, None, None].expand(4, 2, 3)  # null last


@pytest.mark.parametrize("guidance", [0.0, 1.5, 3.0])
def test_guidance_extrapolates_from_null_to_class_in_one_pass(guidance):
    model = Counting()
    x, labels = torch.randn(3, 2), torch.tensor([2, 0, 1])
    v = guided(model, TABLE, guidance)(x, 0.25, labels)
    conditional = torch.tensor([30.0, 10.0, 20.0])[:, None] + x + 0.25
    null = -5.0 + x + 0.25
    torch.testing.assert_close(v, (1 - guidance) * null + guidance * conditional)
    assert model.rows == [6]


def test_without_guidance_the_null_branch_is_not_computed():
    model = Counting()
    x, labels = torch.randn(3, 2), torch.tensor([2, 0, 1])
    v = guided(model, TABLE, 1.0)(x, 0.25, labels)
    torch.testing.assert_close(v, torch.tensor([30.0, 10.0, 20.0])[:, None] + x + 0.25)
    assert model.rows == [3]


def test_the_running_average_against_its_closed_form():
    """After n updates towards a constant: target + decay^n (start - target)."""
    average, model = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    starts = [p.detach().clone() for p in average.parameters()]
    targets = [p.detach().clone() for p in model.parameters()]
    for _ in range(7):
        ema_update_(average, model, 0.9)
    for now, start, target in zip(average.parameters(), starts, targets, strict=True):
        torch.testing.assert_close(now.detach(), target + 0.9**7 * (start - target))
    for now, target in zip(model.parameters(), targets, strict=True):
        assert torch.equal(now, target)
