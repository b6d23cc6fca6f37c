"""The studies: which cells each table asks for, and which it shares."""

import copy

import pytest
from conftest import TINY

from straightdp.cli.units import prerequisites
from straightdp.cli.verbs import find_cell
from straightdp.config import ConfigError, Preset
from straightdp.studies.cells import data_unit, extractor
from straightdp.studies.grid import PRIOR, STUDIES, row_cells, study_cells


def preset(**grid):
    values = copy.deepcopy(TINY)
    values["grid"].update(grid)
    return Preset(**values)


WIDE = preset(epsilons=[0.3, 1, 3], seeds=[0, 1, 2])


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("table1", 16 * 3 * 3),
        ("table2", (2 * 4 + 2) * 3),  # two backbones at four budgets, two at one
        ("table5", 4 * 3),
        ("table6", 7 * 4 * 3),
        ("table7", 5 * 3 * 3),
    ],
)
def test_a_table_has_its_rows_by_budget_and_seed(name, cells):
    found = study_cells(WIDE, STUDIES[name])
    assert len(found) == cells and len({cell.id for cell in found}) == cells


def test_a_rows_cells_are_its_budgets_then_its_seeds():
    study = STUDIES["table2"]
    cells = row_cells(WIDE, study, study.rows[0])
    assert [(cell.epsilon, cell.seed) for cell in cells] == [
        (epsilon, seed) for epsilon in (3, 1, 0.5, 0.3) for seed in (0, 1, 2)
    ]
    assert {cell.epsilon for cell in row_cells(WIDE, study, study.rows[1])} == {0.3}


def test_tables_share_their_cells():
    main = {cell.id for cell in study_cells(WIDE, STUDIES["table1"])}
    for name in ("table5", "table7"):
        assert {cell.id for cell in study_cells(WIDE, STUDIES[name])} <= main
    beyond = {
        (cell.method, cell.space, cell.epsilon)
        for study in STUDIES.values()
        if study.name != "controls"
        for cell in study_cells(WIDE, study)
        if cell.id not in main and cell.method not in {row.method for row in PRIOR}
    }
    assert beyond == {
        ("tha_moments", "pixel", 0.5),
        ("low_b0", "pixel", 0.5),
        ("late_only", "pixel", 0.3),
        ("clamp_only", "pixel", 0.3),
        ("uniform", "pixel", 10),
        ("tha_moments", "pixel", 10),
        ("tha_moments", "latent", 10),
    }


def test_studies_about_certain_budgets_keep_them_whatever_the_preset():
    one = preset(epsilons=[7])
    assert {cell.epsilon for cell in study_cells(one, STUDIES["table5"])} == {1}
    assert {cell.epsilon for cell in study_cells(one, STUDIES["table6"])} == {0.3, 1, 3, 10}
    assert {cell.epsilon for cell in study_cells(one, STUDIES["table7"])} == {7}


def test_a_budget_is_not_taken_for_a_longer_one():
    """eps1 is a part of eps10, and a user who types it means the former."""
    assert find_cell(preset(), "pixel-uniform-eps1").epsilon == 1
    assert find_cell(preset(), "pixel-uniform-eps10").epsilon == 10
    with pytest.raises(ConfigError, match="4 cells match"):
        find_cell(preset(), "pixel-uniform-eps")


def test_the_reference_waits_for_the_drawn_images():
    unit = extractor(preset())
    assert prerequisites(unit) == [data_unit(unit.config["public"])]
    values = copy.deepcopy(TINY)
    values["data"] |= {"public": "kmnist", "glyph_count": None}
    assert prerequisites(extractor(Preset(**values))) == []
