"""The methods of the grid, each as the few decisions that set it apart.

`port` says where the released moments enter (Section 3.1): nowhere, into the weights by
distillation, into the sampler as a tilted start, or as the sampler itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Port = Literal["none", "sample", "guide", "distill"]
Plan = Literal["none", "uniform", "tha"]


@dataclass(frozen=True)
class Method:
    """One row's recipe."""

    port: Port = "none"
    plan: Plan = "none"  # Stage 2's allocation; "none" takes no private gradient
    backbone: Literal["standard", "low_b0"] = "standard"

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
}
