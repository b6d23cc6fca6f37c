"""What was submitted, on disk: the next driver, and anyone who asks, reads it here.

Under the home folder (`.snakemake/submitit`):

    jobs/KEY.json        one job of the workflow: its ids at Slurm, its request, how it stands
    results/KEY.json     how its command ended, written by the job itself
    tries/KEY.jsonl      every start and stop of its command, written by the job itself
    submitit/            submitit's scripts, pickles and the jobs' logs

A KEY is a readable name and a hash of the job's outputs. An entry is written before its job
is submitted (with a token that Slurm keeps as the job's comment), and again with the id; so a
driver that dies in between loses no job: the next one finds the token in the queue.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from snakemake_executor_plugin_submitit.payload import (
    append_line,
    read_lines,
    result_path,
    tries_path,
    write_atomically,
)

HOME = Path(".snakemake") / "submitit"
SCHEMA = 1
ACTIVE, HELD, DONE, FAILED, CANCELLED = "active", "held", "done", "failed", "cancelled"


def job_key(name: str, outputs: list[str]) -> str:
    """A readable, safe file name that the same outputs always get."""
    readable = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name)[:80].strip("-.") or "job"
    return f"{readable}-{hashlib.sha256('|'.join(sorted(outputs)).encode()).hexdigest()[:8]}"


def command_hash(command: str) -> str:
    """Tells whether a finished job ran what would be run today."""
    return hashlib.sha256(command.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """One job of the workflow, as it was submitted and as it ended."""

    key: str
    outputs: list[str]
    backend: str
    command: str  # hash
    state: str  # ACTIVE, HELD (not taken by Slurm yet), DONE, FAILED, CANCELLED
    token: str = ""
    index: int | None = None  # in its array
    ids: list[str] = field(default_factory=list)  # oldest first
    memory_mb: int = 0
    reason: str = ""
    message: str = ""
    log: str = ""
    submitted: float = 0.0
    seen: bool = True  # whether a driver has reported the end to its workflow

    @property
    def id(self) -> str | None:
        return self.ids[-1] if self.ids else None


class Journal:
    """The entries of one working directory."""

    def __init__(self, home: Path = HOME):
        self.home = home.absolute()
        self.folder = self.home / "jobs"

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def write(self, entry: Entry, **changes) -> Entry:
        """Write an entry with changes; returns it."""
        entry = replace(entry, **changes)
        record = {"schema": SCHEMA, **asdict(entry)}
        write_atomically(self.path(entry.key), json.dumps(record, indent=1))
        return entry

    def read(self, key: str) -> Entry | None:
        """The entry; None where there is none or where it can't be read."""
        try:
            record = json.loads(self.path(key).read_text(encoding="utf-8"))
            if record.pop("schema") != SCHEMA:
                return None
            return Entry(**record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def entries(self) -> list[Entry]:
        """Every readable entry."""
        found = [self.read(path.stem) for path in sorted(self.folder.glob("*.json"))]
        return [entry for entry in found if entry is not None]

    def by_output(self) -> dict[str, Entry]:
        """Entries by each of their outputs."""
        return {output: entry for entry in self.entries() for output in entry.outputs}

    def forget(self, key: str) -> None:
        """Drop an entry and its result: its job runs anew, and is not taken as finished."""
        self.path(key).unlink(missing_ok=True)
        self.result_path(key).unlink(missing_ok=True)

    def result_path(self, key: str) -> Path:
        return result_path(self.home, key)

    def results(self) -> set[str]:
        """The keys that have a result on disk; one look at a folder."""
        folder = self.home / "results"
        if not folder.is_dir():
            return set()
        return {path.stem for path in folder.iterdir() if path.suffix == ".json"}

    def result(self, entry: Entry) -> dict | None:
        """The job's own record of its end, if it is of this submission."""
        try:
            record = json.loads(self.result_path(entry.key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or record.get("token") != entry.token:
            return None
        return record

    def starts(self, key: str) -> list[dict]:
        """Every start of the command in this series of tries."""
        return [line for line in read_lines(tries_path(self.home, key)) if "start" in line]

    def stops(self, key: str) -> list[dict]:
        """Every time that the command was told to save and leave."""
        return [line for line in read_lines(tries_path(self.home, key)) if "stop" in line]

    def begin_series(self, key: str) -> None:
        """A new run of a job counts its tries from 0; the old ones are kept beside."""
        path = tries_path(self.home, key)
        if path.exists():
            for line in read_lines(path):
                append_line(path.with_suffix(".old"), line)
            path.unlink()
        self.result_path(key).unlink(missing_ok=True)


def new_token(key: str) -> str:
    """Names one submission; Slurm keeps it as the job's comment."""
    return f"{hashlib.sha256(f'{key}{time.time_ns()}'.encode()).hexdigest()[:12]}"


def log_tail(path: str | Path, lines: int = 20) -> list[str]:
    """The last lines of a log, without submitit's own."""
    try:
        with open(path, "rb") as handle:
            handle.seek(0, 2)
            handle.seek(max(0, handle.tell() - 65536))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    kept = [line for line in text.splitlines() if line.strip() and not _is_frame(line)]
    return kept[-lines:]


def _is_frame(line: str) -> bool:
    return line.startswith("submitit ") or "scancel: " in line
