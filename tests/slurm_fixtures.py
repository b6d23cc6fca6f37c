"""A real Slurm for the tests: started from Debian's packages, once a configuration."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

spec = importlib.util.spec_from_file_location(
    "slurm_cluster", REPOSITORY / "scripts" / "slurm_cluster.py"
)
slurm_cluster = importlib.util.module_from_spec(spec)
sys.modules["slurm_cluster"] = slurm_cluster
spec.loader.exec_module(slurm_cluster)

QUICK = [
    "--submitit-interval=1",
    "--submitit-poll=0.3",
    "--submitit-patience=4",
    "--latency-wait=5",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/slurm/" in str(item.path):
            item.add_marker(pytest.mark.slurm)


def needed(accounting: bool) -> None:
    """Skip, and say what is missing, where there can be no Slurm."""
    missing = slurm_cluster.missing_packages(accounting)
    if missing:
        pytest.skip(
            f"Slurm's packages are missing ({', '.join(missing)}): "
            "python scripts/slurm_cluster.py install --accounting"
        )
    if os.geteuid() != 0:
        pytest.skip("a one-machine Slurm needs root")


def _cluster(tmp_path_factory, name: str, accounting=False, **settings):
    needed(accounting)
    root = tmp_path_factory.mktemp(name)
    cluster = slurm_cluster.Cluster(root / "c", accounting, kill_wait=2, **settings)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Without accounting."""
    yield from _cluster(tmp_path_factory, "slurm")


@pytest.fixture(scope="session")
def accounted(tmp_path_factory):
    """With slurmdbd."""
    yield from _cluster(tmp_path_factory, "slurmdbd", accounting=True)


@pytest.fixture(scope="session")
def requeueing(tmp_path_factory):
    """Jobs of partition `urgent` preempt others, which are queued again."""
    yield from _cluster(tmp_path_factory, "requeue", preempt="requeue")


@pytest.fixture(scope="session")
def cancelling(tmp_path_factory):
    """Jobs of partition `urgent` preempt others, which are cancelled."""
    yield from _cluster(tmp_path_factory, "cancel", preempt="cancel", grace=20)


@dataclass
class Workflow:
    """A folder with a Snakefile, and the drivers that run it on a cluster."""

    folder: Path
    cluster: object
    settings: list[str] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "snakemake",
            "--executor=submitit",
            "--submitit-backend=slurm",
            "--submitit-gpu-partitions=l40s=l40s,a100=a100",
            "--jobs=50",
            "--keep-going",
            "--rerun-incomplete",
            *QUICK,
            *self.settings,
            *arguments,
        ]

    @property
    def environment(self) -> dict[str, str]:
        programs = Path(sys.executable).parent
        return self.cluster.environment | {
            "PATH": f"{programs}:{self.cluster.environment['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *arguments: str, command=None) -> subprocess.Popen:
        """A driver in the background; its output goes to driver.log."""
        with open(self.folder / "driver.log", "ab") as log:
            return subprocess.Popen(
                command or self.command(*arguments),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, driver: subprocess.Popen, seconds: float = 90) -> int:
        try:
            return driver.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            raise AssertionError(f"the driver did not end:\n{self.said[-6000:]}") from None

    def run(self, *arguments: str, command=None) -> int:
        return self.finish(self.start(*arguments, command=command))

    @property
    def said(self) -> str:
        path = self.folder / "driver.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def jobs(self, *options: str) -> list[str]:
        """Ids of all jobs that Slurm still knows from this folder."""
        lines = self.cluster.run("squeue", "-h", "-r", "-t", "all", *options, "-o", "%i %Z")
        return [line.split()[0] for line in lines.splitlines() if str(self.folder) in line]

    def until(self, condition, seconds: float = 40):
        """Wait for a condition; its value."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited {seconds} s in vain; the driver:\n{self.said[-6000:]}"
                )
            time.sleep(0.1)
        return value

    def running(self) -> list[str]:
        return self.jobs("-t", "RUNNING")

    def until_file(self, name: str, seconds: float = 90) -> Path:
        return self.until(lambda: next(iter(self.folder.glob(name)), None), seconds)

    def log_of(self, name: str) -> str:
        """The log that the driver named for a job."""
        match = re.search(rf"^{name}: .*\nlog: (\S+)", self.said, re.MULTILINE)
        assert match, self.said[-4000:]
        return Path(match.group(1)).read_text()


@pytest.fixture(scope="session")
def new_workflow():
    """Workflow itself, for fixtures of other scopes."""
    return Workflow


@pytest.fixture
def workflow(tmp_path, cluster):
    """Make a toy workflow on the plain cluster: workflow(text) -> Workflow."""

    def make(text: str, on=cluster, *settings: str) -> Workflow:
        (tmp_path / "Snakefile").write_text(text)
        return Workflow(tmp_path, on, list(settings))

    return make
