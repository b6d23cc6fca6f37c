"""Where jobs go: Slurm, processes on this machine, or this very process, all by submitit.

A backend submits payloads and says what it knows of the ids that it gave. It decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from snakemake_executor_plugin_submitit import slurm
from snakemake_executor_plugin_submitit.payload import Payload
from snakemake_executor_plugin_submitit.request import Request, submitit_parameters
from snakemake_executor_plugin_submitit.slurm import QueueLine, Watcher

BACKENDS = ("slurm", "local", "debug")
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")  # submitit looks for srun


class Refused(RuntimeError):
    """A submission that was not taken, in the words of sbatch."""

    def __init__(self, words: str, transient: bool):
        super().__init__(words)
        self.transient = transient


class Backend(ABC):
    """`folder` is for submitit's own files, the jobs' logs among them."""

    name: str
    most_in_array = 1

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        logging.getLogger("submitit").setLevel(logging.ERROR)

    @abstractmethod
    def submit(self, payloads: list[Payload], request: Request, name: str) -> list[str]:
        """Ids, one a payload. Raises :class:`Refused`."""

    def refresh(self, ids: dict[str, float]) -> bool:
        """Ask for news of the ids (with submission times); True if there is an answer."""
        return bool(ids)

    @abstractmethod
    def line(self, one: str) -> QueueLine | None:
        """What is known of a job; None for nothing."""

    @property
    def answered(self) -> bool:
        """Whether the backend has ever answered; until then, nothing can be called missing."""
        return True

    def missing_for(self, one: str) -> float:
        """Seconds for which answers have lacked a job."""
        return 0.0

    @abstractmethod
    def cancel(self, ids: list[str]) -> int: ...

    def find(self, token: str, index: int | None) -> str | None:
        """The id of a submission that was made but never written down."""
        return None

    def log(self, one: str) -> Path:
        """The job's log: its command's output, and submitit's."""
        return self.folder / f"{one}_0_log.out"


class SlurmBackend(Backend):
    """sbatch through submitit's SlurmExecutor."""

    name = "slurm"

    def __init__(self, folder: Path, interval: float, signal_delay: int, tries: int, array: int):
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            raise slurm.SlurmMissing(
                f"{', '.join(missing)} not on the PATH: no Slurm on this machine"
            )
        super().__init__(folder)
        self.most_in_array = max(1, array)
        self.watcher = Watcher(interval)
        self._signal_delay, self._tries = signal_delay, tries

    def submit(self, payloads: list[Payload], request: Request, name: str) -> list[str]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = SlurmExecutor(
            self.folder,
            max_num_timeout=self._tries,
            python=f"exec {shlex.quote(sys.executable)}",
        )
        executor.update_parameters(
            **submitit_parameters(request, name, payloads[0].token, self._signal_delay)
        )
        try:
            jobs = executor.submit_array(payloads)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            self._remove_leftovers()
            words = sbatch_words(str(error))
            raise Refused(words, slurm.is_transient(words)) from error
        return [job.job_id for job in jobs]

    def _remove_leftovers(self) -> None:
        for path in self.folder.iterdir():
            if re.fullmatch(r"\.submission_file_\w+\.sh|[0-9a-f]{32}\.pkl", path.name):
                if not path.is_symlink():
                    path.unlink(missing_ok=True)

    def refresh(self, ids: dict[str, float]) -> bool:
        return self.watcher.refresh(ids)

    def line(self, one: str) -> QueueLine | None:
        return self.watcher.line(one)

    @property
    def answered(self) -> bool:
        return self.watcher.answered

    def missing_for(self, one: str) -> float:
        return self.watcher.missing_for(one)

    def cancel(self, ids: list[str]) -> int:
        return slurm.scancel(ids)

    def find(self, token: str, index: int | None) -> str | None:
        found = self.watcher.by_comment(token)
        if index is None:
            return next(iter(found), None)
        return next((one for one in found if one.endswith(f"_{index}")), None)


class LocalBackend(Backend):
    """Processes on this machine, through submitit's LocalExecutor; an id is a process id."""

    name = "local"

    def submit(self, payloads: list[Payload], request: Request, name: str) -> list[str]:
        from submitit import LocalExecutor

        ids = []
        for payload in payloads:
            executor = LocalExecutor(self.folder, max_num_timeout=payload.tries)
            executor.update_parameters(
                timeout_min=request.minutes,
                gpus_per_node=request.gpus,
                stderr_to_stdout=True,
            )
            executor._throttling = 0
            ids.append(executor.submit(payload).job_id)
        return ids

    def line(self, one: str) -> QueueLine:
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(int(one), os.WNOHANG)  # a child of ours that has ended is no process
        try:
            arguments = Path(f"/proc/{one}/cmdline").read_bytes()
        except OSError:
            arguments = b""
        ours = str(self.folder).encode() in arguments
        return QueueLine("RUNNING" if ours else "FAILED", node=os.uname().nodename)

    def cancel(self, ids: list[str]) -> int:
        for one in ids:
            if self.line(one).state == "RUNNING":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(one), signal.SIGTERM)
        return len(ids)


class DebugBackend(Backend):
    """In this process, one after the other: for a debugger, and for tests."""

    name = "debug"

    def submit(self, payloads: list[Payload], request: Request, name: str) -> list[str]:
        from submitit import DebugExecutor

        ids = []
        for payload in payloads:
            payload.strict = False  # submitit would open a debugger on an exception
            job = DebugExecutor(self.folder).submit(payload)
            job.result()
            ids.append(job.job_id)
        return ids

    def line(self, one: str) -> QueueLine:
        return QueueLine("FAILED")

    def cancel(self, ids: list[str]) -> int:
        return 0


def sbatch_words(text: str) -> str:
    """The line of a refusal that says why, without the rest of submitit's message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "error:" in line.lower()]
    return "; ".join(dict.fromkeys(told or lines[-1:])) or "no message"
