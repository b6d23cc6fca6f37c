"""On data of one's own: the workflow removes nothing that records what was spent."""

import copy

import pytest
from conftest import TINY, copy_workflow, run, write_preset

from straightdp.config import load_preset
from straightdp.studies.cells import metrics_name, resolve


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A working copy in which one cell ran, with noise of the system's."""
    folder = copy_workflow(tmp_path_factory.mktemp("private"))
    values = copy.deepcopy(TINY)
    values["privacy"]["noise_seed"] = "system"
    preset = load_preset(write_preset(folder / "tiny.yaml", values))
    cell = resolve(preset, "dp_merf", "pixel", 1.0, 0)
    metrics = f"results/tiny/cells/{cell.id}/{metrics_name(preset)}"
    snakemake(folder, "--", metrics)
    return folder, cell, metrics


def snakemake(folder, *targets):
    arguments = ("--profile", "profiles/local", "--cores", "1", "--config", "preset=tiny.yaml")
    return run("snakemake", *arguments, *targets, cwd=folder)


def test_a_cell_that_is_run_again_keeps_its_record(done):
    folder, cell, metrics = done
    where = folder / "results" / "tiny" / "cells" / cell.id
    names = ("run.json", "transcript.jsonl", "samples.npz")
    before = {name: (where / name).read_bytes() for name in names}
    snakemake(folder, "--forcerun", f"results/tiny/cells/{cell.id}/run.json", "--", metrics)
    assert {name: (where / name).read_bytes() for name in names} == before


def test_rerun_refuses_it_before_anything_runs(done):
    folder, cell, _ = done
    told = run("straightdp", "rerun", cell.id, "--preset", "tiny.yaml", cwd=folder, check=False)
    assert told.returncode == 2 and "noise of its own" in told.stderr
    assert (folder / "results" / "tiny" / "cells" / cell.id / "run.json").exists()
