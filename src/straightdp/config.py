"""A preset: every number of a run, read from one YAML file and checked before anything runs.

Sections follow Table 9. Nothing here comes from private data: what is calibrated on the
public set (clips, horizon, projections) is given by its rule, not by its value.
A wrong key or value is one line that names the key, as in

    config/demo.yaml: stage2.sampling_rate: 1.7 is not less than or equal to 1
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from straightdp.sections import (
    Budget,
    Count,
    Embedding,
    Evolution,
    Fraction,
    Positive,
    Section,
    share_records,
)

PRESETS = Path("config")


class ConfigError(ValueError):
    """A preset that cannot be used; the message is one line per fault."""


class Data(Section):
    public: Literal["glyphs", "kmnist", "fashion_mnist", "mnist"]
    private: Literal["embedded", "mnist", "fashion_mnist", "kmnist"]
    private_records: Count  # N, the declared public constant of every mechanism
    glyph_count: Count | None = None  # how many glyphs to draw, where glyphs are the public set


class Privacy(Section):
    delta: Annotated[float, Field(gt=0, lt=1)]
    adjacency: Literal["add_or_remove_one", "replace_one"] = "add_or_remove_one"
    noise_seed: Literal["fixed", "system"] = "fixed"  # fixed: benchmark data sets only


class Grid(Section):
    epsilons: Annotated[tuple[Budget, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]

    @field_validator("epsilons", "seeds")
    @classmethod
    def _distinct(cls, values):
        if len(set(values)) != len(values):
            raise ValueError("values must be distinct")
        return values


class PixelSpace(Section):
    kind: Literal["pixel"] = "pixel"
    image_size: Annotated[int, Field(ge=4, le=28)]
    patch: Count
    components: Count  # p of the public PCA basis

    @model_validator(mode="after")
    def _divisible(self):
        if self.image_size % self.patch:
            raise ValueError(f"patch {self.patch} does not divide image_size {self.image_size}")
        if self.components > self.size:
            raise ValueError(f"components must be at most image_size squared ({self.size})")
        return self

    @property
    def size(self) -> int:
        return self.image_size**2


class LatentSpace(Section):
    kind: Literal["latent"] = "latent"
    size: Count  # d, the length of the autoencoder's code
    tokens: Count
    components: Count

    @model_validator(mode="after")
    def _divisible(self):
        if self.size % self.tokens:
            raise ValueError(f"tokens {self.tokens} does not divide size {self.size}")
        if self.components > self.size:
            raise ValueError(f"components must be at most size ({self.size})")
        return self


class Spaces(Section):
    pixel: PixelSpace
    latent: LatentSpace


class Constraints(Section):
    """Section 3.3: what a backbone variant adds to the standard one."""

    clamp: Positive | None = None
    late_blocks: Count | None = None
    decoupled: bool = False
    spectral_cap: Positive | None = None

    @model_validator(mode="after")
    def _cap_needs_split(self):
        if self.spectral_cap is not None and not self.decoupled:
            raise ValueError("spectral_cap needs decoupled: true")
        return self


class Backbone(Section):
    width: Count
    depth: Count
    heads: Count
    low_b0: Constraints  # the constrained variant

    @model_validator(mode="after")
    def _consistent(self):
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} does not divide width {self.width}")
        if self.low_b0.late_blocks is not None and self.low_b0.late_blocks > self.depth:
            raise ValueError(f"low_b0.late_blocks must be at most depth ({self.depth})")
        return self


class Caption(Section):
    width: Count
    length: Count
    vocabulary: Annotated[int, Field(ge=128)]


class Autoencoder(Section):
    channels: Count
    steps: Count
    batch: Count
    learning_rate: Positive


class PretrainingSteps(Section):
    pixel: Count
    latent: Count


class Pretraining(Section):
    steps: PretrainingSteps
    batch: Count
    learning_rate: Positive
    schedule: Literal["constant", "one_cycle"]
    ema: Fraction
    p_uncond: Fraction


class Horizon(Section):
    cap: Annotated[float, Field(gt=0, lt=1)]
    cosine: Annotated[float, Field(gt=0, lt=1)]  # the worst class stays above it up to tau


class Distillation(Section):
    steps: Count
    batch: Count
    learning_rate: Positive
    replay_weight: Annotated[float, Field(ge=0)]
    refresh: Count  # updates between two refreshes of the generated inputs
    euler_steps: Count  # of the inputs' trajectories on [0, tau]


class Stage1(Section):
    weight: Positive  # rho_mom, renormalised over the active stages
    rank: Count
    floor: Positive  # lambda_0
    clip_quantile: Annotated[float, Field(gt=0, le=1)]  # R_feat's public quantile
    horizon: Horizon
    distillation: Distillation
    guidance_start: Annotated[float, Field(gt=0, lt=1)]  # t_0


class Stage2(Section):
    weight: Positive  # rho_sgd
    steps: Count
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    multiplicity: Count
    learning_rate: Positive
    warmup: Annotated[int, Field(ge=0)]
    ema: Fraction
    p_uncond: Fraction
    buckets: Count
    shapes: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
    clip_reference: Positive  # C_ref, in units of the public median gradient norm

    @field_validator("shapes")
    @classmethod
    def _uniform_in_family(cls, values):
        if 0 not in values:
            raise ValueError("the family must hold 0, the uniform plan")
        return values


class Sampling(Section):
    count: Annotated[int, Field(ge=20)]
    steps: Count
    guidance: Annotated[float, Field(ge=0)]


class Probe(Section):
    steps: Count
    batch: Count
    learning_rate: Positive
    seeds: Count


class Evaluation(Section):
    extractor: Literal["auto", "inception_v3_tf", "fid_lenet"]
    inception_weights: str | None = None
    lenet_steps: Count
    probe: Probe


class Execution(Section):
    """How the work is carried out; never part of a cell's identity."""

    threads: Count
    micro_batch: Count
    checkpoint_every: Count
    memory_gb: Count = 4
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class Preset(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    data: Data
    privacy: Privacy
    grid: Grid
    spaces: Spaces
    backbone: Backbone
    caption: Caption
    autoencoder: Autoencoder
    pretraining: Pretraining
    stage1: Stage1
    stage2: Stage2
    embedding: Embedding
    evolution: Evolution
    sampling: Sampling
    evaluation: Evaluation
    execution: Execution

    @model_validator(mode="after")
    def _combinations(self):
        glyphs, count = self.data.public == "glyphs", self.data.glyph_count
        if glyphs and count is None:
            raise ValueError("data.glyph_count: needed where data.public is glyphs")
        if not glyphs and count is not None:
            raise ValueError("data.glyph_count: only for data.public: glyphs; remove it")
        if self.data.public == self.data.private:
            raise ValueError(
                f"data.public: {self.data.public} is the private set too; name another"
            )
        if share_records(self.data.public, self.data.private):
            raise ValueError("data.public: mnist contains the embedded private records")
        for space in (self.spaces.pixel, self.spaces.latent):
            if self.stage1.rank > space.components:
                raise ValueError(
                    f"stage1.rank: {self.stage1.rank} is above spaces.{space.kind}.components"
                    f" ({space.components})"
                )
        if self.sampling.count % 10:
            raise ValueError("sampling.count: must be a multiple of the 10 classes")
        size, pairs = self.spaces.pixel.size, self.embedding.dp_hp.pairs
        if pairs > size * (size - 1) // 2:
            raise ValueError(
                f"embedding.dp_hp.pairs: {pairs} is above the {size * (size - 1) // 2} pairs of "
                f"{size} pixels"
            )
        if self.stage2.warmup > self.stage2.steps:
            raise ValueError("stage2.warmup: must be at most stage2.steps")
        return self


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice and reads 1e-5 as a number."""


def _mapping(loader, node):
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"{key}: the key stands twice (line {key_node.start_mark.line + 1})")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node)


_StrictLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG,
    lambda loader, node: _mapping(loader, node),
)


def faults(error: ValidationError) -> list[str]:
    """One line a fault, led by the dotted key."""
    lines: list[str] = []
    found = error.errors(include_url=False)
    places = [fault["loc"] for fault in found]
    for fault in found:
        place = fault["loc"]
        if any(len(other) > len(place) and other[: len(place)] == place for other in places):
            continue  # follows from a fault inside it
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            text = "unknown key"
        elif fault["type"] == "missing":
            text = "missing key"
        else:
            text = fault["msg"].removeprefix("Value error, ")
            if not isinstance(fault["input"], dict | BaseModel):
                text = f"{fault['input']!r}: {text}"
        lines.append(f"{key}: {text}" if key else text)
    return lines


def preset_path(preset: str | Path) -> Path:
    """The file of a preset: a name in config/, or a path to a YAML file."""
    path = Path(preset)
    return path if path.suffix in {".yaml", ".yml"} else PRESETS / f"{preset}.yaml"


def load_preset(preset: str | Path) -> Preset:
    """Read and check a preset; :class:`ConfigError` names the file and each faulty key."""
    path = preset_path(preset)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in PRESETS.glob("*.yaml"))) or "none here"
        raise ConfigError(
            f"{path}: no such preset ({os.strerror(error.errno or 2)}); known: {known}"
        ) from error
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections such as data: and privacy:")
    try:
        return Preset(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in faults(error))) from error
    except TypeError as error:
        raise ConfigError(f"{path}: every key must be a word ({error})") from error
