"""What a user names is found, or the hint says how to find it with the user's own preset."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TINY, write_preset

from straightdp.cli import verbs
from straightdp.cli.find import find_cell
from straightdp.cli.units import Workspace, cell_from_file
from straightdp.config import ConfigError, load_preset
from straightdp.files import write_json
from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.transcript import Ledger
from straightdp.reports import study
from straightdp.reports.study import UnusableMetrics, write_study
from straightdp.studies.cells import resolve
from straightdp.studies.grid import TABLE1


@pytest.fixture
def preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "TABLES", tmp_path / "tables")
    return load_preset(write_preset(tmp_path / "my own.yaml", TINY))


def test_hints_name_the_preset_as_the_user_did(preset, tmp_path):
    with pytest.raises(ConfigError, match="status --ids --preset 'my own.yaml'`"):
        find_cell(preset, "nothing", "my own.yaml")
    with pytest.raises(UnusableMetrics, match="`straightdp status table1 --preset 'my own.yaml'`"):
        write_study(preset, TABLE1, tmp_path, named="my own.yaml")
    with pytest.raises(ConfigError, match="table1 --config 'preset=my own.yaml'$"):
        verbs.show(SimpleNamespace(preset="my own.yaml", study="table1"))


def test_an_empty_id_names_no_cell(preset):
    with pytest.raises(ConfigError, match="empty"):
        find_cell(preset, "")


def test_a_configuration_is_its_folders_cell_from_wherever_it_is_named(preset, tmp_path):
    cell = resolve(preset, "uniform", "pixel", 1.0, 0)
    folder = tmp_path / Workspace.of(preset).folder(cell)
    write_json(folder / "config.json", cell.config)
    assert cell_from_file(folder / "config.json").id == cell.id
    os.chdir(folder)
    assert cell_from_file(Path("config.json")).id == cell.id
    with pytest.raises(ConfigError, match="no results/ and no Snakefile here"):
        verbs.cell(
            SimpleNamespace(
                preset=str(tmp_path / "my own.yaml"), id=None, config=Path("config.json")
            )
        )
    with pytest.raises(ConfigError, match="a folder"):
        cell_from_file(folder)


def test_a_cell_under_way_replays_what_it_has_charged(preset, capsys):
    cell = resolve(preset, "uniform", "pixel", 1.0, 0)
    state = Workspace.of(preset).folder(cell) / "state"
    path = state / "transcript.jsonl"
    Ledger(path, 1.0, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, 20000, "fixed")
    assert verbs.replay(SimpleNamespace(preset="my own.yaml", cell=cell.id)) == 0
    assert "epsilon 0 " in capsys.readouterr().out
