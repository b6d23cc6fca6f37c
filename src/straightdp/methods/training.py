"""One training loop for every phase, resumable at any step.

A phase's state is its networks, its optimiser and the number of steps done. It is written
every few steps; a killed phase goes on from the newest readable checkpoint, and since all
random numbers are functions of the step (:mod:`straightdp.rng`), it ends bit for bit as the
undisturbed one (on a CPU, with the same number of threads and micro-batch size).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from straightdp.device import Compute
from straightdp.files import DamagedFile, load_tensors, save_tensors
from straightdp.methods.progress import Progress
from straightdp.methods.stopping import Stopped, at_step_boundaries, told_to_leave

KEEP = 2  # the newest checkpoint and the one to fall back on


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one phase: `folder`/`phase`-`step`.pt.

    Each holds the digest of the unit's configuration, the file config.json beside `folder`: one
    of another unit is never gone on from.
    """

    folder: Path
    phase: str

    @property
    def unit(self) -> str:
        path = self.folder.parent / "config.json"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def path(self, step: int) -> Path:
        return self.folder / f"{self.phase}-{step:07d}.pt"

    def _files(self) -> list[tuple[int, Path]]:
        found = []
        for path in self.folder.glob(f"{self.phase}-*.pt"):
            number = path.stem.removeprefix(f"{self.phase}-")
            if number.isdigit():
                found.append((int(number), path))
        return sorted(found)

    def save(self, step: int, state: dict[str, Any]) -> None:
        save_tensors(self.path(step), {"step": step, "unit": self.unit, **state}, True)
        for _, path in self._files()[:-KEEP]:
            path.unlink(missing_ok=True)

    def newest(self, progress: Progress, parts: Iterable[str] = ()) -> dict[str, Any] | None:
        """The newest checkpoint that can be read and holds `parts`.

        Others are named, removed and passed over.
        """
        needed = {"step", "unit", *parts}
        for step, path in reversed(self._files()):
            try:
                state = load_tensors(path)
                if not isinstance(state, dict) or not needed <= state.keys():
                    progress.say(f"{path}: not a checkpoint of {self.phase}; passed over")
                elif state["step"] != step:
                    progress.say(f"{path}: holds another step than its name says; passed over")
                elif state["unit"] != self.unit:
                    progress.say(f"{path}: of another configuration; passed over")
                else:
                    return state
            except DamagedFile as error:
                progress.say(f"{error}; passed over")
            path.unlink(missing_ok=True)
        return None


@dataclass
class Phase:
    """A phase under way: what it changes, and how one step changes it."""

    name: str
    steps: int
    parts: dict[str, Any]  # networks and optimisers, by name; each has state_dict()
    step: Callable[[int], str]  # runs step i (from 0) and returns a detail to show


def run_phase(phase: Phase, folder: Path, compute: Compute, progress: Progress) -> None:
    """Run a phase to its end, from its newest checkpoint on.

    A checkpoint is written at every multiple of `compute.checkpoint_every`, at the end, and on
    SIGTERM, after which :class:`Stopped` is raised. Where a weight is not finite at one of
    these, FloatingPointError, and no checkpoint.
    """
    checkpoints = Checkpoints(folder, phase.name)
    state = checkpoints.newest(progress, {*phase.parts, "threads", "micro_batch"})
    done = 0
    if state is not None:
        done = state["step"]
        if state["threads"] != compute.threads or state["micro_batch"] != compute.micro_batch:
            progress.say(
                f"resumed with {compute.threads} threads and micro-batches of "
                f"{compute.micro_batch}, begun with {state['threads']} and "
                f"{state['micro_batch']}: equal up to rounding only"
            )
        try:
            for name, part in phase.parts.items():
                part.load_state_dict(state[name])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            path = checkpoints.path(done)
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DamagedFile(
                f"{path}: does not fit {phase.name} ({first}); remove it and run again"
            ) from error
        progress.say(f"{phase.name} resumes at step {done}/{phase.steps}")

    def save() -> None:
        if not all(map(_finite, phase.parts.values())):
            raise FloatingPointError(
                f"not finite at {phase.name} step {done}: the training diverged (a learning rate?)"
            )
        states = {name: part.state_dict() for name, part in phase.parts.items()}
        execution = {"threads": compute.threads, "micro_batch": compute.micro_batch}
        checkpoints.save(done, states | execution)

    with at_step_boundaries():
        while done < phase.steps:
            detail = phase.step(done)
            done += 1
            progress.step(phase.name, done, phase.steps, detail)
            leaving = told_to_leave()
            if leaving or done % compute.checkpoint_every == 0 or done == phase.steps:
                save()
            if leaving:
                progress.say(f"told to leave; {phase.name} stops at step {done}/{phase.steps}")
                raise Stopped


def _finite(part: Any) -> bool:
    """Whether a network's weights are all numbers; other parts may say what they like."""
    tensors = part.state_dict().values() if isinstance(part, torch.nn.Module) else ()
    return all(bool(torch.isfinite(one).all()) for one in tensors)


def one_cycle(step: int, steps: int, warm: float = 0.3, floor: float = 0.04) -> float:
    """The learning rate's factor: cosine up over the first `warm` part, then cosine down."""
    position = (step + 1) / steps
    if position < warm:
        return floor + (1 - floor) * (1 - math.cos(math.pi * position / warm)) / 2
    return (1 + math.cos(math.pi * (position - warm) / (1 - warm))) / 2


def warm_up(step: int, warmup: int) -> float:
    """Linear warm-up to 1 over the first `warmup` steps."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
