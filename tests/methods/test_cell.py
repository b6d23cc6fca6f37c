"""What is spent stays on record: a cell with noise of its own runs once, and keeps its files."""

import copy
import shutil

import pytest
from conftest import TINY, write_preset

from straightdp.cli.units import Workspace, run_unit
from straightdp.config import load_preset
from straightdp.methods.cell import PrivacyViolation, noise_streams
from straightdp.resolved import parse_cell
from straightdp.studies.cells import resolve


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A cell of the quickest kind, published with noise of the system's."""
    values = copy.deepcopy(TINY)
    values["privacy"]["noise_seed"] = "system"
    folder = tmp_path_factory.mktemp("system")
    preset = load_preset(write_preset(folder / "tiny.yaml", values))
    workspace = Workspace(folder / "results" / "tiny")
    cell = resolve(preset, "dp_merf", "pixel", 1.0, 0)
    run_unit(cell, workspace, preset.execution, threads=1)
    return preset, workspace, cell


@pytest.fixture
def again(published, tmp_path):
    """A copy of it, and how to run it once more."""
    preset, workspace, cell = published
    copied = Workspace(tmp_path / "tiny")
    shutil.copytree(workspace.root, copied.root)
    return lambda: run_unit(cell, copied, preset.execution, threads=1), copied.folder(cell)


def contents(folder):
    names = ("transcript.jsonl", "samples.npz", "model.pt")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("half_removed", [False, True])
def test_a_published_cell_gets_its_record_back_and_does_not_run(again, half_removed):
    """run.json is what a workflow removes; a kill may leave a part of the private state."""
    run, folder = again
    record, before = (folder / "run.json").read_bytes(), contents(folder)
    (folder / "run.json").unlink()
    if half_removed:
        (folder / "state").mkdir()
        (folder / "state" / "matching-0000012.pt").write_text("")
    run()
    assert (folder / "run.json").read_bytes() == record
    assert contents(folder) == before
    assert not (folder / "state").exists()


@pytest.mark.parametrize("gone", ["samples.npz", "transcript.jsonl", "published.json"])
def test_a_published_cell_whose_files_are_gone_makes_no_second_release(again, gone):
    run, folder = again
    (folder / "run.json").unlink()
    (folder / gone).unlink()
    with pytest.raises(PrivacyViolation, match="a second time.*Remove"):
        run()
    assert not (folder / "state").exists() and not (folder / "run.json").exists()


def test_another_key_is_never_drawn_for_a_run_under_way(published, tmp_path):
    config = parse_cell(published[2].config, "x")
    first = noise_streams(config, "", tmp_path).key
    assert noise_streams(config, "", tmp_path).key == first
    (tmp_path / "transcript.jsonl").write_text("{}\n")
    (tmp_path / "noise.key").unlink()
    with pytest.raises(PrivacyViolation, match="noise.key is gone.*second release"):
        noise_streams(config, "", tmp_path)
