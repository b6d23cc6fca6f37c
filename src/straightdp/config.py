"""A preset: every number of a run, read from one YAML file and checked before anything runs.

Sections follow Table 9. Nothing here comes from private data: what is calibrated on the
public set (clips, horizon, projections) is given by its rule, not by its value.
A wrong key or value is one line that names the key, as in

    config/demo.yaml: stage2.sampling_rate: 1.7 is not less than or equal to 1
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from straightdp.data.sources import SOURCES
from straightdp.sections import (
    Budget,
    Controls,
    Count,
    Embedding,
    Evolution,
    Fraction,
    Positive,
    PublicSource,
    Section,
    Seed,
    check_public,
    distinct,
)
from straightdp.strict_yaml import ConfigError, read_mapping

PRESETS = Path("config")
MAX_EPSILON = 200.0  # above it the accountant offers no calibration


class Data(Section):
    public: PublicSource
    private: Literal["embedded", "mnist", "fashion_mnist", "kmnist", "letters"]
    private_records: Count  # N, the declared public constant of every mechanism
    glyph_count: Count | None = None  # how many to draw, where the public images are drawn


class Privacy(Section):
    delta: Annotated[float, Field(ge=1e-12, lt=1)]  # below it no accountant is exact
    adjacency: Literal["add_or_remove_one", "replace_one"] = "add_or_remove_one"
    noise_seed: Literal["fixed", "system"] = "fixed"  # fixed: benchmark data sets only


class Grid(Section):
    epsilons: Annotated[tuple[Budget, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]

    _distinct = field_validator("epsilons", "seeds")(distinct)

    @field_validator("epsilons")
    @classmethod
    def _calibrated(cls, values):
        for value in values:
            if MAX_EPSILON < value < math.inf:
                raise ValueError(f"{value:g} is above {MAX_EPSILON:g}; write .inf for no privacy")
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
    width: Annotated[Count, Field(multiple_of=2)]
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

    @field_validator("inception_weights")
    @classmethod
    def _there(cls, value):
        if value is not None and not Path(value).is_file():
            raise ValueError("no such file")
        return value


class Execution(Section):
    """How the work is carried out; never part of a cell's identity."""

    threads: Annotated[Count, Field(le=1024)]
    micro_batch: Count
    checkpoint_every: Count
    memory_gb: Count = 4
    precision: Literal["auto", "fp32", "bf16"] = "auto"


class Preset(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]
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
    controls: Controls
    sampling: Sampling
    evaluation: Evaluation
    execution: Execution

    @model_validator(mode="after")
    def _combinations(self):
        sections = {"data": self.data, "controls": self.controls}
        for key, section in sections.items():
            check_public(key, section.public, section.glyph_count, self.data.private)
        self.controls.check(self.data.public, self.stage1.weight + self.stage2.weight)
        for space in (self.spaces.pixel, self.spaces.latent):
            if self.stage1.rank > space.components:
                raise ValueError(
                    f"stage1.rank: {self.stage1.rank} is above spaces.{space.kind}.components"
                    f" ({space.components})"
                )
            for key, section in sections.items():
                if section.glyph_count is not None and space.components > section.glyph_count:
                    raise ValueError(
                        f"{key}.glyph_count: {section.glyph_count} is below "
                        f"spaces.{space.kind}.components ({space.components})"
                    )
        size, records = SOURCES[self.data.private].train_size, self.data.private_records
        if size is not None and records < size:
            raise ValueError(
                f"data.private_records: {records} is below the {size} records of "
                f"{self.data.private}"
            )
        if self.stage2.sampling_rate * records < 1:
            raise ValueError(
                f"stage2.sampling_rate: {self.stage2.sampling_rate:g} of {records} records is "
                "less than one a step"
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
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8 ({error.reason})") from error
    values = read_mapping(text, path)
    try:
        return Preset(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in faults(error))) from error
    except TypeError as error:
        raise ConfigError(f"{path}: every key must be a word ({error})") from error
