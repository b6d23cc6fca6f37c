"""The resolved configuration of a unit, typed: what a run reads, and nothing else.

A cell's folder keeps it as config.json; running that file again is the same run. Parsing
refuses unknown and missing keys by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from straightdp.config import (
    Autoencoder,
    Caption,
    ConfigError,
    Constraints,
    Distillation,
    Horizon,
    LatentSpace,
    PixelSpace,
    Privacy,
    Sampling,
    faults,
)
from straightdp.sections import (
    Budget,
    Count,
    FourierFeatures,
    Fraction,
    Generator,
    HermiteFeatures,
    Matching,
    Positive,
    Section,
    Seed,
    TangentFeatures,
    Time,
    Whole,
    share_records,
)


class PublicData(Section):
    source: str
    count: Count | None = None  # drawn sets only


class AutoencoderConfig(Section):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PublicData
    seed: Seed
    size: Count
    autoencoder: Autoencoder


class BackboneConfig(Constraints):
    width: Count
    depth: Count
    heads: Count


class PretrainingConfig(Section):
    steps: Whole  # 0: the backbone as it is initialised
    batch: Count
    learning_rate: Positive
    schedule: Literal["constant", "one_cycle"]
    ema: Fraction
    p_uncond: Fraction


class MomentsConfig(Section):
    rank: Count
    floor: Positive
    clip_quantile: Positive
    horizon: Horizon


class GradientsConfig(Section):
    multiplicity: Count
    p_uncond: Fraction
    buckets: Count


class PublicConfig(Section):
    """One public stage: (public set, space, backbone, seed) and its calibrations."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PublicData
    seed: Seed
    space: Annotated[PixelSpace | LatentSpace, Field(discriminator="kind")]
    backbone: BackboneConfig
    caption: Caption
    pretraining: PretrainingConfig
    moments: MomentsConfig
    gradients: GradientsConfig
    autoencoder: AutoencoderConfig | None = None


class PrivateData(Section):
    private: str
    records: Count  # N, declared


class PrivacyConfig(Privacy):
    epsilon: Budget


class MethodConfig(Section):
    port: Literal["none", "sample", "guide", "distill"]
    plan: Literal["none", "uniform", "tha"]
    backbone: Literal["standard", "late_only", "clamp_only", "low_b0"]


class Stage1Config(Section):
    distillation: Distillation | None = None
    guidance_start: Annotated[float, Field(gt=0, lt=1)] | None = None


class Stage2Config(Section):
    steps: Count
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    learning_rate: Positive
    warmup: Annotated[int, Field(ge=0)]
    ema: Fraction
    clip_reference: Positive
    shapes: tuple[float, ...] = (0.0,)  # THA's family; the uniform plan alone otherwise


class Shares(Section):
    release: Positive
    gradients: Positive

    @property
    def release_share(self) -> float:
        """Stage 1's part of epsilon after renormalisation (0.235 for 0.2 and 0.65)."""
        return self.release / (self.release + self.gradients)


class CellConfig(Section):
    """One cell: a method at a budget and a seed."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PrivateData
    privacy: PrivacyConfig
    seed: Seed
    method: MethodConfig
    public: PublicConfig
    sampling: Sampling
    stage1: Stage1Config | None = None
    stage2: Stage2Config | None = None
    shares: Shares | None = None


class EmbeddingMethod(Section):
    family: Literal["embedding"]


class FourierConfig(FourierFeatures):
    kind: Literal["dp_merf"]


class HermiteConfig(HermiteFeatures):
    kind: Literal["dp_hp"]


class TangentConfig(TangentFeatures):
    kind: Literal["dp_ntk"]


class PublicImages(Section):
    """All that an embedding cell reads of the public side: the images, for length scales."""

    data: PublicData
    image_size: Annotated[int, Field(ge=4, le=28)]


class SampleCount(Section):
    count: Annotated[int, Field(ge=20)]


class EmbeddingCellConfig(Section):
    """One cell of DP-MERF, DP-HP or DP-NTK."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PrivateData
    privacy: PrivacyConfig
    seed: Seed
    method: EmbeddingMethod
    public: PublicImages
    features: Annotated[FourierConfig | HermiteConfig | TangentConfig, Field(discriminator="kind")]
    generator: Generator
    matching: Matching
    sampling: SampleCount


class PublicExtractorConfig(Section):
    """The network in whose features votes are cast, fixed on public data alone."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PublicData
    extractor: Literal["auto", "inception_v3_tf", "fid_lenet"]
    lenet_steps: Count
    inception_weights: str | None = None


class EvolutionConfig(Section):
    rounds: Count
    population: Count
    variations: Count
    renoise: tuple[Time, Time]
    threshold: Annotated[float, Field(ge=0)]
    extractor: PublicExtractorConfig


class EvolutionMethod(Section):
    family: Literal["evolution"]


class EvolutionCellConfig(Section):
    """One cell of Private Evolution."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PrivateData
    privacy: PrivacyConfig
    seed: Seed
    method: EvolutionMethod
    public: PublicConfig
    evolution: EvolutionConfig
    sampling: Sampling

    @model_validator(mode="after")
    def _public_features(self):
        voting = self.evolution.extractor.data
        if share_records(voting.source, self.data.private):
            raise ValueError(
                f"evolution.extractor.data: {voting.source} holds private records; votes are "
                "cast in the features of a public extractor"
            )
        if voting != self.public.data:
            raise ValueError("evolution.extractor.data: is not the public stage's")
        if self.public.space.kind != "pixel":
            raise ValueError("evolution: runs in pixel space")
        return self


class ResampledMethod(Section):
    family: Literal["resampled"]


class BaseConfig(Section):
    """The finished cell that others are drawn from; its folder is NAME-HASH."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
    config: CellConfig


class StartConfig(Section):
    kind: Literal["start"]
    guidance_start: Time | None  # None: from noise


class ImposedConfig(Section):
    kind: Literal["constraints"]
    constraints: Constraints


class ResampledCellConfig(Section):
    """Other samples of a finished cell, which spend nothing: what is declared is the base's."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    data: PrivateData
    privacy: PrivacyConfig
    seed: Seed
    method: ResampledMethod
    base: BaseConfig
    resampling: Annotated[StartConfig | ImposedConfig, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _of_its_base(self):
        base = self.base.config
        for name in ("data", "privacy", "seed"):
            if getattr(self, name) != getattr(base, name):
                raise ValueError(f"{name}: is not the one of base.config")
        if base.method.port == "sample":
            raise ValueError("base.config: has no model to sample from")
        starts = isinstance(self.resampling, StartConfig)
        if starts and self.resampling.guidance_start is not None and base.method.port == "none":
            raise ValueError("resampling.guidance_start: base.config releases no moments")
        if not starts and base.method.backbone != "standard":
            raise ValueError("resampling.constraints: base.config has constraints of its own")
        return self


AnyCell = CellConfig | EmbeddingCellConfig | EvolutionCellConfig | ResampledCellConfig
CELLS: dict[str, type[Section]] = {
    "flow": CellConfig,
    "embedding": EmbeddingCellConfig,
    "evolution": EvolutionCellConfig,
    "resampled": ResampledCellConfig,
}


def spends(config: AnyCell) -> bool:
    """Whether running a cell releases anything of private data."""
    return not isinstance(config, ResampledCellConfig)


def parse(model: type[Section], values: Any, origin: str | Path) -> Any:
    """Check a resolved configuration; :class:`ConfigError` names the file and the key."""
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: expected a resolved configuration (a JSON object)")
    try:
        return model(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{origin}: {line}" for line in faults(error))) from error


def parse_cell(values: Any, origin: str | Path) -> AnyCell:
    """A cell's resolved configuration, of whichever family its method names (flow: unnamed)."""
    method = values.get("method") if isinstance(values, dict) else None
    family = method.get("family", "flow") if isinstance(method, dict) else "flow"
    if not isinstance(family, str) or family not in CELLS:
        raise ConfigError(f"{origin}: method.family: {family!r}: not one of {', '.join(CELLS)}")
    return parse(CELLS[family], values, origin)
