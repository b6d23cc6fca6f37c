"""Which metrics files a table takes, and which it refuses by name."""

import json

import pytest

from straightdp.config import Preset
from straightdp.reports import study
from straightdp.reports.study import UnusableMetrics, write_study
from straightdp.studies.cells import evaluation_config, metrics_name
from straightdp.studies.grid import TABLE1, study_cells


@pytest.fixture
def preset(tiny):
    return Preset(**tiny)


@pytest.fixture
def root(preset, tmp_path, monkeypatch):
    """Metrics files for every cell of the study, and tables written beside them."""
    monkeypatch.setattr(study, "TABLES", tmp_path / "tables")
    for number, cell in enumerate(study_cells(preset, TABLE1)):
        record = {
            "schema": 1,
            "status": "ok",
            "cell": {"id": cell.id},
            "replayed_epsilon": 0.99 * cell.epsilon,
            "accuracy": 0.3 + number / 100,
            "fid": 100.0 - number,
            "extractor": "fid_lenet",
            "extractor_checksum": "0123abcd",
            "n_samples": 100,
            "evaluation": evaluation_config(preset),
        }
        path = cell.folder(tmp_path) / metrics_name(preset)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    return tmp_path


def first_file(preset, root):
    cell = study_cells(preset, TABLE1)[0]
    return cell, cell.folder(root) / metrics_name(preset)


def test_a_full_table_is_written_in_three_forms(preset, root):
    paths, text = write_study(preset, TABLE1, root)
    assert [path.name for path in paths] == ["table1.md", "table1.csv", "table1.tex"]
    assert paths[0].read_text() == text
    assert "0.300" in text
    assert "—" not in text


def test_the_blocks_stand_in_the_papers_order_under_its_words(preset, root):
    paths, text = write_study(preset, TABLE1, root)
    words = ["Prior methods", "Released moments only", "Pixel space", "Latent space"]
    for written in (text, paths[2].read_text()):
        places = [written.index(word) for word in words]
        assert places == sorted(places)
        first = written[places[0] : places[1]]
        assert "Private Evolution (frozen prior)" in first
        assert "DP-SGD" not in first


def test_a_hole_is_refused_or_shown_with_its_reason(preset, root):
    cell, path = first_file(preset, root)
    path.unlink()
    with pytest.raises(UnusableMetrics, match="not there"):
        write_study(preset, TABLE1, root)
    paths, text = write_study(
        preset, TABLE1, root, partial=True, reason=lambda one: f"{one.id} ran out of memory"
    )
    assert paths[0].name == "table1.partial.md"
    assert "| —" in text
    assert f"seed 0: {cell.id} ran out of memory" in text
    assert not (root / "tables" / preset.name / "table1.md").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "failed"}, "its status is not what it should be"),
        ({"schema": None}, "its schema is not"),
        ({"schema": 0, "status": None}, "its schema and status"),
        ({"cell": {"id": "another"}}, "its cell is not"),
        ({"cell": None}, "its cell is not"),
        ({"evaluation": {}}, "its evaluation is not"),
        ({"replayed_epsilon": 1.01}, "replayed epsilon is above the declared 1"),
        ({"replayed_epsilon": float("nan")}, "replayed epsilon is above the declared 1"),
        ({"accuracy": "good"}, "lacks or garbles"),
        ({"fid": None}, "lacks or garbles"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_a_metrics_file_that_cannot_be_trusted_is_refused(preset, root, change, words, partial):
    cell, path = first_file(preset, root)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UnusableMetrics, match=words) as caught:
        write_study(preset, TABLE1, root, partial=partial)
    assert str(path) in str(caught.value)
    assert f"straightdp rerun {cell.id}" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '"ok"', "null"])
def test_a_damaged_file_is_refused(preset, root, content):
    _, path = first_file(preset, root)
    path.write_text(content)
    with pytest.raises(UnusableMetrics, match="metrics-.*json: not "):
        write_study(preset, TABLE1, root)


def test_every_trouble_has_its_line(preset, root):
    cells = study_cells(preset, TABLE1)
    for cell in cells[:3]:
        (cell.folder(root) / metrics_name(preset)).write_text("{")
    with pytest.raises(UnusableMetrics) as caught:
        write_study(preset, TABLE1, root)
    assert len(str(caught.value).splitlines()) == 3
