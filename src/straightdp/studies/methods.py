"""The methods of the grid, each as the few decisions that set it apart.

`family` names the code that runs it: the paper's own flow pipeline, or a prior method's.
`port` says where the released moments enter (Section 3.1): nowhere, into the weights by
distillation, into the sampler as a tilted start, or as the sampler itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Port = Literal["none", "sample", "guide", "distill"]
Plan = Literal["none", "uniform", "tha"]
BackboneName = Literal["standard", "late_only", "clamp_only", "low_b0"]
Family = Literal["flow", "embedding", "evolution"]  # "resampled": of no method, but of a cell


@dataclass(frozen=True)
class Method:
    """One row's recipe. Port, plan and backbone are decisions of the flow family."""

    port: Port = "none"
    plan: Plan = "none"  # Stage 2's allocation; "none" takes no private gradient
    backbone: BackboneName = "standard"
    family: Family = "flow"
    schedule: Literal["standard", "aggressive"] = "standard"  # of an evolution's variations

    @property
    def releases(self) -> bool:
        return self.port != "none"

    @property
    def trains(self) -> bool:
        return self.plan != "none"

    def to_dict(self) -> dict:
        """As it stands in a resolved configuration, where the flow family goes unnamed."""
        if self.family != "flow":
            return {"family": self.family}
        return {name: getattr(self, name) for name in ("port", "plan", "backbone")}


METHODS: dict[str, Method] = {
    "dp_merf": Method(family="embedding"),
    "dp_hp": Method(family="embedding"),
    "dp_ntk": Method(family="embedding"),
    "private_evolution": Method(family="evolution"),
    "private_evolution_aggressive": Method(family="evolution", schedule="aggressive"),
    "release_samples": Method(port="sample"),
    "prior_guidance": Method(port="guide"),
    "guided_uniform": Method(port="guide", plan="uniform"),
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
