"""The jobs of this driver: submitting, finding again, and judging them.

Independent of Snakemake: a :class:`Task` is a command with outputs; :class:`Tracker` keeps
each in the journal, submits it (again), and says when it is over. Every decision about a job
that left its queue is made in :meth:`Tracker.look`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_executor_plugin_submitit.backends import Backend, Refused
from snakemake_executor_plugin_submitit.journal import (
    ACTIVE,
    CANCELLED,
    DONE,
    FAILED,
    HELD,
    Entry,
    Journal,
    command_hash,
    log_tail,
    new_token,
)
from snakemake_executor_plugin_submitit.outcome import (
    MEMORY_FACTOR,
    Ending,
    Reason,
    from_result,
    from_state,
    is_finished,
    tried_again,
    was_killed,
)
from snakemake_executor_plugin_submitit.payload import Payload
from snakemake_executor_plugin_submitit.request import Request

PAUSES = (5, 10, 20, 40, 80, 160, 300)  # seconds between tries of a refused submission
STUCK = ("held", "NeverSatisfied", "BadConstraints", "InvalidAccount", "InvalidQOS", "down")


@dataclass
class Task:
    """One job of the workflow, on its way."""

    key: str
    name: str
    outputs: list[str]
    command: str
    threads: int
    request: Request
    entry: Entry | None = None
    ending: Ending | None = None  # set when it failed
    done: bool = False
    refusals: int = 0
    try_at: float = 0.0  # clock of the next try, while it is held
    told: set[str] = field(default_factory=set)  # what was said of it already
    ended_since: float | None = None  # when Slurm first showed a last state without a result


class Tracker:
    """Submits tasks and follows them; thread-safe. `say` tells the user one line."""

    def __init__(
        self,
        backend: Backend,
        journal: Journal,
        directory: str,
        tries: int,
        patience: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.backend, self.journal = backend, journal
        self.directory, self.tries, self.patience = directory, tries, patience
        self.say, self.clock = say, clock
        self.tasks: dict[str, Task] = {}
        self.lock = threading.RLock()

    # -- taking up what an earlier driver left ------------------------------------------

    def adopt(self, task: Task) -> bool:
        """Take up a job that an earlier driver submitted; False where there is none.

        A job that is still queued or running is always taken up; one that finished unseen
        only if it ran the command of today.
        """
        with self.lock:
            entry = self.journal.read(task.key)
            if entry is None or entry.backend != self.backend.name or entry.seen:
                return False
            if entry.state not in {ACTIVE, HELD}:
                return False
            self.backend.refresh({entry.id or entry.token: entry.submitted})
            if entry.id is None:  # its driver died between sbatch and the id's record
                found = self.backend.find(entry.token, entry.index)
                if found is None:
                    return False
                entry = replace(entry, ids=[found], state=ACTIVE, log=str(self.backend.log(found)))
            record, line = self.journal.result(entry), self.backend.line(entry.id)
            if record is not None and record.get("reason") is None:
                if record.get("status") != 0 or entry.command != command_hash(task.command):
                    return False
                if not all(Path(self.directory, output).exists() for output in task.outputs):
                    return False
                self.say(f"{task.name}: finished while no driver was watching (job {entry.id})")
            elif line is None and not self.backend.answered:
                self.say(f"{task.name}: was submitted as job {entry.id}; Slurm does not answer yet")
            elif line is None or is_finished(line.state):
                return False
            else:
                self.say(f"{task.name}: still {line.state.lower()} as job {entry.id}; taken up")
            task.entry = self.journal.write(entry)
            self.tasks[task.key] = task
            return True

    # -- submitting -----------------------------------------------------------------------

    def submit(self, tasks: list[Task]) -> None:
        """Submit new tasks, those of equal requests together where the backend has arrays."""
        with self.lock:
            for task in tasks:
                self.journal.begin_series(task.key)
                self.tasks[task.key] = task
            groups: dict[Request, list[Task]] = {}
            for task in tasks:
                groups.setdefault(task.request, []).append(task)
            size = self.backend.most_in_array
            for group in groups.values():
                for start in range(0, len(group), size):
                    self._submit_together(group[start : start + size])

    def _submit_together(self, tasks: list[Task]) -> None:
        token = new_token(tasks[0].key)
        for index, task in enumerate(tasks):
            earlier = task.entry.ids if task.entry else []
            entry = Entry(
                key=task.key,
                outputs=task.outputs,
                backend=self.backend.name,
                command=command_hash(task.command),
                state=HELD,
                token=token,
                index=index if len(tasks) > 1 else None,
                ids=[],
                memory_mb=task.request.mem_mb,
                submitted=time.time(),
                seen=False,
            )
            self.journal.result_path(task.key).unlink(missing_ok=True)
            task.entry = self.journal.write(entry)
            task.entry = replace(task.entry, ids=earlier)
            task.ended_since = None
        payloads = [self._payload(task, token) for task in tasks]
        name = tasks[0].name if len(tasks) == 1 else f"{tasks[0].name} and {len(tasks) - 1} more"
        try:
            ids = self.backend.submit(payloads, tasks[0].request, name)
        except Refused as refusal:
            for task in tasks:
                self._refused(task, refusal)
            return
        for task, one in zip(tasks, ids, strict=True):
            task.refusals = 0
            task.entry = self.journal.write(
                task.entry,
                ids=[*task.entry.ids, one],
                state=ACTIVE,
                log=str(self.backend.log(one)),
            )

    def _payload(self, task: Task, token: str) -> Payload:
        return Payload(
            key=task.key,
            token=token,
            command=task.command,
            directory=self.directory,
            home=str(self.journal.home),
            threads=task.threads,
            tries=self.tries,
        )

    def _refused(self, task: Task, refusal: Refused) -> None:
        if not refusal.transient:
            self._fail(task, Ending(Reason.REJECTED, f"not taken by Slurm: {refusal}"))
            return
        pause = PAUSES[min(task.refusals, len(PAUSES) - 1)]
        task.refusals += 1
        task.try_at = self.clock() + pause
        self.say(f"{task.name}: held, tried again in {pause} s ({refusal})")
        task.entry = self.journal.write(task.entry, state=HELD, reason="held", message=str(refusal))

    # -- following ------------------------------------------------------------------------

    def look(self) -> list[Task]:
        """See what has become of every task; returns those that are over, and forgets them."""
        with self.lock:
            results = self.journal.results()
            for task in list(self.tasks.values()):
                if task.entry.state == ACTIVE and task.key in results:
                    self._read_result(task)
            active = {
                task.entry.id: task.entry.submitted
                for task in self.tasks.values()
                if task.entry.state == ACTIVE
            }
            if self.backend.refresh(active):
                for task in list(self.tasks.values()):
                    if task.entry.state == ACTIVE:
                        self._read_state(task)
            now = self.clock()
            held = [t for t in self.tasks.values() if t.entry.state == HELD and t.try_at <= now]
            for task in held:  # one by one: the limit that refused them may admit some
                self._submit_together([task])
                if task.entry.state == HELD:
                    for other in held:
                        other.try_at = max(other.try_at, task.try_at)
                    break
            over = [task for task in self.tasks.values() if task.done or task.ending]
            for task in over:
                del self.tasks[task.key]
            return over

    def _read_result(self, task: Task) -> None:
        record = self.journal.result(task.entry)
        if record is None or record.get("reason") == "terminated":
            return  # of an earlier submission; or told to leave: Slurm's state says why
        ending = from_result(record, _tail(task))
        if ending is None:
            task.done = True
            starts = len(self.journal.starts(task.key))
            if starts > 1:
                self.say(f"{task.name}: done, at start {starts} of at most {self.tries}")
            task.entry = self.journal.write(task.entry, state=DONE, seen=True)
        elif not was_killed(record):  # else: Slurm may say that memory was the reason
            self._ended(task, ending)

    def _read_state(self, task: Task) -> None:
        """A job without a final result: what does the backend say of it?"""
        line = self.backend.line(task.entry.id)
        record = self.journal.result(task.entry)
        final = record is not None and record.get("reason") != "terminated"
        if final and not was_killed(record):
            return  # the next look reads it
        if line is None:
            if self.backend.missing_for(task.entry.id) >= self.patience:
                lost = Ending(Reason.NODE_FAIL, "Slurm has lost the job")
                self._ended(task, from_result(record, _tail(task)) if final else lost)
            return
        if not is_finished(line.state):
            task.ended_since = None
            self._tell_progress(task, line)
            return
        now = self.clock()
        if task.ended_since is None:
            task.ended_since = now
        # A job that Slurm puts back into the queue passes through a last state; and a result
        # may take its time to be seen on a network file system.
        settled = line.state in {"CANCELLED", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE"}
        wait = min(5.0, self.patience) if settled else self.patience
        if final and line.state not in {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"}:
            wait = 0
        if now - task.ended_since >= wait:
            tail = _tail(task)
            ending = from_state(line.state, record, tail)
            unknown = final and ending.reason is Reason.EXCEPTION
            self._ended(task, from_result(record, tail) if unknown else ending)

    def _tell_progress(self, task: Task, line) -> None:
        if line.state == "PENDING" and any(word in line.reason for word in STUCK):
            self._tell(task, f"job {task.entry.id} waits: {line.reason}")
        starts = len(self.journal.starts(task.key)) if line.state == "RUNNING" else 0
        if starts > 1:
            stops = self.journal.stops(task.key)
            why = f" after {stops[-1]['why']}" if stops else ""
            where = f"start {starts} of at most {self.tries}"
            self._tell(task, f"job {task.entry.id} runs again{why} ({where})")

    def _tell(self, task: Task, text: str) -> None:
        if text not in task.told:
            task.told.add(text)
            self.say(f"{task.name}: {text}")

    def _ended(self, task: Task, ending: Ending) -> None:
        starts = max(len(self.journal.starts(task.key)), len(task.entry.ids))
        if not tried_again(ending.reason, starts, self.tries):
            tried = f" (started {starts} times, at most {self.tries})" if starts > 1 else ""
            self._fail(task, Ending(ending.reason, ending.message + tried))
            return
        if ending.reason is Reason.OOM:
            task.request = task.request.with_memory(MEMORY_FACTOR)
        more = f", with {task.request.mem_mb} MB" if ending.reason is Reason.OOM else ""
        self.say(
            f"{task.name}: {ending.reason} as job {task.entry.id} ({ending.message}); submitted "
            f"again{more}, start {starts + 1} of at most {self.tries}"
        )
        self._submit_together([task])

    def _fail(self, task: Task, ending: Ending) -> None:
        task.ending = ending
        task.entry = self.journal.write(
            task.entry,
            state=FAILED,
            reason=str(ending.reason),
            message=ending.message,
            seen=True,
        )

    # -- leaving --------------------------------------------------------------------------

    def cancel(self, keep: bool) -> None:
        """On an interrupt: cancel what this driver submitted, or leave it running; say which."""
        with self.lock:
            submitted = [task for task in self.tasks.values() if task.entry.state == ACTIVE]
            ids = [task.entry.id for task in submitted]
            shown = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
            if keep:
                if ids:
                    self.say(f"{len(ids)} jobs go on ({shown}); the next start takes them up")
                return
            if ids:
                self.backend.cancel(ids)
                self.say(f"cancelled the {len(ids)} jobs of this driver ({shown})")
            for task in self.tasks.values():
                task.entry = self.journal.write(
                    task.entry,
                    state=CANCELLED,
                    reason="cancelled",
                    seen=True,
                    message="cancelled by an interrupt of its driver",
                )
            self.tasks.clear()


def _tail(task: Task) -> str:
    """The end of a job's log, in which it is looked for words of memory."""
    return "\n".join(log_tail(task.entry.log, 40))


def failure_text(task: Task, lines: int = 20) -> str:
    """The last word on a failed task: reason, message, the end of its log and its path."""
    log = task.entry.log
    tail = log_tail(log, lines) if log else []
    id_text = f"job {task.entry.id}" if task.entry.id else "not submitted"
    head = f"{task.name}: {task.ending.reason}: {task.ending.message} ({id_text})"
    if not log:
        return head
    body = [f"    {line}" for line in tail] or ["    (empty)"]
    return "\n".join([head, f"log: {log}", *body])
