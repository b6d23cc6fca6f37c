"""Snakemake with the executor, as a user starts it, on a toy workflow."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import run

from snakemake_executor_plugin_submitit.journal import Journal

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
    # and the next start runs the failed one again, alone
    again = snakemake(toy, "--keep-going", "out/good-1.txt", "out/good-2.txt", "-n")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_rules_that_are_no_plain_command_run_in_a_snakemake_of_their_own(toy):
    snakemake(toy, "python.txt", "measured.txt")
    assert (toy / "python.txt").read_text() == "1 2 by python"
    assert (toy / "measured.txt").read_text() == "measured\n"
    assert (toy / "benchmarks/measured.tsv").read_text().startswith("s\t")


def test_in_this_very_process(toy):
    snakemake(toy, "out/good-1.txt", backend="debug")
    assert (toy / "out/good-1.txt").read_text() == "1 2\n"


def test_commands_run_as_strictly_as_snakemakes_own(toy):
    done = snakemake(toy, "unset.txt", backend="debug", check=False)
    assert done.returncode == 1
    assert "NO_SUCH_VARIABLE: unbound variable" in done.stdout + done.stderr
    assert not (toy / "unset.txt").exists()


@pytest.mark.parametrize(
    ("backend", "arguments", "line"),
    [
        (None, [], "submitit-backend is not set: write slurm, local or debug"),
        ("pbs", [], "submitit-backend is 'pbs': write slurm, local or debug"),
        (
            "debug",
            ["--submitit-gpu-partitions", "l40s"],
            "submitit-gpu-partitions: 'l40s' is no MODEL=PARTITION "
            "(write for example l40s=gpu-l40s,a100=gpu-a100)",
        ),
        ("debug", ["--submitit-tries", "0"], "submitit-tries is 0: the least is 1"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(toy, backend, arguments, line):
    said = refused(toy, "out/good-1.txt", *arguments, backend=backend)
    assert line in said.splitlines()


def test_a_wrong_resource_is_one_clear_line(toy):
    said = refused(toy, "model.txt", "--submitit-gpu-partitions", "l40s=a", backend="debug")
    (line,) = [line for line in said.splitlines() if "gpu_model: 'h100'" in line]
    assert "model" in line and "l40s" in line


def test_slurm_without_slurm_is_one_clear_line(toy, monkeypatch):
    folders = [f for f in os.environ["PATH"].split(":") if not Path(f, "sbatch").exists()]
    monkeypatch.setenv("PATH", ":".join([*folders, "/bin"]))
    if Path("/bin/sbatch").exists() or Path(sys.executable).with_name("sbatch").exists():
        pytest.skip("Slurm lies beside bash or Python here")
    said = refused(toy, "out/good-1.txt", backend="slurm")
    (line,) = [line for line in said.splitlines() if "submitit-backend slurm: " in line]
    assert "sbatch" in line and "no Slurm on this machine" in line
