"""The methods of the grid, each as the few decisions that set it apart.

`port` says where the released moments enter (Section 3.1): nowhere, into the weights by
distillation, into the sampler as a tilted start, or as the sampler itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Port = Literal["none", "sample", "guide", "distill"]
Plan = Literal["none", "uniform", "tha"]
BackboneName = Literal["standard", "late_only", "clamp_only", "low_b0"]


@dataclass(frozen=True)
class Method:
    """One row's recipe."""

    port: Port = "none"
    plan: Plan = "none"  # Stage 2's allocation; "none" takes no private gradient
    backbone: BackboneName = "standard"

    @property
    def releases(self) -> bool:
        return self.port != "none"

    @property
    def trains(self) -> bool:
        return self.plan != "none"

    def to_dict(self) -> dict:
        return asdict(self)


METHODS: dict[str, Method] = {
    "release_samples": Method(port="sample"),
    "prior_guidance": Method(port="guide"),
    "uniform": Method(plan="uniform"),
    "tha": Method(plan="tha"),
    "uniform_moments": Method(port="distill", plan="uniform"),
    "tha_moments": Method(port="distill", plan="tha"),
    "low_b0": Method(port="distill", plan="tha", backbone="low_b0"),
    "late_only": Method(port="distill", plan="tha", backbone="late_only"),
    "clamp_only": Method(port="distill", plan="tha", backbone="clamp_only"),
}

# What each backbone takes of the constraints in `backbone.low_b0` (Table 2); None: all of them.
BACKBONES: dict[str, set[str] | None] = {
    "standard": set(),
    "late_only": {"late_blocks"},
    "clamp_only": {"clamp"},
    "low_b0": None,
}
