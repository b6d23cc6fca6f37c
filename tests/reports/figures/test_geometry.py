"""Figure 2 against its sources: the calibration's cosines, and the family by dense matrices."""

import math

import numpy as np
import pytest
from drawn import HORIZON, TIMES, moments, write_stage

from straightdp.config import Preset
from straightdp.files import DamagedFile, read_json, write_json
from straightdp.reports.figures import style
from straightdp.reports.figures.geometry import clip_family, draw_geometry, read_geometry

BETAS = (0, 0.25, 0.5, 0.75, 1)


@pytest.fixture
def folder(tmp_path):
    write_stage(tmp_path / "stage")
    return tmp_path / "stage"


@pytest.fixture
def drawn(tiny, folder):
    return draw_geometry(Preset(**tiny), read_geometry(folder, "pixel"), 0)


def lines(axes):
    return {one.get_label(): one for one in axes.get_lines()}


def test_the_cosines_are_the_calibrations(drawn):
    found = lines(drawn.axes[0])
    for look, name in ((style.NULL_BRANCH, "null_branch"), (style.WORST_CLASS, "worst_class")):
        x, y = found[look.label].get_data()
        assert tuple(x) == TIMES and tuple(y) == HORIZON[name]


def test_tau_is_marked_in_both_panels(drawn):
    for axes in drawn.axes:
        (marked,) = [one for one in axes.get_lines() if one.get_gid() == "tau"]
        assert set(marked.get_xdata()) == {0.3}
        assert any("0.3" in text.get_text() for text in axes.texts)


def test_the_family_is_the_papers_formula_on_dense_matrices():
    """log C_beta = beta (log sqrt(tr((1-t)^2 Sigma A_t^-1)) - log(1-t)) + const (B.5, w = 1)."""
    model = moments()
    times, family = clip_family(model, BETAS)
    sigma = model.covariance().double().numpy()
    raw = []
    for t in times:
        inverse = np.linalg.inv((1 - t) ** 2 * np.eye(len(sigma)) + t**2 * sigma)
        raw.append(math.sqrt(np.trace((1 - t) ** 2 * sigma @ inverse)) / (1 - t))
    logs = np.log(raw) - np.log(raw).mean()
    for beta, values in zip(BETAS, family, strict=True):
        np.testing.assert_allclose(np.log(values), beta * logs, atol=1e-6)


def test_beta_zero_is_uniform_and_the_others_are_powers_of_one():
    _, family = clip_family(moments(), BETAS)
    assert (family[0] == 1).all()
    for beta, values in zip(BETAS, family, strict=True):
        np.testing.assert_allclose(values, family[-1] ** beta, rtol=1e-9)


def test_every_shape_of_the_preset_has_its_line_on_a_log_scale(drawn):
    found = lines(drawn.axes[1])
    assert {"$\\beta$ = 0 (uniform)", "$\\beta$ = 0.5", "$\\beta$ = 1"} <= set(found)
    times, family = clip_family(moments(), (0.5,))
    x, y = found["$\\beta$ = 0.5"].get_data()
    assert (x == times).all() and (y == family[0]).all()
    assert drawn.axes[1].get_yscale() == "log"
    dashes = [str(one._dash_pattern) for label, one in found.items() if "beta" in label]
    assert len(set(dashes)) == len(dashes)


@pytest.mark.parametrize(
    "horizon",
    [
        None,
        HORIZON | {"tau": "soon"},
        HORIZON | {"times": TIMES[:-1]},
        HORIZON | {"times": (), "worst_class": (), "null_branch": ()},
        {name: value for name, value in HORIZON.items() if name != "null_branch"},
    ],
)
def test_a_damaged_calibration_is_refused_by_name(folder, horizon):
    path = folder / "calibration.json"
    write_json(path, read_json(path) | {"horizon": horizon})
    with pytest.raises(DamagedFile, match=f"{folder.name}.*; remove .* and run again"):
        read_geometry(folder, "pixel")


def test_damaged_moments_are_refused_by_name(folder):
    (folder / "public.pt").write_bytes(b"PK")
    with pytest.raises(DamagedFile, match="public.pt: not a readable checkpoint"):
        read_geometry(folder, "pixel")
