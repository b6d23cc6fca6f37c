"""Figure 4's points and level against values computed here."""

import numpy as np
import pytest
from conftest import TINY

from straightdp.config import Preset
from straightdp.reports.figures.sweep import draw_sweep
from straightdp.reports.results import CellResult, Measure, MixedExtractors
from straightdp.studies.figures import FIGURES
from straightdp.studies.variants import start_time


@pytest.fixture(scope="module")
def preset():
    return Preset(**TINY)


def accuracy(row) -> float:
    return 0.3 + start_time(row.variant) / 2 if row.variant else 0.55


def results(preset, by="fid_lenet"):
    found = []
    for row in FIGURES["figure4"].rows_on(preset):
        measures = {
            "accuracy": Measure(accuracy(row), 100, "lenet_probe", "01", "test"),
            "fid": Measure(100 * accuracy(row), 100, by, "02", "test"),
        }
        found.append(CellResult(*row.key, row.epsilons[0], 0, measures))
    return found


def lines(axes):
    return {one.get_gid(): one for one in axes.get_lines()}


def test_points_are_the_samples_by_their_start_and_the_level_is_distillations(preset):
    figure = draw_sweep(preset, results(preset)[::-1], 0)
    for axes, scale in zip(figure.axes, (1, 100), strict=True):
        x, y = lines(axes)["sweep"].get_data()
        starts = {*preset.controls.starts, preset.stage1.guidance_start}
        assert list(x) == sorted({0.0, *starts})
        np.testing.assert_allclose(y, scale * (0.3 + np.array(x) / 2))
        assert list(lines(axes)["level"].get_ydata()) == [scale * 0.55] * 2
        assert list(lines(axes)["own"].get_xdata()) == [preset.stage1.guidance_start]


def test_without_distillations_cell_there_is_no_level_and_without_any_two_holes(preset):
    swept = [one for one in results(preset) if one.variant]
    figure = draw_sweep(preset, swept, 0, missing=1)
    assert all("level" not in lines(axes) for axes in figure.axes)
    assert any(
        "1 cells are not there yet" in one.get_text().replace("\n", " ") for one in figure.texts
    )
    assert all(not axes.get_lines() for axes in draw_sweep(preset, [], 0, missing=9).axes)


def test_values_of_two_extractors_share_no_panel(preset):
    mixed = results(preset)[:2] + results(preset, "inception_v3_tf")[2:]
    with pytest.raises(MixedExtractors, match="fid"):
        draw_sweep(preset, mixed, 0)
