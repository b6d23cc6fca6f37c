"""Cells and their identity: a readable name and a hash of everything that decides the result.

Two tables that need the same cell name the same folder, so it runs once. The hash covers
the resolved configuration alone: not the other seeds, not how a result is evaluated, not
how many threads computed it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from straightdp.config import Preset
from straightdp.studies.methods import METHODS

SCHEMA = 1  # of a resolved configuration; part of every hash


def digest(value: Any, length: int = 8) -> str:
    """A short hash of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def number(value: float) -> str:
    """0.3 -> "0.3", 1.0 -> "1": the shortest form, for names."""
    return f"{value:g}"


def plain(value: Any) -> Any:
    """As JSON would give it back; an infinite epsilon becomes the string "inf"."""
    if isinstance(value, float):
        return "inf" if value == float("inf") else int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@dataclass(frozen=True)
class Unit:
    """Something that runs once and owns a folder: `kind`/`name`-`hash`."""

    kind: str  # "data", "autoencoder", "public", "public_extractor", "extractor", "cells"
    name: str
    config: dict = field(hash=False)

    @cached_property
    def id(self) -> str:
        return f"{self.name}-{digest(self.config)}"

    def folder(self, root: Path) -> Path:
        return root / self.kind / self.id


@dataclass(frozen=True)
class Cell(Unit):
    """One run of one method at one budget and seed."""

    method: str = ""
    space: str = ""
    epsilon: float = 0.0
    seed: int = 0


def autoencoder_unit(config: dict) -> Unit:
    """The autoencoder of a resolved configuration."""
    return Unit("autoencoder", f"{config['data']['source']}-seed{config['seed']}", config)


def public_unit(config: dict, backbone: str) -> Unit:
    """The public stage of a resolved configuration."""
    name = f"{config['data']['source']}-{config['space']['kind']}-{backbone}-seed{config['seed']}"
    return Unit("public", name, config)


def public_extractor_unit(config: dict) -> Unit:
    """The public feature extractor of a resolved configuration."""
    return Unit("public_extractor", f"{config['data']['source']}-features", config)


def data_unit(public_data: dict) -> Unit | None:
    """The drawn images behind a configuration's public data, if they are drawn."""
    if "count" not in public_data:
        return None
    config = {
        "schema": SCHEMA,
        "source": public_data["source"],
        "count": public_data["count"],
        "seed": 0,
    }
    return Unit("data", public_data["source"], config)


def _public_data(preset: Preset) -> dict:
    count = preset.data.glyph_count  # set where the public images are drawn, and only there
    return {"source": preset.data.public} | ({} if count is None else {"count": count})


def autoencoder(preset: Preset, seed: int) -> Unit:
    """The latent space's autoencoder, trained on the public set."""
    config = {
        "schema": SCHEMA,
        "data": _public_data(preset),
        "seed": seed,
        "size": preset.spaces.latent.size,
        "autoencoder": preset.autoencoder.model_dump(),
    }
    return autoencoder_unit(plain(config))


@cache
def public_stage(preset: Preset, space: str, backbone: str, seed: int) -> Unit:
    """Pretraining and every public calibration of one (space, backbone, seed)."""
    stage1, stage2 = preset.stage1, preset.stage2
    constraints = preset.backbone.low_b0.model_dump() if backbone == "low_b0" else {}
    pretraining = preset.pretraining.model_dump()
    pretraining["steps"] = pretraining["steps"][space]
    config = {
        "schema": SCHEMA,
        "data": _public_data(preset),
        "seed": seed,
        "space": getattr(preset.spaces, space).model_dump(),
        "backbone": preset.backbone.model_dump(exclude={"low_b0"}) | constraints,
        "caption": preset.caption.model_dump(),
        "pretraining": pretraining,
        "moments": stage1.model_dump(include={"rank", "floor", "clip_quantile", "horizon"}),
        "gradients": stage2.model_dump(include={"multiplicity", "p_uncond", "buckets"}),
    }
    if space == "latent":
        config["autoencoder"] = autoencoder(preset, seed).config
    return public_unit(plain(config), backbone)


def _evolution(preset: Preset, schedule: str) -> dict:
    """The rounds of Private Evolution, and the public extractor its votes are cast in."""
    settings = preset.evolution
    weights = preset.evaluation.inception_weights
    extractor = {
        "schema": SCHEMA,
        "data": _public_data(preset),
        "extractor": settings.extractor,
        "lenet_steps": settings.lenet_steps,
    }
    if weights is not None and settings.extractor != "fid_lenet":
        extractor["inception_weights"] = weights
    return {
        **settings.model_dump(include={"rounds", "population", "variations", "threshold"}),
        "renoise": settings.renoise if schedule == "standard" else settings.renoise_aggressive,
        "extractor": extractor,
    }


def resolve(preset: Preset, method_name: str, space: str, epsilon: float, seed: int) -> Cell:
    """The cell of one method, space, budget and seed, with its resolved configuration."""
    method = METHODS[method_name]
    config: dict[str, Any] = {
        "schema": SCHEMA,
        "data": {"private": preset.data.private, "records": preset.data.private_records},
        "privacy": {"epsilon": epsilon, **preset.privacy.model_dump()},
        "seed": seed,
        "method": method.to_dict(),
        "public": public_stage(preset, space, method.backbone, seed).config,
        "sampling": preset.sampling.model_dump(),
    }
    if method.releases:
        unused = {"horizon", "rank", "floor", "clip_quantile", "weight"}
        if method.port != "distill":
            unused |= {"distillation"}
        if method.port != "guide":
            unused |= {"guidance_start"}
        config["stage1"] = preset.stage1.model_dump(exclude=unused)
    if method.trains:
        config["stage2"] = preset.stage2.model_dump(
            exclude={"weight", "multiplicity", "p_uncond", "buckets"}
            | ({"shapes"} if method.plan == "uniform" else set())
        )
    if method.releases and method.trains:
        config["shares"] = {"release": preset.stage1.weight, "gradients": preset.stage2.weight}
    if method.family == "evolution":
        config["evolution"] = _evolution(preset, method.schedule)
    return Cell(
        kind="cells",
        name=f"{space}-{method_name}-eps{number(epsilon)}-seed{seed}",
        config=plain(config),
        method=method_name,
        space=space,
        epsilon=float(epsilon),
        seed=seed,
    )


def extractor(preset: Preset) -> Unit:
    """The evaluation's own networks and reference statistics, trained on real images."""
    settings = preset.evaluation
    config = {
        "schema": SCHEMA,
        "private": preset.data.private,
        "extractor": settings.extractor,
        "inception_weights": settings.inception_weights,
        "lenet_steps": settings.lenet_steps,
    }
    return Unit("extractor", preset.data.private, plain(config))


def evaluation_config(preset: Preset) -> dict:
    """What decides the metrics of a set of samples; its hash names the metrics file."""
    probe = preset.evaluation.probe.model_dump()
    return plain({"schema": SCHEMA, "extractor": extractor(preset).config, "probe": probe})


def metrics_name(preset: Preset) -> str:
    return f"metrics-{digest(evaluation_config(preset))}.json"
