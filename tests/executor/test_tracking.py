"""Judging jobs: with a backend whose answers, and a clock whose time, the test sets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from snakemake_executor_plugin_submitit.backends import Backend, Refused
from snakemake_executor_plugin_submitit.journal import ACTIVE, CANCELLED, HELD, Journal
from snakemake_executor_plugin_submitit.payload import append_line
from snakemake_executor_plugin_submitit.request import Site, build_request
from snakemake_executor_plugin_submitit.slurm import QueueLine
from snakemake_executor_plugin_submitit.tracking import PAUSES, Task, Tracker, failure_text

REQUEST = build_request({"mem_mb": 4000}, 1, Site())
PATIENCE = 120
LIMIT = "sbatch: error: AssocMaxSubmitJobLimit"


class DriverKilled(BaseException):
    """kill -9 of the driver in the middle of something."""


class FakeBackend(Backend):
    name = "slurm"
    answered = True

    def __init__(self, folder, most_in_array=1):
        super().__init__(folder)
        self.most_in_array = most_in_array
        self.states: dict[str, QueueLine] = {}
        self.missing: dict[str, float] = {}
        self.submissions = []  # (payloads, request, ids)
        self.refusal: Refused | None = None
        self.room: int | None = None  # submissions that are taken before a limit refuses
        self.cancelled = []
        self.dies = False

    def submit(self, payloads, request, name):
        if self.refusal and not self.room:
            raise self.refusal
        if self.room:
            self.room -= 1
        number = str(101 + len(self.submissions))
        ids = [f"{number}_{i}" for i in range(len(payloads))] if len(payloads) > 1 else [number]
        self.submissions.append((payloads, request, ids))
        for one in ids:
            self.states[one] = QueueLine("PENDING", comment=payloads[0].token)
        if self.dies:
            raise DriverKilled
        return ids

    def line(self, one):
        return self.states.get(one)

    def missing_for(self, one):
        return self.missing.get(one, 0.0)

    def cancel(self, ids):
        self.cancelled += ids
        return len(ids)

    def find(self, token, index):
        found = [one for one, line in self.states.items() if line.comment == token]
        if index is None:
            return next(iter(found), None)
        return next((one for one in found if one.endswith(f"_{index}")), None)


class World:
    """A driver with its backend; `restart` is another driver in the same folder."""

    def __init__(self, folder, tries=3, most_in_array=1):
        self.folder, self.tries, self.now, self.said = folder, tries, 0.0, []
        self.backend = FakeBackend(folder / "home" / "submitit", most_in_array)
        self.restart()

    def restart(self):
        self.journal = Journal(self.folder / "home")
        self.tracker = Tracker(
            self.backend,
            self.journal,
            directory=str(self.folder),
            tries=self.tries,
            patience=PATIENCE,
            say=self.said.append,
            clock=lambda: self.now,
        )

    def task(self, name="cell", command="train", **resources) -> Task:
        request = build_request({"mem_mb": 4000, **resources}, 1, Site())
        return Task(name, name, [f"{name}.json"], command, 1, request)

    def submit(self, *tasks):
        self.tracker.submit(list(tasks))
        return tasks[0]

    def state(self, task, state, **more):
        line = QueueLine(state, comment=task.entry.token, **more)
        self.backend.states[task.entry.id] = line

    def result(self, task, status, reason=None, **more):
        path = self.journal.result_path(task.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"status": status, "reason": reason, "token": task.entry.token, **more}
        path.write_text(json.dumps(record))

    def log(self, task, text):
        with open(task.entry.log, "w") as handle:
            handle.write(text)

    def look(self, after: float = 0.0):
        self.now += after
        return self.tracker.look()

    @property
    def submitted(self) -> int:
        return len(self.backend.submissions)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def over(found, task, reason):
    """The task, and nothing else, has failed for this reason."""
    assert found == [task]
    assert not task.done and task.ending.reason == reason
    return True


# -- results and states ----------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, "PENDING", "RUNNING", "COMPLETED", "FAILED", "NODE_FAIL"])
def test_a_result_on_disk_is_enough(world, state):
    task = world.submit(world.task())
    world.backend.states = {} if state is None else {task.entry.id: QueueLine(state)}
    world.backend.refresh = lambda ids: False  # whatever Slurm says or does not say
    world.result(task, 0)
    assert world.look() == [task] and task.done
    assert world.look() == []
    assert world.journal.read("cell").state == "done" and world.journal.read("cell").seen


def test_a_result_of_an_earlier_submission_is_none(world):
    task = world.submit(world.task())
    world.result(task, 0, token="another")
    assert world.look() == []


def test_a_running_job_is_left_alone(world):
    task = world.submit(world.task())
    for state in ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "A_NEW_WORD"] * 3:
        world.state(task, state)
        assert world.look(after=1000) == []
    assert world.submitted == 1


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_job_that_slurm_itself_queues_again_did_not_fail(world, state):
    task = world.submit(world.task())
    for _ in range(10):
        for passing in (state, "PENDING", "RUNNING"):
            world.state(task, passing)
            assert world.look(after=30) == []
    assert world.submitted == 1
    world.result(task, 0)
    assert world.look() == [task] and task.done


@pytest.mark.parametrize(
    ("state", "reason"),
    [("PREEMPTED", "preempted"), ("NODE_FAIL", "node_fail"), ("TIMEOUT", "timeout")],
)
def test_a_job_that_stays_away_is_submitted_again_but_not_for_ever(world, state, reason):
    task = world.submit(world.task())
    for n in range(1, 3):
        world.state(task, state)
        assert world.look() == [] and world.submitted == n
        assert world.look(after=PATIENCE) == []
        assert world.submitted == n + 1
        assert task.entry.id == str(101 + n) and task.request == REQUEST
    world.state(task, state)
    world.look()
    assert over(world.look(after=PATIENCE), task, reason)
    assert "started 3 times, at most 3" in task.ending.message
    assert world.submitted == 3
    entry = world.journal.read("cell")
    assert entry.state == "failed" and entry.reason == reason and entry.ids == ["101", "102", "103"]


def test_requeues_by_slurm_count_as_starts(world):
    task = world.submit(world.task())
    for n in range(3):
        append_line(world.journal.home / "tries" / "cell.jsonl", {"start": n})
    world.state(task, "NODE_FAIL")
    world.look()
    assert over(world.look(after=PATIENCE), task, "node_fail")
    assert world.submitted == 1


def test_running_out_of_memory_asks_for_more(world):
    task = world.submit(world.task())
    for wanted in (6000, 9000):
        world.state(task, "OUT_OF_MEMORY")
        world.look()
        assert world.look(after=5) == []
        assert world.backend.submissions[-1][1].mem_mb == wanted == task.entry.memory_mb
    world.state(task, "OUT_OF_MEMORY")
    world.look()
    assert over(world.look(after=5), task, "oom")
    assert "oom" in failure_text(task)


@pytest.mark.parametrize("status", [-9, 137])
def test_a_killed_command_is_judged_by_slurm(world, status):
    task = world.submit(world.task())
    world.state(task, "RUNNING")
    world.result(task, status)
    assert world.look() == []
    world.state(task, "OUT_OF_MEMORY")
    assert world.look(after=1) == []
    assert [request.mem_mb for _, request, _ in world.backend.submissions] == [4000, 6000]


@pytest.mark.parametrize("status", [-9, 137])
def test_a_killed_command_is_judged_by_slurm_even_if_slurm_was_first(world, status):
    task = world.submit(world.task())
    world.state(task, "OUT_OF_MEMORY")
    assert world.look() == []
    world.result(task, status)  # a slow file system
    assert world.look(after=1) == []
    assert world.backend.submissions[-1][1].mem_mb == 6000


def test_a_killed_command_that_slurm_says_nothing_about_is_an_exception(world):
    task = world.submit(world.task())
    world.state(task, "FAILED")
    world.result(task, -9)
    assert over(world.look(), task, "exception")
    assert "signal 9" in task.ending.message


def test_a_killed_command_of_a_lost_job_is_an_exception(world):
    task = world.submit(world.task())
    world.result(task, -9)
    world.backend.states.clear()
    world.backend.missing = {task.entry.id: PATIENCE}
    assert over(world.look(), task, "exception")


def test_a_killed_command_of_a_preempted_job_waits_for_its_return(world):
    task = world.submit(world.task())
    world.state(task, "PREEMPTED")
    world.result(task, -9)
    assert world.look() == [] and world.submitted == 1
    world.state(task, "PENDING")
    assert world.look(after=1000) == [] and world.submitted == 1


def test_memory_in_the_log_asks_for_more(world):
    task = world.submit(world.task())
    world.log(task, "loading\nMemoryError\n")
    world.result(task, 1)
    assert world.look() == []
    assert world.backend.submissions[-1][1].mem_mb == 6000


def test_an_exception_is_not_repeated(world):
    task = world.submit(world.task())
    world.log(task, "epoch 1\nValueError: wrong\n")
    world.result(task, 3)
    assert over(world.look(), task, "exception")
    assert world.submitted == 1
    text = failure_text(task)
    assert "cell: exception: " in text and "exit status 3" in text and "job 101" in text
    assert f"log: {task.entry.log}" in text and "    ValueError: wrong" in text


def test_a_job_without_a_result_waits_for_its_file_system(world):
    task = world.submit(world.task())
    world.state(task, "COMPLETED")
    assert world.look() == []
    assert world.look(after=PATIENCE - 1) == []
    world.result(task, 0)
    assert world.look() == [task] and task.done


def test_a_job_that_never_shows_a_result_is_an_exception(world):
    task = world.submit(world.task())
    world.state(task, "FAILED")
    world.look()
    assert over(world.look(after=PATIENCE), task, "exception")
    assert "FAILED" in task.ending.message and world.submitted == 1


def test_a_cancelled_job_is_not_repeated(world):
    task = world.submit(world.task())
    world.state(task, "CANCELLED")
    world.result(task, None, "terminated")
    world.look()
    assert over(world.look(after=10), task, "cancelled")
    assert world.submitted == 1


def test_a_job_told_to_leave_that_ended_was_preempted(world):
    task = world.submit(world.task())
    world.state(task, "FAILED")
    world.result(task, None, "terminated")
    world.look()
    world.look(after=PATIENCE)
    assert world.submitted == 2 and any("preempted" in text for text in world.said)


def test_a_job_told_to_leave_that_is_queued_goes_on(world):
    task = world.submit(world.task())
    world.result(task, None, "terminated")
    world.state(task, "PENDING")
    assert world.look(after=1000) == [] and world.submitted == 1


def test_too_many_starts_are_a_timeout(world):
    task = world.submit(world.task())
    for n in range(3):
        append_line(world.journal.home / "tries" / "cell.jsonl", {"start": n})
    world.result(task, None, "tries", tries=3)
    assert over(world.look(), task, "timeout")


def test_a_job_that_slurm_lacks_for_long_has_lost_its_node(world):
    task = world.submit(world.task())
    world.backend.states.clear()
    for seconds in (0, 60, PATIENCE - 1):
        world.backend.missing = {task.entry.id: seconds}
        assert world.look(after=1000) == [] and world.submitted == 1
    world.backend.missing = {task.entry.id: PATIENCE}
    assert world.look() == []
    assert world.submitted == 2 and any("node_fail" in text for text in world.said)


def test_why_a_job_waits_or_runs_again_is_said_once(world):
    task = world.submit(world.task())
    for _ in range(5):
        world.state(task, "PENDING", reason="launch failed requeued held")
        world.look(after=30)
    for n in range(2):
        append_line(world.journal.home / "tries" / "cell.jsonl", {"start": n})
    append_line(world.journal.home / "tries" / "cell.jsonl", {"stop": 1, "why": "time limit"})
    for _ in range(5):
        world.state(task, "RUNNING")
        world.look(after=30)
    assert world.said == [
        "cell: job 101 waits: launch failed requeued held",
        "cell: job 101 runs again after time limit (start 2 of at most 3)",
    ]


# -- refusals --------------------------------------------------------------------------------


def test_a_refusal_that_may_pass_is_held_with_growing_pauses(world):
    world.backend.refusal = Refused(LIMIT, transient=True)
    tasks = [world.task(f"cell-{i}") for i in range(3)]
    asked = []
    submit = world.backend.submit
    world.backend.submit = lambda *given: (asked.append(world.now), submit(*given))[1]
    world.submit(*tasks)
    asked.clear()
    while world.now < 2000:
        assert world.look(after=1) == []
    gaps = [after - before for before, after in zip(asked, asked[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[0] >= PAUSES[0] and gaps[-1] == PAUSES[-1]
    assert len(asked) < 12  # for all three together
    assert all(world.journal.read(task.key).state == HELD for task in tasks)
    assert LIMIT in world.said[0] and LIMIT in world.journal.read("cell-0").message
    world.backend.refusal = None
    world.look(after=PAUSES[-1])
    assert [task.entry.state for task in tasks] == [ACTIVE] * 3
    for task in tasks:
        world.result(task, 0)
    assert world.look() == tasks and all(task.done for task in tasks)


def test_what_fits_below_a_limit_runs_while_the_rest_is_held(world):
    world.backend.refusal, world.backend.room = Refused(LIMIT, transient=True), 2
    tasks = [world.task(f"cell-{i}") for i in range(4)]
    world.submit(*tasks)
    assert [task.entry.state for task in tasks] == [ACTIVE, ACTIVE, HELD, HELD]
    world.result(tasks[0], 0)
    world.backend.room = 1
    assert world.look(after=PAUSES[0]) == [tasks[0]]
    assert [task.entry.state for task in tasks[1:]] == [ACTIVE, ACTIVE, HELD]


def test_a_final_refusal_fails_at_once_with_the_words_of_sbatch(world):
    words = "sbatch: error: invalid partition specified: foo"
    world.backend.refusal = Refused(words, transient=False)
    task = world.submit(world.task())
    assert over(world.look(), task, "rejected")
    assert words in task.ending.message and words in failure_text(task)
    assert "not submitted" in failure_text(task)


def test_holding_a_job_that_is_submitted_again_forgets_no_id(world):
    task = world.submit(world.task())
    world.state(task, "NODE_FAIL")
    world.look()
    world.backend.refusal = Refused(LIMIT, transient=True)
    world.look(after=PATIENCE)
    assert task.entry.state == HELD
    world.backend.refusal = None
    world.look(after=PAUSES[0])
    assert world.journal.read("cell").ids == ["101", "102"]


# -- arrays ----------------------------------------------------------------------------------


def test_equal_requests_go_together_up_to_the_bound(tmp_path):
    world = World(tmp_path, most_in_array=4)
    tasks = [world.task(f"cell-{i}") for i in range(10)]
    world.submit(*tasks)
    assert [len(payloads) for payloads, _, _ in world.backend.submissions] == [4, 4, 2]
    assert [task.entry.id for task in tasks[:5]] == ["101_0", "101_1", "101_2", "101_3", "102_0"]
    assert [task.entry.index for task in tasks[:5]] == [0, 1, 2, 3, 0]
    assert len({task.entry.token for task in tasks[:4]}) == 1 != len({t.entry.token for t in tasks})
    for payloads, _, ids in world.backend.submissions:
        for payload, one in zip(payloads, ids, strict=True):
            assert world.journal.read(payload.key).id == one


def test_different_requests_never_go_together(tmp_path):
    world = World(tmp_path, most_in_array=100)
    memory = [1000, 2000, 1000, 3000, 2000, 1000]
    tasks = [world.task(f"cell-{i}", mem_mb=mb) for i, mb in enumerate(memory)]
    world.submit(*tasks)
    sent = {
        request.mem_mb: [payload.key for payload in payloads]
        for payloads, request, _ in world.backend.submissions
    }
    assert world.submitted == 3
    assert sent == {
        1000: ["cell-0", "cell-2", "cell-5"],
        2000: ["cell-1", "cell-4"],
        3000: ["cell-3"],
    }
    assert all(task.entry.memory_mb == mb for task, mb in zip(tasks, memory, strict=True))


def test_one_failing_job_of_an_array_fails_alone(tmp_path):
    world = World(tmp_path, most_in_array=10)
    tasks = [world.task(f"cell-{i}") for i in range(3)]
    world.submit(*tasks)
    world.result(tasks[1], 1)
    assert over(world.look(), tasks[1], "exception")
    for task in (tasks[0], tasks[2]):
        world.result(task, 0)
    assert [task.done for task in world.look()] == [True, True]


# -- what an earlier driver left -------------------------------------------------------------


def after_a_crash(world, **changes) -> Task:
    """The same job as another driver would bring it."""
    world.restart()
    return replace(world.task(**changes))


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_that_still_runs_is_taken_up(world, state):
    old = world.submit(world.task())
    world.state(old, state)
    task = after_a_crash(world)
    assert world.tracker.adopt(task)
    assert task.entry.id == "101" and world.submitted == 1
    world.result(task, 0)
    assert world.look() == [task] and task.done


def test_a_job_that_still_runs_is_taken_up_even_if_its_command_has_changed(world):
    world.submit(world.task())
    assert world.tracker.adopt(after_a_crash(world, command="train --other"))


def test_a_job_that_finished_unseen_is_done(world):
    old = world.submit(world.task())
    world.result(old, 0)
    (world.folder / "cell.json").touch()
    world.backend.states.clear()
    task = after_a_crash(world)
    assert world.tracker.adopt(task)
    assert world.look() == [task] and task.done
    assert world.submitted == 1


@pytest.mark.parametrize("why", ["command", "output", "failed", "no result", "lost"])
def test_a_job_that_finished_unseen_but_not_well_runs_anew(world, why):
    old = world.submit(world.task())
    world.state(old, "FAILED" if why in ("failed", "no result") else "COMPLETED")
    if why not in ("no result", "lost"):
        world.result(old, 1 if why == "failed" else 0)
    if why == "lost":
        world.backend.states.clear()
    if why != "output":
        (world.folder / "cell.json").touch()
    task = after_a_crash(world, command="train --other" if why == "command" else "train")
    assert not world.tracker.adopt(task)
    world.submit(task)
    assert world.look() == [] and world.submitted == 2  # the old result counts for nothing


@pytest.mark.parametrize("size", [1, 3])
def test_a_driver_that_died_before_it_knew_the_id_loses_no_job(tmp_path, size):
    world = World(tmp_path, most_in_array=10)
    world.backend.dies = True
    names = [f"cell-{i}" for i in range(size)]
    with pytest.raises(DriverKilled):
        world.submit(*[world.task(name) for name in names])
    assert [world.journal.read(name).ids for name in names] == [[]] * size
    world.backend.dies = False
    world.restart()
    tasks = [world.task(name) for name in names]
    assert all(world.tracker.adopt(task) for task in tasks)
    wanted = ["101"] if size == 1 else ["101_0", "101_1", "101_2"]
    assert [task.entry.id for task in tasks] == wanted
    assert [world.journal.read(name).state for name in names] == [ACTIVE] * size
    for task in tasks:
        world.result(task, 0)
    assert world.look() == tasks


def test_a_driver_that_died_before_sbatch_submits_now(world):
    world.backend.submit = None  # the call itself fails
    with pytest.raises(TypeError):
        world.submit(world.task())
    del world.backend.submit
    task = after_a_crash(world)
    assert not world.tracker.adopt(task)
    world.submit(task)
    assert world.submitted == 1 and task.entry.state == ACTIVE


def test_a_driver_that_died_while_submitting_again_finds_the_new_job(world):
    old = world.submit(world.task())
    world.state(old, "NODE_FAIL")
    world.look()
    world.backend.dies = True
    with pytest.raises(DriverKilled):
        world.look(after=PATIENCE)
    world.backend.dies = False
    task = after_a_crash(world)
    assert world.tracker.adopt(task)
    assert task.entry.id == "102" and world.submitted == 2


def test_while_slurm_does_not_answer_a_job_is_taken_up_rather_than_doubled(world):
    world.submit(world.task())
    world.backend.states.clear()
    world.backend.answered = False
    task = after_a_crash(world)
    assert world.tracker.adopt(task)
    assert "does not answer" in world.said[-1]
    world.backend.answered = True
    world.state(task, "RUNNING")
    assert world.look() == [] and world.submitted == 1


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_a_job_whose_end_was_seen_is_not_taken_up(world, end):
    old = world.submit(world.task())
    (world.folder / "cell.json").touch()
    if end == "cancelled":
        world.tracker.cancel(keep=False)
    else:
        world.result(old, 0 if end == "done" else 1)
        world.look()
    world.backend.states["101"] = QueueLine("RUNNING")  # not even then
    assert not world.tracker.adopt(after_a_crash(world))


def test_a_job_of_another_backend_is_not_taken_up(world):
    world.submit(world.task())
    task = after_a_crash(world)
    world.backend.name = "local"
    assert not world.tracker.adopt(task)


def test_a_job_that_nobody_submitted_is_not_taken_up(world):
    assert not world.tracker.adopt(world.task())


# -- leaving ---------------------------------------------------------------------------------


def test_an_interrupt_cancels_each_job_once_and_says_which(world):
    tasks = [world.task(f"cell-{i}") for i in range(3)]
    world.submit(*tasks)
    world.result(tasks[0], 0)
    world.look()
    world.tracker.cancel(keep=False)
    world.tracker.cancel(keep=False)
    assert world.backend.cancelled == ["102", "103"]
    entries = [world.journal.read(task.key) for task in tasks]
    assert [entry.state for entry in entries] == ["done", CANCELLED, CANCELLED]
    assert world.said == ["cancelled the 2 jobs of this driver (102, 103)"]
    assert world.look() == []


def test_an_interrupt_forgets_what_was_held(world):
    world.backend.refusal = Refused(LIMIT, transient=True)
    task = world.submit(world.task())
    world.tracker.cancel(keep=False)
    world.backend.refusal = None
    assert world.look(after=1000) == [] and world.submitted == 0
    assert world.backend.cancelled == []
    assert world.journal.read(task.key).state == CANCELLED


def test_an_interrupt_may_leave_the_jobs_to_the_next_start(world):
    world.submit(world.task())
    world.tracker.cancel(keep=True)
    assert world.backend.cancelled == []
    assert world.said == ["1 jobs go on (101); the next start takes them up"]
    assert world.tracker.adopt(after_a_crash(world))
