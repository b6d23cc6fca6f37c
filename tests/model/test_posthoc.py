"""Constraints imposed on trained weights: the same weights, under the constraints."""

import pytest
import torch

from straightdp.model import mmdit
from straightdp.model.mmdit import BackboneSpec, MMDiT
from straightdp.model.posthoc import impose_, imposed_weights
from straightdp.model.tokens import PatchTokens

WIDTH, HEADS, TOKENS, CAPTION = 8, 2, 4, 3


def network(depth=2, **constraints) -> MMDiT:
    spec = BackboneSpec(width=WIDTH, depth=depth, heads=HEADS, **constraints)
    return MMDiT(spec, PatchTokens(8, 4), CAPTION, 5)


def trained(depth=2, seed=0) -> MMDiT:
    """An unconstrained network with no weight at zero."""
    torch.manual_seed(seed)
    model = network(depth)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model.eval()


def inputs(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 64, generator=generator)
    return x, torch.tensor([0.1, 0.5, 0.9]), torch.randn(3, CAPTION, 5, generator=generator)


def test_without_a_constraint_it_is_the_same_network():
    base = trained()
    with torch.no_grad():
        assert torch.equal(impose_(network(), base.state_dict())(*inputs()), base(*inputs()))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("late", [None, 1])
def test_every_constrained_form_takes_the_weights_and_leaves_them(depth, late):
    base = trained(depth)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = network(depth, clamp=0.5, late_blocks=late, decoupled=True, spectral_cap=0.25)
    impose_(model, base.state_dict())
    assert all(torch.equal(before[name], value) for name, value in base.state_dict().items())
    with torch.no_grad():
        assert torch.isfinite(model(*inputs())).all()
        assert not torch.equal(model(*inputs()), base(*inputs()))
    for block in model.blocks:
        for layer in (block.cross_value, block.cross_out) if block.injects else ():
            top = torch.linalg.svdvals(layer.weight.double())[0].item()
            assert top <= 0.25 * (1 + 1e-5)


def test_tokens_are_bounded_where_they_were_not(token_norms):
    base = trained()
    with torch.no_grad():
        base(*inputs())
        free = max(token_norms)
        token_norms.clear()
        impose_(network(clamp=0.5), base.state_dict())(*inputs())
    assert free > 1 and max(token_norms) <= 0.5 * (1 + 1e-5)


def test_late_injection_keeps_the_caption_out_of_the_first_blocks():
    model = impose_(network(3, late_blocks=1), trained(3).state_dict()).eval()
    found = []
    model.blocks[1].register_forward_hook(lambda module, given, out: found.append(out[0]))
    x, t, caption = inputs()
    with torch.no_grad():
        first, second = model(x, t, caption), model(x, t, -caption)
    assert torch.equal(found[0], found[1]) and not torch.equal(first, second)


def test_the_cross_path_takes_the_joint_attentions_matrices():
    """Where every token attends to all equally, each part is a mean of values, worked out here."""
    state = trained().state_dict()
    for block in (0, 1):
        for part in ("weight", "bias"):
            state[f"blocks.{block}.image.qkv.{part}"][:WIDTH] = 0  # no query
    model = impose_(network(decoupled=True), state).eval()
    h, e = torch.randn(2, TOKENS, WIDTH), torch.randn(2, CAPTION, WIDTH)
    nothing = (torch.zeros(2, 1, WIDTH), torch.zeros(2, 1, WIDTH))
    for block in (0, 1):
        with torch.no_grad():
            (own, cross), _ = model.blocks[block].attention(h, e, nothing, nothing)
        means = []
        for stream, tokens in (("image", h), ("caption", e)):
            centred = tokens - tokens.mean(-1, keepdim=True)
            normal = centred / (centred.square().mean(-1, keepdim=True) + mmdit.EPS).sqrt()
            weight = state[f"blocks.{block}.{stream}.qkv.weight"][-WIDTH:]
            values = normal @ weight.T + state[f"blocks.{block}.{stream}.qkv.bias"][-WIDTH:]
            means.append(values.mean(1) @ state[f"blocks.{block}.image.out.weight"].T)
        bias = state[f"blocks.{block}.image.out.bias"]
        assert torch.allclose(own, (means[0] + bias)[:, None].expand_as(own), atol=1e-5)
        assert torch.allclose(cross, means[1][:, None].expand_as(cross), atol=1e-5)


def test_without_decoupling_the_weights_are_taken_as_they_are():
    state = trained().state_dict()
    assert imposed_weights(state, network(clamp=1.0, late_blocks=1).spec).keys() == state.keys()
