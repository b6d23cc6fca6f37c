"""Planning the grid: Snakemake's dry run over a preset with many seeds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CELLS_A_SEED = 36


def planning(cells: int = 1000) -> None:
    seeds = -(-cells // CELLS_A_SEED)
    values = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    values["grid"]["seeds"] = list(range(seeds))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.yaml"
        path.write_text(yaml.safe_dump(values | {"name": "many"}))
        command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "all", "--profile"]
        command += ["profiles/local", "table1", "--config", f"preset={path}"]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        taken = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"the dry run failed:\n{(done.stderr or done.stdout)[-2000:]}")
    print(
        f"planning {CELLS_A_SEED * seeds} cells, and as many evaluations: {taken:.1f} s"
        "  (aim: under 5 s)"
    )
