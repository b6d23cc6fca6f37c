"""Toy jobs on a real Slurm: where they land, how they end, and what the driver says of it."""

import json
import re

import pytest

GPUS = """
rule all:
    input: expand("out/{kind}-{i}", kind=["l40s", "a100"], i=range(3)), "out/either", "out/none"
rule typed:
    output: "out/{kind}-{i}"
    threads: 3
    resources: gpu=2, gpu_model=lambda w: w.kind, mem_mb=300, runtime=5
    shell: "echo $SLURM_JOB_PARTITION ${{CUDA_VISIBLE_DEVICES:-none}} $SLURM_CPUS_PER_TASK "
        "$OMP_NUM_THREADS > {output}"
use rule typed as either with:
    output: "out/either"
    resources: gpu=1, gpu_model="l40s|a100", mem_mb=300, runtime=5
use rule typed as none with:
    output: "out/none"
    resources: mem_mb=300, runtime=5, slurm_partition="cpu"
"""

ENDINGS = r"""
ENDS = {
    "good": "true",
    "status": "echo before the end >&2; exit 3",
    "sysexit": "python -c 'import sys; sys.exit(\"no such thing\")'",
    "raised": "python -c 'raise KeyError(42)'",
    "killed": "kill -9 $$",
    "jobkilled": "kill -9 $PPID; sleep 20",
}
rule all:
    input: expand("out/{end}", end=ENDS), "out/nodevice", "out/nopartition"
rule end:
    output: "out/{end}"
    params: lambda w: ENDS[w.end]
    resources: mem_mb=300, runtime=5, slurm_partition="cpu"
    shell: "{params}; touch {output}"
rule nodevice:
    output: "out/nodevice"
    resources: gpu=1, gpu_model="a100", slurm_partition="l40s", runtime=5
    shell: "touch {output}"
rule nopartition:
    output: "out/nopartition"
    resources: slurm_partition="nosuch", runtime=5
    shell: "touch {output}"
"""

SLEEPS = """
rule all:
    input: expand("out/{i}", i=range(4))
rule nap:
    output: "out/{i}"
    resources: mem_mb=300, runtime=5, slurm_partition="cpu"
    shell: "echo start {wildcards.i} >> starts; sleep {SECONDS}; touch {output}"
"""


def naps(seconds: float) -> str:
    return SLEEPS.replace("{SECONDS}", str(seconds))


def starts(folder) -> list[str]:
    return sorted((folder / "starts").read_text().split()[1::2])


@pytest.mark.parametrize("array", [0, 2])
def test_gpu_kinds_land_on_their_own_partitions(workflow, array):
    """Alone and in arrays; different resources never share an array."""
    toy = workflow(GPUS)
    assert toy.run(f"--submitit-array={array}") == 0, toy.said
    for kind in ("l40s", "a100"):
        for i in range(3):
            partition, devices, cpus, threads = (toy.folder / f"out/{kind}-{i}").read_text().split()
            assert partition == kind
            assert re.fullmatch(r"\d,\d", devices)
            assert cpus == threads == "3"
    assert (toy.folder / "out/either").read_text().split()[0] in {"l40s", "a100"}
    assert (toy.folder / "out/none").read_text().split()[0] == "cpu"
    together = {one.split("_")[0] for one in toy.jobs() if "_" in one}
    # Three jobs of one kind go as two and one.
    assert len(together) == (2 if array else 0)


def test_a_job_takes_the_kind_that_is_free(workflow, cluster):
    busy = "sbatch --parsable -p l40s --exclusive -N 2 --mem=0 -o /dev/null --wrap".split()
    blocker = cluster.run(*busy, "sleep 60").strip()
    try:
        toy = workflow(GPUS)
        assert toy.run("out/either") == 0, toy.said
        assert (toy.folder / "out/either").read_text().split()[0] == "a100"
    finally:
        cluster.run("scancel", blocker)


@pytest.fixture(scope="module")
def endings(tmp_path_factory, cluster, new_workflow):
    folder = tmp_path_factory.mktemp("endings")
    (folder / "Snakefile").write_text(ENDINGS)
    toy = new_workflow(folder, cluster)
    toy.status = toy.run()
    return toy


def test_every_failed_job_has_a_reason_and_the_others_are_done(endings):
    assert endings.status != 0
    assert (endings.folder / "out/good").exists()
    said = endings.said
    for name, words in {
        "end-status": "exception: the command ended with exit status 3",
        "end-sysexit": "exception: the command ended with exit status 1",
        "end-raised": "exception: the command ended with exit status 1",
        "end-killed": "exception: the command was killed by signal 9",
        "end-jobkilled": "exception: it left no result",
        "nodevice": "rejected: not taken by Slurm: sbatch: error:",
        "nopartition": "rejected: not taken by Slurm: sbatch: error:",
    }.items():
        assert f"{name}: {words}" in said, said[-6000:]
    assert "nosuch" in said


def test_the_log_and_its_last_lines_are_shown(endings):
    shown = endings.said
    assert "    before the end" in shown
    assert "    no such thing" in shown
    assert "    KeyError: 42" in shown
    assert "before the end" in endings.log_of("end-status")


def test_the_journal_keeps_the_reasons(endings):
    entries = {}
    for path in (endings.folder / ".snakemake/submitit/jobs").glob("*.json"):
        entry = json.loads(path.read_text())
        entries[entry["outputs"][0]] = entry
    assert entries["out/good"]["state"] == "done"
    assert {entries[f"out/{name}"]["reason"] for name in ("status", "killed")} == {"exception"}
    assert entries["out/nodevice"]["reason"] == "rejected"
    # Nothing of it was repeated: one job each, and none for what was refused.
    assert sorted(len(entry["ids"]) for entry in entries.values()) == [0, 0, 1, 1, 1, 1, 1, 1]


def test_exactly_the_failed_job_runs_again(workflow):
    broken = naps(0).replace(
        "touch {output}", "[ {wildcards.i} != 2 ] || [ -e mended ]; touch {output}"
    )
    toy = workflow(broken)
    assert toy.run() != 0
    assert starts(toy.folder) == ["0", "1", "2", "3"]
    (toy.folder / "mended").touch()
    assert toy.run() == 0
    assert starts(toy.folder) == ["0", "1", "2", "2", "3"]


def test_scancel_is_told_and_not_repeated(workflow, cluster):
    toy = workflow(naps(60))
    driver = toy.start("out/0")
    one = toy.until(toy.running)[0]
    cluster.run("scancel", one)
    assert toy.finish(driver) != 0
    assert "nap-0: cancelled: " in toy.said
    assert toy.jobs() == [one]


def test_memory_grows_until_it_is_enough(workflow):
    """300 MB, then 450, then 675 for a command that needs 500 and some."""
    toy = workflow(
        """
rule hungry:
    output: "out"
    resources: mem_mb=300, runtime=5, slurm_partition="cpu"
    shell: "python -c 'import time; x = bytearray(530_000_000); time.sleep(4)'; touch {output}"
"""
    )
    assert toy.run("out") == 0, toy.said
    assert toy.said.count("hungry: oom as job") == 2, toy.said
    assert "with 450 MB" in toy.said and "with 675 MB" in toy.said


def test_a_limit_on_submissions_holds_jobs_until_it_passes(workflow, accounted):
    accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=2")
    try:
        toy = workflow(naps(1), accounted)
        assert toy.run() == 0, toy.said
    finally:
        accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    assert starts(toy.folder) == ["0", "1", "2", "3"]
    assert "held, tried again in 5 s (sbatch: error: AssocMaxSubmitJobLimit" in toy.said


def test_with_accounting_a_wrong_account_is_rejected_in_slurms_words(workflow, accounted):
    toy = workflow(naps(0), accounted, "--submitit-account=nobody")
    assert toy.run("out/0") != 0
    assert re.search(r"nap-0: rejected: .*Invalid account", toy.said), toy.said


def test_a_drained_node_shows_slurms_reason(workflow, cluster):
    from snakemake_executor_plugin_submitit.slurm import FORMAT, parse_squeue
    from straightdp.cli.queue import Queue

    cluster.run("scontrol", "update", "nodename=cpu1", "state=drain", "reason=new disk")
    try:
        toy = workflow(naps(0))
        driver = toy.start("out/0")
        toy.until(toy.jobs)

        def ask():
            return parse_squeue(cluster.run("squeue", "-h", "-r", "-t", "all", "-o", FORMAT))

        def detail():
            job = Queue(toy.folder / ".snakemake/submitit", ask).job("out/0")
            return job.detail if job and "DRAINED" in job.detail or "Avail" in job.detail else ""

        assert "job" in toy.until(detail)
    finally:
        cluster.run("scontrol", "update", "nodename=cpu1", "state=resume")
    assert toy.finish(driver) == 0


def test_a_driver_inside_an_allocation_is_not_bound_by_it(workflow, cluster):
    toy = workflow(GPUS)
    script = toy.folder / "driver.sh"
    command = " ".join(f"'{word}'" for word in toy.command("out/l40s-0"))
    script.write_text(f"#!/bin/bash\ncd {toy.folder}\nexec {command} > driver.log 2>&1\n")
    batch = ["sbatch", "--parsable", "-W", "-p", "cpu", "-c", "1", "--mem=700", "-t", "5"]
    done = cluster.run(*batch, "-o", "/dev/null", str(script), check=False)
    partition, devices, cpus, _ = (toy.folder / "out/l40s-0").read_text().split()
    assert partition == "l40s" and cpus == "3" and re.fullmatch(r"\d,\d", devices), done
