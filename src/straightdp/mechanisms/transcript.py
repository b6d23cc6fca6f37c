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
    "gaussian": {
        "adjacency",
        "name",
        "sensitivity",
        "noise_std",
        "noise_multiplier",
        "normalised_by",
    },
    "subsampled_gaussian": {
        "adjacency",
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
        self._reader = _Reader()
        self._adjacency = adjacency
        self._position = 0
        self.charge(
            {
                "kind": "declaration",
                "schema": SCHEMA,
                "epsilon": "inf" if epsilon == math.inf else epsilon,
                "delta": delta,
                "records": records,
                "noise_seed": noise_seed,
            }
        )

    def charge(self, line: dict) -> None:
        """Put one mechanism on record, durably, before it runs; adds the run's adjacency.

        Raises :class:`TranscriptError` for a line that :func:`replay` would refuse, and where
        an earlier process charged something else at this place: the configuration or the
        code has changed under a half-finished run.
        """
        written = _line({**line, "adjacency": self._adjacency.value})
        where = f"{self.path}:{self._position + 1}"
        self._reader.read(where, written.decode())
        if self._position < len(self._lines):
            if self._lines[self._position] != written:
                raise TranscriptError(
                    f"{where}: an earlier start of this run charged "
                    f"another mechanism here; remove {self.path.parent} to begin anew (on real "
                    "private data, the earlier charges have been spent)"
                )
        else:
            with open(self.path, "ab") as handle:
                handle.write(written)
                handle.flush()
                os.fsync(handle.fileno())
            if self._position == 0:  # the new file's name must last as well
                _sync_folder(self.path.parent)
            self._lines.append(written)
        self._position += 1


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
    records: int
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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{path}: not text ({error.reason})") from error
    if not lines:
        raise TranscriptError(f"{path}: empty, where a declaration is due")
    reader = _Reader()
    read = [reader.read(f"{path}:{number}", text) for number, text in enumerate(lines, 1)]
    mechanisms, head = read[1:], reader.head
    adjacency, delta = Adjacency(head["adjacency"]), float(head["delta"])
    try:
        spent = epsilon(mechanisms, delta, adjacency)
    except ValueError as error:
        raise TranscriptError(f"{path}: {error}") from error
    return Replay(
        epsilon=spent,
        declared_epsilon=float(head["epsilon"]),
        delta=delta,
        adjacency=adjacency,
        records=head["records"],
        mechanisms=tuple(mechanisms),
    )


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not strict JSON")


def _parsed(where: str, text: str) -> dict:
    try:
        line = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{where}: not JSON ({error})") from error
    kind = line.get("kind") if isinstance(line, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        raise TranscriptError(f"{where}: unknown kind {kind!r}")
    missing, extra = FIELDS[kind] - line.keys(), line.keys() - FIELDS[kind] - {"kind"}
    if missing or extra:
        what = f"lacks {sorted(missing)}" if missing else f"has unknown {sorted(extra)}"
        raise TranscriptError(f"{where}: a {kind} line {what}")
    return line


class _Reader:
    """Reads lines in their order, and refuses one that does not go with those before it."""

    def __init__(self):
        self.head: dict | None = None  # the declaration
        self._steps: list[tuple[int, int, int]] = []  # bucket, first step, step after the last

    def read(self, where: str, text: str) -> Mechanism | None:
        """The mechanism that a line charges; None for the declaration, which comes first."""
        line = _parsed(where, text)
        if (line["kind"] == "declaration") is not (self.head is None):
            what = "expected a declaration" if self.head is None else "a second declaration"
            raise TranscriptError(f"{where}: {what}")
        if self.head is None:
            _declaration(where, line)
            self.head = line
            return None
        if line["adjacency"] != self.head["adjacency"]:
            raise TranscriptError(
                f"{where}: adjacency is {line['adjacency']!r}, but the declaration's is "
                f"{self.head['adjacency']!r}; the two never compose"
            )
        if line["kind"] == "gaussian":
            return _release(where, line)
        return _steps(where, line, self._steps)


def _declaration(where: str, line: dict) -> None:
    if line["schema"] != SCHEMA:
        raise TranscriptError(f"{where}: schema {line['schema']!r}, where {SCHEMA} is read")
    if line["epsilon"] != "inf":
        _number(where, line, "epsilon")
    if _number(where, line, "delta") >= 1:
        raise TranscriptError(f"{where}: delta is {line['delta']!r}, not below 1")
    for name, known in (("adjacency", list(Adjacency)), ("noise_seed", ["fixed", "system"])):
        if line[name] not in known:
            choices = " or ".join(known)
            raise TranscriptError(f"{where}: {name} is {line[name]!r}, not {choices}")
    _count(where, line, "records", 1)


def _count(where: str, line: dict, name: str, least: int) -> int:
    value = line[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TranscriptError(f"{where}: {name} is {value!r}, not a count from {least} up")
    return value


def _number(where: str, line: dict, name: str, zero: bool = False) -> float:
    value = line[name]
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < 1e300 or (value == 0 and not zero):
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
    first, bucket = _count(where, line, "first_step", 0), _count(where, line, "bucket", 0)
    count = _count(where, line, "steps", 1)
    for other_bucket, begin, end in seen:
        if bucket == other_bucket and first < end and begin < first + count:
            raise TranscriptError(f"{where}: steps of bucket {bucket} are charged twice")
    seen.append((bucket, first, first + count))
    _consistent(where, line, deviation / clip)
    return SubsampledSteps(str(line["name"]), rate, deviation / clip, count)
