"""Constraints imposed on a trained, unconstrained backbone (Section 4.3's post-hoc clamping).

The clamp and the late injection change the pass alone. Decoupled attention has matrices of
its own on the cross path: they take the joint attention's, the caption's values and the image
stream's output map, whose bias stays with the self part. The spectral cap then applies.
"""

from __future__ import annotations

import torch

from straightdp.model.mmdit import BackboneSpec, MMDiT


def imposed_weights(state: dict[str, torch.Tensor], spec: BackboneSpec) -> dict[str, torch.Tensor]:
    """The weights of an unconstrained backbone as one of `spec` holds them.

    `state` is a state dict of a backbone with joint attention in every block; it is left as it
    is.
    """
    state = dict(state)
    if not spec.decoupled:
        return state
    for block in filter(spec.injects, range(spec.depth)):
        caption, image = f"blocks.{block}.caption", f"blocks.{block}.image"
        for part in ("weight", "bias"):
            state[f"blocks.{block}.cross_value.{part}"] = state[f"{caption}.qkv.{part}"][
                -spec.width :
            ]
        output = state[f"{image}.out.weight"]
        state[f"blocks.{block}.cross_out.weight"] = output.clone()
        state[f"blocks.{block}.cross_out.bias"] = torch.zeros_like(state[f"{image}.out.bias"])
        if block == spec.depth - 1:  # its caption stream lends keys alone, without a bias
            state[f"{caption}.qkv.weight"] = state[f"{caption}.qkv.weight"][: spec.width]
            del state[f"{caption}.qkv.bias"]
    return state


def impose_(model: MMDiT, state: dict[str, torch.Tensor]) -> MMDiT:
    """Load an unconstrained backbone's weights into a constrained one; returns it."""
    model.load_state_dict(imposed_weights(state, model.spec))
    model.project_()
    return model
