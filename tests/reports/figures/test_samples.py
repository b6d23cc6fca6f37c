"""Figure 5 shows the first samples of each class, pixel by pixel, of believed cells alone."""

import copy
import json

import numpy as np
import pytest
from conftest import TINY
from drawn import images, write_cell

from straightdp.config import Preset
from straightdp.evaluation.record import digests
from straightdp.files import DamagedFile, read_arrays, write_arrays
from straightdp.reports.figures.samples import draw_samples, first_of_each, mosaic, read_samples
from straightdp.studies.cells import metrics_name
from straightdp.studies.figures import FIGURE5, figure_places


@pytest.fixture(scope="module")
def preset():
    values = copy.deepcopy(TINY)
    values["grid"] = {"epsilons": [0.3, 1], "seeds": [0]}
    return Preset(**values)


@pytest.fixture
def place(preset, tmp_path):
    row, cell = figure_places(preset, FIGURE5)[0]
    write_cell(preset, cell, tmp_path)
    return cell.folder(tmp_path) / metrics_name(preset), cell, row


def test_the_first_of_each_class_in_their_order():
    labels = np.array([*range(9, -1, -1), *range(10), *range(10)])
    chosen = first_of_each(labels, 2)
    assert chosen.tolist() == [list(range(9, -1, -1)), list(range(10, 20))]
    assert first_of_each(labels, 5).shape == (3, 10)
    with pytest.raises(ValueError, match="no sample of class 7"):
        first_of_each(labels[labels != 7], 2)


def test_a_mosaic_has_each_image_at_its_place():
    pictures = np.arange(4, dtype=np.uint8).repeat(28 * 28).reshape(4, 28, 28)
    pictures[:, 0, 1] = 99
    found = mosaic(pictures, np.array([[3, 0], [1, 2]]))
    assert found.shape == (56, 56)
    assert [found[y, x] for y in (0, 28) for x in (0, 28)] == [3, 0, 1, 2]
    assert (found[[0, 0, 28, 28], [1, 29, 1, 29]] == 99).all()


def test_a_panels_pixels_are_its_cells_first_samples(preset, tmp_path):
    places = figure_places(preset, FIGURE5)
    shown = []
    for row, cell in places:
        write_cell(preset, cell, tmp_path)
        shown.append(read_samples(cell.folder(tmp_path) / metrics_name(preset), cell, row))
    figure = draw_samples(preset, FIGURE5.rows, shown[::-1], 0)
    assert len(figure.axes) == len(places) == 10
    for axes, (_, cell) in zip(figure.axes, places, strict=True):
        picture = axes.get_images()[0].get_array()
        made = images(cell, preset.sampling.count)  # labelled 9, 8, ..., 0, 9, ...
        for i in range(3):
            for label in range(10):
                tile = picture[28 * i : 28 * (i + 1), 28 * label : 28 * (label + 1)]
                assert (tile == made[10 * i + 9 - label]).all()


def test_edited_samples_are_refused(place):
    path, cell, row = place
    lying = path.parent / "samples.npz"
    arrays = read_arrays(lying)
    arrays["images"][0, 0, 0] ^= 1
    write_arrays(lying, **arrays)
    with pytest.raises(DamagedFile, match="samples.npz: is not the file that was evaluated"):
        read_samples(path, cell, row)


@pytest.mark.parametrize("change", [{"labels": np.zeros(100, int)}, {"images": np.zeros((9, 9))}])
def test_samples_of_another_form_are_refused(preset, place, change):
    path, cell, row = place
    lying = path.parent / "samples.npz"
    write_arrays(lying, **read_arrays(lying) | change)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"files": digests(path.parent)}))
    with pytest.raises(DamagedFile, match="samples.npz: no"):
        read_samples(path, cell, row)


def test_a_missing_cell_is_a_hole_in_its_place(preset, tmp_path):
    (row, cell), *_ = places = figure_places(preset, FIGURE5)
    write_cell(preset, cell, tmp_path)
    shown = [read_samples(cell.folder(tmp_path) / metrics_name(preset), cell, row)]
    figure = draw_samples(preset, FIGURE5.rows, shown, 0)
    filled = [bool(axes.get_images()) for axes in figure.axes]
    assert filled == [True, *[False] * (len(places) - 1)]
    assert "not there yet" in [text.get_text() for text in figure.axes[1].texts]
