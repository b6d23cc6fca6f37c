"""A killed cell goes on from its checkpoint and ends bit for bit as the undisturbed one."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, write_preset

from straightdp.cli.units import Busy, Workspace, locked, prerequisites, run_unit
from straightdp.config import load_preset
from straightdp.device import Compute
from straightdp.files import DamagedFile, load_tensors, save_tensors, write_json
from straightdp.methods.progress import Progress
from straightdp.methods.training import Checkpoints, Phase, run_phase
from straightdp.studies.cells import resolve

KILLER = """
import os, sys
from straightdp.methods.progress import Progress
left = int(sys.argv[1])
def step(self, phase, done, total, detail=""):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), int(sys.argv[3]))
Progress.step = step
from straightdp.cli.main import main
sys.exit(main(["cell", sys.argv[2], "--preset", "tiny.yaml"]))
"""


OVER = {"dirs_exist_ok": True}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A folder with the public stage, and one cell run to its end."""
    folder = tmp_path_factory.mktemp("resume")
    preset = load_preset(write_preset(folder / "tiny.yaml", TINY))
    workspace = Workspace(folder / "results" / "tiny")
    cell = resolve(preset, "tha_moments", "pixel", 1.0, 0)
    run_unit(cell, workspace, preset.execution, threads=1)
    done = workspace.folder(cell)
    kept = folder / "undisturbed"
    shutil.move(done, kept)
    return folder, preset, workspace, cell, kept


def assert_same(a: Path, b: Path) -> None:
    assert (a / "transcript.jsonl").read_bytes() == (b / "transcript.jsonl").read_bytes()
    with np.load(a / "samples.npz") as one, np.load(b / "samples.npz") as other:
        assert np.array_equal(one["images"], other["images"])
        assert np.array_equal(one["labels"], other["labels"])
    one, other = load_tensors(a / "model.pt"), load_tensors(b / "model.pt")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (a / "gradients.json").read_bytes() == (b / "gradients.json").read_bytes()


def signalled(folder: Path, cell, step: int, number: int):
    """Run the cell in a process of its own that sends itself a signal after so many steps."""
    return subprocess.run(
        [sys.executable, "-c", KILLER, str(step), cell.id, str(int(number))],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


# 12 distillation steps, then 12 private ones, a checkpoint every 5: in the first block of
# each phase, between checkpoints, and right after one.
@pytest.mark.parametrize("step", [3, 11, 13, 18, 24])
def test_a_cell_killed_at_any_step_ends_the_same(undisturbed, step):
    folder, preset, workspace, cell, kept = undisturbed
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    killed = signalled(folder, cell, step, signal.SIGKILL)
    assert killed.returncode == -9, killed.stderr
    assert not (workspace.folder(cell) / "run.json").exists()
    run_unit(cell, workspace, preset.execution, threads=1)
    assert_same(workspace.folder(cell), kept)
    assert not (workspace.folder(cell) / "state").exists()


@pytest.mark.parametrize("step, newest", [(3, "distillation-0000003"), (18, "dp-sgd-0000006")])
def test_a_cell_told_to_leave_saves_that_very_step(undisturbed, step, newest):
    """SIGTERM: a checkpoint at the step under way, no failure on record, and the same end."""
    folder, preset, workspace, cell, kept = undisturbed
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    told = signalled(folder, cell, step, signal.SIGTERM)
    assert told.returncode == 128 + signal.SIGTERM, told.stderr
    assert "Traceback" not in told.stderr
    assert (workspace.folder(cell) / "state" / f"{newest}.pt").exists()
    assert not (workspace.folder(cell) / "failure.json").exists()
    run_unit(cell, workspace, preset.execution, threads=1)
    assert_same(workspace.folder(cell), kept)


def test_a_resumed_cell_releases_nothing_twice(undisturbed, monkeypatch):
    """What was distilled before the kill and what is published after it are one release."""
    folder, preset, workspace, cell, kept = undisturbed
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    signalled(folder, cell, 7, signal.SIGKILL)

    def again(*_):
        raise AssertionError("a second release")

    monkeypatch.setattr("straightdp.methods.pipeline.release", again)
    run_unit(cell, workspace, preset.execution, threads=1)
    assert_same(workspace.folder(cell), kept)
    released = (workspace.folder(cell) / "moments.pt").read_bytes()
    assert released == (kept / "moments.pt").read_bytes()


def test_a_truncated_newest_checkpoint_falls_back_to_the_one_before(undisturbed):
    folder, preset, workspace, cell, kept = undisturbed
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    signalled(folder, cell, 24, signal.SIGKILL)
    checkpoints = sorted((workspace.folder(cell) / "state").glob("dp-sgd-*.pt"))
    assert len(checkpoints) == 2
    raw = checkpoints[-1].read_bytes()
    checkpoints[-1].write_bytes(raw[: len(raw) // 2])
    run_unit(cell, workspace, preset.execution, threads=1)
    assert_same(workspace.folder(cell), kept)


def test_two_at_once_the_second_is_told_who_is_at_work(tmp_path):
    with locked(tmp_path / "cell"):
        with pytest.raises(Busy, match=r"process \d+ on .* is at work"):
            with locked(tmp_path / "cell"):
                pass
    with locked(tmp_path / "cell"):
        pass


def test_a_patient_second_process_takes_the_first_ones_result(undisturbed, monkeypatch):
    """A run that waited for another's end finds the work done, and does not do it twice."""
    folder, preset, workspace, cell, kept = undisturbed
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    finisher = threading.Timer(0.5, lambda: shutil.copytree(kept, workspace.folder(cell), **OVER))
    with locked(workspace.folder(cell)):
        finisher.start()
        waiting = threading.Thread(
            target=run_unit, args=(cell, workspace, preset.execution, 1, 30.0)
        )
        waiting.start()
        finisher.join()
    waiting.join()
    assert not (workspace.folder(cell) / "state").exists()
    assert_same(workspace.folder(cell), kept)
    assert "done by another process" in (workspace.folder(cell) / "log.txt").read_text()


def test_prerequisites_of_a_latent_cell_come_in_order(undisturbed):
    _, preset, _, _, _ = undisturbed
    kinds = [unit.kind for unit in prerequisites(resolve(preset, "uniform", "latent", 1.0, 0))]
    assert kinds == ["data", "autoencoder", "public"]


class Counter:
    """A part whose state is a number, for the loop alone."""

    def __init__(self):
        self.value = 0.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def test_a_phase_of_any_length_resumes_at_any_interruption(tmp_path):
    compute = Compute(torch.device("cpu"), False, 1, 8, 3)
    for stop in range(1, 11):
        folder, steps = tmp_path / str(stop), []

        def phase(counter, limit, steps=steps):
            def step(index):
                if index >= limit:
                    raise KeyboardInterrupt
                counter.value = counter.value * 1.5 + index
                steps.append(index)
                return ""

            return Phase("count", 10, {"counter": counter}, step)

        if stop < 10:
            with pytest.raises(KeyboardInterrupt):
                run_phase(phase(Counter(), stop), folder, compute, Progress("t"))
        last = Counter()
        run_phase(phase(last, 99), folder, compute, Progress("t"))
        expected = 0.0
        for number in range(10):
            expected = expected * 1.5 + number
        assert last.value == expected
        assert len(list(folder.glob("*.pt"))) <= 2
        assert Checkpoints(folder, "count").newest(Progress("t"))["step"] == 10


@pytest.mark.parametrize("last", [6, 7])
def test_a_network_that_diverged_fails_and_leaves_no_checkpoint(tmp_path, last):
    """In a full interval of 3 steps, and at the phase's very end."""
    compute = Compute(torch.device("cpu"), False, 1, 8, 3)
    network = torch.nn.Linear(2, 2)

    def step(index):
        if index == last - 1:
            with torch.no_grad():
                network.weight[0, 0] = float("nan")
        return ""

    with pytest.raises(FloatingPointError, match=f"not finite at count step {last}"):
        run_phase(
            Phase("count", last, {"network": network}, step), tmp_path, compute, Progress("t")
        )
    left = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert left == [f"count-{step:07d}.pt" for step in (3, 6) if step < last]


def test_a_cell_that_diverged_publishes_nothing(undisturbed):
    folder, preset, workspace, _, _ = undisturbed
    wild = preset.stage2.model_copy(update={"learning_rate": 1e30})
    cell = resolve(preset.model_copy(update={"stage2": wild}), "uniform", "pixel", 1.0, 0)
    with pytest.raises(FloatingPointError, match="not finite"):
        run_unit(cell, workspace, preset.execution, threads=1)
    made = {path.name for path in workspace.folder(cell).iterdir()}
    assert not made & {"run.json", "samples.npz", "transcript.jsonl", "model.pt"}
    assert "not finite" in (workspace.folder(cell) / "failure.json").read_text()


def counted(folder, change=None):
    """Ten steps of a counter, its newest checkpoint changed, and ten steps again: the steps run."""
    compute, steps = Compute(torch.device("cpu"), False, 1, 8, 4), []

    def phase(counter):
        def step(index):
            steps.append(index)
            counter.value += 1
            return ""

        return Phase("count", 10, {"counter": counter}, step)

    run_phase(phase(Counter()), folder / "state", compute, Progress("t"))
    path = folder / "state" / "count-0000010.pt"
    state = load_tensors(path)
    change(folder, state)
    save_tensors(path, state)
    steps.clear()
    last = Counter()
    run_phase(phase(last), folder / "state", compute, Progress("t"))
    assert last.value == 10
    return steps


@pytest.mark.parametrize(
    "change",
    [
        lambda folder, state: state.pop("counter"),
        lambda folder, state: state.pop("threads"),
        lambda folder, state: state.pop("unit"),
        lambda folder, state: state.update(step=9),
        lambda folder, state: state.update(unit="another"),
    ],
)
def test_a_checkpoint_that_is_not_this_runs_own_is_passed_over(tmp_path, change):
    write_json(tmp_path / "config.json", {"seed": 1})
    assert counted(tmp_path, change) == [8, 9]


def test_checkpoints_of_another_configuration_are_passed_over(tmp_path):
    write_json(tmp_path / "config.json", {"seed": 1})

    def change(folder, state):
        write_json(folder / "config.json", {"seed": 2})

    assert counted(tmp_path, change) == list(range(10))


def test_a_checkpoint_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(DamagedFile, match="count-0000010.pt: does not fit count.*remove it"):
        counted(tmp_path, lambda folder, state: state.update(counter={}))
