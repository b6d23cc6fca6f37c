"""Why a job is not done: every state and every record has one reason."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_submitit.outcome import (
    Ending,
    Reason,
    from_result,
    from_state,
    is_finished,
    tried_again,
    was_killed,
)

# squeue's manual, JOB STATE CODES: those after which a job does not run any more.
LAST = {
    "BOOT_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "COMPLETED": "exception",  # without a result, something is wrong
    "DEADLINE": "timeout",
    "FAILED": "exception",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
}
NOT_LAST = """CONFIGURING COMPLETING PENDING RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD
REQUEUED RESIZING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED""".split()


@pytest.mark.parametrize(("state", "reason"), LAST.items())
def test_a_last_state_gives_its_reason_and_is_named(state, reason):
    assert is_finished(state)
    ending = from_state(state, None, "")
    assert ending.reason == reason and state in ending.message


@pytest.mark.parametrize("state", [*NOT_LAST, "", "UNKNOWN", "completed", "COMPLETED+", "NEW_WORD"])
def test_other_and_unknown_words_are_not_finished(state):
    assert not is_finished(state)


@pytest.mark.parametrize("reason", list(Reason))
def test_only_what_may_pass_is_tried_again_and_never_too_often(reason):
    passes = reason in ("oom", "timeout", "preempted", "node_fail")
    assert [tried_again(reason, tries, 3) for tries in range(1, 6)] == [
        passes,
        passes,
        False,
        False,
        False,
    ]


def test_success_is_no_ending():
    assert from_result({"status": 0, "reason": None}, "MemoryError\noom-kill") is None


@pytest.mark.parametrize(
    ("record", "tail", "reason", "words"),
    [
        ({"status": 1, "reason": None}, "", "exception", "exit status 1"),
        ({"status": 3, "reason": None}, "ValueError: x", "exception", "exit status 3"),
        ({"status": -9, "reason": None}, "", "exception", "signal 9"),
        ({"status": 137, "reason": None}, "", "exception", "signal 9"),
        ({"status": -11, "reason": None}, "", "exception", "signal 11"),
        ({"status": None, "reason": "tries", "tries": 5}, "", "timeout", "5 times"),
        ({"status": None, "reason": "timeout"}, "", "timeout", "time limit"),
        ({"status": 1, "reason": None}, "a\nMemoryError\n", "oom", "MemoryError"),
        ({"status": 1, "reason": None}, "MemoryError: Unable to allocate", "oom", "MemoryError"),
        (
            {"status": 1, "reason": None},
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory",
            "oom",
            "DefaultCPUAllocator",
        ),
        (
            {"status": -9, "reason": None},
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch",
            "oom",
            "oom-kill",
        ),
        (
            {"status": 137, "reason": None},
            "slurmstepd: error: Exceeded job memory limit",
            "oom",
            "memory limit",
        ),
        ({"status": 1, "reason": None}, "srun: error: n1: task 0: Out Of Memory", "oom", "Out Of"),
        # A log that only speaks of such errors is none.
        ({"status": 1, "reason": None}, "caught a MemoryError, going on", "exception", "status 1"),
    ],
)
def test_a_result_gives_its_reason(record, tail, reason, words):
    ending = from_result(record, tail)
    assert ending.reason == reason
    assert words in ending.message


@pytest.mark.parametrize(
    "tail",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
    ],
)
def test_gpu_memory_is_not_mended_by_more_of_the_hosts(tail):
    assert from_result({"status": 1, "reason": None}, tail).reason is Reason.EXCEPTION


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "COMPLETED"])
def test_memory_in_the_log_explains_a_state_that_does_not(state):
    assert from_state(state, None, "error: Detected 1 oom_kill event").reason is Reason.OOM


@pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL"])
def test_a_state_that_says_why_stands_against_the_log(state):
    assert from_state(state, None, "oom-kill").reason == LAST[state]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "preempted"),  # 143 after SIGTERM
        ("COMPLETED", "preempted"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "timeout"),
        ("NODE_FAIL", "node_fail"),
    ],
)
def test_a_job_that_was_told_to_leave_is_judged_by_its_state(state, reason):
    assert from_state(state, {"status": None, "reason": "terminated"}, "").reason == reason


def test_which_statuses_mean_sigkill():
    told = {status: was_killed({"status": status}) for status in (0, 1, 9, -9, 137, -15, 143, None)}
    assert [status for status, killed in told.items() if killed] == [-9, 137]


def test_an_ending_says_its_reason_as_a_plain_word():
    assert f"{Ending(Reason.NODE_FAIL, 'x').reason}" == "node_fail"
