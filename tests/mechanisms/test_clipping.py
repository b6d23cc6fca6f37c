"""Clipped sums against torch.func's per-example gradients, and the bound on a contribution."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from straightdp.mechanisms import clipping
from straightdp.mechanisms.clipping import MARGIN, clipped_gradient_sum
from straightdp.model.mmdit import BackboneSpec, MMDiT
from straightdp.model.tokens import PatchTokens, VectorTokens

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's own

L, W = 3, 6  # caption length and width
PATCHES, CODE = PatchTokens(8, 4), VectorTokens(32, 8)
LATE = {"late_blocks": 1, "decoupled": True, "spectral_cap": 0.7}


def build(tokens=PATCHES, **constraints) -> MMDiT:
    """A small backbone whose zero-initialised gates have been moved off zero."""
    torch.manual_seed(0)
    model = MMDiT(BackboneSpec(16, 2, 2, mlp_ratio=2, **constraints), tokens, L, W)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.project_()
    return model


def batch(tokens=PATCHES, size: int = 6, draws: int = 4) -> tuple[torch.Tensor, ...]:
    """x, t, captions, target; the examples' scales differ, so that only some are clipped."""
    torch.manual_seed(1)
    scales = torch.linspace(0.2, 4, size)[:, None, None]
    x, target = torch.randn(2, size, draws, tokens.size)
    return x * scales, torch.rand(size, draws), torch.randn(size, L, W), target * scales


def reference(model, x, t, captions, target, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Every example's own gradient, by vmap of grad in `dtype`; returned in float64."""
    model = copy.deepcopy(model).to(dtype)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x, t, caption, target):
        call = (x, t, caption.expand(len(x), -1, -1))
        predicted = functional_call(model, parameters, call)
        return (predicted - target).square().sum(1).mean()

    inputs = [one.to(dtype) for one in (x, t, captions, target)]
    each = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0))(parameters, *inputs)
    return {name: one.double() for name, one in each.items()}


def lengths(gradients) -> torch.Tensor:
    """(B,) norms of per-example gradients."""
    return sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()


def length(gradients) -> float:
    return sum(g.double().square().sum() for g in gradients).sqrt().item()


def assert_close(found, expected, tolerance: float = 1e-5) -> None:
    """Each tensor to `tolerance` of its own norm."""
    for one, right in zip(found, expected, strict=True):
        error = (one.double() - right.double()).norm()
        assert error <= tolerance * right.norm().double() + 1e-12


@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize("tokens", [PATCHES, CODE], ids=["patches", "code"])
@pytest.mark.parametrize(
    "constraints",
    [{}, {"clamp": 2.0}, LATE, LATE | {"clamp": 2.0}],
    ids=["free", "clamp", "late", "all"],
)
def test_clipped_sum_and_norms_equal_vmap_of_grad(tokens, constraints, draws):
    model, data = build(tokens, **constraints), batch(tokens, draws=draws)
    each = reference(model, *data)
    right = lengths(each)
    clip = right.median().item() * 1.01  # three examples below, three above
    factors = (clip / right).clamp(max=1)
    expected = [torch.tensordot(factors, each[n], 1) for n, _ in model.named_parameters()]
    sums, norms = clipped_gradient_sum(model, *data, clip, micro_batch=4)
    assert torch.allclose(norms.double(), right, rtol=1e-5)
    assert_close(sums, expected)


@pytest.mark.parametrize("cost", [0, float("inf")], ids=["direct", "gram"])
def test_both_forms_equal_vmap_of_grad(monkeypatch, cost):
    monkeypatch.setattr(clipping, "ENTRY_COST", cost)
    model, data = build(), batch()
    each = reference(model, *data)
    sums, norms = clipped_gradient_sum(model, *data, 1e9, micro_batch=6)
    assert torch.allclose(norms.double(), lengths(each), rtol=1e-5)
    assert_close(sums, [each[name].sum(0) for name, _ in model.named_parameters()])


@pytest.mark.parametrize("size", [1, 2, 5, 6, 100])
def test_micro_batch_changes_rounding_alone(size):
    model, data = build(), batch()
    whole, norms = clipped_gradient_sum(model, *data, 20.0, micro_batch=6)
    split, split_norms = clipped_gradient_sum(model, *data, 20.0, micro_batch=size)
    assert_close(split, whole, 1e-6)
    assert torch.allclose(split_norms, norms, rtol=1e-6)


def test_empty_batch_is_a_sum_of_zeros():
    model = build()
    sums, norms = clipped_gradient_sum(model, *batch(size=0), 1.0, micro_batch=4)
    assert [one.shape for one in sums] == [p.shape for p in model.parameters()]
    assert length(sums) == 0
    assert norms.shape == (0,)


def test_without_a_clip_the_sum_is_the_ordinary_gradient():
    model, (x, t, captions, target) = build(), batch()
    predicted = model(x.flatten(0, 1), t.flatten(), captions.repeat_interleave(4, 0))
    loss = (predicted.view_as(target) - target).square().sum(2).mean(1).sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    sums, _ = clipped_gradient_sum(model, x, t, captions, target, float("inf"), 6)
    assert_close(sums, expected)


def test_draws_are_averaged_before_the_clip():
    """Four copies of one draw are that draw: the same norm and the same clipped sum."""
    model, (x, t, captions, target) = build(), batch(draws=1)
    once = clipped_gradient_sum(model, x, t, captions, target, 20.0, 6)
    four = [one.repeat_interleave(4, 1) for one in (x, t, target)]
    copies = clipped_gradient_sum(model, *four[:2], captions, four[2], 20.0, 6)
    assert_close(copies[0], once[0])
    assert torch.allclose(copies[1], once[1], rtol=1e-5)


@pytest.mark.parametrize("mode", ["fp32", "bf16", "inside autocast"])
@pytest.mark.parametrize("constraints", [{}, LATE | {"clamp": 2.0}], ids=["free", "all"])
def test_no_contribution_exceeds_the_clip(mode, constraints):
    """At any clip, and above all just around the norm, in every precision."""
    model, data = build(CODE, **constraints), batch(CODE, size=4)
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "inside autocast"):
        norms = clipped_gradient_sum(model, *data, 1.0, 4, bf16=mode == "bf16")[1]
        for index, norm in enumerate(norms.tolist()):
            alone = [one[index : index + 1] for one in data]
            for relative in (1e-3, 0.3, 1 - 1e-6, 1 - 1e-7, 1.0, 1 + 1e-7, 1 + 1e-6, 3.0):
                clip = norm * relative
                sums, _ = clipped_gradient_sum(model, *alone, clip, 1, bf16=mode == "bf16")
                assert length(sums) <= clip
                assert length(sums) >= 0.99 * min(norm, clip)


def test_products_have_full_precision_where_the_caller_allows_less(monkeypatch):
    seen = []

    def spy(a, g, form=clipping._form):
        seen.append(torch.get_float32_matmul_precision())
        return form(a, g)

    monkeypatch.setattr(clipping, "_form", spy)
    torch.set_float32_matmul_precision("medium")  # TF32 or bfloat16 products, on some devices
    try:
        clipped_gradient_sum(Affine(4), *small(), 1.0, 2)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


@pytest.mark.parametrize("bf16", [False, True])
def test_a_record_moves_the_sum_by_at_most_the_clip(bf16):
    model, data = build(), batch(size=8)
    clip = 10.0
    whole, _ = clipped_gradient_sum(model, *data, clip, 3, bf16=bf16)
    moves = []
    for left_out in range(8):
        rest = [one[torch.arange(8) != left_out] for one in data]
        less, _ = clipped_gradient_sum(model, *rest, clip, 3, bf16=bf16)
        moves.append(length([a.double() - b for a, b in zip(whole, less, strict=True)]))
    slack = 1e-2 if bf16 else 1e-5  # bfloat16 kernels round the others by their place in the batch
    assert max(moves) <= clip * (1 + slack)
    assert max(moves) >= 0.99 * clip  # some are clipped


class Affine(nn.Module):
    """The smallest model of the right form: one linear layer on x."""

    def __init__(self, size: int, out: int | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(size, out or size)

    def forward(self, x, t, caption):
        return self.layer(x)


def test_cancelling_rows_do_not_hide_a_norm():
    """Two draws whose large gradients all but cancel: the Gram form loses the norm's digits.

    Were the lost digits trusted, the contribution would pass for short and go unclipped.
    """
    model, clip, seen = Affine(32), 1e-3, []
    for seed in range(40):
        torch.manual_seed(seed)
        first = torch.randn(1, 1, 32)
        x = torch.cat([first, first + 1e-5 * torch.randn_like(first)], 1)
        residual = 1e3 * torch.randn(1, 1, 32)
        target = (model.layer(x) + torch.cat([residual, -residual], 1)).detach()
        data = (x, torch.zeros(1, 2), torch.zeros(1, L, W), target)
        sums, norms = clipped_gradient_sum(model, *data, clip, 1)
        right = lengths(reference(model, *data, torch.float64)).item()
        seen.append(norms.item() / right)
        assert length(sums) <= clip
    assert min(seen) < 0.5  # the case is as hard as it is said to be


def test_norms_keep_their_digits_over_many_entries():
    """A layer of 160,000 equal gradient entries, where one running float32 sum would drift."""
    model, draws = Affine(400), 60
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.zero_()
    x = torch.full((1, draws, 400), 0.7)
    data = (x, torch.zeros(1, draws), torch.zeros(1, L, W), torch.full_like(x, 0.3))
    sums, norms = clipped_gradient_sum(model, *data, 1.0, 1)
    residual, value = float(x.new_tensor(0.3)), float(x.new_tensor(0.7))
    expected = 2 * residual * 400**0.5 * (400 * value**2 + 1) ** 0.5
    assert norms.item() == pytest.approx(expected, rel=MARGIN)
    assert length(sums) <= 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_an_example_that_is_not_finite_contributes_nothing(bad):
    model, data = build(), batch()
    rest = [one[1:] for one in data]
    expected, _ = clipped_gradient_sum(model, *rest, 20.0, 6)
    for part in (0, 3):  # in x, and in the target
        spoilt = [one.clone() for one in data]
        spoilt[part][0, 2, 5] = bad
        if bad == 1e30 and part == 0:
            continue  # layer norms take the size away: an ordinary example
        sums, norms = clipped_gradient_sum(model, *spoilt, 20.0, 6)
        assert not norms[0].isfinite()
        assert norms[1:].isfinite().all()
        assert_close(sums, expected, 1e-6)


class Guarded(nn.Module):
    """A sound model of two layers; each subclass below breaks one assumption."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, t, caption):
        return self.second(self.first(x))


class OwnParameter(Guarded):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


class AffineNorm(Guarded):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)


class Subclass(Guarded):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, bias=False)
        self.attention.in_proj_weight.requires_grad_(False)  # leaves its own kind of nn.Linear


class Tied(Guarded):
    def __init__(self):
        super().__init__()
        self.second.weight = self.first.weight


class HalfFrozen(Guarded):
    def __init__(self):
        super().__init__()
        self.first.weight.requires_grad_(False)


class Twice(Guarded):
    def forward(self, x, t, caption):
        return self.second(self.first(self.first(x)))


class Bypass(Guarded):
    def forward(self, x, t, caption):
        return self.second(self.first(x) + F.linear(x, self.first.weight))


class BypassOnly(Guarded):
    def forward(self, x, t, caption):
        return F.linear(self.first(x), self.second.weight)


class OwnRows(Guarded):
    def forward(self, x, t, caption):
        return self.first(x) + self.second(torch.ones(3, 4)).sum(0)


class Overwrites(Guarded):
    def forward(self, x, t, caption):
        x = x.clone()
        out = self.first(x)
        x.zero_()
        return self.second(out)


BREACHES = [
    (OwnParameter, "scale belongs to no nn.Linear"),
    (AffineNorm, "norm.weight belongs to no nn.Linear"),
    (Subclass, "attention.out_proj.weight belongs to no nn.Linear"),
    (Tied, "second.weight is tied to first.weight"),
    (HalfFrozen, "freeze all of first"),
    (Twice, "first is applied twice"),
    (Bypass, "first.weight is used outside its layer"),
    (BypassOnly, "second.weight is used outside its layer"),
    (OwnRows, "second sees 3 rows"),
    (Overwrites, "input of first is overwritten"),
]


def small() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(2)
    return torch.randn(2, 2, 4), torch.rand(2, 2), torch.randn(2, L, W), torch.randn(2, 2, 4)


@pytest.mark.parametrize(("breach", "words"), BREACHES, ids=[b.__name__ for b, _ in BREACHES])
def test_what_would_make_the_norms_wrong_is_refused(breach, words):
    model = breach()
    with pytest.raises(TypeError, match=words):
        clipped_gradient_sum(model, *small(), 1.0, 2)
    assert not any(module._forward_hooks for module in model.modules())


class InPlace(Guarded):
    def forward(self, x, t, caption):
        return self.second(self.first(x).sigmoid_())


@pytest.mark.parametrize("kind", [Guarded, InPlace])
def test_sound_models_pass_the_guards(kind):
    """Also where an output is changed in place behind its layer."""
    torch.manual_seed(3)
    model = kind()
    each = reference(model, *small())
    sums, norms = clipped_gradient_sum(model, *small(), 1e9, 2)
    assert torch.allclose(norms.double(), lengths(each), rtol=1e-5)
    assert_close(sums, [each[name].sum(0) for name, _ in model.named_parameters()])


class Unused(Guarded):
    def forward(self, x, t, caption):
        self.second(x)
        return self.first(x)


def frozen() -> Guarded:
    model = Guarded()
    model.second.requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [Unused, frozen])
def test_unused_and_frozen_layers_have_zeros_and_no_part_in_the_norm(make):
    model = make()
    sums, norms = clipped_gradient_sum(model, *small(), 1e9, 1)
    each = reference(model, *small())
    right = lengths({name: each[name] for name in ("first.weight", "first.bias")})
    assert torch.allclose(norms.double(), right, rtol=1e-5)
    assert length(sums[2:]) == 0
    assert length(sums[:2]) > 0


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_a_clip_must_be_positive(clip):
    with pytest.raises(ValueError, match="clip must be above 0"):
        clipped_gradient_sum(Affine(4), *small(), clip, 2)


def test_micro_batch_must_be_positive():
    with pytest.raises(ValueError, match="micro_batch must be at least 1"):
        clipped_gradient_sum(Affine(4), *small(), 1.0, 0)


@pytest.mark.parametrize("place", range(4))
def test_disagreeing_shapes_are_refused(place):
    data = list(small())
    data[place] = data[place][:1]
    with pytest.raises(ValueError, match="disagree"):
        clipped_gradient_sum(Affine(4), *data, 1.0, 2)
