"""The methods of the grid, each as the few decisions that set it apart.

`port` says where the released moments enter (Section 3.1): nowhere, into the weights by
distillation, into the sampler as a tilted start, or as the sampler itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Family = Literal["flow", "embedding", "evolution"]
Port = Literal["none", "sample", "guide", "distill"]
Plan = Literal["none", "uniform", "tha"]


@dataclass(frozen=True)
class Method:
    """One row's recipe."""

    port: Port = "none"
    plan: Plan = "none"  # Stage 2's allocation; "none" takes no private gradient
    backbone: Literal["standard", "low_b0"] = "standard"
    family: Family = "flow"
    schedule: Literal["standard", "aggressive"] = "standard"  # of an evolution's variations

    @property
    def releases(self) -> bool:
        return self.port != "none"

    @property
    def trains(self) -> bool:
        return self.plan != "none"

    def to_dict(self) -> dict:
        """For a resolved configuration, which spells the schedule out where there is one."""
        left_out = {"schedule"} | ({"family"} if self.family == "flow" else set())
        return {key: value for key, value in asdict(self).items() if key not in left_out}


METHODS: dict[str, Method] = {
    "release_samples": Method(port="sample"),
    "prior_guidance": Method(port="guide"),
    "uniform": Method(plan="uniform"),
    "tha": Method(plan="tha"),
    "uniform_moments": Method(port="distill", plan="uniform"),
    "tha_moments": Method(port="distill", plan="tha"),
    "low_b0": Method(port="distill", plan="tha", backbone="low_b0"),
    "private_evolution": Method(family="evolution"),
    "private_evolution_aggressive": Method(family="evolution", schedule="aggressive"),
}
