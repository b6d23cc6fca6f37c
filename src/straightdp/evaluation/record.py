"""What stands behind a cell's metrics: its run.json, its transcript, its samples.

Evaluation believes a cell's transcript alone, replayed against what the cell's own
configuration declares: at publication, and again wherever it is not the file published. It
then notes the digests of the files that it believed, so that a table and `status` see without
a replay that one of them was edited, swapped or removed since.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from straightdp.files import DamagedFile, read_json

RUN, TRANSCRIPT, SAMPLES = "run.json", "transcript.jsonl", "samples.npz"
PUBLISHED = "published.json"  # a copy of run.json that no workflow knows, and so none removes
WEIGHTS = "weights_sha256"  # run.json's digests of the model and the release it was drawn from
AGREEMENT = 1e-6  # relative, of run.json's epsilon with the replayed one: rounding of another CPU


class NotPassed(ValueError):
    """A cell whose own files do not show that it finished within its budget."""


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that a cell's metrics rest on; NotPassed names one that is gone."""
    found = {}
    for name in (RUN, TRANSCRIPT, SAMPLES):
        try:
            found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except FileNotFoundError as error:
            raise NotPassed(f"{folder / name}: not there") from error
    return found


def finished_run(folder: Path) -> dict:
    """A cell's run.json; :class:`NotPassed` where it does not say that the cell finished."""
    path = folder / RUN
    try:
        run = read_json(path)
    except FileNotFoundError as error:
        raise NotPassed(f"{path}: not there; has the cell finished?") from error
    except (DamagedFile, OSError) as error:
        raise NotPassed(f"{error}; run the cell again: `straightdp rerun {folder.name}`") from error
    if not isinstance(run, dict):
        raise NotPassed(f"{path}: not the record of a run")
    if run.get("status") != "ok":
        raise NotPassed(f"{path}: status is {run.get('status')!r}, not ok")
    return run


def certified(run: dict, folder: Path) -> bool:
    """Whether `run`, a cell's run.json, was written with the replay of just its transcript.

    It must also equal its copy from the cell's publication: an edited one is not believed.
    """
    try:
        float(run["epsilon"])
        today = hashlib.sha256((folder / TRANSCRIPT).read_bytes()).hexdigest()
        kept = read_json(folder / PUBLISHED)
    except (OSError, DamagedFile, KeyError, TypeError, ValueError):
        return False
    return run == kept and run.get("transcript_sha256") == today


def passed(folder: Path, config: dict) -> float:
    """The epsilon that a cell's transcript replays to, if it stays within `config`'s budget.

    `config` is the cell's resolved configuration. :class:`NotPassed` also where the transcript
    declares another budget than it, and where run.json states another epsilon: a raised
    declaration and a removed line show there. The replay that published the cell is not
    repeated while the transcript and run.json are what it left.
    """
    run, path, privacy = finished_run(folder), folder / TRANSCRIPT, config["privacy"]
    if certified(run, folder) and float(run["epsilon"]) <= float(privacy["epsilon"]) * (
        1 + AGREEMENT
    ):
        return float(run["epsilon"])
    from straightdp.mechanisms.transcript import SLACK, TranscriptError, replay  # slow to import

    try:
        found = replay(path)
    except FileNotFoundError as error:
        raise NotPassed(f"{path}: not there") from error
    except TranscriptError as error:
        raise NotPassed(str(error)) from error
    budget = float(privacy["epsilon"])
    declared = {
        "epsilon": (found.declared_epsilon, budget),
        "delta": (found.delta, float(privacy["delta"])),
        "adjacency": (found.adjacency.value, privacy["adjacency"]),
        "records": (found.records, config["data"]["records"]),
    }
    for name, (stated, configured) in declared.items():
        if stated != configured:
            raise NotPassed(f"{path}: declares {name} {stated}, where the cell's is {configured}")
    if not found.epsilon <= budget * (1 + SLACK):
        raise NotPassed(f"{path}: replays to epsilon {found.epsilon:.6g}, above {budget:g}")
    stated = run.get("epsilon")
    try:
        agrees = math.isclose(float(stated), found.epsilon, rel_tol=AGREEMENT)
    except (TypeError, ValueError):
        agrees = False
    if not agrees:
        raise NotPassed(
            f"{path}: replays to epsilon {found.epsilon:.6g}, where {folder / RUN} states {stated}"
        )
    return found.epsilon


def unchanged(folder: Path, believed: object) -> None:
    """Compare a cell's files with the digests that its evaluation noted.

    :class:`DamagedFile` names the first file that is gone, or is not the one evaluated.
    """
    try:
        today = digests(folder)
    except NotPassed as error:
        raise DamagedFile(str(error)) from error
    for name, value in today.items():
        if not isinstance(believed, dict) or believed.get(name) != value:
            raise DamagedFile(f"{folder / name}: is not the file that was evaluated")
