"""Running one unit in its folder: its prerequisites, its lock, its log, its failure record."""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from straightdp.config import ConfigError, Preset
from straightdp.files import read_json, write_json
from straightdp.resolved import parse_cell
from straightdp.studies.cells import (
    Cell,
    Unit,
    autoencoder_unit,
    cell_base,
    cell_extractor,
    cell_public,
    data_unit,
    digest,
    evaluation_config,
    extractor,
    metrics_name,
)

RESULTS = Path("results")
OUTPUTS = {  # the file that a unit writes last
    "data": "images.npz",
    "autoencoder": "autoencoder.pt",
    "public": "public.pt",
    "public_extractor": "extractor.json",
    "extractor": "extractor.json",
    "cells": "run.json",
}
BESIDE = {  # what must lie beside it, for the unit to be done
    "public": ("calibration.json",),
    "extractor": ("statistics.npz", "features.npz", "lenet.pt", "domains.pt"),
}
MOMENT, SHARED = 0.5, 24 * 3600.0  # seconds to wait for a lock, at least, and for shared units
FAILURE, LOG, CONFIG = "failure.json", "log.txt", "config.json"


class Busy(RuntimeError):
    """Another process is at work in the same folder."""


@dataclass(frozen=True)
class Workspace:
    """The results of one preset: `results/NAME`."""

    root: Path

    @classmethod
    def of(cls, preset: Preset) -> Workspace:
        return cls(RESULTS / preset.name)

    def folder(self, unit: Unit) -> Path:
        return unit.folder(self.root)

    def output(self, unit: Unit) -> Path:
        return self.folder(unit) / OUTPUTS[unit.kind]

    def done(self, unit: Unit) -> bool:
        names = (OUTPUTS[unit.kind], *BESIDE.get(unit.kind, ()))
        return all((self.folder(unit) / name).exists() for name in names)


def prerequisites(unit: Unit) -> list[Unit]:
    """What must be done before a unit, from its configuration alone."""
    if unit.kind in {"autoencoder", "public_extractor"}:
        needed = [data_unit(unit.config["data"])]
    elif unit.kind == "public":
        needed = [data_unit(unit.config["data"]), *_codec_units(unit.config)]
    elif unit.kind == "extractor":
        needed = [data_unit(unit.config["public"])]
    elif unit.kind == "cells" and (base := cell_base(unit.config)) is not None:
        needed = [*_codec_units(base.config["public"]), base]
    elif unit.kind == "cells":
        public = cell_public(unit.config)
        if public is None:
            needed = [data_unit(unit.config["public"]["data"])]
        else:
            needed = [*prerequisites(public), public]
        needed.append(cell_extractor(unit.config))
    else:
        needed = []
    return [one for one in needed if one is not None]


def _codec_units(public: dict) -> list[Unit]:
    """What maps images to a public stage's space and back, where it is trained."""
    return [autoencoder_unit(public["autoencoder"])] if "autoencoder" in public else []


def cell_from_file(path: Path) -> Unit:
    """A cell from a resolved configuration; its name is that of its folder or file."""
    if not path.is_file():
        raise ConfigError(f"{path}: {'a folder' if path.is_dir() else 'no such file'}")
    config = read_json(path)
    parse_cell(config, path)
    name = path.resolve().parent.name if path.name == CONFIG else path.stem
    return Unit("cells", name.removesuffix(f"-{digest(config)}"), config)


@contextmanager
def locked(folder: Path, patience: float = 0):
    """Hold a unit's folder; a second process is told who holds it, after `patience` seconds.

    A moment is always waited: `status` holds the lock while it looks at it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    patience = max(patience, MOMENT)
    end = time.monotonic() + patience
    with open(folder / ".lock", "a+", encoding="utf-8") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() < end:
                    time.sleep(min(1.0, patience / 10))
                    continue
                handle.seek(0)
                owner = handle.read().strip() or "another process"
                raise Busy(f"{folder}: {owner} is at work here; wait for it or stop it") from error
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {os.uname().nodename}")
        handle.flush()
        yield


def held(folder: Path) -> bool:
    """Whether a process is at work in a folder."""
    try:
        with open(folder / ".lock", "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def failure_noted(path: Path, progress):
    """A failure inside leaves `path`: reason, message, the traceback's end, the log's path.

    It is raised again; a new start removes it. Being told to leave is no failure.
    """
    from straightdp.methods.stopping import Stopped

    path.unlink(missing_ok=True)
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        lines = traceback.format_exc().splitlines()
        progress.note("\n".join(lines))
        record = {
            "reason": "cancelled" if interrupted else "exception",
            "message": str(error).splitlines()[0] if str(error) else type(error).__name__,
            "kind": type(error).__name__,
            "traceback": lines[-20:],
            "log": str(progress.log),
        }
        try:
            write_json(path, record)
        except OSError as full:
            progress.say(f"{path} could not be written: {full}")
        raise


def run_unit(
    unit: Unit, workspace: Workspace, execution, threads: int | None = None, patience: float = 0
) -> None:
    """Run a unit, and first whatever it needs that is not there yet.

    A failure leaves `failure.json` and is raised again. `patience` is how long to wait for
    another process that holds the folder: one whose machine is said to be dead may still be at
    work. What others need too is waited for much longer.
    """
    from straightdp.cli.dispatch import run
    from straightdp.methods.progress import Progress

    for needed in prerequisites(unit):
        if not workspace.done(needed):
            run_unit(needed, workspace, execution, threads, max(patience, SHARED))
    folder = workspace.folder(unit)
    progress = Progress(unit.name, folder / LOG)
    existed = workspace.done(unit)
    if patience and held(folder):
        progress.say("waits for another process that is at work on it")
    with locked(folder, patience):
        if patience and not existed and workspace.done(unit):
            progress.say("done by another process meanwhile")
            return
        with failure_noted(folder / FAILURE, progress):
            write_json(folder / CONFIG, unit.config)
            run(unit, workspace, execution, threads, progress)
        progress.say("done")


def run_evaluation(cell: Cell, workspace: Workspace, preset: Preset, threads: int | None) -> None:
    """Evaluate a finished cell's samples into its metrics file."""
    import torch

    from straightdp.data.sources import load
    from straightdp.evaluation.evaluate import evaluate_cell
    from straightdp.methods.progress import Progress

    torch.set_num_threads(threads or preset.execution.threads)
    identity = {
        "id": cell.id,
        "method": cell.method,
        "space": cell.space,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
    }
    folder, output = workspace.folder(cell), workspace.folder(cell) / metrics_name(preset)
    with failure_noted(evaluation_failure(output), Progress(cell.name, folder / LOG)):
        evaluate_cell(
            folder,
            workspace.folder(extractor(preset)),
            identity,
            cell.config,
            evaluation_config(preset),
            load(preset.data.private, "test"),
            output,
        )


def evaluation_failure(metrics: Path) -> Path:
    """Where a failed evaluation leaves word of itself, beside the metrics it did not make."""
    return metrics.with_suffix(".failure.json")
