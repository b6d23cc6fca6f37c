"""A figure's files: the same bytes each time, named for the run, refused where a cell is."""

import re
import time

import matplotlib
import pytest
from drawn import write_all

from straightdp.cli.main import main
from straightdp.config import Preset
from straightdp.reports.figures import draw
from straightdp.reports.figures.canvas import run_line
from straightdp.reports.figures.draw import NothingToDraw, sources, write_figure
from straightdp.reports.gather import UnusableMetrics
from straightdp.studies.cells import metrics_name
from straightdp.studies.figures import FIGURES, figure_places, figure_stages


@pytest.fixture
def preset(tiny):
    return Preset(**tiny)


@pytest.fixture
def root(preset, tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "FIGURES", tmp_path / "figures")
    write_all(preset, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FIGURES)
def test_two_drawings_are_the_same_bytes_whatever_the_users_settings(preset, root, name):
    paths, missing = write_figure(preset, FIGURES[name], root)
    assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png"] and not missing
    before = [path.read_bytes() for path in paths]
    time.sleep(1.1)  # a date would differ
    with matplotlib.rc_context({"font.size": 20, "pdf.fonttype": 3, "axes.grid": True}):
        write_figure(preset, FIGURES[name], root)
    assert [path.read_bytes() for path in paths] == before
    assert b"CreationDate" not in before[0]
    assert b"/CIDFontType2" in before[0] and b"/Type3" not in before[0]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == [f"{name}.pdf", f"{name}.png"]


def test_the_line_below_names_the_run(preset):
    text = run_line(preset, (0,))
    assert "Preset tiny (glyphs \u2192 embedded" in text and "n = 1 seed (0)" in text
    assert "Not the paper's setting" in text
    assert "Not the paper's" not in run_line(preset.model_copy(update={"name": "paper"}), (0,))


def test_a_first_seed_of_several_says_so(preset):
    grid = preset.grid.model_copy(update={"seeds": (5, 6)})
    text = run_line(preset.model_copy(update={"grid": grid}), (5,))
    assert "n = 1 seed (5, the first of the preset's 2)" in text


@pytest.mark.parametrize("name", ["figure3", "figure5"])
def test_a_missing_cell_is_refused_or_a_hole_with_its_reason(preset, root, name):
    _, cell = figure_places(preset, FIGURES[name])[1]
    path = cell.folder(root) / metrics_name(preset)
    path.unlink()
    with pytest.raises(UnusableMetrics, match=re.escape(f"{path}: not there; `straightdp status")):
        write_figure(preset, FIGURES[name], root)
    paths, missing = write_figure(
        preset, FIGURES[name], root, partial=True, reason=lambda one: f"{one.id} was late"
    )
    assert [path.name for path in paths] == [f"{name}.partial.pdf", f"{name}.partial.png"]
    assert [one.reason for one in missing] == [f"{cell.id} was late"]


@pytest.mark.parametrize("name", ["figure3", "figure5"])
@pytest.mark.parametrize("partial", [False, True])
def test_a_cell_that_no_table_takes_is_in_no_figure(preset, root, name, partial):
    _, cell = figure_places(preset, FIGURES[name])[0]
    edited = cell.folder(root) / "samples.npz"
    edited.write_bytes(edited.read_bytes() + b" ")
    with pytest.raises(UnusableMetrics) as caught:
        write_figure(preset, FIGURES[name], root, partial=partial)
    assert "samples.npz: is not the file that was evaluated" in str(caught.value)
    assert f"straightdp rerun {cell.id} --preset tiny" in str(caught.value)


def test_a_missing_public_stage_is_refused_or_a_hole(preset, root):
    (unit,) = figure_stages(preset, FIGURES["figure2"]).values()
    (unit.folder(root) / "public.pt").unlink()
    with pytest.raises(NothingToDraw, match="public.pt: not there; run `snakemake .* figure2 "):
        write_figure(preset, FIGURES["figure2"], root)
    paths, _ = write_figure(preset, FIGURES["figure2"], root, partial=True)
    assert all(path.exists() and ".partial." in path.name for path in paths)


def test_the_sources_of_a_figure_exist_and_share_one_style():
    for figure in FIGURES.values():
        found = sources(figure)
        assert all(path.is_file() and path.is_absolute() for path in found)
        assert found[0].name == "style.py"


def test_the_command_line_says_in_a_line_what_is_wrong(tmp_path, monkeypatch, capsys, tiny):
    from conftest import write_preset

    monkeypatch.chdir(tmp_path)
    path = str(write_preset(tmp_path / "tiny.yaml", tiny))
    assert main(["report", "figure9", "--preset", path]) == 2
    assert "figure9: no such table or figure; known: table1" in capsys.readouterr().err
    assert main(["show", "figure3", "--preset", path]) == 2
    assert "figures/tiny/figure3.png: not written yet" in capsys.readouterr().err
    assert main(["report", "figure2", "--preset", path]) == 1
    told = capsys.readouterr().err
    assert "public.pt: not there" in told and len(told.splitlines()) == 1
    write_all(Preset(**tiny), tmp_path / "results" / "tiny")
    assert main(["report", "figure3", "--preset", path]) == 0
    assert capsys.readouterr().out.split() == [
        "figures/tiny/figure3.pdf",
        "figures/tiny/figure3.png",
    ]
    assert main(["show", "figure3", "--preset", path]) == 0
    assert main(["status", "figure3", "--preset", path]) == 2
