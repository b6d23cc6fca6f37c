"""What a preset's sections are made of, and the sections of the prior methods (Table 9)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from straightdp.data.sources import DRAWN

Positive = Annotated[float, Field(gt=0, strict=True)]


def _number(value):
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


# An epsilon: .inf is no privacy, and "inf" in a resolved configuration, which is JSON.
Budget = Annotated[float, Field(gt=0, allow_inf_nan=True), BeforeValidator(_number)]
Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
Whole = Annotated[int, Field(ge=0, le=1_000_000_000, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]
Time = Annotated[float, Field(gt=0, lt=1)]
PublicSource = Literal["glyphs", "letters", "kmnist", "fashion_mnist", "mnist"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Generator(Section):
    """The prior methods' one generator; the code is its random input."""

    code: Count
    width: Count
    depth: Count


class Matching(Section):
    steps: Count
    batch: Count
    learning_rate: Positive

    @model_validator(mode="after")
    def _balanced(self):
        if self.batch % 10:
            raise ValueError("batch must be a multiple of the 10 classes")
        return self


class FourierFeatures(Section):
    features: Annotated[int, Field(ge=2, multiple_of=2)]  # cosines and sines


class HermiteFeatures(Section):
    order: Count
    pairs: Count
    pair_order: Count
    weight: Fraction  # the product kernel's part

    @model_validator(mode="after")
    def _orders(self):
        if self.pair_order > self.order:
            raise ValueError(f"pair_order must be at most order ({self.order})")
        return self


class TangentFeatures(Section):
    width: Count


class Embedding(Section):
    """Table 9's prior methods that release a mean embedding, in the pixel space's size."""

    generator: Generator
    matching: Matching
    dp_merf: FourierFeatures
    dp_hp: HermiteFeatures
    dp_ntk: TangentFeatures


class Evolution(Section):
    """Private Evolution from the frozen public prior (Lin et al. 2024; Table 9)."""

    rounds: Count  # T: vote histograms released
    population: Count  # candidates a class; the last round draws sampling.count
    variations: Count  # of a candidate; votes go to their mean feature
    renoise: tuple[Time, Time]  # t_v of the first round and of the last
    renoise_aggressive: tuple[Time, Time]  # the same for the control of stronger variation
    threshold: Annotated[float, Field(ge=0)]  # in deviations of the noise on a count
    extractor: Literal["auto", "inception_v3_tf", "fid_lenet"]  # of public features
    lenet_steps: Count

    @field_validator("renoise", "renoise_aggressive")
    @classmethod
    def _milder(cls, values):
        if values[0] > values[1]:
            raise ValueError("variation grows milder: the first t_v must be at most the last")
        return values


def distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    """The values, told apart in six digits, as headings and names show them; else ValueError."""
    if len({f"{value:g}" for value in values}) != len(values):
        raise ValueError("values must be distinct in six digits")
    return values


class Controls(Section):
    """Section 4's inline controls: what each of them sets instead of the preset's own value."""

    public: PublicSource  # the second public domain
    glyph_count: Count | None = None  # how many to draw, where its images are drawn
    weights: Annotated[tuple[Positive, ...], Field(min_length=1)]  # rho_mom
    starts: Annotated[tuple[Time, ...], Field(min_length=1)]  # t_0 beside the preset's own
    multiplicity: Count  # of the baseline that is trained from scratch

    _distinct = field_validator("weights", "starts")(distinct)

    def check(self, public: str, total: float) -> None:
        """Against the preset's public set, and the sum of its stages' weights; else ValueError."""
        if self.public == public:
            raise ValueError(f"controls.public: {public} is data.public too; name a second domain")
        for value in self.weights:
            if value >= total - 1e-9:
                raise ValueError(
                    f"controls.weights: {value:g} leaves nothing of stage1.weight + stage2.weight"
                    f" ({total:g}) to the gradients"
                )


def check_public(key: str, public: str, count: int | None, private: str) -> None:
    """Whether public images can be had, and are not private ones; ValueError led by the key."""
    if public in DRAWN and count is None:
        raise ValueError(f"{key}.glyph_count: needed where {key}.public is {public}")
    if public not in DRAWN and count is not None:
        raise ValueError(
            f"{key}.glyph_count: only where {key}.public is {' or '.join(DRAWN)}; remove it"
        )
    if public == private:
        raise ValueError(f"{key}.public: {public} is the private set too; name another")
    if share_records(public, private):
        raise ValueError(f"{key}.public: mnist contains the embedded private records")


def share_records(a: str, b: str) -> bool:
    """Whether two sources hold the same records: `embedded` is a part of `mnist`."""
    return a == b or {a, b} == {"mnist", "embedded"}
