"""Real cells through the cluster profile: disturbed in every way, equal at the end.

The reference is the same cell, run by itself and undisturbed. A disturbance comes in the
middle of private training: the training process is held (SIGSTOP) at its first checkpoint
there, so that it can't end first, and let go once the disturbance is under way.
"""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import TINY, copy_workflow, run

from straightdp.config import load_preset
from straightdp.files import read_json
from straightdp.studies.cells import metrics_name, resolve
from straightdp.studies.grid import TABLE1, study_cells

pytestmark = pytest.mark.slow
GPU_PARTITIONS = "--submitit-gpu-partitions=l40s=l40s,a100=a100"


def workspace(folder: Path) -> Path:
    copy_workflow(folder)
    values = TINY | {"stage2": TINY["stage2"] | {"steps": 60}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    return folder


class Training:
    """A folder with the project's workflow, and one cell of it on a cluster."""

    def __init__(self, toy, cell, metrics):
        self.toy, self.cell = toy, cell
        self.folder = toy.folder / "results/tiny/cells" / cell.id
        self.metrics = self.folder / metrics

    def command(self, target, *more: str) -> list[str]:
        quick = ["--submitit-interval=1", "--submitit-poll=0.3", "--submitit-patience=8"]
        return (
            [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", *quick]
            + [GPU_PARTITIONS, "--latency-wait=5", *more]
            + ["--config", "preset=tiny.yaml", "--", str(target)]
        )

    def start(self, *more: str):
        return self.toy.start(command=self.command(self.relative(self.metrics), *more))

    def relative(self, path: Path) -> Path:
        return path.relative_to(self.toy.folder)

    def held(self) -> int:
        """Wait for private training's first checkpoint and hold the process; its id."""
        pattern = f"{self.relative(self.folder)}/state/dp-sgd-*.pt"
        while True:
            self.toy.until_file(pattern, 120)
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = path.read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"straightdp" in words and self.cell.id.encode() in words:
                    pid = int(path.parent.name)
                    os.kill(pid, signal.SIGSTOP)
                    return pid
            time.sleep(0.05)

    def until_told(self, pid: int, seconds: float = 40) -> None:
        """Wait until the held process has been sent SIGTERM (or worse), and let it go."""

        def told() -> bool:
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                return True
            pending = int(status.split("ShdPnd:")[1].split()[0], 16)
            return bool(pending >> (signal.SIGTERM - 1) & 1) or "State:\tZ" in status

        self.toy.until(told, seconds)
        let_go(pid)

    def job(self) -> str:
        return self.toy.running()[0]

    def starts(self) -> int:
        path = next((self.toy.folder / ".snakemake/submitit/tries").glob("cell-*.jsonl"))
        return path.read_text().count('"start"')


def let_go(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The cell's folder after an undisturbed run without any cluster."""
    folder = workspace(tmp_path_factory.mktemp("reference"))
    preset = load_preset(folder / "tiny.yaml")
    cell = resolve(preset, "tha_moments", "pixel", 1.0, 0)
    metrics = metrics_name(preset)
    run(
        *("snakemake", "--profile", "profiles/local", "--cores", "2"),
        *("--config", "preset=tiny.yaml", "--", f"results/tiny/cells/{cell.id}/{metrics}"),
        cwd=folder,
    )
    return folder, cell, metrics


@pytest.fixture
def training(reference, tmp_path, new_workflow):
    """training(cluster) -> Training, with everything done but the cell."""
    done, cell, metrics = reference

    def make(on) -> Training:
        workspace(tmp_path)
        shutil.copytree(done / "results", tmp_path / "results")
        shutil.rmtree(tmp_path / "results/tiny/cells")
        return Training(new_workflow(tmp_path, on), cell, metrics)

    return make


def assert_equal(training: Training, reference) -> None:
    """Transcript, samples and metrics are the undisturbed run's."""
    done, cell, metrics = reference
    one, other = training.folder, done / "results/tiny/cells" / cell.id
    assert (one / "transcript.jsonl").read_bytes() == (other / "transcript.jsonl").read_bytes()
    with np.load(one / "samples.npz") as a, np.load(other / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])
    measured, expected = read_json(one / metrics), read_json(other / metrics)
    for record in (measured, expected):
        record.pop("code")
    assert measured == expected


def test_a_requeue_by_hand(training, reference, cluster):
    it = training(cluster)
    driver = it.start()
    pid = it.held()
    cluster.run("scontrol", "requeue", it.job())
    it.until_told(pid)
    assert it.toy.finish(driver) == 0, it.toy.said
    assert it.starts() == 2
    assert_equal(it, reference)


def test_the_time_limit(training, reference, cluster):
    """A limit of one minute, and a signal half a minute before it."""
    it = training(cluster)
    driver = it.start("--set-resources", "cell:runtime=1", "--submitit-signal-delay=30")
    pid = it.held()
    it.until_told(pid, 70)
    assert it.toy.finish(driver) == 0, it.toy.said
    assert it.starts() >= 2  # on a slow machine the second start meets its own limit
    assert f"done, at start {it.starts()} of at most 6" in it.toy.said
    assert "told to leave; dp-sgd stops at step" in (it.folder / "log.txt").read_text()
    assert_equal(it, reference)


def preempt(cluster, seconds: int = 1) -> str:
    return cluster.run(
        *("sbatch", "--parsable", "-p", "urgent", "-N", "3", "--exclusive", "--mem=0"),
        *("-o", "/dev/null", "--wrap", f"sleep {seconds}"),
    ).strip()


def test_preemption_that_queues_again(training, reference, requeueing):
    it = training(requeueing)
    driver = it.start()
    pid = it.held()
    job = it.job()
    preempt(requeueing)
    it.until_told(pid)
    assert it.toy.finish(driver) == 0, it.toy.said
    assert it.starts() == 2
    assert "submitted again" not in it.toy.said  # it came back under its own id
    assert job in it.toy.jobs()
    assert_equal(it, reference)


def test_preemption_that_cancels(training, reference, cancelling):
    it = training(cancelling)
    driver = it.start()
    pid = it.held()
    preempt(cancelling)
    it.until_told(pid)
    assert it.toy.finish(driver) == 0, it.toy.said
    assert it.starts() == 2
    assert ": preempted as job " in it.toy.said and "start 2 of at most 6" in it.toy.said
    assert_equal(it, reference)


def test_a_dead_node(training, reference, cluster):
    """kill -9 of slurmd and of all that it started; Slurm notices, and queues the job again."""
    it = training(cluster)
    driver = it.start("--set-resources", "cell:gpu_model=l40s")
    it.held()
    job = it.job()
    node = cluster.run("squeue", "-h", "-j", job, "-o", "%N").strip()
    cluster.kill(f"slurmd-{node}")
    for pid in pids_of_job(job, cluster):
        os.kill(pid, signal.SIGKILL)
    try:
        assert it.toy.finish(driver, 120) == 0, it.toy.said
    finally:
        cluster.start_node(node)
    assert it.starts() == 2
    assert_equal(it, reference)
    it.toy.until(lambda: cluster._idle() == 4)


def pids_of_job(job: str, cluster) -> list[int]:
    """Every process that carries the job's id in its environment, and its step daemon."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
            title = (path / "cmdline").read_bytes()
        except OSError:
            continue
        ours = f"SLURM_CONF={cluster.conf}".encode() in environment
        in_job = f"SLURM_JOB_ID={job}".encode() in environment
        if ours and (in_job or title.startswith(f"slurmstepd: [{job}.".encode())):
            found.append(int(path.name))
    return found


def test_a_kill_of_the_training_is_an_exception_and_recovers_on_demand(
    training, reference, cluster
):
    """kill -9 of the command: a reason, the log, no blind repetition; then `rerun --failed`."""
    it = training(cluster)
    driver = it.start()
    os.kill(it.held(), signal.SIGKILL)
    assert it.toy.finish(driver) != 0
    assert f"cell-{it.cell.id}: exception: the command was killed by signal 9" in it.toy.said
    environment = it.toy.environment
    shown = run("straightdp", "status", "--preset", "tiny.yaml", cwd=it.toy.folder).stdout
    assert "killed by signal 9" in shown and "_0_log.out" in shown and "driver: none" in shown
    os.environ["SLURM_CONF"] = environment["SLURM_CONF"]
    try:
        again = run(
            *("straightdp", "rerun", "--failed", "--preset", "tiny.yaml", "--dry-run"),
            *("--profile", "profiles/slurm"),
            cwd=it.toy.folder,
        ).stdout
        assert it.cell.id in again
    finally:
        del os.environ["SLURM_CONF"]
    assert it.toy.finish(it.start()) == 0, it.toy.said
    assert it.starts() == 1  # a new series of tries
    assert_equal(it, reference)


def test_recover_goes_on_after_a_driver_was_killed_and_refuses_while_it_lives(
    training, reference, cluster
):
    it = training(cluster)
    driver = it.start()
    pid = it.held()
    refused = run("straightdp", "recover", cwd=it.toy.folder, check=False)
    assert refused.returncode == 2 and "is alive" in refused.stderr
    driver.kill()
    driver.wait()
    shown = run("straightdp", "status", "--preset", "tiny.yaml", cwd=it.toy.folder).stdout
    assert "driver: none" in shown
    straightdp = [str(Path(sys.executable).parent / "straightdp"), "recover"]
    recovering = it.toy.start(command=straightdp)
    it.toy.until(lambda: "still running as job" in it.toy.said)
    let_go(pid)
    assert it.toy.finish(recovering) == 0, it.toy.said
    assert it.starts() == 1
    assert_equal(it, reference)


def test_table_1_from_nothing(tmp_path, new_workflow, cluster):
    """Every cell through the cluster, metrics on CPU nodes, and the table at the end."""
    workspace(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    preset = load_preset(tmp_path / "tiny.yaml")
    toy = new_workflow(tmp_path, cluster)
    it = Training(toy, study_cells(preset, TABLE1)[0], metrics_name(preset))
    driver = toy.start(command=it.command("table1"))
    toy.until(lambda: re.search(r"^running +\S+ +job \d+ on \w+, running for", status(toy), re.M))
    assert "driver: process" in status(toy)
    assert toy.finish(driver, 900) == 0, toy.said
    table = (tmp_path / "tables/tiny/table1.md").read_text()
    assert table.count("\n|") > 12 and "seeds)" not in table
    assert re.search(r"(\d+) of \1 cells done", status(toy))
    used = cluster.run("squeue", "-h", "-t", "all", "-o", "%j %P %Z")
    for line in used.splitlines():
        name, partition, where = line.split()
        if where == str(tmp_path):
            assert (partition == "cpu") == name.startswith(("evaluate", "draw", "extractor")), line
    assert toy.finish(toy.start(command=it.command("table1"))) == 0
    assert "Nothing to be done" in toy.said


def status(toy) -> str:
    conf = {"SLURM_CONF": toy.environment["SLURM_CONF"], "PATH": toy.environment["PATH"]}
    before = {name: os.environ.get(name) for name in conf}
    os.environ.update(conf)
    try:
        return run("straightdp", "status", "--preset", "tiny.yaml", cwd=toy.folder).stdout
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
