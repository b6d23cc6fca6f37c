"""What `status` says of a cell's folder."""

import json

import pytest
from conftest import write_preset

from straightdp.cli.status import cell_state
from straightdp.cli.units import (
    Workspace,
    evaluation_failure,
    failure_noted,
    locked,
    prerequisites,
)
from straightdp.config import load_preset
from straightdp.evaluation.record import digests
from straightdp.files import write_json
from straightdp.methods.progress import Progress
from straightdp.studies.cells import (
    EVALUATION_SCHEMA,
    cell_base,
    evaluation_config,
    extractor,
    metrics_name,
    resolve,
)
from straightdp.studies.variants import variant_cell
from straightdp.version import source_hash

METRICS = {"accuracy": {"value": 0.5}}


def evaluated(preset, one, folder, run):
    """A finished and evaluated cell's folder, of what status reads."""
    folder.mkdir(parents=True)
    (folder / "transcript.jsonl").write_text("lines\n")
    (folder / "samples.npz").write_text("arrays")
    write_json(folder / "run.json", run)
    write_json(
        folder / metrics_name(preset),
        {
            "schema": EVALUATION_SCHEMA,
            "status": "ok",
            "cell": {"id": one.id},
            "replayed_epsilon": 1.0,
            "files": digests(folder),
            "metrics": METRICS,
            "evaluation": evaluation_config(preset),
        },
    )


@pytest.fixture
def cell(tmp_path, tiny, monkeypatch):
    """A finished and evaluated cell, of what status reads: (its state, its folder, the name)."""
    monkeypatch.chdir(tmp_path)
    preset = load_preset(write_preset(tmp_path / "tiny.yaml", tiny))
    one, workspace = resolve(preset, "uniform", "pixel", 1.0, 0), Workspace.of(preset)
    folder, name = workspace.folder(one), metrics_name(preset)
    evaluated(preset, one, folder, {"status": "ok", "code": {"source": source_hash()}})
    return lambda: cell_state(one, workspace, name), folder, name


def test_a_whole_cell_is_done(cell):
    state, folder, name = cell
    assert state().kind == "done"
    (folder / name).unlink()
    assert state().kind == "unevaluated"


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("name", ["transcript.jsonl", "samples.npz"])
def test_a_file_that_is_gone_makes_it_a_failed_one(cell, name, evaluated):
    state, folder, metrics = cell
    if not evaluated:
        (folder / metrics).unlink()
    (folder / name).unlink()
    assert state().kind == "failed" and f"{name}: not there" in state().detail


@pytest.mark.parametrize("name", ["transcript.jsonl", "samples.npz"])
def test_a_file_edited_since_its_evaluation_makes_it_a_failed_one(cell, name):
    state, folder, _ = cell
    (folder / name).write_text("others")
    assert state().kind == "failed" and f"{name}: is not the file" in state().detail


@pytest.mark.parametrize("content", ["[]", "{}", "null", "{", '"ok"'])
def test_a_garbled_record_makes_it_a_failed_one(cell, content):
    state, folder, metrics = cell
    for name in ("run.json", metrics):
        good = (folder / name).read_text()
        (folder / name).write_text(content)
        assert state().kind == "failed" and name in state().detail
        (folder / name).write_text(good)


def test_a_metric_that_is_no_number_makes_it_a_failed_one(cell):
    state, folder, name = cell
    record = json.loads((folder / name).read_text())
    record["metrics"]["accuracy"]["value"] = float("nan")
    (folder / name).write_text(json.dumps(record))
    assert state().kind == "failed" and f"{name}: its accuracy is nan" in state().detail


def test_a_failed_evaluation_is_seen_until_it_succeeds(cell):
    state, folder, name = cell
    metrics = (folder / name).read_text()
    (folder / name).unlink()
    path = evaluation_failure(folder / name)
    with pytest.raises(ValueError), failure_noted(path, Progress("t", folder / "log.txt")):
        raise ValueError("no such weights")
    assert state().broken
    assert "evaluation: exception: no such weights" in state().detail
    with failure_noted(path, Progress("t", folder / "log.txt")):
        (folder / name).write_text(metrics)
    assert state().kind == "done"


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_cell_is_failed_where_what_it_waits_for_is(tmp_path, tiny, monkeypatch, evaluated):
    monkeypatch.chdir(tmp_path)
    preset = load_preset(write_preset(tmp_path / "tiny.yaml", tiny))
    one, workspace = resolve(preset, "uniform", "latent", 1.0, 0), Workspace.of(preset)
    name, reference = metrics_name(preset), extractor(preset)
    shared = reference if evaluated else prerequisites(one)[1]
    folder = workspace.folder(one)
    folder.mkdir(parents=True)
    if evaluated:
        for part in ("run.json", "transcript.jsonl", "samples.npz"):
            (folder / part).write_text('{"status": "ok"}')
    before = cell_state(one, workspace, name, None, reference)
    assert before.kind == ("unevaluated" if evaluated else "missing")
    record = {"reason": "exception", "message": "disk", "log": "there"}
    write_json(workspace.folder(shared) / "failure.json", record)
    state = cell_state(one, workspace, name, None, reference)
    assert state.kind == "failed" and shared.id in state.detail and "disk" in state.detail


def test_a_folder_that_a_process_holds_is_running(cell):
    state, folder, _ = cell
    (folder / "run.json").unlink()
    (folder / "state").mkdir()
    with locked(folder):
        assert state().kind == "running" and not state().broken
    assert state().kind == "interrupted"


@pytest.mark.parametrize("stray", ["foo.pt", "dp-sgd-.pt", "dp-sgd-x1.pt", ".pt", "-3.pt"])
def test_a_stray_file_among_the_checkpoints_is_passed_over(cell, stray):
    state, folder, _ = cell
    (folder / "run.json").unlink()
    (folder / "state").mkdir()
    (folder / "state" / stray).touch()
    assert "before its first checkpoint" in state().detail
    (folder / "state" / "dp-sgd-0000006.pt").touch()
    assert "at dp-sgd step 6" in state().detail


def test_a_checkpoint_that_is_removed_meanwhile_is_passed_over(cell):
    state, folder, _ = cell
    (folder / "run.json").unlink()
    (folder / "state").mkdir()
    (folder / "state" / "dp-sgd-0000003.pt").symlink_to("gone")
    assert "before its first checkpoint" in state().detail


def test_a_cell_drawn_from_weights_that_changed_is_stale(tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = load_preset(write_preset(tmp_path / "tiny.yaml", tiny))
    drawn = variant_cell(preset, "tha_moments", "pixel", 1.0, 0, "posthoc-clamp")
    base, workspace = cell_base(drawn.config), Workspace.of(preset)
    name = metrics_name(preset)
    run = {"status": "ok", "code": {"source": source_hash()}, "weights_sha256": {"model.pt": "a"}}
    evaluated(preset, drawn, workspace.folder(drawn), run)

    def state():
        return cell_state(drawn, workspace, name)

    assert state().kind == "done"  # its base is not there: a trouble of the base alone
    workspace.folder(base).mkdir()
    write_json(workspace.folder(base) / "run.json", run)
    assert state().kind == "done"
    write_json(workspace.folder(base) / "run.json", run | {"weights_sha256": {"model.pt": "b"}})
    assert state().kind == "stale" and "other weights" in state().detail
