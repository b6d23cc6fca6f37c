"""Which metrics files a table takes, and which it refuses by name."""

import json

import pytest

from straightdp.config import Preset
from straightdp.evaluation.record import digests
from straightdp.files import write_json
from straightdp.reports import study
from straightdp.reports.study import UnusableMetrics, write_study
from straightdp.studies.cells import evaluation_config, metrics_name
from straightdp.studies.grid import STUDIES, TABLE1, all_cells, study_cells

LOGGED = {"p50": [1.0, 9.0, 2.0], "p90": [4.0, 2.0, 3.0], "clip_fraction": [0.5, 0.1, 0.0]}
PARTS = ("run.json", "transcript.jsonl", "samples.npz")


@pytest.fixture
def preset(tiny):
    return Preset(**tiny)


def entry(value, by="fid_lenet", **more):
    common = {"n": 100, "by": by, "checksum": "0123abcd", "reference": "embedded test, n = 4000"}
    return {"value": value} | common | more


def record(preset, cell, number):
    classes = {"classes": [float(number)] * 10, "class_n": [10] * 10}
    return {
        "schema": 2,
        "status": "ok",
        "cell": {"id": cell.id},
        "replayed_epsilon": 0.99 * cell.epsilon,
        "metrics": {
            "accuracy": entry(0.3 + number / 100, "lenet_probe"),
            "fid": entry(100.0 - number),
            "fid_by_class": entry(100.0 + number, **classes),
            "fid_blind": entry(1.0, "fid_random"),
            "label_consistency": entry(0.4, "lenet_labels"),
            "domain_rate": entry(0.9, "lenet_domains"),
            "precision": entry(0.2),
            "recall": entry(0.1),
        },
        "n_samples": 100,
        "evaluation": evaluation_config(preset),
    }


@pytest.fixture
def root(preset, tmp_path, monkeypatch):
    """Metrics files for every cell of every study, and tables written beside them."""
    monkeypatch.setattr(study, "TABLES", tmp_path / "tables")
    for number, cell in enumerate(all_cells(preset).values()):
        path = cell.folder(tmp_path) / metrics_name(preset)
        path.parent.mkdir(parents=True)
        for name in PARTS:
            (path.parent / name).write_text(f"{name} of {cell.id}")
        write_json(path.parent / "gradients.json", LOGGED)
        written = record(preset, cell, number) | {"files": digests(path.parent)}
        path.write_text(json.dumps(written))
    return tmp_path


def edit(path, metric, **values):
    """Change what a metrics file says of one metric."""
    written = json.loads(path.read_text())
    written["metrics"][metric] |= values
    path.write_text(json.dumps(written))


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


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_written_from_its_cells(preset, root, name):
    paths, text = write_study(preset, STUDIES[name], root)
    names = [f"{name}.{kind}" for kind in ("md", "csv", "tex")]
    assert [path.name for path in paths[:3]] == names
    assert [path.name for path in paths[3:]] == ["controls_gradients.csv"] * (name == "controls")
    assert "preset tiny" in text and "—" not in text


def test_table_6_has_a_label_blind_column_where_inception_is_not_there(preset, root):
    lenet = write_study(preset, STUDIES["table6"], root)[1]
    for cell in study_cells(preset, STUDIES["table6"]):
        edit(cell.folder(root) / metrics_name(preset), "fid", by="inception_v3_tf")
    inception = write_study(preset, STUDIES["table6"], root)[1]
    assert "FID (fid_lenet)" in lenet and "FID (fid_random)" in lenet
    assert "FID (inception_v3_tf)" in inception and "fid_random" not in inception


def test_a_classifier_is_shown_with_its_own_accuracy(preset, root):
    for cell in study_cells(preset, STUDIES["table5"]):
        path = cell.folder(root) / metrics_name(preset)
        edit(path, "label_consistency", real_accuracy=0.9871)
    text = write_study(preset, STUDIES["table5"], root)[1]
    assert "lenet_labels (0123abcd; embedded test, n = 4000, 0.987 right on real held-out" in text


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
        ({"status": None, "cell": None}, "its status and cell"),
        ({"cell": {"id": "another"}}, "its cell is not"),
        ({"cell": None}, "its cell is not"),
        ({"evaluation": {}}, "its evaluation is not"),
        ({"replayed_epsilon": 1.01}, "replayed epsilon is above the declared 1"),
        ({"replayed_epsilon": float("nan")}, "replayed epsilon is above the declared 1"),
        ({"metrics": None}, "lacks or garbles"),
        ({"metrics": {"accuracy": entry(0.5)}}, "lacks or garbles 'fid'"),
        ({"metrics": {"accuracy": entry("good"), "fid": entry(1.0)}}, "lacks or garbles"),
        ({"metrics": {"accuracy": 0.5, "fid": 1.0}}, "lacks or garbles"),
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


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("partial", [False, True])
def test_a_file_that_changed_since_its_evaluation_is_refused(preset, root, name, partial):
    cell, path = first_file(preset, root)
    part = path.parent / name
    part.write_text(part.read_text() + " ")
    with pytest.raises(UnusableMetrics, match=f"{name}: is not the file that was evaluated"):
        write_study(preset, TABLE1, root, partial=partial)
    part.unlink()
    with pytest.raises(UnusableMetrics, match=f"{name}: not there; run `straightdp rerun"):
        write_study(preset, TABLE1, root, partial=partial)


@pytest.mark.parametrize("schema", [1, None])
@pytest.mark.parametrize("partial", [False, True])
def test_the_metrics_of_another_release_are_to_be_evaluated_anew(preset, root, schema, partial):
    cell, path = first_file(preset, root)
    old = {"accuracy": 0.5, "fid": 10.0, "extractor": "fid_lenet", "n_samples": 100}
    path.write_text(json.dumps(json.loads(path.read_text()) | old | {"schema": schema}))
    with pytest.raises(UnusableMetrics, match=f"its schema is {schema}, not 2") as caught:
        write_study(preset, TABLE1, root, partial=partial)
    assert str(path) in str(caught.value)
    assert f"straightdp evaluate {cell.id}" in str(caught.value)
    assert "rerun" not in str(caught.value)


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


def test_a_controls_caption_names_the_second_domain_and_the_sweeps_budget(preset, root):
    _, text = write_study(preset, STUDIES["controls"], root)
    assert "Second public domain: letters." in text
    assert "Noise multiplicity: 3 from scratch, 2 elsewhere." in text
    head = next(line for line in text.splitlines() if line.startswith("| Method"))
    assert [part.strip() for part in head.split("|")[1:4]] == ["Method", "\u03b5", "Acc"]
    lines = text.splitlines()
    swept = [line.split("|") for line in lines if "t0 = " in line and line.startswith("|")]
    assert [line[2].strip() for line in swept] == ["1.2", "1.2"]  # t0 = 0.2 and 0.5
    budgets = {line.split("|")[2].strip() for line in lines if line.startswith("| THA")}
    assert budgets == {"1"}


@pytest.mark.parametrize("damage", [None, "{", '{"p50": [1]}', '{"p50": [], "p90": []}'])
def test_a_gradient_log_that_cannot_be_used_is_refused_or_a_hole(preset, root, damage):
    cell = study_cells(preset, STUDIES["controls"])[-1]
    assert (cell.method, cell.epsilon) == ("low_b0", 0.3)
    path = cell.folder(root) / "gradients.json"
    path.unlink() if damage is None else path.write_text(damage)
    with pytest.raises(UnusableMetrics, match=f"gradients.json.*rerun {cell.id}"):
        write_study(preset, STUDIES["controls"], root)
    if damage is None:
        _, text = write_study(preset, STUDIES["controls"], root, partial=True)
        line = next(one for one in text.splitlines() if one.startswith("| Low-B0"))
        assert line.split("|")[3].strip() == "0" and "— (1450)" in line
