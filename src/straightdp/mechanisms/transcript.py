"""The transcript: what was run on private data, written before it runs, replayable alone.

A transcript is JSON lines. The first declares the budget; each further one charges one
mechanism. Charging is write-ahead: a line is on disk before the mechanism draws its noise,
so a killed run has never spent more than its transcript says. Charging is also idempotent:
a resumed run repeats its charges from the start, and lines that are already there are
compared, not appended, so that it leaves the same bytes as an undisturbed run.

:func:`replay` recomputes epsilon from the file and nothing else, and trusts no derived
number in it: multipliers are recomputed from noise, sensitivity and clip.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from straightdp.mechanisms.accounting import (
    Adjacency,
    GaussianRelease,
    Mechanism,
    SubsampledSteps,
    epsilon,
)

SCHEMA = 1
SLACK = 1e-9  # relative, for the comparison of replayed and declared epsilon
FIELDS = {
    "declaration": {"schema", "epsilon", "delta", "adjacency", "records", "noise_seed"},
    "gaussian": {"name", "sensitivity", "noise_std", "noise_multiplier", "normalised_by"},
    "subsampled_gaussian": {
        "name",
        "bucket",
        "clip",
        "noise_std",
        "noise_multiplier",
        "sampling_rate",
        "first_step",
        "steps",
        "normalised_by",
    },
}


class TranscriptError(ValueError):
    """A transcript that cannot be replayed; the message names the file and the line."""


def _line(value: dict) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


class Ledger:
    """Appends charges to one transcript; open it anew in each process that runs the cell."""

    def __init__(
        self,
        path: Path,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        records: int,
        noise_seed: str,
    ):
        self.path = path
        self._lines = _whole_lines(path)
        self._position = 0
        self.charge(
            {
                "kind": "declaration",
                "schema": SCHEMA,
                "epsilon": "inf" if epsilon == math.inf else epsilon,
                "delta": delta,
                "adjacency": adjacency.value,
                "records": records,
                "noise_seed": noise_seed,
            }
        )

    def charge(self, line: dict) -> None:
        """Put one mechanism on record, durably, before it runs.

        Raises :class:`TranscriptError` where an earlier process charged something else at
        this place: the configuration or the code has changed under a half-finished run.
        """
        written = _line(line)
        if self._position < len(self._lines):
            if self._lines[self._position] != written:
                raise TranscriptError(
                    f"{self.path}:{self._position + 1}: an earlier start of this run charged "
                    f"another mechanism here; remove {self.path.parent} to begin anew (on real "
                    "private data, the earlier charges have been spent)"
                )
        else:
            with open(self.path, "ab") as handle:
                handle.write(written)
                handle.flush()
                os.fsync(handle.fileno())
            self._lines.append(written)
        self._position += 1


def _whole_lines(path: Path) -> list[bytes]:
    """The file's complete lines; a last one torn by a kill is cut off, on disk too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        with open(path, "r+b") as handle:
            handle.truncate(len(whole))
    return whole.splitlines(keepends=True)


@dataclass(frozen=True)
class Replay:
    """What a transcript says, and what that costs."""

    epsilon: float  # recomputed
    declared_epsilon: float
    delta: float
    adjacency: Adjacency
    mechanisms: tuple[Mechanism, ...]

    @property
    def ok(self) -> bool:
        return self.epsilon <= self.declared_epsilon * (1 + SLACK)

    def describe(self) -> list[str]:
        """One line a mechanism, for people; steps of equal noise and rate together."""
        lines, steps = [], {}
        for one in self.mechanisms:
            if isinstance(one, GaussianRelease):
                lines.append(
                    f"{one.name}: Gaussian, sensitivity {one.sensitivity:.6g}, "
                    f"multiplier {one.noise_multiplier:.4f}"
                )
            else:
                key = (one.noise_multiplier, one.sampling_rate)
                steps[key] = steps.get(key, 0) + one.steps
        for (sigma, rate), count in steps.items():
            lines.append(f"DP-SGD: {count} steps, rate {rate:g}, multiplier {sigma:.4f}")
        return lines


def replay(path: str | Path) -> Replay:
    """Recompute epsilon from a transcript; pure, and the same every time.

    Raises :class:`TranscriptError` for a line that is damaged, unknown, inconsistent or
    charges steps of a bucket twice.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise TranscriptError(f"{path}: empty, where a declaration is due")
    parsed = [_parsed(path, number, text) for number, text in enumerate(lines, 1)]
    head = parsed[0]
    if head["kind"] != "declaration" or head["schema"] != SCHEMA:
        raise TranscriptError(f"{path}:1: expected a declaration of schema {SCHEMA}")
    mechanisms, seen = [], []
    for number, line in enumerate(parsed[1:], 2):
        where = f"{path}:{number}"
        if line["kind"] == "declaration":
            raise TranscriptError(f"{where}: a second declaration")
        if line["kind"] == "gaussian":
            mechanisms.append(_release(where, line))
        else:
            mechanisms.append(_steps(where, line, seen))
    try:
        adjacency, declared = Adjacency(head["adjacency"]), float(head["epsilon"])
        delta = float(head["delta"])
        spent = epsilon(mechanisms, delta, adjacency)
    except (TypeError, ValueError) as error:
        raise TranscriptError(f"{path}: {error}") from error
    return Replay(spent, declared, delta, adjacency, tuple(mechanisms))


def _parsed(path: Path, number: int, text: str) -> dict:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise TranscriptError(f"{path}:{number}: not JSON ({error.msg})") from error
    kind = line.get("kind") if isinstance(line, dict) else None
    if kind not in FIELDS:
        raise TranscriptError(f"{path}:{number}: unknown kind {kind!r}")
    missing, extra = FIELDS[kind] - line.keys(), line.keys() - FIELDS[kind] - {"kind"}
    if missing or extra:
        what = f"lacks {sorted(missing)}" if missing else f"has unknown {sorted(extra)}"
        raise TranscriptError(f"{path}:{number}: a {kind} line {what}")
    return line


def _number(where: str, line: dict, name: str, zero: bool = False) -> float:
    value = line[name]
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise TranscriptError(f"{where}: {name} is {value!r}, not a positive number")
    return float(value)


def _consistent(where: str, line: dict, multiplier: float) -> None:
    stated = _number(where, line, "noise_multiplier", zero=True)
    if not math.isclose(stated, multiplier, rel_tol=1e-9, abs_tol=1e-12):
        raise TranscriptError(
            f"{where}: states noise multiplier {stated:g}, but its noise and sensitivity "
            f"give {multiplier:g}"
        )


def _release(where: str, line: dict) -> GaussianRelease:
    sensitivity = _number(where, line, "sensitivity")
    deviation = _number(where, line, "noise_std", zero=True)
    one = GaussianRelease(str(line["name"]), sensitivity, deviation)
    _consistent(where, line, one.noise_multiplier)
    return one


def _steps(where: str, line: dict, seen: list) -> SubsampledSteps:
    clip = _number(where, line, "clip")
    deviation = _number(where, line, "noise_std", zero=True)
    rate = _number(where, line, "sampling_rate")
    if rate > 1:
        raise TranscriptError(f"{where}: sampling_rate {rate:g} is above 1")
    ranges = []
    for name in ("first_step", "steps", "bucket"):
        value = line[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < (name == "steps"):
            raise TranscriptError(f"{where}: {name} is {value!r}, not a count")
        ranges.append(value)
    first, count, bucket = ranges
    for other_bucket, begin, end in seen:
        if bucket == other_bucket and first < end and begin < first + count:
            raise TranscriptError(f"{where}: steps of bucket {bucket} are charged twice")
    seen.append((bucket, first, first + count))
    _consistent(where, line, deviation / clip)
    return SubsampledSteps(str(line["name"]), rate, deviation / clip, count)
