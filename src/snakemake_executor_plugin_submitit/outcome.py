"""How a job ended, why, and whether it is tried again: pure functions."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a job is not done; every failed job has exactly one."""

    OOM = "oom"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXCEPTION = "exception"


RETRIED = {Reason.OOM, Reason.TIMEOUT, Reason.PREEMPTED, Reason.NODE_FAIL}
MEMORY_FACTOR = 1.5  # how much more a job asks for after running out of memory
FINISHED_STATES = {
    "BOOT_FAIL": Reason.NODE_FAIL,
    "CANCELLED": Reason.CANCELLED,
    "COMPLETED": Reason.EXCEPTION,  # without a result on disk
    "DEADLINE": Reason.TIMEOUT,
    "FAILED": Reason.EXCEPTION,
    "NODE_FAIL": Reason.NODE_FAIL,
    "OUT_OF_MEMORY": Reason.OOM,
    "PREEMPTED": Reason.PREEMPTED,
    "REVOKED": Reason.CANCELLED,
    "TIMEOUT": Reason.TIMEOUT,
}
MEMORY_WORDS = re.compile(
    r"oom[-_ ]kill|exceeded (job |step )?memory limit|exceeded virtual memory limit"
    r"|^MemoryError\b|DefaultCPUAllocator: (can't|not enough)"
    r"|(?-i:Out Of Memory)",  # Slurm's; "CUDA out of memory" is not mended by more of the host's
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Ending:
    """A job that left without success."""

    reason: Reason
    message: str


def was_killed(record: dict) -> bool:
    """Whether SIGKILL ended the command (137: bash tells it of a child); Slurm may know why."""
    return record.get("status") in (-signal.SIGKILL, 128 + signal.SIGKILL)


def is_finished(state: str) -> bool:
    """Whether a Slurm state is a last one; an unknown word is not."""
    return state in FINISHED_STATES


def from_result(record: dict, log_tail: str) -> Ending | None:
    """What a result on disk says; None for success. A terminated job is judged by its state."""
    status, reason = record.get("status"), record.get("reason")
    if status == 0:
        return None
    if reason == "tries":
        return Ending(Reason.TIMEOUT, f"gave up: it was started {record.get('tries')} times")
    if reason == "timeout":
        return Ending(Reason.TIMEOUT, "the time limit was reached too often")
    memory = MEMORY_WORDS.search(log_tail)
    if memory:
        return Ending(Reason.OOM, f"out of memory ({memory.group(0).strip()})")
    if was_killed(record) or isinstance(status, int) and status < 0:
        number = signal.SIGKILL if was_killed(record) else -status
        return Ending(Reason.EXCEPTION, f"the command was killed by signal {int(number)}")
    return Ending(Reason.EXCEPTION, f"the command ended with exit status {status}")


def from_state(state: str, record: dict | None, log_tail: str) -> Ending:
    """Why a job in a last state, without a final result, ended."""
    reason = FINISHED_STATES[state]
    memory = MEMORY_WORDS.search(log_tail)
    if memory and reason in {Reason.EXCEPTION, Reason.CANCELLED}:
        return Ending(Reason.OOM, f"out of memory ({memory.group(0).strip()})")
    if reason is Reason.EXCEPTION and record is not None and record.get("reason") == "terminated":
        return Ending(Reason.PREEMPTED, f"it was told to leave (Slurm's state: {state})")
    if reason is Reason.EXCEPTION:
        return Ending(reason, f"it left no result: killed from outside? (Slurm's state: {state})")
    return Ending(reason, f"Slurm's state: {state}")


def tried_again(reason: Reason, tries: int, allowed: int) -> bool:
    """Whether a job that has been started `tries` times is submitted again."""
    return reason in RETRIED and tries < allowed
