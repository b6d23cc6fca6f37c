"""What every cell does, whatever its method: its noise key, its transcript, its publication.

A cell whose replayed epsilon exceeds the declared one fails in :func:`publish`, before
anything of it is published.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from straightdp.data.sources import SOURCES
from straightdp.device import Compute
from straightdp.evaluation.record import PUBLISHED, RUN, SAMPLES, TRANSCRIPT, WEIGHTS
from straightdp.files import (
    read_json,
    replacing,
    save_tensors,
    write_arrays,
    write_json,
    write_text,
)
from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.transcript import Ledger, replay
from straightdp.resolved import AnyCell, spends
from straightdp.rng import Streams
from straightdp.version import code_version

SCHEMA = 1
MODEL, MOMENTS = "model.pt", "moments.pt"


class PrivacyViolation(RuntimeError):
    """A transcript that does not certify what its cell declares."""


def noise_streams(config: AnyCell, identity: str, state: Path) -> Streams:
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
        if (state / TRANSCRIPT).exists():
            raise PrivacyViolation(
                f"{path} is gone, though {state / TRANSCRIPT} has charges: other noise would be a "
                f"second release. Remove {state.parent} if that is meant"
            )
        with replacing(path, private=True) as temporary:
            temporary.write_text(f"{Streams.from_system().key:032x}\n")
    return Streams(int(path.read_text(), 16))


def settled(config: AnyCell, folder: Path) -> bool:
    """Whether a cell has been published with noise of its own, once and for all.

    A workflow removes a job's outputs before it runs the job again. Of a cell, that is
    `run.json` alone, and it is put back here from its copy.
    """
    kept = all((folder / name).exists() for name in (PUBLISHED, TRANSCRIPT, SAMPLES))
    if config.privacy.noise_seed != "system" or not spends(config) or not kept:
        return False
    write_json(folder / RUN, read_json(folder / PUBLISHED))
    shutil.rmtree(folder / "state", ignore_errors=True)  # of a kill right after publication
    return True


def refuse_second_release(config: AnyCell, folder: Path) -> None:
    """On real private data, a finished cell's budget is spent: it does not run again."""
    traces = any((folder / name).exists() for name in (TRANSCRIPT, MODEL, MOMENTS))
    finished = (folder / PUBLISHED).exists() or (traces and not (folder / "state").exists())
    if config.privacy.noise_seed == "system" and finished:
        raise PrivacyViolation(
            f"{folder} holds a finished run with its own noise; running it again would release "
            "the private data a second time, at a cost that adds to the first. Remove the "
            "folder if that is meant"
        )


def open_ledger(config: AnyCell, state: Path) -> Ledger:
    """The cell's transcript, begun with what it declares."""
    return Ledger(
        state / TRANSCRIPT,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        adjacency=Adjacency(config.privacy.adjacency),
        records=config.data.records,
        noise_seed=config.privacy.noise_seed,
    )


@dataclass(frozen=True)
class Start:
    """What a cell works with from its first line on."""

    state: Path  # unfinished work: checkpoints, the transcript as it grows, the noise key
    noise: Streams  # secret where the records are
    streams: Streams  # everything else that is random
    ledger: Ledger


def sampling_streams(seed: int) -> Streams:
    """Everything random in a cell but its privacy noise."""
    return Streams.from_seed("cell", seed)


def begin(config: AnyCell, identity: str, folder: Path) -> Start:
    """Open or reopen a cell's state in `folder`; refuses a second release of private data.

    `identity` names the cell's noise key where the key is published.
    """
    state = folder / "state"
    refuse_second_release(config, folder)
    state.mkdir(parents=True, exist_ok=True)
    noise = noise_streams(config, identity, state)
    return Start(state, noise, sampling_streams(config.seed), open_ledger(config, state))


def weight_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the model and of the release that a cell leaves, of those that are there."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / MODEL, folder / MOMENTS)
        if path.exists()
    }


def publish(
    config: AnyCell,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    model: torch.nn.Module | None,
    compute: Compute,
    weights: dict[str, str] | None = None,
) -> None:
    """Replay the transcript in `folder`/state, then write the results and remove that state.

    images (n, 28, 28) uint8, labels (n,); `weights` are the digests of what they were drawn from
    where that is another cell's. Raises :class:`PrivacyViolation`, with nothing
    written, where the replayed epsilon is above the declared one.
    """
    state = folder / "state"
    check = replay(state / TRANSCRIPT)
    if not check.ok:
        raise PrivacyViolation(
            f"the transcript replays to epsilon {check.epsilon:.6g}, above the declared "
            f"{check.declared_epsilon:g}"
        )
    if model is not None:
        save_tensors(folder / MODEL, model.state_dict())
    write_arrays(folder / SAMPLES, images=images, labels=labels)
    write_text(folder / TRANSCRIPT, (state / TRANSCRIPT).read_text())
    epsilon = check.epsilon if check.epsilon != float("inf") else "inf"
    record = {
        "schema": SCHEMA,
        "status": "ok",
        "epsilon": epsilon,
        "transcript_sha256": hashlib.sha256((folder / TRANSCRIPT).read_bytes()).hexdigest(),
        WEIGHTS: weight_digests(folder) if weights is None else weights,
        "noise_seed": config.privacy.noise_seed,
        "device": str(compute.device),
        "threads": compute.threads,
        "bf16": compute.bf16,
        "code": code_version(),
    }
    write_json(folder / PUBLISHED, record)
    write_json(folder / RUN, record)
    shutil.rmtree(state)
