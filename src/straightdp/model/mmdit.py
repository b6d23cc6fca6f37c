"""The dual-stream transformer with joint attention, and its constraints (Section 3.3).

Image tokens and caption tokens keep weights of their own (MM-DiT, Esser et al. 2024) and
meet in attention alone. Time enters by adaptive layer norms whose gates start at zero (DiT,
Peebles and Xie 2023); the caption never does, so that late injection is an exact zero.

Three constraints can be switched on:

* `clamp` (B_0): every token of both streams is projected onto the ball of radius B_0 before
  the first block and after each (Fact B.2: the projection is non-expansive);
* `late_blocks` (l_0): outside the last l_0 blocks each stream attends to itself alone;
* `decoupled`: where streams meet, self- and cross-attention have softmax normalisers and
  output maps of their own, so that the image stream's attention update is F(h) + G(h, e)
  with F free of the caption; `spectral_cap` (s) then bounds the cross path's value and
  output matrices in spectral norm. The split is that of the attention update: the block's
  MLP, which is not linear, follows it.

Every trainable number belongs to an `nn.Linear` that is applied once in a pass: layer norms
are not affine and positions are fixed sinusoids. The private gradient relies on this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from straightdp.model.tokens import PatchTokens, VectorTokens

EPS = 1e-6


@dataclass(frozen=True)
class BackboneSpec:
    width: int
    depth: int
    heads: int
    mlp_ratio: int = 4
    clamp: float | None = None  # B_0
    late_blocks: int | None = None  # l_0; None: every block injects
    decoupled: bool = False
    spectral_cap: float | None = None  # s

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} does not divide width {self.width}")
        if self.width % 2:
            raise ValueError(f"width {self.width} must be even")
        if self.spectral_cap is not None and not self.decoupled:
            raise ValueError("spectral_cap needs decoupled attention")
        if self.late_blocks is not None and not 1 <= self.late_blocks <= self.depth:
            raise ValueError(f"late_blocks must lie in 1..{self.depth}, not {self.late_blocks}")

    def injects(self, block: int) -> bool:
        """Whether the caption reaches the image stream in this block."""
        return self.late_blocks is None or block >= self.depth - self.late_blocks


def clamp_tokens(tokens: torch.Tensor, radius: float | None) -> torch.Tensor:
    """Project every token (last axis) onto the centred ball of `radius`: Fact B.2."""
    if radius is None:
        return tokens
    norms = tokens.float().square().sum(-1, keepdim=True).clamp_min(radius**2).sqrt()
    return tokens * (radius / norms).to(tokens.dtype)


def sinusoids(positions: torch.Tensor, width: int, period: float = 10_000.0) -> torch.Tensor:
    """(N,) positions -> (N, width): cosines, then sines, of geometric frequencies."""
    half = width // 2
    frequencies = torch.exp(-math.log(period) * torch.arange(half, device=positions.device) / half)
    angles = positions[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def _modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(shift, _norm(x), 1 + scale)


class Stream(nn.Module):
    """One stream's weights in one block.

    Without `update` the stream only lends to the other one: keys, and values if `values`.
    """

    def __init__(self, width: int, mlp_ratio: int, update: bool, values: bool = True):
        super().__init__()
        self.update = update
        self.parts = 3 if update else 1 + values  # of (query, key, value)
        self.modulation = nn.Linear(width, (6 if update else 2) * width)
        # On keys alone a bias would cancel in the softmax.
        self.qkv = nn.Linear(width, self.parts * width, bias=self.parts > 1)
        if update:
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, mlp_ratio * width)
            self.down = nn.Linear(mlp_ratio * width, width)

    def modulate(self, time: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(B, D) time embedding -> shifts, scales and gates, each (B, 1, D)."""
        return self.modulation(time)[:, None].chunk(6 if self.update else 2, dim=-1)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Modulated tokens to (query, key, value), None for what the stream lacks."""
        parts = self.qkv(x).chunk(self.parts, dim=-1)
        return parts if self.update else (None, *parts, *[None] * (2 - self.parts))

    def finish(self, x, attention, gates) -> torch.Tensor:
        """Add the gated attention update, then the gated MLP."""
        gate_attention, shift, scale, gate_mlp = gates
        x = torch.addcmul(x, gate_attention, attention)
        hidden = F.gelu(self.up(_modulated(x, shift, scale)), approximate="tanh")
        return torch.addcmul(x, gate_mlp, self.down(hidden))


class Block(nn.Module):
    """A double-stream block. `caption_updates` is false in the last one: nobody reads it."""

    def __init__(self, spec: BackboneSpec, injects: bool, caption_updates: bool):
        super().__init__()
        self.heads, self.injects, self.decoupled = spec.heads, injects, spec.decoupled
        self.image = Stream(spec.width, spec.mlp_ratio, True)
        # The cross path has a value matrix of its own, so that the cap bounds all of it.
        self.caption = Stream(spec.width, spec.mlp_ratio, caption_updates, not spec.decoupled)
        if injects and spec.decoupled:
            self.cross_value = nn.Linear(spec.width, spec.width)
            self.cross_out = nn.Linear(spec.width, spec.width)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def _attend(self, query, key, value) -> torch.Tensor:
        mixed = F.scaled_dot_product_attention(
            self._heads(query), self._heads(key), self._heads(value)
        )
        return mixed.transpose(1, 2).reshape(query.shape)

    def attention(self, h, e, image_mods, caption_mods):
        """Attention updates before gating: ((F, G) of the image stream, caption's update).

        Joint attention has one softmax over both streams, so all of it is F and G is None;
        so it is where nothing is injected. Decoupled: F(h) + G(h, e), exactly.
        """
        query, key, value = self.image.split(_modulated(h, *image_mods))
        e = _modulated(e, *caption_mods)
        query_e, key_e, value_e = self.caption.split(e)
        caption = None
        if self.injects and not self.decoupled:
            keys = torch.cat([key, key_e], dim=1)
            values = torch.cat([value, value_e], dim=1)
            update = self.image.out(self._attend(query, keys, values))
            if query_e is not None:
                caption = self.caption.out(self._attend(query_e, keys, values))
            return (update, None), caption
        update = self.image.out(self._attend(query, key, value))
        inflow = None
        if self.injects:
            inflow = self.cross_out(self._attend(query, key_e, self.cross_value(e)))
        if query_e is not None:
            caption = self.caption.out(self._attend(query_e, key_e, value_e))
        return (update, inflow), caption

    def forward(self, h, e, time):  # h (B, T, D), e (B, L, D), time (B, D)
        shift, scale, *image_gates = self.image.modulate(time)
        shift_e, scale_e, *caption_gates = self.caption.modulate(time)
        (update, inflow), caption = self.attention(h, e, (shift, scale), (shift_e, scale_e))
        if inflow is not None:
            update = update + inflow
        h = self.image.finish(h, update, image_gates)
        if caption is not None:
            e = self.caption.finish(e, caption, caption_gates)
        return h, e


class MMDiT(nn.Module):
    """The velocity v(x, t, caption): (B, d), (B,), (B, L, W) -> (B, d)."""

    def __init__(
        self,
        spec: BackboneSpec,
        tokens: PatchTokens | VectorTokens,
        caption_length: int,
        caption_width: int,
    ):
        super().__init__()
        self.spec, self.tokens = spec, tokens
        self.image_in = nn.Linear(tokens.dim, spec.width)
        self.caption_in = nn.Linear(caption_width, spec.width)
        self.time_in = nn.Linear(spec.width, spec.width)
        self.time_out = nn.Linear(spec.width, spec.width)
        last = spec.depth - 1
        self.blocks = nn.ModuleList(
            Block(spec, spec.injects(index), index < last) for index in range(spec.depth)
        )
        self.final_modulation = nn.Linear(spec.width, 2 * spec.width)
        self.final = nn.Linear(spec.width, tokens.dim)
        image_places = sinusoids(torch.arange(tokens.count), spec.width)
        caption_places = sinusoids(torch.arange(caption_length), spec.width)
        self.register_buffer("image_places", image_places, persistent=False)
        self.register_buffer("caption_places", caption_places, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Xavier everywhere; modulations, gates and the last layer start at zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        zero = [self.final_modulation, self.final]
        for block in self.blocks:
            zero += [block.image.modulation, block.caption.modulation]
        for module in zero:
            nn.init.zeros_(module.weight)
        self.project_()

    def forward(self, x: torch.Tensor, t: torch.Tensor, caption: torch.Tensor) -> torch.Tensor:
        bound = self.spec.clamp
        time = self.time_in(sinusoids(1000 * t, self.spec.width))
        time = F.silu(self.time_out(F.silu(time)))
        h = clamp_tokens(self.image_in(self.tokens.to_tokens(x)) + self.image_places, bound)
        e = clamp_tokens(self.caption_in(caption) + self.caption_places, bound)
        for block in self.blocks:
            h, e = block(h, e, time)
            h, e = clamp_tokens(h, bound), clamp_tokens(e, bound)
        shift, scale = self.final_modulation(time)[:, None].chunk(2, dim=-1)
        return self.tokens.from_tokens(self.final(_modulated(h, shift, scale)))

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the cross path's matrices under the spectral cap; a no-op without one.

        W -> W min(1, s / sigma_max(W)), by Fact B.3 (iii); it depends on no data.
        """
        if self.spec.spectral_cap is None:
            return
        for block in self.blocks:
            if block.injects:
                for layer in (block.cross_value, block.cross_out):
                    norm = torch.linalg.matrix_norm(layer.weight.double(), 2)
                    layer.weight.mul_((self.spec.spectral_cap / norm).clamp(max=1.0))
