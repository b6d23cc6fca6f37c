"""The analytic field of a moment model (Proposition 3.1, Equations 2 to 4).

Classes are modelled as N(mu_y, Sigma) with one covariance. Sigma and A_t = (1-t)^2 I + t^2
Sigma share eigenvectors, so every product below costs O(d r) instead of O(d^2): Sigma is
`variances` on the r columns of `basis` and `floor` on everything orthogonal to them.

>>> import torch
>>> m = MomentModel(torch.ones(1), torch.full((1, 2), 3.0), torch.eye(2)[:, :1],
...                 torch.ones(1), 1.0)
>>> velocity(m, torch.zeros(1, 2), 0.0, torch.tensor([0]))  # tends to mu_y - x
tensor([[3., 3.]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MomentModel:
    """Class priors (Y,), means (Y, d), and Sigma by basis (d, r), variances (r,), floor.

    Every variance and the floor are positive. The fields below follow the dtype of x.
    """

    priors: torch.Tensor
    means: torch.Tensor
    basis: torch.Tensor  # orthonormal columns
    variances: torch.Tensor
    floor: float  # lambda_0: the variance in every other direction

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def to_tensors(self) -> dict[str, torch.Tensor | float]:
        return {
            name: getattr(self, name) for name in ("priors", "means", "basis", "variances", "floor")
        }

    @classmethod
    def from_tensors(cls, tensors: dict) -> MomentModel:
        return cls(**tensors)

    def to(self, device) -> MomentModel:
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in self.to_tensors().items()
        }
        return MomentModel(**moved)

    def covariance(self) -> torch.Tensor:
        """Sigma as a dense (d, d) matrix."""
        extra = self.basis * (self.variances - self.floor)
        return self.floor * torch.eye(self.dimension, dtype=self.means.dtype) + extra @ self.basis.T


def _times(x: torch.Tensor, t: torch.Tensor | float) -> torch.Tensor:
    """`t` as a (B, 1) or (1, 1) column of x's dtype."""
    return torch.as_tensor(t, dtype=x.dtype, device=x.device).reshape(-1, 1)


def _filtered(m: MomentModel, x: torch.Tensor, low: torch.Tensor, rest: torch.Tensor):
    """Apply the matrix with eigenvalues `low` (B, r) on the basis and `rest` (B, 1) elsewhere."""
    basis = m.basis.to(x)
    return rest * x + ((x @ basis) * (low - rest)) @ basis.T


def _around(m: MomentModel, x: torch.Tensor, t: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """mu + t Sigma A_t^-1 (x - t mu) for means (B, d): Equation 3."""

    def gain(variance):
        return t * variance / ((1 - t).square() + t.square() * variance)

    return means + _filtered(m, x - t * means, gain(m.variances.to(x)), gain(m.floor))


def _around_velocity(
    m: MomentModel, x: torch.Tensor, t: torch.Tensor, means: torch.Tensor
) -> torch.Tensor:
    """Equation 2 applied to :func:`_around`, with its division by 1 - t carried out.

    mu + (t Sigma - (1 - t) I) A_t^-1 (x - t mu): nothing cancels as t tends to 1.
    """

    def gain(variance):
        return (t * variance - (1 - t)) / ((1 - t).square() + t.square() * variance)

    return means + _filtered(m, x - t * means, gain(m.variances.to(x)), gain(m.floor))


def posterior_mean(
    m: MomentModel, x: torch.Tensor, t: torch.Tensor | float, labels: torch.Tensor
) -> torch.Tensor:
    """Equation 3: E[z | x_t = x, y], (B, d), for x (B, d), t scalar or (B,), labels (B,)."""
    return _around(m, x, _times(x, t), m.means[labels].to(x))


def responsibilities(m: MomentModel, x: torch.Tensor, t: torch.Tensor | float) -> torch.Tensor:
    """w_y(x, t), (B, Y): the posterior of the class under N(t mu_y, A_t), in float64."""
    x = x.double()
    t = _times(x, t)
    noise = (1 - t).square()
    on = 1 / (noise + t.square() * m.variances.double())  # (B, r)
    off = 1 / (noise + t.square() * m.floor)  # (B, 1)
    means, basis = m.means.double(), m.basis.double()
    # The quadratic form, without the part that is the same for every class.
    linear = off * x + ((x @ basis) * (on - off)) @ basis.T  # A_t^-1 x
    inside = (means @ basis).square()  # (Y, r)
    outside = means.square().sum(1) - inside.sum(1)  # (Y,)
    quadratic = on @ inside.T + off * outside  # mu^T A_t^-1 mu, (B, Y)
    logits = t * (linear @ means.T) - t.square() * quadratic / 2
    return torch.softmax(logits + m.priors.double().log(), dim=1)


def _averaged_means(m: MomentModel, x: torch.Tensor, t: torch.Tensor | float) -> torch.Tensor:
    """sum_y w_y(x, t) mu_y, (B, d): Equation 4 is Equation 3 there, which is affine in mu."""
    return (responsibilities(m, x, t) @ m.means.double()).to(x)


def posterior_mean_unconditional(
    m: MomentModel, x: torch.Tensor, t: torch.Tensor | float
) -> torch.Tensor:
    """Equation 4: E[z | x_t = x], (B, d), the responsibilities' average of Equation 3."""
    return _around(m, x, _times(x, t), _averaged_means(m, x, t))


def velocity(
    m: MomentModel, x: torch.Tensor, t: torch.Tensor | float, labels: torch.Tensor
) -> torch.Tensor:
    """The conditional field by Equation 2, (B, d); at t = 1 its limit, x."""
    return _around_velocity(m, x, _times(x, t), m.means[labels].to(x))


def velocity_unconditional(
    m: MomentModel, x: torch.Tensor, t: torch.Tensor | float
) -> torch.Tensor:
    """The null branch's field by Equation 2, (B, d); at t = 1 its limit, x."""
    return _around_velocity(m, x, _times(x, t), _averaged_means(m, x, t))


def noise_end_slope(m: MomentModel, t: float) -> float:
    """sqrt(V(t)) / (1 - t) = sqrt(tr(Sigma A_t^-1)): finite on all of [0, 1]."""
    noise, variances = (1 - t) ** 2, m.variances.double()
    on = float((variances / (noise + t**2 * variances)).sum())
    rest = m.dimension - len(variances)
    return math.sqrt(on + rest * m.floor / (noise + t**2 * m.floor))


def posterior_variance_trace(m: MomentModel, t: float) -> float:
    """tr Cov[z | x_t, y] = tr((1-t)^2 Sigma A_t^-1), the V of Appendix B.5."""
    return ((1 - t) * noise_end_slope(m, t)) ** 2


def sample_marginal(
    m: MomentModel, labels: torch.Tensor, t: float, normals: torch.Tensor
) -> torch.Tensor:
    """Draw x_t ~ N(t mu_y, t^2 Sigma + (1-t)^2 I), (B, d), from standard normals (B, d).

    At t = 1 these are samples of the release; at t = t_0 the tilted start of guidance
    (Section 3.1).
    """
    on = torch.sqrt((1 - t) ** 2 + t**2 * m.variances.to(normals))
    off = math.sqrt((1 - t) ** 2 + t**2 * m.floor)
    return t * m.means[labels].to(normals) + _filtered(m, normals, on, off)
