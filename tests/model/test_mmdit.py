"""The backbone's attention, its three constraints and its parameters, seen from outside."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from straightdp.model.mmdit import BackboneSpec, MMDiT, clamp_tokens
from straightdp.model.tokens import PatchTokens, VectorTokens

L, W = 5, 12  # caption length and width
CONSTRAINED = {"clamp": 2.0, "late_blocks": 1, "decoupled": True, "spectral_cap": 0.7}
VARIANTS = [
    {},
    {"clamp": 2.0},
    {"late_blocks": 1},
    {"decoupled": True},
    CONSTRAINED,
    CONSTRAINED | {"late_blocks": 2},
]


def build(seed: int = 0, spread: float = 0.2, **constraints) -> MMDiT:
    """A small backbone whose zero-initialised gates have been moved off zero."""
    torch.manual_seed(seed)
    spec = BackboneSpec(width=16, depth=3, heads=4, mlp_ratio=2, **constraints)
    model = MMDiT(spec, PatchTokens(8, 4), L, W)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
    model.project_()
    return model


def inputs(batch: int = 3):
    torch.manual_seed(1)
    return torch.randn(batch, 64), torch.rand(batch), torch.randn(batch, L, W)


def block_inputs(model: MMDiT):
    """Random streams, and shifts and scales for both, for a call of `attention`."""
    torch.manual_seed(2)
    width = model.spec.width
    h, e = torch.randn(3, 4, width), torch.randn(3, L, width)
    mods = [(torch.randn(3, 1, width), torch.randn(3, 1, width)) for _ in range(2)]
    return h, e, mods[0], mods[1]


def streams_between_blocks(model: MMDiT, *call) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Both streams as each block receives them."""
    seen = []
    handles = [
        block.register_forward_pre_hook(lambda _, args: seen.append(args[:2]))
        for block in model.blocks
    ]
    model(*call)
    for handle in handles:
        handle.remove()
    return seen


# --- a naive reference, in loops -------------------------------------------------------


def naive_modulated(x, shift, scale):
    rows = [(row - row.mean()) / torch.sqrt(row.var(unbiased=False) + 1e-6) for row in x]
    return torch.stack(rows) * (1 + scale) + shift


def naive_attention(queries, keys, values, heads: int):
    """Softmax attention of one example, token by token and head by head."""
    width = queries.shape[1] // heads
    result = torch.zeros_like(queries)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for i, query in enumerate(queries):
            scores = [math.exp(float(query[part] @ k[part]) / math.sqrt(width)) for k in keys]
            for score, value in zip(scores, values, strict=True):
                result[i, part] += score / sum(scores) * value[part]
    return result


def linear(layer: nn.Linear, x):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def test_joint_attention_has_one_softmax_over_both_streams():
    model = build().double()
    block = model.blocks[0]
    h, e, image_mods, caption_mods = block_inputs(model)
    h, e = h.double(), e.double()
    image_mods, caption_mods = (
        tuple(m.double() for m in mods) for mods in (image_mods, caption_mods)
    )
    with torch.no_grad():
        (update, inflow), caption = block.attention(h, e, image_mods, caption_mods)
        assert inflow is None
        for b in range(len(h)):
            hm = naive_modulated(h[b], *(m[b] for m in image_mods))
            em = naive_modulated(e[b], *(m[b] for m in caption_mods))
            q, k, v = linear(block.image.qkv, hm).split(16, dim=1)
            qe, ke, ve = linear(block.caption.qkv, em).split(16, dim=1)
            keys, values = torch.cat([k, ke]), torch.cat([v, ve])
            expected = linear(block.image.out, naive_attention(q, keys, values, 4))
            torch.testing.assert_close(update[b], expected)
            expected = linear(block.caption.out, naive_attention(qe, keys, values, 4))
            torch.testing.assert_close(caption[b], expected)


def test_decoupled_attention_has_two_softmaxes():
    model = build(decoupled=True).double()
    for block in (model.blocks[0], model.blocks[-1]):
        h, e, image_mods, caption_mods = block_inputs(model)
        h, e = h.double(), e.double()
        image_mods, caption_mods = (
            tuple(m.double() for m in mods) for mods in (image_mods, caption_mods)
        )
        with torch.no_grad():
            (own, inflow), _ = block.attention(h, e, image_mods, caption_mods)
            hm = naive_modulated(h[0], *(m[0] for m in image_mods))
            em = naive_modulated(e[0], *(m[0] for m in caption_mods))
            q, k, v = linear(block.image.qkv, hm).split(16, dim=1)
            key_rows = slice(0, 16) if block is model.blocks[-1] else slice(16, 32)
            ke = linear(block.caption.qkv, em)[:, key_rows]
            lent = linear(block.cross_value, em)
            expected = linear(block.image.out, naive_attention(q, k, v, 4))
            torch.testing.assert_close(own[0], expected)
            expected = linear(block.cross_out, naive_attention(q, ke, lent, 4))
            torch.testing.assert_close(inflow[0], expected)


# --- decoupled attention ---------------------------------------------------------------


def test_the_split_is_exact():
    model = build(decoupled=True)
    for block in model.blocks:
        h, e, image_mods, caption_mods = block_inputs(model)
        (own, inflow), _ = block.attention(h, e, image_mods, caption_mods)
        (own_2, inflow_2), _ = block.attention(h, torch.randn_like(e), image_mods, caption_mods)
        assert torch.equal(own, own_2)
        assert not torch.allclose(inflow, inflow_2)
        # The stream receives the gated sum of the two parts: undo everything around it.
        time = torch.randn(3, 16)
        shift, scale, gate, *rest = block.image.modulate(time)
        shift_e, scale_e, *_ = block.caption.modulate(time)
        (own, inflow), _ = block.attention(h, e, (shift, scale), (shift_e, scale_e))
        expected = block.image.finish(h + gate * own + gate * inflow, 0 * own, [gate, *rest])
        torch.testing.assert_close(block(h, e, time)[0], expected)


# --- late injection --------------------------------------------------------------------


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("late", [1, 2])
def test_late_injection_is_an_exact_zero_before_the_last_blocks(late, decoupled):
    model = build(late_blocks=late, decoupled=decoupled)
    x, t, caption = inputs()
    with torch.no_grad():
        first = streams_between_blocks(model, x, t, caption)
        second = streams_between_blocks(model, x, t, torch.randn_like(caption))
        outputs = model(x, t, caption), model(x, t, torch.randn_like(caption))
    for index, ((h, e), (h_2, e_2)) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(h, h_2) == (index <= 3 - late)  # what block `index` receives
        assert not torch.allclose(e, e_2)
    assert not torch.allclose(*outputs)


@pytest.mark.parametrize("late", [1, 2])
def test_late_injection_keeps_the_image_out_of_the_caption_stream(late):
    model = build(late_blocks=late)
    x, t, caption = inputs()
    first = streams_between_blocks(model, x, t, caption)
    second = streams_between_blocks(model, torch.randn_like(x), t, caption)
    for (_, e), (_, e_2) in list(zip(first, second, strict=True))[: 4 - late]:
        assert torch.equal(e, e_2)


def test_without_late_injection_the_caption_arrives_in_the_first_block():
    model = build()
    x, t, caption = inputs()
    first = streams_between_blocks(model, x, t, caption)
    second = streams_between_blocks(model, x, t, torch.randn_like(caption))
    assert torch.equal(first[0][0], second[0][0])
    assert not torch.allclose(first[1][0], second[1][0])


# --- the clamp -------------------------------------------------------------------------


def pairs(radius: float):
    """Random pairs, and pairs on either side of the ball's boundary or near each other."""
    torch.manual_seed(0)
    u = torch.randn(20_000, 6).double()
    u = u / u.norm(dim=1, keepdim=True)
    v = u + 10 ** torch.empty(20_000, 1).uniform_(-8, 1).double() * torch.randn(20_000, 6)
    v = v / v.norm(dim=1, keepdim=True)
    near = 10 ** torch.empty(20_000, 1).uniform_(-9, 0.5).double()
    sign = torch.where(torch.rand(20_000, 1) < 0.5, -1.0, 1.0)
    return radius * u * (1 - near.clamp(max=1)), radius * v * (1 + sign * near).clamp(min=0)


@pytest.mark.parametrize("radius", [0.5, 16.0])
def test_the_clamp_is_the_projection_onto_the_ball(radius):
    for u, v in (pairs(radius), [torch.randn(5_000, 6).double() * radius for _ in range(2)]):
        moved = (clamp_tokens(u, radius) - clamp_tokens(v, radius)).norm(dim=1)
        # The norm is taken in float32: its rounding is the slack, relative to the radius.
        assert (moved <= (u - v).norm(dim=1) + 1e-6 * radius).all()
        for points in (u, v):
            clamped, norms = clamp_tokens(points, radius), points.norm(dim=1)
            expected = points * (radius / norms).clamp(max=1)[:, None]
            torch.testing.assert_close(clamped, expected, atol=1e-6 * radius, rtol=1e-6)
            inside = norms < radius * (1 - 1e-6)
            assert torch.equal(clamped[inside], points[inside])


def test_the_clamp_has_the_projections_derivative():
    torch.manual_seed(0)
    u = 3 * torch.randn(6)
    jacobian = torch.autograd.functional.jacobian(lambda x: clamp_tokens(x, 1.0), u)
    unit = u / u.norm()
    expected = (torch.eye(6) - torch.outer(unit, unit)) / u.norm()
    torch.testing.assert_close(jacobian, expected)
    inside = torch.autograd.functional.jacobian(lambda x: clamp_tokens(x, 1.0), 0.1 * unit)
    torch.testing.assert_close(inside, torch.eye(6))


def test_the_clamp_is_the_identity_at_zero_with_its_gradient():
    tokens = torch.zeros(2, 3, 4, requires_grad=True)
    clamped = clamp_tokens(tokens, 1.0)
    clamped.sum().backward()
    assert torch.equal(clamped, torch.zeros(2, 3, 4))
    assert torch.equal(tokens.grad, torch.ones(2, 3, 4))


@pytest.mark.parametrize("others", [{}, CONSTRAINED])
def test_the_clamp_holds_between_all_blocks(others):
    radius = 1.5
    x, t, caption = (10 * part for part in inputs())

    def norms(bound):
        model = build(spread=1.0, **others | {"clamp": bound})
        streams = streams_between_blocks(model, x, t, caption)
        return [stream.norm(dim=-1) for pair in streams for stream in pair]

    assert all((norm <= radius * (1 + 1e-5)).all() for norm in norms(radius))
    assert all(norm.max() > 2 * radius for norm in norms(None))  # so there was something to do


def test_the_clamp_holds_after_the_last_block():
    """Tokens of lengths 2 and 14 in one direction are one token to a clamp at 1.

    The final layer norm would hide a missing clamp, were the unit not so small (0.001) that
    the norm's epsilon shows a token's length: the unclamped model serves as the contrast.
    """
    unit = 1e-3

    def output(length: float, bound: float | None) -> torch.Tensor:
        model = build(clamp=bound)
        tokens = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(3))
        tokens = length * unit * tokens / tokens.norm(dim=-1, keepdim=True)
        model.blocks[-1].register_forward_hook(lambda *_: (tokens, torch.zeros(3, L, 16)))
        return model(*inputs())

    torch.testing.assert_close(output(2, unit), output(14, unit))
    assert not torch.allclose(output(2, None), output(14, None), rtol=0.1)


# --- the spectral cap ------------------------------------------------------------------


def capped_matrices(model: MMDiT) -> list[torch.Tensor]:
    return [
        layer.weight
        for block in model.blocks
        if block.injects
        for layer in (block.cross_value, block.cross_out)
    ]


@pytest.mark.parametrize("cap", [0.3, 1.0])
def test_the_cap_scales_what_is_above_and_leaves_what_is_below(cap):
    model = build(decoupled=True, late_blocks=2, spectral_cap=cap)
    matrices = capped_matrices(model)
    assert len(matrices) == 4
    with torch.no_grad():
        for index, matrix in enumerate(matrices):
            matrix.mul_([5.0, 0.1, 0.1, 5.0][index])  # a value and an output matrix above
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = [
        m * min(1.0, cap / torch.linalg.svdvals(m.double())[0].item())
        for m in (matrix.detach().clone() for matrix in matrices)
    ]
    model.project_()
    for matrix, value in zip(matrices, expected, strict=True):
        assert torch.linalg.svdvals(matrix.double())[0] <= cap * (1 + 1e-6)
        torch.testing.assert_close(matrix.detach(), value)
    capped = {id(m) for m in matrices}
    for name, parameter in model.named_parameters():
        if id(parameter) not in capped:
            assert torch.equal(parameter, before[name]), name


def test_the_cap_bounds_the_captions_inflow():
    """|G| <= s^2 max |caption token| without biases: Facts B.3 (i) and B.4, one head.

    Weights outside the cross path are large, so a value map that went through any of them
    would break the bound; that the cap is reached to a third shows that it is no accident.
    """
    torch.manual_seed(0)
    cap = 0.5
    spec = BackboneSpec(width=16, depth=2, heads=1, decoupled=True, spectral_cap=cap)
    model = MMDiT(spec, PatchTokens(8, 4), L, W)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    for block in model.blocks:
        block.cross_value.weight.data = 2 * torch.eye(16)
        block.cross_out.weight.data = 2 * torch.eye(16)
    model.project_()
    h, e, zero = torch.randn(3, 4, 16), torch.randn(3, L, 16), torch.zeros(3, 1, 16)
    bound = cap**2 * torch.nn.functional.layer_norm(e, (16,)).norm(dim=-1).max()
    for block in model.blocks:
        (_, inflow), _ = block.attention(h, e, (zero, zero), (zero, zero))
        assert inflow.norm(dim=-1).max() <= bound * (1 + 1e-5)
        assert inflow.norm(dim=-1).max() > bound / 3


def test_without_a_cap_projecting_changes_nothing():
    model = build(decoupled=True)
    before = [p.detach().clone() for p in model.parameters()]
    model.project_()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --- parameters and initialisation -----------------------------------------------------


@pytest.mark.parametrize("constraints", VARIANTS)
def test_every_parameter_belongs_to_a_linear_layer_used_once(constraints):
    model = build(**constraints)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    owned = {id(p) for layer in layers for p in layer.parameters()}
    assert {id(p) for p in model.parameters()} == owned
    calls = []
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: calls.append(id(layer)))
    model(*inputs())
    assert sorted(calls) == sorted(id(layer) for layer in layers)


@pytest.mark.parametrize("constraints", VARIANTS)
def test_no_parameter_is_dead(constraints):
    model = build(**constraints).double()
    x, t, caption = (part.double() for part in inputs())
    model(x, t, caption).square().sum().backward()
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters()}
    largest = max(sizes.values())
    assert {name for name, size in sizes.items() if size < 1e-9 * largest} == set()


def test_at_initialisation_the_output_is_zero_and_the_blocks_are_the_identity():
    torch.manual_seed(0)
    model = MMDiT(BackboneSpec(width=16, depth=3, heads=4), PatchTokens(8, 4), L, W)
    x, t, caption = inputs()
    assert torch.equal(model(x, t, caption), torch.zeros(3, 64))
    streams = streams_between_blocks(model, x, t, caption)
    for h, e in streams[1:]:
        assert torch.equal(h, streams[0][0])
        assert torch.equal(e, streams[0][1])


@pytest.mark.parametrize("constraints", [{}, CONSTRAINED | {"clamp": 16.0}])
def test_the_papers_size_has_about_7_7_million_parameters(constraints):
    spec = BackboneSpec(width=192, depth=6, heads=6, **constraints)  # Table 9
    model = MMDiT(spec, PatchTokens(28, 4), 8, 64)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(7.7e6, rel=0.1)


# --- the field as a whole --------------------------------------------------------------


@pytest.mark.parametrize("constraints", VARIANTS)
def test_examples_do_not_see_each_other(constraints):
    model = build(**constraints).double()
    x, t, caption = (part.double() for part in inputs())
    together = model(x, t, caption)
    alone = torch.cat([model(x[i : i + 1], t[i : i + 1], caption[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone)


def test_time_place_and_every_token_matter():
    model = build().double()
    x, t, caption = (part.double() for part in inputs(1))
    out = model(x, t, caption)
    assert not torch.allclose(out, model(x, t + 0.01, caption))
    assert not torch.allclose(out, model(x, t, caption.flip(1)))
    swapped = model.tokens.from_tokens(model.tokens.to_tokens(x).flip(1))
    moved = model.tokens.from_tokens(model.tokens.to_tokens(out).flip(1))
    assert not torch.allclose(model(swapped, t, caption), moved)
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x, t, caption), x)
    assert (jacobian.abs() > 0).all()


def test_vectors_of_a_code_go_through_too():
    model = MMDiT(BackboneSpec(width=16, depth=2, heads=2), VectorTokens(32, 8), L, W)
    x, t, caption = torch.randn(4, 32), torch.rand(4), torch.randn(4, L, W)
    assert model(x, t, caption).shape == (4, 32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"width": 16, "depth": 2, "heads": 3}, "heads 3"),
        ({"width": 15, "depth": 2, "heads": 3}, "width 15"),
        ({"width": 16, "depth": 2, "heads": 2, "spectral_cap": 1.0}, "spectral_cap.*decoupled"),
        ({"width": 16, "depth": 2, "heads": 2, "late_blocks": 3}, "late_blocks.*1..2"),
        ({"width": 16, "depth": 2, "heads": 2, "late_blocks": 0}, "late_blocks.*1..2"),
    ],
)
def test_a_bad_specification_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        BackboneSpec(**arguments)
