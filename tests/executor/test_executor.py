"""Snakemake with the executor, as a user starts it, on a toy workflow."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import REPOSITORY, run
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from snakemake_executor_plugin_submitit import ExecutorSettings
from snakemake_executor_plugin_submitit.executor import Executor, site_from
from snakemake_executor_plugin_submitit.journal import Journal
from snakemake_executor_plugin_submitit.request import build_request

TOY = """
rule good:
    output: "out/good-{n}.txt"
    log: "logs/deep/good-{n}.log"
    threads: 2
    shell: "echo {wildcards.n} $OMP_NUM_THREADS > {output}; echo said >&2 2> {log}"

rule bad:
    output: "bad.txt"
    shell: "echo partial > {output}; echo line one; echo the cause >&2; exit 3"

rule unset:
    output: "unset.txt"
    shell: "echo $NO_SUCH_VARIABLE | cat > {output}"

rule python:
    input: "out/good-1.txt"
    output: "python.txt"
    run:
        with open(output[0], "w") as handle:
            handle.write(open(input[0]).read().strip() + " by python")

rule measured:
    output: "measured.txt"
    benchmark: "benchmarks/measured.tsv"
    shell: "echo measured > {output}"

rule model:
    output: "model.txt"
    resources: gpu=1, gpu_model="h100"
    shell: "touch {output}"
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "Snakefile").write_text(TOY)
    return tmp_path


def snakemake(folder, *arguments, backend="local", **more):
    choice = ["--submitit-backend", backend] if backend else []
    return run(
        *("snakemake", "--executor", "submitit", *choice, "--submitit-poll", "0.1"),
        *("--jobs", "4", "--cores", "4", "--latency-wait", "2"),
        *arguments,
        cwd=folder,
        timeout=60,
        **more,
    )


def refused(folder, *arguments, **more) -> str:
    """What Snakemake says of a start that must fail before any job, without a traceback."""
    done = snakemake(folder, *arguments, check=False, **more)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in said
    assert not (folder / "out").exists() and Journal(folder / ".snakemake/submitit").entries() == []
    return said


def test_a_failing_job_among_good_ones(toy):
    done = snakemake(
        toy, "--keep-going", "out/good-1.txt", "out/good-2.txt", "bad.txt", check=False
    )
    assert done.returncode == 1
    assert (toy / "out/good-1.txt").read_text() == "1 2\n"
    assert (toy / "out/good-2.txt").read_text() == "2 2\n"
    assert (toy / "logs/deep").is_dir()
    assert not (toy / "bad.txt").exists()  # what a failed job wrote is no result
    said = done.stderr
    assert re.search(
        r"^bad: exception: the command ended with exit status 3 \(job \d+\)$", said, re.M
    )
    (log,) = re.findall(r"^log: (.+)$", said, re.M)
    assert Path(log).is_file() and Path(log).is_relative_to(toy)
    assert "    line one\n    the cause\n" in said
    assert "CommandFailed" not in said
    entries = {
        entry.key.rpartition("-")[0]: entry
        for entry in Journal(toy / ".snakemake/submitit").entries()
    }
    assert {name: (entry.state, entry.reason) for name, entry in entries.items()} == {
        "good-1": ("done", ""),
        "good-2": ("done", ""),
        "bad": ("failed", "exception"),
    }
    assert entries["bad"].log == log and entries["bad"].outputs == ["bad.txt"]


def test_rules_that_are_no_plain_command_run_in_a_snakemake_of_their_own(toy):
    snakemake(toy, "python.txt", "measured.txt")
    assert (toy / "python.txt").read_text() == "1 2 by python"
    assert (toy / "measured.txt").read_text() == "measured\n"
    assert (toy / "benchmarks/measured.tsv").read_text().startswith("s\t")


def test_in_this_very_process_as_strictly_as_in_snakemakes_own_shell(toy):
    done = snakemake(
        toy, "--keep-going", "out/good-1.txt", "unset.txt", backend="debug", check=False
    )
    assert done.returncode == 1
    assert (toy / "out/good-1.txt").read_text() == "1 2\n"
    assert "NO_SUCH_VARIABLE: unbound variable" in done.stdout + done.stderr
    assert not (toy / "unset.txt").exists()


def test_a_missing_backend_is_one_clear_line(toy):
    said = refused(toy, "out/good-1.txt", backend=None)
    assert "submitit-backend is not set: write slurm, local or debug" in said.splitlines()


def test_a_wrong_resource_is_one_clear_line(toy):
    said = refused(toy, "model.txt", "--submitit-gpu-partitions", "l40s=a", backend="debug")
    (line,) = [line for line in said.splitlines() if "gpu_model: 'h100'" in line]
    assert "model" in line and "l40s" in line


def test_slurm_without_slurm_is_one_clear_line(toy, monkeypatch):
    (toy / "bin").mkdir()
    for name in ("bash", "sh", "env", "cat", "which"):
        (toy / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(toy / "bin"))
    said = refused(toy, "out/good-1.txt", backend="slurm")
    (line,) = [line for line in said.splitlines() if "submitit-backend slurm: " in line]
    assert "sbatch" in line and "no Slurm on this machine" in line


# -- without a Snakemake of their own --------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"backend": None}, "submitit-backend is not set: write slurm, local or debug"),
        ({"backend": "pbs"}, "submitit-backend is 'pbs': write slurm, local or debug"),
        ({"gpu_flag": "gpus"}, "submitit-gpu-flag is 'gpus': write gres or gpus-per-node"),
        (
            {"gpu_partitions": "l40s"},
            "submitit-gpu-partitions: 'l40s' is no MODEL=PARTITION "
            "(write for example l40s=gpu-l40s,a100=gpu-a100)",
        ),
        ({"tries": 0}, "submitit-tries is 0: the least is 1"),
        ({"interval": 0}, "submitit-interval is 0: the least is 1"),
        ({"signal_delay": 0}, "submitit-signal-delay is 0: the least is 1"),
        ({"poll": 0.0}, "submitit-poll is 0.0: the least is 0.05"),
        ({"array": -1}, "submitit-array is -1: the least is 0"),
        ({"patience": -1}, "submitit-patience is -1: the least is 0"),
        ({"cpu_partition": "a b"}, "submitit-cpu-partition is 'a b': not a name"),
        ({"account": "a\nb"}, "submitit-account is 'a\\nb': not a name"),
        ({"qos": "$x"}, "submitit-qos is '$x': not a name"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(setting, line):
    with pytest.raises(WorkflowError) as error:
        site_from(ExecutorSettings(**{"backend": "debug", **setting}))
    assert str(error.value) == line


def test_the_cluster_profile_is_understood():
    profile = yaml.safe_load((REPOSITORY / "profiles/slurm/config.yaml").read_text())
    given = {
        name.removeprefix("submitit-").replace("-", "_"): value
        for name, value in profile.items()
        if name.startswith("submitit-")
    }
    site = site_from(ExecutorSettings(**given))
    assert dict(site.gpu_partitions).keys() == {"l40s", "a100"}
    defaults = dict(text.split("=", 1) for text in profile["default-resources"])
    model = defaults["gpu_model"].strip('"')
    assert build_request({"gpu": 1, "gpu_model": model}, 1, site).gpus == 1


def test_the_thread_that_follows_jobs_finds_everything_there(tmp_path, monkeypatch):
    """It is started by the constructor of Snakemake's class, and ends at an exception."""
    monkeypatch.chdir(tmp_path)
    looked = []

    async def look(executor):
        return [info async for info in executor.check_active_jobs([])]

    def thread_is_first(self, workflow, logger):
        looked.append(asyncio.run(look(self)))
        looked.append(self.next_seconds_between_status_checks)

    monkeypatch.setattr(RemoteExecutor, "__init__", thread_is_first)
    settings = ExecutorSettings(backend="debug", poll=0.3)
    Executor(SimpleNamespace(executor_settings=settings), logging.getLogger())
    assert looked == [[], 0.3]
