"""The backends: sbatch through submitit with a stand-in for sbatch, and processes."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_submitit.backends import (
    LocalBackend,
    Refused,
    SlurmBackend,
    sbatch_words,
)
from snakemake_executor_plugin_submitit.payload import Payload
from snakemake_executor_plugin_submitit.request import Site, build_request
from snakemake_executor_plugin_submitit.slurm import SlurmMissing

REQUEST = build_request({"gpu": 1, "gpu_model": "l40s", "mem_mb": 2000}, 2, Site())


def payloads(folder: Path, count: int = 1, command: str = "true") -> list[Payload]:
    return [
        Payload(f"cell-{i}", "t1", command, str(folder), str(folder / "home"), 1, 3)
        for i in range(count)
    ]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with stand-ins for Slurm's commands; `sbatch` does what `programs("...")` says."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(sbatch: str):
        for name in ("sbatch", "squeue", "scancel", "scontrol", "srun"):
            body = sbatch if name == "sbatch" else "exit 0"
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return write


def slurm_backend(tmp_path, array=0) -> SlurmBackend:
    return SlurmBackend(tmp_path / "jobs", interval=30, signal_delay=120, tries=3, array=array)


def test_one_job_is_one_sbatch(tmp_path, programs):
    programs(f'cp "$1" {tmp_path}/script; echo Submitted batch job 77')
    backend = slurm_backend(tmp_path)
    (payload,) = payloads(tmp_path)
    assert backend.submit([payload], REQUEST, "cell-0") == ["77"]
    script = (tmp_path / "script").read_text()
    assert "#SBATCH --gres=gpu:l40s:1\n" in script and "#SBATCH --comment=t1\n" in script
    assert "--array" not in script
    assert "\nexec " in script  # signals go to the job itself, not to a shell around it
    assert (tmp_path / "jobs" / "77_submitted.pkl").exists()
    assert f"--output={backend.log('%j')}" in script


def test_an_array_is_one_sbatch_with_one_payload_an_index(tmp_path, programs):
    programs(f'cp "$1" {tmp_path}/script; echo once >> {tmp_path}/calls; echo batch job 78')
    backend = slurm_backend(tmp_path, array=5)
    assert backend.most_in_array == 5
    sent = payloads(tmp_path, 3)
    assert backend.submit(sent, REQUEST, "cells") == ["78_0", "78_1", "78_2"]
    assert (tmp_path / "calls").read_text() == "once\n"
    script = (tmp_path / "script").read_text()
    assert "#SBATCH --array=0-2%3\n" in script
    assert f"--output={backend.log('%A_%a')}" in script and "\nexec " in script
    for index, payload in enumerate(sent):
        data = (tmp_path / "jobs" / f"78_{index}_submitted.pkl").read_bytes()
        assert pickle.loads(data).function == payload


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("words", "transient"),
    [
        ("sbatch: error: AssocMaxSubmitJobLimit", True),
        ("sbatch: error: invalid partition specified: foo", False),
    ],
)
def test_a_refusal_is_in_the_words_of_sbatch_and_leaves_no_files(
    tmp_path, programs, words, transient, count
):
    second = "sbatch: error: Batch job submission failed: it is so"
    programs(f"echo '{words}' >&2; echo '{second}' >&2; exit 1")
    backend = slurm_backend(tmp_path, array=5)
    with pytest.raises(Refused) as refusal:
        backend.submit(payloads(tmp_path, count), REQUEST, "cell")
    assert str(refusal.value) == f"{words}; {second}"
    assert refusal.value.transient is transient
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_refusal_leaves_the_files_of_other_jobs(tmp_path, programs):
    programs("echo Submitted batch job 77")
    backend = slurm_backend(tmp_path)
    backend.submit(payloads(tmp_path), REQUEST, "cell")
    before = {path.name for path in (tmp_path / "jobs").iterdir()}
    programs("exit 1")
    with pytest.raises(Refused):
        backend.submit(payloads(tmp_path), REQUEST, "cell")
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sbatch: error: a\nsbatch: error: a\nfailed\n", "sbatch: error: a"),
        ("one\n\n  two  \n", "two"),
        ("", "no message"),
    ],
)
def test_the_words_of_a_refusal(text, words):
    assert sbatch_words(text) == words


def test_without_slurm_the_missing_commands_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmMissing) as missing:
        slurm_backend(tmp_path)
    assert "sbatch" in str(missing.value) and "\n" not in str(missing.value)


def until(condition, seconds: float = 15):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_local_job_runs_is_cancelled_and_is_seen_to_end(tmp_path):
    backend = LocalBackend(tmp_path / "jobs")
    command = "trap 'touch saved; exit 0' TERM; touch started; while true; do sleep 0.05; done"
    (one,) = backend.submit(payloads(tmp_path, command=command), REQUEST, "cell")
    until((tmp_path / "started").exists)
    assert backend.line(one).state == "RUNNING"
    backend.cancel([one])
    until(lambda: backend.line(one).state == "FAILED")
    assert (tmp_path / "saved").exists()
    record = json.loads((tmp_path / "home" / "results" / "cell-0.json").read_text())
    assert record["reason"] == "terminated" and record["job"] == one
    assert backend.log(one).exists()


def test_another_process_with_a_jobs_number_is_not_the_job(tmp_path):
    backend = LocalBackend(tmp_path / "jobs")
    assert backend.line(str(os.getpid())).state == "FAILED"
    backend.cancel([str(os.getpid())])  # and is not harmed
