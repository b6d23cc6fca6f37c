"""Stage 2: the declared DP-SGD workload (Section 3.2, Appendix B.5), as a resumable phase."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from straightdp.device import Compute
from straightdp.files import read_json, write_json
from straightdp.flow.path import ema_update_
from straightdp.mechanisms.accounting import Adjacency, GaussianRelease
from straightdp.mechanisms.dpsgd import Bucket, DpSgdPlan, private_gradient
from straightdp.mechanisms.planner import Workload, choose_plan
from straightdp.mechanisms.transcript import Ledger
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import PublicStage
from straightdp.methods.training import Phase, run_phase, warm_up
from straightdp.model.adam import AdamW
from straightdp.model.mmdit import MMDiT
from straightdp.resolved import CellConfig
from straightdp.rng import Streams

CHARGE_BLOCK = 100  # steps charged together, before the first of them runs
LOG_NAME = "gradients.json"


def declare_plan(
    config: CellConfig, public: PublicStage, releases: list[GaussianRelease], path: Path
) -> DpSgdPlan:
    """The workload, chosen from public quantities and the budget alone, and kept in `path`.

    A plan that was declared before an interruption is read back, never chosen again.
    """
    if path.exists():
        return DpSgdPlan.from_dict(read_json(path)["plan"])
    stage2, gradients = config.stage2, config.public.gradients
    interval = "above_tau" if config.method.port == "distill" else "full"
    workload = Workload(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        adjacency=Adjacency(config.privacy.adjacency),
        releases=tuple(releases),
        steps=stage2.steps,
        sampling_rate=stage2.sampling_rate,
        records=config.data.records,
    )
    choice = choose_plan(
        public.gradients[interval],
        public.moments,
        workload,
        stage2.clip_reference,
        stage2.shapes,
    )
    edges = public.gradients[interval].edges
    plan = DpSgdPlan(
        buckets=tuple(
            Bucket(edges[k], edges[k + 1], choice.clips[k], choice.noise_multipliers[k])
            for k in range(gradients.buckets)
        ),
        steps=stage2.steps,
        sampling_rate=stage2.sampling_rate,
        records=config.data.records,
        multiplicity=gradients.multiplicity,
        beta=choice.beta,
    )
    write_json(path, {"plan": plan.to_dict(), "choice": choice.to_dict()})
    return plan


def train_privately(
    model: MMDiT,
    z: torch.Tensor,
    labels: torch.Tensor,
    table: torch.Tensor,
    plan: DpSgdPlan,
    config: CellConfig,
    noise: Streams,
    ledger: Ledger,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> MMDiT:
    """Run the plan from its newest checkpoint; returns the running average of the weights.

    Every block of steps is charged to the ledger before the first of them runs.
    """
    settings = config.stage2
    average = copy.deepcopy(model)
    optimizer = AdamW(model.parameters(), settings.learning_rate)
    log = StepLogs()
    charged = 0

    def charge_to(end: int) -> None:
        """Charge whole blocks until step end - 1 is covered; repeats are compared."""
        nonlocal charged
        while charged < end:
            count = min(CHARGE_BLOCK, plan.steps - charged)
            for line in plan.charges(charged, count):
                ledger.charge(line)
            charged += count

    def step(index: int) -> str:
        charge_to(index + 1)
        gradient, entry = private_gradient(
            model,
            z,
            labels,
            table,
            plan,
            index,
            noise,
            p_uncond=config.public.gradients.p_uncond,
            micro_batch=compute.micro_batch,
            bf16=compute.bf16,
        )
        log.append(entry)
        for parameter, value in zip(model.parameters(), gradient, strict=True):
            parameter.grad = value
        optimizer.lr = settings.learning_rate * warm_up(index, settings.warmup)
        optimizer.step()
        model.project_()
        ema_update_(average, model, settings.ema)
        # Realised sizes carry no noise: shown for published benchmark data alone.
        return (
            f"batch {entry.batch_size}, clipped {entry.clip_fraction:.0%}"
            if config.privacy.noise_seed == "fixed"
            else ""
        )

    parts = {"model": model, "average": average, "optimizer": optimizer, "log": log}
    run_phase(Phase("dp-sgd", plan.steps, parts, step), folder / "state", compute, progress)
    charge_to(plan.steps)  # a run resumed at its very end has charged nothing yet
    if config.privacy.noise_seed == "fixed":  # a benchmark: the logs reveal nobody
        write_json(folder / LOG_NAME, log.to_dict())
    return average


class StepLogs:
    """Gradient-norm quantiles and clip fractions of every step (Appendix D.3).

    They describe private gradients without noise: for benchmark data sets only.
    """

    FIELDS = ("bucket", "p50", "p90", "clip_fraction", "batch_size")

    def __init__(self):
        self.rows: list[list[float]] = []

    def append(self, entry) -> None:
        self.rows.append([float(getattr(entry, name)) for name in self.FIELDS])

    def state_dict(self) -> dict:
        return {"rows": torch.tensor(self.rows, dtype=torch.float64).reshape(-1, len(self.FIELDS))}

    def load_state_dict(self, state: dict) -> None:
        self.rows = state["rows"].tolist()

    def to_dict(self) -> dict:
        return {name: [row[i] for row in self.rows] for i, name in enumerate(self.FIELDS)}
