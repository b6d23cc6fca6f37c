"""Asking Slurm: one squeue for everything, sacct for what squeue has forgotten.

Nothing here decides anything. A query that fails or answers nothing tells nothing: a job that
is not in an answer is unknown, neither done nor failed.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

from snakemake_executor_plugin_submitit.outcome import is_finished

FORMAT = "%i|%T|%r|%N|%M|%k"
KEPT = {"SLURM_CONF"}
PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_")
RANGE = re.compile(r"(\d+)_\[([\d,\-]+)(?:%\d+)?\]")
TRANSIENT = re.compile(  # refusals that pass: limits, and a controller out of reach
    r"AssocMaxSubmitJobLimit|AssocGrp\w*Limit|QOS\w*Limit|MaxSubmitJob|MaxJobs"
    r"|violates accounting/QOS policy|temporarily unable to accept job"
    r"|Unable to contact slurm controller|Socket timed out|Connection (refused|timed out)"
    r"|Zero Bytes were transmitted|Resource temporarily unavailable|Slurm backup controller"
    r"|Transport endpoint|Communication connection failure|Job/step already completing",
    re.IGNORECASE,
)
NEVER = re.compile(r"Per(Job|Node)", re.IGNORECASE)  # a limit that one job alone exceeds


class SlurmMissing(RuntimeError):
    """Slurm's commands are not on the PATH."""


@dataclass(frozen=True)
class QueueLine:
    """One job as squeue or sacct shows it."""

    state: str  # RUNNING, PENDING, ...
    reason: str = ""
    node: str = ""
    elapsed: str = ""
    comment: str = ""


def clean_environment() -> None:
    """Forget an allocation that this process was started in; SLURM_CONF stays."""
    for name in list(os.environ):
        if name.startswith(PREFIXES) and name not in KEPT:
            del os.environ[name]


def expand_ids(text: str) -> list[str]:
    """ "12_[0-2,5%4]" -> ["12_0", "12_1", "12_2", "12_5"]; others as they are."""
    match = RANGE.fullmatch(text)
    if match is None:
        return [text]
    found = []
    for part in match.group(2).split(","):
        low, _, high = part.partition("-")
        found += [f"{match.group(1)}_{i}" for i in range(int(low), int(high or low) + 1)]
    return found


def parse_squeue(text: str) -> dict[str, QueueLine]:
    """squeue's lines in FORMAT, by id."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 5)
        if len(parts) == 6:
            for one in expand_ids(parts[0]):
                found[one] = QueueLine(parts[1].upper(), *parts[2:])
    return found


def parse_sacct(text: str) -> dict[str, QueueLine]:
    """sacct's parsable lines "JobID|State|NodeList|Elapsed", steps left out, by id."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) >= 4 and "." not in parts[0] and parts[1]:
            for one in expand_ids(parts[0]):
                state = parts[1].split()[0].upper()  # "CANCELLED by 0"
                found[one] = QueueLine(state, "", parts[2], parts[3])
    return found


def _run(command: list[str], timeout: float = 60) -> str | None:
    """The command's output; None where it fails in any way."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise SlurmMissing(f"{command[0]} is not on the PATH: no Slurm on this machine") from error
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def squeue() -> dict[str, QueueLine] | None:
    """All jobs of this user that Slurm still shows, finished ones too; None if unknown."""
    user = os.environ.get("USER") or ""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = user or str(os.getuid())
    answer = _run(["squeue", "-h", "-r", "-t", "all", "-u", user, "-o", FORMAT])
    return None if answer is None else parse_squeue(answer)


def sacct(ids: Iterable[str], since: float) -> dict[str, QueueLine] | None:
    """What accounting remembers of jobs submitted after `since`; None without accounting."""
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 60))
    mains = sorted({one.split("_")[0] for one in ids})
    answer = _run(
        ["sacct", "-n", "-P", "-X", "-S", start, "-j", ",".join(mains)]
        + ["-o", "JobID,State,NodeList,Elapsed"]
    )
    return None if answer is None else parse_sacct(answer)


def scancel(ids: list[str], batch: int = 200) -> int:
    """Cancel jobs by id, in batches; returns how many were asked for."""
    for start in range(0, len(ids), batch):
        _run(["scancel", *ids[start : start + batch]])
    return len(ids)


def is_transient(words: str) -> bool:
    """Whether a refusal by sbatch may pass with time."""
    return TRANSIENT.search(words) is not None and NEVER.search(words) is None


class Watcher:
    """Slurm's view of this user's jobs, asked for at most once an interval.

    `ask` (squeue) and `remember` (sacct) can be replaced in tests.
    """

    def __init__(self, interval: float, ask=squeue, remember=sacct, clock=time.monotonic):
        self.interval = interval
        self._ask, self._remember, self._clock = ask, remember, clock
        self._asked = float("-inf")
        self._known: dict[str, QueueLine] = {}
        self._missing: dict[str, float] = {}
        self._accounting: bool | None = None
        self._turn_of_accounting = False
        self.queries = 0
        self.answered = False  # whether squeue has ever answered

    def refresh(self, ids: dict[str, float]) -> bool:
        """Ask again if the interval has passed; `ids` maps each id to its submission's time.

        One command an interval: squeue, or sacct where squeue has just lacked a job. Returns
        whether there is a new answer.
        """
        now = self._clock()
        if not ids or now - self._asked < self.interval:
            return False
        self._asked = now
        self.queries += 1
        gone = [one for one in self._missing if one in ids]
        if self._turn_of_accounting and gone:
            self._turn_of_accounting = False
            return self._refresh_from_accounting(gone, ids)
        answer = self._ask()
        if answer is None:
            return False
        self.answered = True
        self._known = dict(answer)
        gone = [one for one in ids if one not in answer]
        self._missing = {one: self._missing.get(one, now) for one in gone}
        self._turn_of_accounting = bool(gone) and self._accounting is not False
        return True

    def _refresh_from_accounting(self, gone: list[str], ids: dict[str, float]) -> bool:
        remembered = self._remember(gone, min(ids[one] for one in gone))
        self._accounting = remembered is not None
        for one in gone:
            if one in (remembered or {}):
                self._known[one] = remembered[one]
                if is_finished(remembered[one].state):  # accounting may call lost jobs running
                    del self._missing[one]
        return self._accounting

    @property
    def accounting(self) -> bool | None:
        """Whether sacct answers; None while it was not needed."""
        return self._accounting

    def line(self, one: str) -> QueueLine | None:
        """What the last answer said of a job; None for nothing."""
        return self._known.get(one)

    def missing_for(self, one: str) -> float:
        """Seconds since answers first lacked the job; 0 while they have it."""
        return self._clock() - self._missing[one] if one in self._missing else 0.0

    def by_comment(self, token: str) -> dict[str, QueueLine]:
        """Jobs that carry a token as their comment."""
        return {one: line for one, line in self._known.items() if line.comment == token}
