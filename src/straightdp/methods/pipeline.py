"""One cell, from its resolved configuration to samples and a transcript.

Figure 1 as a function: release the moments (Stage 1), bring them into the weights or the
sampler, spend the rest on declared DP-SGD (Stage 2), sample, and replay the transcript.
A cell whose replayed epsilon exceeds the declared one fails here, before anything of it is
published.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from straightdp.data.pixels import project_to_ball
from straightdp.data.sources import SOURCES, ImageSet
from straightdp.device import Compute
from straightdp.evaluation.extractors import Extractor
from straightdp.files import replacing, save_tensors, write_arrays, write_json, write_text
from straightdp.flow.analytic import MomentModel
from straightdp.mechanisms.accounting import Adjacency, GaussianRelease, calibrate_releases
from straightdp.mechanisms.moments import ReleaseSpec, release
from straightdp.mechanisms.transcript import Ledger, replay
from straightdp.methods.distillation import distillation_phase
from straightdp.methods.evolution import evolve
from straightdp.methods.private_training import declare_plan, train_privately
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import (
    CLASSES,
    PublicStage,
    build_backbone,
    caption_table,
)
from straightdp.methods.sampling import sample_vectors
from straightdp.methods.spaces import Codec
from straightdp.methods.training import run_phase
from straightdp.resolved import CellConfig
from straightdp.rng import Streams
from straightdp.version import code_version

SCHEMA = 1
TRANSCRIPT, SAMPLES, RESULT = "transcript.jsonl", "samples.npz", "run.json"
RELEASES = 2  # Stage 1's mechanisms: counts and sums, second moment


class PrivacyViolation(RuntimeError):
    """A transcript that does not certify what its cell declares."""


@dataclass(frozen=True)
class Inputs:
    """What a cell reads besides its configuration."""

    public: PublicStage
    codec: Codec
    public_data: ImageSet | None  # for replay during distillation
    private_data: ImageSet
    extractor: Extractor | None = None  # public; the feature space of an evolution's votes


def noise_streams(config: CellConfig, identity: str, state: Path) -> Streams:
    """The key of all privacy noise: published on benchmark data, else the system's own.

    A key from the system is kept in the run's private state, for resuming, and nowhere else.
    """
    if config.privacy.noise_seed == "fixed":
        source = SOURCES.get(config.data.private)
        if source is None or not source.benchmark:
            raise ValueError(
                f"privacy.noise_seed: fixed is for public benchmark sets, and "
                f"{config.data.private!r} is not one; use noise_seed: system"
            )
        return Streams.from_seed("noise", identity)
    path = state / "noise.key"
    if not path.exists():
        with replacing(path, private=True) as temporary:
            temporary.write_text(f"{Streams.from_system().key:032x}\n")
    return Streams(int(path.read_text(), 16))


def refuse_second_release(config: CellConfig, folder: Path) -> None:
    """On real private data, a finished cell's budget is spent: it does not run again."""
    finished = any((folder / name).exists() for name in ("model.pt", "moments.pt"))
    if config.privacy.noise_seed == "system" and finished and not (folder / "state").exists():
        raise PrivacyViolation(
            f"{folder} holds a finished run with its own noise; running it again would release "
            "the private data a second time, at a cost that adds to the first. Remove the "
            "folder if that is meant"
        )


def stage1(
    config: CellConfig, inputs: Inputs, z, labels, noise: Streams, ledger: Ledger
) -> tuple[MomentModel, list[GaussianRelease]]:
    """Release the moments once, at Stage 1's share of epsilon and the cell's whole delta."""
    share = config.shares.release_share if config.shares else 1.0
    privacy, moments = config.privacy, config.public.moments
    sigma = calibrate_releases(share * privacy.epsilon, privacy.delta, RELEASES)
    spec = ReleaseSpec(CLASSES, config.data.records, moments.rank, moments.floor)
    released = release(z, labels, inputs.public.feature_map, spec, sigma, noise, ledger)
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
    state = folder / "state"
    refuse_second_release(config, folder)
    state.mkdir(parents=True, exist_ok=True)
    noise = noise_streams(config, identity, state)
    streams = Streams.from_seed("cell", config.seed)
    method, public, privacy = config.method, inputs.public, config.privacy
    ledger = Ledger(
        state / TRANSCRIPT,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=Adjacency(privacy.adjacency),
        records=config.data.records,
        noise_seed=privacy.noise_seed,
    )
    z = project_to_ball(inputs.codec.encode(inputs.private_data.images), public.radius)
    labels = torch.from_numpy(inputs.private_data.labels)
    table = caption_table(config.public, compute)

    released, releases = None, []
    if method.port != "none":
        released, releases = stage1(config, inputs, z, labels, noise, ledger)
        save_tensors(folder / "moments.pt", released.to_tensors())
        progress.say(f"moments released, sigma {releases[0].noise_std:.3f}")

    model = None
    if method.port != "sample":
        model = build_backbone(config.public)
        model.load_state_dict(public.network)
        model.to(compute.device)
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
    start = config.stage1.guidance_start if method.port == "guide" else None
    if method.family == "evolution":
        samples, sample_labels = evolve(
            config,
            model,
            table,
            inputs,
            z,
            labels,
            streams,
            noise,
            ledger,
            folder,
            compute,
            progress,
        )
    else:
        progress.say(f"sampling {config.sampling.count}")
        samples, sample_labels = sample_vectors(
            model, table, z.shape[1], config.sampling, streams, compute, released, start
        )
    check = replay(state / TRANSCRIPT)
    if not check.ok:
        raise PrivacyViolation(
            f"the transcript replays to epsilon {check.epsilon:.6g}, above the declared "
            f"{check.declared_epsilon:g}"
        )
    if model is not None:
        save_tensors(folder / "model.pt", model.state_dict())
    write_arrays(
        folder / SAMPLES,
        images=inputs.codec.decode(samples),
        labels=sample_labels,
    )
    write_text(folder / TRANSCRIPT, (state / TRANSCRIPT).read_text())
    epsilon = check.epsilon if check.epsilon != float("inf") else "inf"
    write_json(
        folder / RESULT,
        {
            "schema": SCHEMA,
            "status": "ok",
            "epsilon": epsilon,
            "noise_seed": privacy.noise_seed,
            "device": str(compute.device),
            "threads": compute.threads,
            "bf16": compute.bf16,
            "code": code_version(),
        },
    )
    shutil.rmtree(state)
