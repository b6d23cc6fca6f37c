"""A figure's looks are inputs of its drawing and of nothing else."""

import os

import pytest
from conftest import TINY, copy_workflow, job_counts, run, write_preset
from drawn import write_all

from straightdp.config import load_preset
from straightdp.reports.figures.draw import sources
from straightdp.studies.figures import FIGURES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working copy with finished cells and drawn figures, made in that order."""
    folder = copy_workflow(tmp_path_factory.mktemp("figures"))
    preset = load_preset(write_preset(folder / "tiny.yaml", TINY))
    write_all(preset, folder / "results" / "tiny")
    for path in (folder / "results").rglob("*"):
        os.utime(path, (1000, 1000))
    for name in FIGURES:
        for suffix in ("pdf", "png"):
            path = folder / "figures" / "tiny" / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("drawn")
    return folder


def plan(folder, *targets):
    words = ("snakemake", "--profile", "profiles/local", "--cores", "1", "-n", *targets)
    return job_counts(run(*words, "--config", "preset=tiny.yaml", cwd=folder))


def test_figures_newer_than_all_they_show_are_left_alone(folder):
    assert plan(folder, *FIGURES) == {}


def test_a_changed_look_draws_again_and_runs_no_cell(folder):
    """The figures are older than today's sources, and newer than every result."""
    looks = min(path.stat().st_mtime for figure in FIGURES.values() for path in sources(figure))
    for path in (folder / "figures" / "tiny").iterdir():
        os.utime(path, (looks - 1, looks - 1))
    jobs = plan(folder, *FIGURES)
    assert jobs == {"write_figure": 4, **dict.fromkeys(FIGURES, 1), "total": 8}


def test_a_figure_is_drawn_by_its_target(folder):
    words = ("snakemake", "--profile", "profiles/local", "--cores", "1", "--forcerun")
    path = folder / "figures" / "tiny" / "figure3.png"
    run(*words, "write_figure", "--config", "preset=tiny.yaml", "--", "figure3", cwd=folder)
    assert path.read_bytes().startswith(b"\x89PNG")
