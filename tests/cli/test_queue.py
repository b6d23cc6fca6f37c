"""What the cluster says of a cell, from the executor's journal and one answer of Slurm."""

from pathlib import Path

import pytest

from snakemake_executor_plugin_submitit.journal import Entry, Journal
from snakemake_executor_plugin_submitit.slurm import QueueLine, SlurmMissing
from straightdp.cli.queue import Queue
from straightdp.cli.status import cell_state
from straightdp.cli.units import Workspace
from straightdp.config import load_preset
from straightdp.files import write_json
from straightdp.studies.cells import metrics_name, resolve


def entry(output: str, **changes) -> Entry:
    values = {"backend": "slurm", "command": "c", "state": "active", "ids": ["7"], "seen": False}
    key = output.replace("/", "-")
    return Entry(key=key, outputs=[output], **(values | changes))


def queue(home, entries, answer) -> Queue:
    for one in entries:
        Journal(home).write(one)

    def ask():
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Queue(home, ask)


@pytest.mark.parametrize(
    "answer, kind, words",
    [
        ({"7": QueueLine("RUNNING", "None", "l40s1", "1:02")}, "running", "job 7 on l40s1"),
        ({"7": QueueLine("RUNNING", "None", "l40s1", "1:02")}, "running", "for 1:02"),
        ({"7": QueueLine("PENDING", "(Resources)")}, "pending", "job 7: (Resources)"),
        ({"7": QueueLine("COMPLETING", "", "a1001", "9:59")}, "running", "completing"),
        (None, "pending", "Slurm does not answer"),
        (SlurmMissing("no squeue"), "pending", "Slurm does not answer"),
    ],
)
def test_a_submitted_job_shows_what_slurm_says(tmp_path, answer, kind, words):
    job = queue(tmp_path, [entry("out/a")], answer).job(Path("out/a"))
    assert job.kind == kind and words in job.detail


@pytest.mark.parametrize("answer", [{}, {"7": QueueLine("COMPLETED")}, {"7": QueueLine("FAILED")}])
def test_a_job_that_slurm_is_done_with_is_judged_by_its_folder(tmp_path, answer):
    assert queue(tmp_path, [entry("out/a")], answer).job(Path("out/a")) is None


def test_slurm_is_asked_once_and_only_if_a_job_is_out(tmp_path):
    asked = []

    def ask():
        asked.append(1)
        return {}

    for i in range(20):
        Journal(tmp_path).write(entry(f"out/{i}", state="done"))
    Queue(tmp_path, ask)
    assert asked == []
    for i in range(20):
        Journal(tmp_path).write(entry(f"out/{i}"))
    Queue(tmp_path, ask)
    assert asked == [1]


def test_a_held_job_says_what_held_it(tmp_path):
    held = entry("out/a", state="held", ids=[], message="sbatch: error: AssocMaxSubmitJobLimit")
    job = queue(tmp_path, [held], {}).job(Path("out/a"))
    assert job.kind == "pending" and "AssocMaxSubmitJobLimit" in job.detail


@pytest.fixture
def cell(tmp_path, tiny, monkeypatch):
    """A cell in an empty working folder: (cell, workspace, metrics file's name)."""
    from conftest import write_preset

    monkeypatch.chdir(tmp_path)
    preset = load_preset(write_preset(tmp_path / "tiny.yaml", tiny))
    one = resolve(preset, "uniform", "pixel", 1.0, 0)
    return one, Workspace.of(preset), metrics_name(preset)


def finished(folder):
    for name in ("transcript.jsonl", "samples.npz"):
        (folder / name).write_text("")
    write_json(folder / "run.json", {"status": "ok"})


def failed(cell, workspace, name: str = "run.json") -> Entry:
    log = workspace.folder(cell) / "job.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Killed\n")
    output = str(workspace.folder(cell) / name)
    return entry(output, state="failed", reason="oom", message="out of memory", log=str(log))


def test_a_killed_job_is_a_failed_cell_with_its_reason_and_log(cell, tmp_path):
    one, workspace, metrics = cell
    found = queue(tmp_path / "home", [failed(one, workspace)], {})
    state = cell_state(one, workspace, metrics, found)
    assert state.kind == "failed" and state.broken
    assert "oom: out of memory" in state.detail and "job.out" in state.detail


def test_a_later_success_outweighs_an_old_failure(cell, tmp_path):
    """The cell was run since, by another executor: the journal's old word is not the last."""
    one, workspace, metrics = cell
    found = queue(tmp_path / "home", [failed(one, workspace)], {})
    finished(workspace.folder(one))
    assert cell_state(one, workspace, metrics, found).kind == "unevaluated"


def test_a_failed_evaluation_is_seen(cell, tmp_path):
    one, workspace, metrics = cell
    found = queue(tmp_path / "home", [failed(one, workspace, metrics)], {})
    finished(workspace.folder(one))
    assert cell_state(one, workspace, metrics, found).kind == "failed"


def test_a_running_job_outweighs_what_its_folder_says(cell, tmp_path):
    one, workspace, metrics = cell
    folder = workspace.folder(one)
    (folder / "state").mkdir(parents=True)
    found = queue(
        tmp_path / "home",
        [entry(str(folder / "run.json"))],
        {"7": QueueLine("RUNNING", "", "a1001", "0:10")},
    )
    state = cell_state(one, workspace, metrics, found)
    assert state.kind == "running" and not state.broken


def test_rerun_forgets_a_finished_job_but_not_one_that_is_out(tmp_path):
    found = queue(
        tmp_path,
        [entry("out/a", state="failed"), entry("out/b"), entry("out/c", state="failed")],
        {"7": QueueLine("RUNNING", "", "a1001", "0:10")},
    )
    found.forget([Path("out/a"), Path("out/b")])
    left = {one.outputs[0] for one in Journal(tmp_path).entries()}
    assert left == {"out/b", "out/c"}
