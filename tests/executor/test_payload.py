"""A job's command as a real process: how it ends, and what reaches it of the job's signals."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_submitit import payload as module
from snakemake_executor_plugin_submitit.payload import (
    Payload,
    append_line,
    group_lives,
    read_lines,
)

# What submitit does around a payload, the time limit's signal included.
JOB = """
import json, signal, sys
from snakemake_executor_plugin_submitit import payload

payload.LEAVE_SECONDS = float(sys.argv[2])
job = payload.Payload(**json.loads(sys.argv[1]))

def time_limit(*_):
    if job.checkpoint().function is not job:
        sys.exit(1)
    if sys.argv[3] == "requeue":
        sys.exit(77)
    raise RuntimeError("timed-out too many times")

signal.signal(signal.SIGUSR2, time_limit)
job()
"""
SAVES = """
trap 'echo saved > saved; exit 0' TERM
touch started
while true; do sleep 0.02; done
"""


class Job:
    """One payload in a child process of its own session, as a job is."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process = None

    def values(self, command: str, **more) -> dict:
        return {
            "key": "cell",
            "token": "t1",
            "command": command,
            "directory": str(self.folder),
            "home": str(self.folder / "home"),
            "threads": 3,
            "tries": 5,
            **more,
        }

    def start(self, command: str, leave: float = 20, end: str = "requeue", **more) -> Job:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        words = [json.dumps(self.values(command, **more)), str(leave), end]
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", JOB, *words],
                stderr=log,
                env=environment | {"SLURM_JOB_ID": "41"},
                start_new_session=True,
            )
        return self

    def end(self, timeout: float = 15) -> int:
        """The exit status of the job's own process, whatever it leaves behind."""
        return self.process.wait(timeout)

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + 15
        while not (self.folder / name).exists():
            assert time.monotonic() < until and self.process.poll() is None, f"no {name}"
            time.sleep(0.01)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    @property
    def result(self) -> dict | None:
        path = self.folder / "home" / "results" / "cell.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def tries(self) -> list[dict]:
        return read_lines(self.folder / "home" / "tries" / "cell.jsonl")


@pytest.fixture
def job(tmp_path):
    one = Job(tmp_path)
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()


def test_success_is_recorded_and_leaves_with_0(job):
    assert job.start("pwd > where; echo $OMP_NUM_THREADS $MKL_NUM_THREADS > threads").end() == 0
    assert job.result["status"] == 0 and job.result["reason"] is None
    assert job.result["token"] == "t1" and job.result["job"] == "41"
    assert job.text("where") == str(job.folder)
    assert job.text("threads") == "3 3"
    (start,) = job.tries
    assert start["token"] == "t1" and start["job"] == "41" and start["restart"] == 0
    assert abs(start["start"] - time.time()) < 60


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 3", 3), ("kill -9 $$", -9), ("set -e; bash -c 'kill -9 $$'; true", 137)],
)
def test_failure_is_recorded_and_the_job_fails_too(job, command, status):
    assert job.start(command).end() == (status if status > 0 else 128 - status)
    assert job.result["status"] == status and job.result["reason"] is None
    assert "Traceback" not in job.text("log")


def test_sigterm_lets_the_command_save_and_is_recorded(job):
    job.start(SAVES).wait_for("started")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end() == 143
    assert job.text("saved") == "saved"
    assert job.result["status"] is None and job.result["reason"] == "terminated"
    assert [line.get("why") for line in job.tries] == [None, "SIGTERM"]


def test_a_process_under_bash_may_save_even_where_bash_leaves_at_once(job):
    program = f"{sys.executable} -c \"exec(open('program').read())\""
    (job.folder / "program").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        "    open('saved', 'w').write('whole')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('started', 'w')\n"
        "while True: time.sleep(0.02)\n"
    )
    job.start(f"{program}; echo after").wait_for("started")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end() == 143
    assert job.text("saved") == "whole"


def test_a_second_sigterm_does_not_disturb_the_leaving(job):
    job.start(SAVES.replace("echo saved", "sleep 0.5; echo saved")).wait_for("started")
    for _ in range(3):
        os.kill(job.process.pid, signal.SIGTERM)
        time.sleep(0.1)
    assert job.end() == 143
    assert job.text("saved") == "saved"
    assert job.result["reason"] == "terminated"


def test_a_command_that_ignores_sigterm_is_killed(job):
    job.start(
        "trap '' TERM; echo $$ > started.tmp; mv started.tmp started; while true; do sleep 1; done",
        leave=0.3,
    ).wait_for("started")
    before = time.monotonic()
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end() == 143
    assert 0.3 <= time.monotonic() - before < 5
    assert job.result["reason"] == "terminated"
    time.sleep(0.1)
    assert not group_lives(int(job.text("started")))


def test_the_time_limit_lets_the_command_save_and_leaves_no_result(job):
    job.start(SAVES).wait_for("started")
    before = time.monotonic()
    os.killpg(job.process.pid, signal.SIGUSR2)
    assert job.end() == 77
    assert time.monotonic() - before < 5
    assert job.text("saved") == "saved"
    assert job.result is None
    assert [line.get("why") for line in job.tries] == [None, "time limit"]


def test_the_time_limit_kills_a_command_that_does_not_leave(job):
    job.start("trap '' TERM; touch started; while true; do sleep 1; done", leave=0.3)
    job.wait_for("started")
    os.killpg(job.process.pid, signal.SIGUSR2)
    assert job.end(timeout=8) == 77
    assert job.result is None


def test_the_time_limit_once_too_often_is_recorded_as_a_timeout(job):
    job.start(SAVES, end="give up").wait_for("started")
    os.killpg(job.process.pid, signal.SIGUSR2)
    assert job.end() not in (0, None)
    assert job.text("saved") == "saved"
    assert job.result["reason"] == "timeout"
    assert job.result["message"] == "timed-out too many times"


def test_sigusr2_never_reaches_the_command(job):
    """submitit's signal kills by default; neither the shell nor its children may get it so."""
    job.start(
        "echo $$ > started.tmp; mv started.tmp started; "
        "while [ ! -e go ]; do sleep 0.02; done; exit 0"
    ).wait_for("started")
    os.killpg(int(job.text("started")), signal.SIGUSR2)
    time.sleep(0.2)
    (job.folder / "go").touch()
    assert job.end() == 0
    assert job.result["status"] == 0


def test_a_job_is_not_started_more_often_than_allowed(job):
    for n in range(1, 4):
        job.start("echo run >> runs; exit 1", tries=2).end()
        assert len(job.text("runs").split()) == min(n, 2)
    assert job.result["reason"] == "tries" and job.result["tries"] == 2


def test_an_old_result_is_gone_before_the_command_starts_again(job):
    job.start("exit 1").end()
    assert job.result["status"] == 1
    job.start("test ! -e home/results/cell.json").end()
    assert job.result["status"] == 0


def test_a_torn_line_costs_no_later_one(tmp_path):
    path = tmp_path / "tries.jsonl"
    append_line(path, {"start": 1})
    with open(path, "a") as handle:
        handle.write('{"start": 2, "jo')  # killed here
    append_line(path, {"start": 3})
    append_line(path, {"start": 4})
    assert [line["start"] for line in read_lines(path)] == [1, 3, 4]
    assert read_lines(tmp_path / "none") == []


def test_lines_that_are_no_records_are_left_out(tmp_path):
    (tmp_path / "lines").write_bytes(b'3\n"start"\n[]\n\xff\n{"start": 1}\n')
    assert read_lines(tmp_path / "lines") == [{"start": 1}]


def test_a_payload_can_be_sent_before_and_after_it_ran(job):
    one = Payload(**job.values("exit 0"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert one() == 0
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again() == 0


def test_in_process_a_failure_ends_it_only_if_strict(job):
    before = signal.getsignal(signal.SIGTERM)
    assert Payload(**job.values("exit 4"), strict=False)() == 4
    with pytest.raises(SystemExit) as left:
        Payload(**job.values("exit 4"))()
    assert left.value.code == 4
    assert signal.getsignal(signal.SIGTERM) is before


def test_own_variables_come_before_the_thread_counts(job):
    values = job.values('echo "$OMP_NUM_THREADS $MINE" > seen')
    assert Payload(**values, environment={"OMP_NUM_THREADS": "7", "MINE": "x"})() == 0
    assert job.text("seen") == "7 x"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SLURM_JOB_ID": "8"}, "8"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "0"}, "8_0"),
        ({"SUBMITIT_LOCAL_JOB_ID": "123"}, "123"),
        ({}, ""),
    ],
)
def test_a_job_knows_the_id_that_its_driver_knows(monkeypatch, variables, wanted):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SUBMITIT_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module.job_id() == wanted
