"""What Slurm's answers mean, how seldom it is asked, and which refusals pass."""

from __future__ import annotations

import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_executor_plugin_submitit import slurm
from snakemake_executor_plugin_submitit.slurm import (
    QueueLine,
    Watcher,
    clean_environment,
    expand_ids,
    is_transient,
    parse_sacct,
    parse_squeue,
)

SQUEUE = """\
41|RUNNING|None|l40s1|1:02:03|0a1b2c3d4e5f
42|PENDING|Resources||0:00|(null)
43|PENDING|launch failed requeued held||0:00|note | with | bars
44|COMPLETED|None|a1001|0:07|
12_1|RUNNING|None|l40s[1-2]|0:10|feedfacecafe
12_[3-5,7%2]|PENDING|JobArrayTaskLimit||0:00|feedfacecafe
squeue: error: something else
"""

SACCT = """\
41|COMPLETED|l40s1|00:00:10
42|CANCELLED by 0|None assigned|00:00:00
43|OUT_OF_MEMORY|a1001|00:01:00
43.batch|FAILED|a1001|00:01:00
12_1|NODE_FAIL|l40s2|1-02:03:04
12_[3-5,7%2]|CANCELLED by 1000|None assigned|00:00:00
45||None assigned|00:00:00
"""


def test_squeue_lines():
    found = parse_squeue(SQUEUE)
    assert list(found) == "41 42 43 44 12_1 12_3 12_4 12_5 12_7".split()
    assert found["41"] == QueueLine("RUNNING", "None", "l40s1", "1:02:03", "0a1b2c3d4e5f")
    assert found["42"].state == "PENDING" and found["42"].reason == "Resources"
    assert found["43"].reason == "launch failed requeued held"
    assert found["43"].comment == "note | with | bars"
    assert found["44"].comment == ""
    assert found["12_7"] == QueueLine("PENDING", "JobArrayTaskLimit", "", "0:00", "feedfacecafe")


def test_sacct_lines():
    found = parse_sacct(SACCT)
    assert {one: line.state for one, line in found.items()} == {
        "41": "COMPLETED",
        "42": "CANCELLED",
        "43": "OUT_OF_MEMORY",
        "12_1": "NODE_FAIL",
        "12_3": "CANCELLED",
        "12_4": "CANCELLED",
        "12_5": "CANCELLED",
        "12_7": "CANCELLED",
    }
    assert found["12_1"].node == "l40s2" and found["12_1"].elapsed == "1-02:03:04"


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error: Unable to contact\n"])
def test_answers_that_tell_nothing(text):
    assert parse_squeue(text) == {} == parse_sacct(text)


@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 99)),
)
def test_arrays_are_expanded_like_by_hand(job, spans, limit):
    parts = [f"{low}-{low + more}" if more else str(low) for low, more in spans]
    text = f"{job}_[{','.join(parts)}{f'%{limit}' if limit else ''}]"
    wanted = {f"{job}_{i}" for low, more in spans for i in range(low, low + more + 1)}
    assert set(expand_ids(text)) == wanted


@pytest.mark.parametrize("text", ["12", "12_3", "12+0", "12.batch", "12_[x]"])
def test_other_ids_are_left_as_they_are(text):
    assert expand_ids(text) == [text]


# -- the watcher -----------------------------------------------------------------------------


class FakeSlurm:
    """squeue and sacct with answers set by the test, counted, under a clock set by the test."""

    def __init__(self, interval: float = 30):
        self.now, self.queue, self.accounts = 1000.0, {}, {}
        self.asked, self.remembered = [], []
        self.watcher = Watcher(interval, self.ask, self.remember, lambda: self.now)

    def ask(self):
        self.asked.append(self.now)
        return self.queue

    def remember(self, ids, since):
        self.remembered.append((sorted(ids), since))
        return self.accounts

    @property
    def commands(self) -> int:
        return len(self.asked) + len(self.remembered)

    def after(self, seconds: float, ids) -> bool:
        self.now += seconds
        return self.watcher.refresh(dict.fromkeys(ids, 500.0))


RUNNING = QueueLine("RUNNING", node="n1")


@pytest.mark.parametrize("present", [1000, 600, 0])
def test_a_thousand_jobs_cost_at_most_one_command_an_interval(present):
    ids = [str(i) for i in range(1000)]
    fake = FakeSlurm(interval=30)
    fake.queue = dict.fromkeys(ids[:present], RUNNING)
    for _ in range(300):  # ten minutes of looks
        before = fake.commands
        fake.after(2, ids)
        assert fake.commands - before <= 1
    assert 600 / 30 - 1 <= fake.commands <= 600 / 30 + 1
    assert fake.watcher.queries == fake.commands


def test_nobody_is_asked_about_nothing():
    fake = FakeSlurm()
    assert fake.after(100, []) is False
    assert fake.commands == 0


def test_before_the_first_answer_nothing_is_known():
    fake = FakeSlurm()
    fake.queue = None
    assert fake.after(0, ["1"]) is False
    assert not fake.watcher.answered
    assert fake.watcher.line("1") is None


def test_a_failing_query_leaves_what_was_known():
    fake = FakeSlurm()
    fake.queue = {"1": RUNNING}
    assert fake.after(0, ["1"]) is True
    fake.queue = None
    for _ in range(20):
        assert fake.after(30, ["1"]) is False
    assert fake.watcher.line("1") == RUNNING
    assert fake.watcher.missing_for("1") == 0


def test_an_empty_answer_means_unknown():
    fake = FakeSlurm()
    fake.accounts = {}
    assert fake.after(0, ["1"]) is True
    fake.after(30, ["1"])
    assert fake.remembered == [(["1"], 500.0)]
    assert fake.watcher.line("1") is None
    fake.queue = {"1": RUNNING}  # it was there all the time
    fake.after(30, ["1"])
    assert fake.watcher.line("1") == RUNNING
    assert fake.watcher.missing_for("1") == 0


def test_a_job_is_missing_since_the_first_answer_that_lacked_it():
    fake = FakeSlurm()
    fake.queue = {"1": RUNNING, "2": RUNNING}
    fake.after(0, ["1", "2"])
    fake.queue = {"2": RUNNING}
    for _ in range(6):
        fake.after(30, ["1", "2"])
    assert fake.watcher.missing_for("1") == 150  # 30 to 180
    assert fake.watcher.missing_for("2") == 0


def test_accounting_tells_what_squeue_has_forgotten():
    fake = FakeSlurm()
    fake.accounts = {"1": QueueLine("OUT_OF_MEMORY")}
    fake.after(0, ["1", "2"])
    assert fake.after(30, ["1", "2"]) is True
    assert fake.watcher.line("1").state == "OUT_OF_MEMORY"
    assert fake.watcher.missing_for("1") == 0
    assert fake.watcher.missing_for("2") == 30
    assert fake.watcher.accounting is True


def test_a_job_that_only_accounting_calls_running_stays_missing():
    fake = FakeSlurm()
    fake.accounts = {"1": RUNNING}  # a "runaway job": slurmctld has lost it
    for _ in range(10):
        fake.after(30, ["1"])
    assert fake.watcher.missing_for("1") == 270


def test_without_accounting_sacct_is_not_asked_again():
    fake = FakeSlurm()
    fake.accounts = None
    for _ in range(20):
        fake.after(30, ["1"])
    assert len(fake.remembered) == 1
    assert fake.watcher.accounting is False
    assert len(fake.asked) == 19


def test_accounting_has_no_turn_for_jobs_that_are_over():
    fake = FakeSlurm()
    fake.after(0, ["1"])
    fake.queue = {"2": RUNNING}
    assert fake.after(30, ["2"]) is True  # "1" has ended by its result on disk
    assert fake.remembered == []
    assert fake.watcher.line("2") == RUNNING


def test_jobs_are_found_by_their_comment():
    fake = FakeSlurm()
    fake.queue = parse_squeue(SQUEUE)
    fake.after(0, ["41"])
    assert set(fake.watcher.by_comment("feedfacecafe")) == {
        f"12_{index}" for index in (1, 3, 4, 5, 7)
    }
    assert set(fake.watcher.by_comment("0a1b2c3d4e5f")) == {"41"}
    assert fake.watcher.by_comment("not there") == {}


# -- the commands ----------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch):
    """The commands that would have been run; each answers nothing."""
    seen = []

    def run(command, timeout=60):
        seen.append(command)
        return ""

    monkeypatch.setattr(slurm, "_run", run)
    return seen


@pytest.mark.parametrize("days", [0, 1, 40])
def test_accounting_is_asked_from_the_day_of_submission(commands, days):
    submitted = time.time() - days * 86400
    assert slurm.sacct(["7", "12_1", "12_2"], submitted) == {}
    (command,) = commands
    start = time.mktime(
        time.strptime(command[command.index("-S") + 1], "%Y-%m-%dT%H:%M:%S")
    )  # without -S sacct begins at midnight
    assert submitted - 3700 < start < submitted
    assert command[command.index("-j") + 1] == "12,7"
    assert command[command.index("-o") + 1] == "JobID,State,NodeList,Elapsed"


def test_squeue_is_asked_once_for_all_of_the_user(commands, monkeypatch):
    monkeypatch.setenv("LOGNAME", "someone")
    slurm.squeue()
    (command,) = commands
    assert command[0] == "squeue" and "someone" in command
    assert command[command.index("-t") + 1] == "all"  # finished ones too, for MinJobAge
    assert {"-h", "-r"} <= set(command)
    wanted = re.findall(r"%\w", command[command.index("-o") + 1])
    assert wanted == ["%i", "%T", "%r", "%N", "%M", "%k"]


def test_every_id_is_cancelled_once_in_batches(commands):
    ids = [str(i) for i in range(450)]
    assert slurm.scancel(ids) == 450
    assert [command[0] for command in commands] == ["scancel"] * 3
    assert sum((command[1:] for command in commands), []) == ids


@pytest.mark.parametrize("command", [["false"], ["bash", "-c", "echo 41; exit 1"], ["sleep", "9"]])
def test_a_command_that_fails_or_hangs_tells_nothing(command):
    assert slurm._run(command, timeout=0.3) is None


def test_a_missing_command_is_told_at_once():
    with pytest.raises(slurm.SlurmMissing, match="no-such-squeue is not on the PATH"):
        slurm._run(["no-such-squeue"])


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: AssocMaxSubmitJobLimit",
        "sbatch: error: AssocGrpSubmitJobsLimit",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller "
        "(connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    ],
)
def test_refusals_that_may_pass(words):
    assert is_transient(words)


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Invalid generic resource (gres) specification",
        "sbatch: error: invalid partition specified: foo",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition "
        "combination specified",
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        "sbatch: error: Memory specification can not be satisfied",
        "sbatch: error: QOSMaxWallDurationPerJobLimit; sbatch: error: Batch job submission "
        "failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
        "sbatch: unrecognized option '--foo'",
        "no message",
    ],
)
def test_refusals_that_stay(words):
    assert not is_transient(words)


# -- the environment -------------------------------------------------------------------------


def test_an_allocation_around_the_driver_is_forgotten_but_not_the_cluster(monkeypatch):
    inherited = {
        "SLURM_JOB_ID": "1",
        "SLURM_CPUS_PER_TASK": "4",
        "SBATCH_PARTITION": "debug",
        "SRUN_CPUS_PER_TASK": "4",
        "SALLOC_ACCOUNT": "a",
        "SQUEUE_FORMAT": "%i",
    }
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "MY_SLURM_NOTE": "x", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in {**inherited, **kept}.items():
        monkeypatch.setenv(name, value)
    clean_environment()
    assert not set(inherited) & set(os.environ)
    assert {name: os.environ.get(name) for name in kept} == kept
