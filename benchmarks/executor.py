"""Cells that do nothing, through a real Slurm: the executor's own cost.

    pip install snakemake-executor-plugin-slurm     # a peer only; without it, it is left out
    python benchmarks/executor.py [--cells 40] [--many 1000]

Starts a one-machine Slurm (root; Debian's packages), runs the same workflow through (a) this
executor, alone and in arrays, (b) the official Slurm executor at its best settings, (c) plain
`snakemake --cores`, and prints wall and CPU seconds of each whole process. Then `--many` cells
through this executor: when the last one was submitted, and how often Slurm was asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from slurm_cluster import Cluster, install

SNAKEFILE = """
rule all:
    input: expand("out/{i}", i=range(CELLS))
rule cell:
    output: "out/{i}"
    resources: mem_mb=400, runtime=5, slurm_account="lab", slurm_partition="cpu"
    shell: "touch {output}"
"""
COMMON = ["--jobs", "1000", "--quiet", "all", "--scheduler", "greedy", "--latency-wait", "5"]
OURS = ["--executor", "submitit", "--submitit-backend", "slurm", "--submitit-poll", "0.5"]
OFFICIAL = [
    *("--executor", "slurm", "--slurm-init-seconds-before-status-checks", "1"),
    *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "10"),
    *("--max-jobs-per-timespan", "1000/1s"),
]


def drive(cluster: Cluster, cells: int, arguments: list[str], watch=None) -> dict:
    """One run in a fresh folder; wall and CPU seconds of the driver and its children."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Snakefile").write_text(SNAKEFILE.replace("CELLS", str(cells)))
        environment = counted(cluster, folder)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", *COMMON, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        seen = watch(folder, begin, process) if watch else {}
        _, said = process.communicate()
        wall = time.monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = len(list((folder / "out").glob("*"))) if (folder / "out").exists() else 0
        if process.returncode or done != cells:
            raise SystemExit(f"{arguments}: {done} of {cells} cells done\n{said[-2000:]}")
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        calls = (folder / "calls").read_text().split() if (folder / "calls").exists() else []
        asked = sum(one in {"squeue", "sacct"} for one in calls)
        return {"wall": wall, "cpu": cpu, "asked": asked} | seen


def counted(cluster: Cluster, folder: Path) -> dict[str, str]:
    """An environment in which every squeue and sacct leaves a word in `calls`."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("squeue", "sacct"):
        path = programs / name
        real = f"/usr/bin/{name}"
        path.write_text(f'#!/bin/sh\necho {name} >> {folder}/calls\nexec {real} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    here = Path(sys.executable).parent
    return cluster.environment | {"PATH": f"{programs}:{here}:{cluster.environment['PATH']}"}


def submitted(cells: int):
    """A watcher: the moment by which the last job's id is on record."""

    def watch(folder: Path, begin: float, process) -> dict:
        while process.poll() is None:
            entries = all_json(folder / ".snakemake" / "submitit" / "jobs")
            if len(entries) >= cells:
                taken = sum('"state": "held"' not in path.read_text() for path in entries)
                if taken >= cells:
                    return {"submitted": time.monotonic() - begin}
            time.sleep(0.5)
        return {}

    return watch


def all_json(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.json") if path.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--many", type=int, default=1000)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("a one-machine Slurm needs root")
    install(accounting=True)
    with tempfile.TemporaryDirectory() as root:
        cluster = Cluster(Path(root) / "c", accounting=True)
        try:
            cluster.start()
            measure(cluster, arguments.cells, arguments.many)
        finally:
            cluster.stop()


def measure(cluster: Cluster, cells: int, many: int) -> None:
    ways = {"plain snakemake --cores 2": ["--cores", "2"]}
    ways["this executor"] = [*OURS, "--submitit-interval", "10"]
    ways["this executor, arrays of 20"] = [*ways["this executor"], "--submitit-array", "20"]
    if importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        ways["snakemake-executor-plugin-slurm"] = OFFICIAL
    walls = {}
    for name, way in ways.items():
        found = drive(cluster, cells, way)
        walls[name] = found["wall"]
        print(
            f"{cells} cells, {name}: {found['wall']:.1f} s wall, {found['cpu']:.1f} s CPU, "
            f"asked Slurm {found['asked']} times",
            flush=True,
        )
    if len(walls) == 4:
        ratio = walls["snakemake-executor-plugin-slurm"] / walls["this executor"]
        print(f"the official executor takes {ratio:.1f} times as long")
    if many:
        found = drive(cluster, many, ways["this executor"], submitted(many))
        when = f"all submitted after {found['submitted']:.1f} s, " if "submitted" in found else ""
        print(
            f"{many} cells, this executor: {when}{found['wall']:.1f} s wall, asked Slurm "
            f"{found['asked']} times ({found['wall'] / max(found['asked'], 1):.1f} s apart)"
        )


if __name__ == "__main__":
    main()
