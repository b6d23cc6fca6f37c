"""The driver itself: killed, interrupted, doubled; and what the next one finds."""

import os
import signal
import sys
import time

import pytest

NAPS = """
rule all:
    input: expand("out/{i}", i=range(3))
rule nap:
    output: "out/{i}"
    resources: mem_mb=300, runtime=5, slurm_partition="cpu"
    shell: "echo start {wildcards.i} >> starts; sleep {config[nap]}; touch {output}"
"""


def starts(toy) -> list[str]:
    path = toy.folder / "starts"
    return sorted(path.read_text().split()[1::2]) if path.exists() else []


def all_started(toy):
    return toy.until(lambda: len(starts(toy)) == 3)


def test_a_killed_drivers_jobs_are_taken_up_and_none_is_submitted_twice(workflow):
    """kill -9 of the driver; one job ends while nobody watches, two still run."""
    toy = workflow(NAPS.replace("sleep {config[nap]}", "sleep $((4 + 8 * ({wildcards.i} > 0)))"))
    driver = toy.start()
    all_started(toy)
    time.sleep(1)  # Snakemake, too, has to take note of what it submitted
    driver.kill()
    driver.wait()
    toy.until_file("out/0")
    assert toy.run("--unlock") == 0
    assert toy.run() == 0, toy.said
    assert starts(toy) == ["0", "1", "2"]
    assert len(toy.jobs()) == 3
    assert "nap-0: finished while no driver was watching" in toy.said
    assert "nap-1: still running as job" in toy.said
    assert all((toy.folder / f"out/{i}").exists() for i in range(3))


def test_a_driver_killed_between_sbatch_and_its_record_finds_the_job(workflow):
    """The id never reached the disk; the token in the job's comment leads to it."""
    toy = workflow(NAPS)
    script = (
        "import os, signal\n"
        "from snakemake_executor_plugin_submitit import backends\n"
        "real = backends.SlurmBackend.submit\n"
        "def submit(self, *arguments):\n"
        "    real(self, *arguments)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "backends.SlurmBackend.submit = submit\n"
        "from snakemake.cli import main\n"
        "import sys\n"
        "main(sys.argv[1:])\n"
    )
    words = toy.command("out/0", "--config", "nap=5")[3:]
    assert toy.run(command=[sys.executable, "-c", script, *words]) == -signal.SIGKILL
    assert len(toy.jobs()) == 1
    assert toy.run("--unlock", "--config", "nap=5") == 0
    assert toy.run("out/0", "--config", "nap=5") == 0, toy.said
    assert starts(toy) == ["0"] and len(toy.jobs()) == 1


@pytest.mark.parametrize("keep", [False, True])
def test_ctrl_c_cancels_what_this_driver_submitted_or_leaves_it_by_a_setting(workflow, keep):
    toy = workflow(NAPS)
    other = toy.cluster.run(
        "sbatch", "--parsable", "-p", "cpu", "-o", "/dev/null", "--wrap", "sleep 30"
    ).strip()
    flags = ["--submitit-keep-on-interrupt=true"] if keep else []
    driver = toy.start(*flags, "--config", "nap=8")
    all_started(toy)
    os.killpg(driver.pid, signal.SIGINT)
    assert toy.finish(driver, 30) != 0
    if keep:
        assert "3 jobs go on" in toy.said
        assert toy.run("--config", "nap=8") == 0, toy.said
        assert starts(toy) == ["0", "1", "2"]
    else:
        assert "cancelled the 3 jobs of this driver" in toy.said
        toy.until(lambda: not toy.running())
        assert not (toy.folder / "out/1").exists()
    alive = toy.cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
    assert other in alive  # a job of someone else's is not touched
    toy.cluster.run("scancel", other)


def test_after_ctrl_c_the_next_start_runs_the_cancelled_jobs_anew(workflow):
    toy = workflow(NAPS)
    driver = toy.start("--config", "nap=30")
    all_started(toy)
    os.killpg(driver.pid, signal.SIGINT)
    toy.finish(driver, 30)
    assert toy.run("--config", "nap=0") == 0, toy.said
    assert starts(toy) == ["0", "0", "1", "1", "2", "2"]


def test_a_second_driver_is_told_and_submits_nothing(workflow):
    toy = workflow(NAPS)
    first = toy.start("--config", "nap=6")
    all_started(toy)
    second = toy.run("out/1", "--config", "nap=6")
    assert second != 0
    assert "cannot be locked" in toy.said
    assert toy.finish(first) == 0
    assert starts(toy) == ["0", "1", "2"] and len(toy.jobs()) == 3
