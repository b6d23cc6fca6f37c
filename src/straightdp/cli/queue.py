"""What the cluster says of the cells: running where, waiting for what, or failed why.

Reads the executor plugin's journal in this folder, and asks Slurm once if a job is out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_submitit import slurm
from snakemake_executor_plugin_submitit.journal import (
    ACTIVE,
    FAILED,
    HELD,
    HOME,
    Entry,
    Journal,
    log_tail,
)
from snakemake_executor_plugin_submitit.outcome import is_finished
from snakemake_executor_plugin_submitit.slurm import QueueLine

RUNNING, PENDING, FAILURE = "running", "pending", "failed"


@dataclass(frozen=True)
class Job:
    """A job of the workflow as it stands outside its folder."""

    kind: str  # RUNNING, PENDING or FAILURE
    detail: str
    log: str = ""

    def tail(self) -> list[str]:
        return log_tail(self.log) if self.log else []


class Queue:
    """Jobs by the file that they make; empty where nothing was ever submitted from here."""

    def __init__(self, home: Path = HOME, ask=slurm.squeue):
        self.journal = Journal(home)
        entries = self.journal.entries()
        self.answered = True
        lines: dict[str, QueueLine] = {}
        if any(entry.state == ACTIVE and entry.backend == "slurm" for entry in entries):
            try:
                answer = ask()
            except slurm.SlurmMissing:
                answer = None
            self.answered = answer is not None
            lines = answer or {}
        self._jobs: dict[str, Job] = {}
        for entry in entries:
            job = self._job(entry, lines)
            if job is not None:
                self._jobs |= dict.fromkeys(entry.outputs, job)

    def _job(self, entry: Entry, lines: dict[str, QueueLine]) -> Job | None:
        if entry.state == HELD:
            return Job(PENDING, f"held, not taken by Slurm yet: {entry.message}")
        if entry.state == FAILED:
            return Job(FAILURE, f"{entry.reason}: {entry.message} (log: {entry.log})", entry.log)
        if entry.state != ACTIVE:
            return None
        if entry.backend != "slurm":
            return Job(RUNNING, f"process {entry.id}", entry.log)
        line = lines.get(entry.id or "")
        if line is None and not self.answered:
            return Job(PENDING, f"job {entry.id}; Slurm does not answer")
        if line is None or is_finished(line.state):
            return None
        if line.state == "PENDING":
            return Job(PENDING, f"job {entry.id}: {line.reason}")
        where = f"job {entry.id} on {line.node}" if line.node else f"job {entry.id}"
        return Job(RUNNING, f"{where}, {line.state.lower()} for {line.elapsed}", entry.log)

    def job(self, output: Path) -> Job | None:
        """The job that makes a file; None where it is not on its way and has not failed."""
        return self._jobs.get(str(output))

    def forget(self, outputs: list[Path]) -> None:
        """Let the jobs that make these files run anew, not be taken as finished."""
        wanted = {str(path) for path in outputs}
        for entry in self.journal.entries():
            job = self._jobs.get(entry.outputs[0]) if entry.outputs else None
            out = job is not None and job.kind in {RUNNING, PENDING}
            if wanted & set(entry.outputs) and not out:
                self.journal.forget(entry.key)
