"""What runs inside a job: one shell command, its signals, and its result on disk.

The command is a child process of its own. The time limit's signal and Slurm's SIGTERM reach
it as one SIGTERM ("save and leave"); SIGUSR2 it never sees. How it ended is written to
`results/KEY.json` (temporary name, fsync, rename) before the job leaves, so that a driver
needs nothing else to learn of it; every start and every stop is a line of `tries/KEY.jsonl`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LEAVE_SECONDS = 25  # how long a command may take to save and leave; Slurm kills after 30
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Leave(BaseException):
    """Unwinds to :meth:`Payload.__call__` when the job is told to go."""


def write_atomically(path: Path, text: str) -> None:
    """Temporary name, fsync, rename: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, record: dict) -> None:
    """One JSON line, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as handle:
        end = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, end - 1))
        torn = handle.read(1) not in (b"", b"\n")  # its writer was killed within a line
        handle.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def read_lines(path: Path) -> list[dict]:
    """The whole JSON lines of a file; none where there is no file, torn ones are left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                found.append(record)
    return found


def result_path(home: Path, key: str) -> Path:
    """Where a job says how its command ended."""
    return home / "results" / f"{key}.json"


def tries_path(home: Path, key: str) -> Path:
    """Where a job notes every start and stop of its command."""
    return home / "tries" / f"{key}.jsonl"


@dataclass
class Payload:
    """A picklable call: run `command` with bash in `directory`, and record how it ends.

    `home` is the folder that driver and jobs share; `tries` bounds how often the command is
    started, requeues by Slurm included. With `strict`, a failed command ends the process.
    """

    key: str
    token: str  # of the submission that this belongs to
    command: str
    directory: str
    home: str
    threads: int
    tries: int
    strict: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def result_path(self) -> Path:
        return result_path(Path(self.home), self.key)

    @property
    def tries_path(self) -> Path:
        return tries_path(Path(self.home), self.key)

    def __call__(self) -> int:
        started = sum("start" in line for line in read_lines(self.tries_path))
        if started >= self.tries:
            return self._finish({"status": None, "reason": "tries", "tries": started})
        self.result_path.unlink(missing_ok=True)
        self._note(
            "start",
            job=job_id(),
            restart=int(os.environ.get("SLURM_RESTART_COUNT", 0)),
            node=os.uname().nodename,
            slurm_node=os.environ.get("SLURMD_NODENAME", ""),
            gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )
        self._child = None
        previous = None
        with contextlib.suppress(ValueError):  # not in the main thread: only in debugging
            previous = signal.signal(signal.SIGTERM, self._told_to_go)
        try:
            status = self._run()
        except Leave:
            self._stop_child()
            self._note("stop", why="SIGTERM")
            self._write({"status": None, "reason": "terminated"})
            sys.exit(128 + signal.SIGTERM)
        except Exception as error:
            # The time limit's signal, where the job was requeued too often already.
            self._stop_child()
            self._finish({"status": None, "reason": "timeout", "message": str(error)})
            raise
        finally:
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)
        return self._finish({"status": status, "reason": None})

    def checkpoint(self):
        """Called by submitit on the time limit's signal: save, leave, and be queued again."""
        from submitit.helpers import DelayedSubmission

        self._stop_child()
        self._note("stop", why="time limit")
        return DelayedSubmission(self)

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_child"}

    def _run(self) -> int:
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        self._child = subprocess.Popen(
            ["bash", "-c", self.command],
            cwd=self.directory,
            env=environment | self.environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        )
        # Popen.wait holds a lock that a signal handler (`checkpoint`) could not take: wait first.
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        return self._child.wait()

    def _told_to_go(self, signum, frame) -> None:
        signal.signal(signum, signal.SIG_IGN)  # once is enough; leaving must not be disturbed
        raise Leave

    def _stop_child(self) -> None:
        """SIGTERM to the command and all its children, and SIGKILL to what stays.

        Bash may be gone long before the process that it ran has saved, so the whole group is
        waited for. Nothing is reaped here: that is `_run`'s, which this may interrupt.
        """
        child = getattr(self, "_child", None)
        if child is None or not group_lives(child.pid):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        until = time.monotonic() + LEAVE_SECONDS
        while group_lives(child.pid):
            if time.monotonic() >= until:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    def _note(self, event: str, **details) -> None:
        append_line(self.tries_path, {event: time.time(), "token": self.token, **details})

    def _write(self, record: dict) -> None:
        whole = {**record, "token": self.token, "job": job_id(), "end": time.time()}
        write_atomically(self.result_path, json.dumps(whole))

    def _finish(self, record: dict) -> int:
        self._write(record)
        status = record["status"]
        if self.strict and status != 0:  # so that Slurm, too, sees a failed job
            sys.exit(128 - status if status and status < 0 else status or 1)
        return status


def group_lives(group: int) -> bool:
    """Whether a process group has a member that is no zombie."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # pid (name) state parent group ...; a name may hold anything
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def job_id() -> str:
    """The id that the driver knows this job by."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    if array:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID", "")
