"""Cells and their identity: a readable name and a hash of everything that decides the result.

Two tables that need the same cell name the same folder, so it runs once. The hash covers
the resolved configuration alone: not the other seeds, not how a result is evaluated, not
how many threads computed it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from straightdp.config import Preset
from straightdp.studies.methods import BACKBONES, METHODS

SCHEMA = 1  # of a resolved configuration; part of every hash
EVALUATION_SCHEMA = 2  # of a metrics file and its reference; part of the metrics file's name


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


def cell_public(config: dict) -> Unit | None:
    """The public stage that a cell starts from; None for one that reads none."""
    if "backbone" not in config.get("public", {}):
        return None
    return public_unit(config["public"], config["method"].get("backbone", "standard"))


def cell_base(config: dict) -> Unit | None:
    """The finished cell that a resampled one draws from; None for a cell of its own."""
    if "base" not in config:
        return None
    return Unit("cells", config["base"]["name"], config["base"]["config"])


def public_extractor_unit(config: dict) -> Unit:
    """The public feature extractor of a resolved configuration."""
    return Unit("public_extractor", f"{config['data']['source']}-features", config)


def cell_extractor(config: dict) -> Unit | None:
    """The public extractor in whose features a cell's votes are cast; None without votes."""
    return (
        public_extractor_unit(config["evolution"]["extractor"]) if "evolution" in config else None
    )


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
    constraints = preset.backbone.low_b0.model_dump(include=BACKBONES[backbone])
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


def _flow(preset: Preset, method_name: str, space: str, seed: int) -> dict[str, Any]:
    """What a cell of the flow family reads, beside what every cell does."""
    method = METHODS[method_name]
    config: dict[str, Any] = {
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
    return config


def _embedding(preset: Preset, method_name: str, space: str, seed: int) -> dict[str, Any]:
    """The same for the embedding family, which lives on pixels and trains no backbone."""
    if space != "pixel":
        raise ValueError(f"{method_name} lives in pixel space, not in {space} space")
    settings = preset.embedding
    return {
        "public": {"data": _public_data(preset), "image_size": preset.spaces.pixel.image_size},
        "features": {"kind": method_name, **getattr(settings, method_name).model_dump()},
        "generator": settings.generator.model_dump(),
        "matching": settings.matching.model_dump(),
        "sampling": {"count": preset.sampling.count},
    }


def _evolution(preset: Preset, method_name: str, space: str, seed: int) -> dict[str, Any]:
    """The same for Private Evolution: rounds from a public stage, votes in public features."""
    if space != "pixel":
        raise ValueError(f"{method_name} lives in pixel space, not in {space} space")
    method, settings = METHODS[method_name], preset.evolution
    weights = preset.evaluation.inception_weights
    voting = {
        "schema": SCHEMA,
        "data": _public_data(preset),
        "extractor": settings.extractor,
        "lenet_steps": settings.lenet_steps,
    }
    if weights is not None and settings.extractor != "fid_lenet":
        voting["inception_weights"] = weights
    aggressive = method.schedule == "aggressive"
    return {
        "public": public_stage(preset, space, "standard", seed).config,
        "evolution": {
            **settings.model_dump(include={"rounds", "population", "variations", "threshold"}),
            "renoise": settings.renoise_aggressive if aggressive else settings.renoise,
            "extractor": voting,
        },
        "sampling": preset.sampling.model_dump(),
    }


FAMILIES = {"flow": _flow, "embedding": _embedding, "evolution": _evolution}


def resolve(preset: Preset, method_name: str, space: str, epsilon: float, seed: int) -> Cell:
    """The cell of one method, space, budget and seed, with its resolved configuration."""
    method = METHODS[method_name]
    config = {
        "schema": SCHEMA,
        "data": {"private": preset.data.private, "records": preset.data.private_records},
        "privacy": {"epsilon": epsilon, **preset.privacy.model_dump()},
        "seed": seed,
        "method": method.to_dict(),
        **FAMILIES[method.family](preset, method_name, space, seed),
    }
    return Cell(
        kind="cells",
        name=_name(space, method_name, epsilon, seed),
        config=plain(config),
        method=method_name,
        space=space,
        epsilon=float(epsilon),
        seed=seed,
    )


def _name(space: str, method: str, epsilon: float, seed: int, variant: str = "") -> str:
    parts = (space, method, variant, f"eps{number(epsilon)}", f"seed{seed}")
    return "-".join(part for part in parts if part)


def named(cell: Cell, variant: str) -> Cell:
    """The cell under a name that says what a control changed."""
    return replace(cell, name=_name(cell.space, cell.method, cell.epsilon, cell.seed, variant))


def resampled(base: Cell, variant: str, change: dict) -> Cell:
    """Other samples of a finished cell, drawn with `change`; private data are not read again."""
    config = {
        "schema": SCHEMA,
        **{name: base.config[name] for name in ("data", "privacy", "seed")},
        "method": {"family": "resampled"},
        "base": {"name": base.name, "config": base.config},
        "resampling": change,
    }
    return named(replace(base, config=plain(config)), variant)


def extractor(preset: Preset) -> Unit:
    """The evaluation's own networks and reference statistics, trained on real images."""
    settings = preset.evaluation
    config = {
        "schema": EVALUATION_SCHEMA,
        "private": preset.data.private,
        "public": _public_data(preset),  # what the domain classifier tells it from
        "extractor": settings.extractor,
        "inception_weights": settings.inception_weights,
        "lenet_steps": settings.lenet_steps,
    }
    name = f"{preset.data.private}-against-{preset.data.public}"
    return Unit("extractor", name, plain(config))


def evaluation_config(preset: Preset) -> dict:
    """What decides the metrics of a set of samples; its hash names the metrics file."""
    probe = preset.evaluation.probe.model_dump()
    reference = extractor(preset).config
    return plain({"schema": EVALUATION_SCHEMA, "extractor": reference, "probe": probe})


def metrics_name(preset: Preset) -> str:
    return evaluation_name(evaluation_config(preset))


def evaluation_name(config: object) -> str:
    """The metrics file's name under these settings of an evaluation."""
    return f"metrics-{digest(config)}.json"
