"""The figures: what each is drawn from, all of which Table 1 and the controls compute."""

import copy

import pytest
from conftest import TINY

from straightdp.cli.units import prerequisites
from straightdp.config import Preset
from straightdp.studies.cells import cell_base
from straightdp.studies.controls import CONTROLS
from straightdp.studies.figures import FIGURES, figure_places, figure_stages
from straightdp.studies.grid import TABLE1, study_cells
from straightdp.studies.variants import start_time


@pytest.fixture(scope="module")
def preset():
    values = copy.deepcopy(TINY)
    values["grid"] = {"epsilons": [0.3, 1, 3], "seeds": [4, 1, 2]}
    return Preset(**values)


@pytest.mark.parametrize(("name", "cells"), [("figure2", 0), ("figure3", 45), ("figure5", 15)])
def test_a_figures_cells_are_table_ones(preset, name, cells):
    found = {cell.id for _, cell in figure_places(preset, FIGURES[name])}
    assert len(found) == cells
    assert found <= {cell.id for cell in study_cells(preset, TABLE1)}


def test_figure_4_shows_the_sweep_of_one_model_and_what_it_is_compared_with(preset):
    places = figure_places(preset, FIGURES["figure4"])
    assert {cell.id for _, cell in places} <= {cell.id for cell in study_cells(preset, CONTROLS)}
    level, *starts = [cell for _, cell in places]
    assert (level.method, level.epsilon, level.seed) == ("tha_moments", 1.0, 4)
    assert all((cell.epsilon, cell.seed) == (1.2, 4) for cell in starts)
    bases = {cell_base(cell.config).id for cell in starts if cell_base(cell.config)}
    (trained,) = [cell.id for cell in starts if cell_base(cell.config) is None]
    assert bases == {trained}
    times = [start_time(row.variant) for row, _ in places if row.variant]
    assert sorted(times) == [0, *sorted({*preset.controls.starts, preset.stage1.guidance_start})]


def test_its_public_stages_are_those_that_table_ones_cells_start_from(preset):
    needed = {unit.id for cell in study_cells(preset, TABLE1) for unit in prerequisites(cell)}
    for figure in FIGURES.values():
        assert {unit.id for unit in figure_stages(preset, figure).values()} <= needed


def test_one_seed_is_the_presets_first(preset):
    assert {cell.seed for _, cell in figure_places(preset, FIGURES["figure5"])} == {4}
    assert [unit.config["seed"] for unit in figure_stages(preset, FIGURES["figure2"]).values()] == [
        4
    ]
