"""Which cells `rerun` runs, what it forces, and what it removes or refuses first."""

import copy
from types import SimpleNamespace

import pytest
from conftest import TINY, write_preset

from straightdp.cli import rerun as module
from straightdp.cli.units import Workspace, locked
from straightdp.config import ConfigError, load_preset
from straightdp.files import write_arrays, write_json
from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.transcript import Ledger, replay
from straightdp.studies.cells import metrics_name, resolve


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """An empty folder: (a cell's folder, rerun), where rerun gives Snakemake's command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()

    def make(noise_seed="fixed"):
        values = copy.deepcopy(TINY)
        values["privacy"]["noise_seed"] = noise_seed
        preset = load_preset(write_preset(tmp_path / "tiny.yaml", values))
        one = resolve(preset, "uniform", "pixel", 1.0, 0)
        folder = Workspace.of(preset).folder(one)
        folder.mkdir(parents=True)
        called = []

        def rerun(*cells, failed=False):
            called.clear()
            arguments = SimpleNamespace(
                preset="tiny.yaml", cells=cells, failed=failed, profile="p", dry_run=False
            )
            module.rerun(arguments)
            return called[0] if called else None

        run = SimpleNamespace(returncode=1)
        monkeypatch.setattr(module.subprocess, "run", lambda c, **_: called.append(c) or run)
        return one.id, folder, rerun, metrics_name(preset)

    return make


def half_done(folder):
    (folder / "state").mkdir()
    (folder / "state" / "dp-sgd-0000003.pt").touch()
    (folder / "state" / "transcript.jsonl").touch()
    write_json(folder / "failure.json", {"reason": "exception", "message": "x", "log": "y"})


def finish(folder):
    path = folder / "transcript.jsonl"
    ledger = Ledger(path, 1.0, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, 20000, "fixed")
    sigma = calibrate_releases(1.0, 1e-5, 1)
    numbers = {"sensitivity": 1.0, "noise_std": sigma, "noise_multiplier": sigma}
    ledger.charge({"kind": "gaussian", "name": "all", "normalised_by": 20000} | numbers)
    write_json(folder / "run.json", {"status": "ok", "epsilon": replay(path).epsilon})
    write_arrays(folder / "samples.npz")


def test_a_cell_named_by_hand_begins_anew_and_a_failed_one_goes_on(grid):
    key, folder, rerun, _ = grid()
    half_done(folder)
    assert rerun(failed=True)
    assert (folder / "state" / "dp-sgd-0000003.pt").exists()
    assert rerun(key)
    assert not (folder / "state").exists() and not (folder / "failure.json").exists()


@pytest.mark.parametrize("trace", ["published.json", "transcript.jsonl", "state"])
def test_what_was_released_with_noise_of_its_own_is_not_begun_anew(grid, trace):
    key, folder, rerun, _ = grid("system")
    if trace == "state":
        half_done(folder)
    else:
        (folder / trace).touch()
    with pytest.raises(ConfigError, match="noise of its own"):
        rerun(key)
    assert (folder / trace).exists()


def test_a_cell_at_work_is_left_alone(grid):
    key, folder, rerun, _ = grid()
    half_done(folder)
    with locked(folder):
        with pytest.raises(ConfigError, match="running.*stop it first"):
            rerun(key)
        assert rerun(failed=True) is None
    assert (folder / "state").exists()


def test_a_failed_evaluation_trains_nothing(grid):
    key, folder, rerun, name = grid()
    finish(folder)
    (folder / name).write_text("[]")
    command = rerun(failed=True)
    assert [one for one in command if one.endswith("run.json")] == []
    forced = command[command.index("--forcerun") + 1 : command.index("--")]
    assert [one.rpartition("/")[2] for one in forced] == [name]
    named = rerun(key)
    assert [one.rpartition("/")[2] for one in named if "run.json" in one] == ["run.json"]


@pytest.mark.parametrize("part", ["samples.npz", "transcript.jsonl"])
@pytest.mark.parametrize("damage", ["gone", "garbled"])
def test_a_run_that_does_not_stand_is_run_again(grid, part, damage):
    _, folder, rerun, name = grid()
    finish(folder)
    (folder / part).unlink() if damage == "gone" else (folder / part).write_text("x")
    (folder / name).write_text("[]")
    command = rerun(failed=True)
    assert [one.rpartition("/")[2] for one in command if "run.json" in one] == ["run.json"]


def test_a_killed_workflows_lock_is_pointed_out(grid, capsys):
    key, folder, rerun, _ = grid()
    rerun(key)
    assert "recover" not in capsys.readouterr().err
    lock = module.LOCKS / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    rerun(key)
    assert "straightdp recover" in capsys.readouterr().err


def test_in_a_folder_without_a_workflow_nothing_is_removed(grid, tmp_path):
    key, folder, rerun, _ = grid()
    half_done(folder)
    (tmp_path / "Snakefile").unlink()
    with pytest.raises(ConfigError, match="no Snakefile here"):
        rerun(key)
    assert (folder / "state").exists()
