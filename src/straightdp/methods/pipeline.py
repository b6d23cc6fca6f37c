"""One cell, from its resolved configuration to samples and a transcript.

Figure 1 as a function: release the moments (Stage 1), bring them into the weights or the
sampler, spend the rest on declared DP-SGD (Stage 2), sample, replay the transcript, publish.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from straightdp.data.pixels import project_to_ball
from straightdp.data.sources import ImageSet
from straightdp.device import Compute
from straightdp.files import load_tensors, save_tensors
from straightdp.flow.analytic import MomentModel
from straightdp.mechanisms.accounting import GaussianRelease, calibrate_releases
from straightdp.mechanisms.moments import ReleaseSpec, release, release_charges
from straightdp.methods.cell import MOMENTS, Start, begin, publish
from straightdp.methods.distillation import distillation_phase
from straightdp.methods.private_training import declare_plan, train_privately
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import (
    CLASSES,
    PublicStage,
    caption_table,
    prior_network,
)
from straightdp.methods.sampling import sample_vectors
from straightdp.methods.spaces import Codec
from straightdp.methods.training import run_phase
from straightdp.resolved import CellConfig

RELEASES = 2  # Stage 1's mechanisms: counts and sums, second moment


@dataclass(frozen=True)
class Inputs:
    """What a cell reads besides its configuration."""

    public: PublicStage
    codec: Codec
    public_data: ImageSet | None  # for replay during distillation
    private_data: ImageSet


def stage1(
    config: CellConfig, inputs: Inputs, z, labels, start: Start
) -> tuple[MomentModel, list[GaussianRelease]]:
    """Release the moments once, at Stage 1's share of epsilon and the cell's whole delta.

    The released numbers are kept in the cell's state. A resumed cell charges them again, which
    its transcript compares, and reads them back: what was distilled before an interruption and
    what is published after it are one release, on whatever device either ran.
    """
    share = config.shares.release_share if config.shares else 1.0
    privacy, moments = config.privacy, config.public.moments
    sigma = calibrate_releases(share * privacy.epsilon, privacy.delta, RELEASES)
    spec = ReleaseSpec(CLASSES, config.data.records, moments.rank, moments.floor)
    feature_map, kept = inputs.public.feature_map, start.state / MOMENTS
    if kept.exists():
        for line in release_charges(spec, feature_map.clip, sigma):
            start.ledger.charge(line)
    else:
        released = release(z, labels, feature_map, spec, sigma, start.noise, start.ledger)
        save_tensors(kept, released.to_tensors())
    released = MomentModel.from_tensors(load_tensors(kept))
    return released, [GaussianRelease(f"stage1-{index}", 1.0, sigma) for index in range(RELEASES)]


def run_cell(
    config: CellConfig,
    identity: str,
    inputs: Inputs,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> None:
    """Run or resume a cell and publish its samples, transcript and `run.json` in `folder`.

    `identity` names the cell's noise key. Unfinished state lies in `folder`/state.
    """
    start = begin(config, identity, folder)
    state, noise, streams, ledger = start.state, start.noise, start.streams, start.ledger
    method, public = config.method, inputs.public
    z = project_to_ball(inputs.codec.encode(inputs.private_data.images), public.radius)
    labels = torch.from_numpy(inputs.private_data.labels)
    table = caption_table(config.public, compute)

    released, releases = None, []
    if method.port != "none":
        released, releases = stage1(config, inputs, z, labels, start)
        save_tensors(folder / MOMENTS, released.to_tensors())
        progress.say(f"moments released, sigma {releases[0].noise_std:.3f}")

    model = None
    if method.port != "sample":
        model = prior_network(config.public, public, compute)
    if method.port == "distill":
        public_z = inputs.codec.encode(inputs.public_data.images)
        phase = distillation_phase(
            model,
            released,
            public.tau,
            config.stage1.distillation,
            config.public.pretraining.p_uncond,
            table,
            public_z,
            torch.from_numpy(inputs.public_data.labels),
            streams,
            compute,
        )
        run_phase(phase, state, compute, progress)
    if method.plan != "none":
        plan = declare_plan(config, public, releases, state / "plan.json")
        model = train_privately(
            model, z, labels, table, plan, config, noise, ledger, folder, compute, progress
        )
        shutil.copyfile(state / "plan.json", folder / "plan.json")
    if model is not None:
        model.eval()
    guided_from = config.stage1.guidance_start if method.port == "guide" else None
    progress.say(f"sampling {config.sampling.count}")
    samples, sample_labels = sample_vectors(
        model, table, z.shape[1], config.sampling, streams, compute, released, guided_from
    )
    publish(config, folder, inputs.codec.decode(samples), sample_labels, model, compute)
