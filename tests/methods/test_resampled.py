"""Cells drawn from a finished one: its samples again, nothing private read, nothing charged."""

import copy
import shutil

import numpy as np
import pytest
import torch
from conftest import TINY

from straightdp.cli import rerun
from straightdp.cli.status import CellState
from straightdp.cli.units import Workspace, prerequisites, run_unit
from straightdp.config import Preset
from straightdp.data import sources
from straightdp.evaluation.record import passed
from straightdp.files import DamagedFile, load_tensors, read_json, save_tensors
from straightdp.flow.analytic import MomentModel
from straightdp.mechanisms.transcript import Ledger
from straightdp.methods import sampling
from straightdp.studies.cells import cell_base, cell_public, resampled
from straightdp.studies.variants import SWEPT, variant_cell


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The sweep's trained cell, on data of one's own: (preset, workspace, cell)."""
    values = copy.deepcopy(TINY)
    values["privacy"]["noise_seed"] = "system"
    preset = Preset(**values)
    workspace = Workspace(tmp_path_factory.mktemp("resampled") / "tiny")
    cell = variant_cell(preset, "guided_uniform", "pixel", SWEPT, 0, "sweep")
    run_unit(cell, workspace, preset.execution, threads=1)
    return preset, workspace, cell


@pytest.fixture
def blind(monkeypatch):
    """No private data can be read and nothing can be charged."""

    def refuse(*_, **__):
        raise AssertionError("private data were read, or a mechanism charged")

    monkeypatch.setattr(sources, "load", refuse)
    monkeypatch.setattr(Ledger, "charge", refuse)


@pytest.fixture
def draw(base, tmp_path, blind):
    """Run a cell drawn from a copy of the base: change -> (its folder, the base's folder)."""
    preset, workspace, cell = base
    copied = Workspace(tmp_path / "tiny")
    shutil.copytree(workspace.folder(cell), copied.folder(cell))
    needed = prerequisites(resampled(cell, "x", start(0.5)))
    assert [unit.id for unit in needed] == [cell.id]  # nothing else of the workspace

    def run(change):
        one = resampled(cell, "x", change)
        run_unit(one, copied, preset.execution, threads=1)
        return copied.folder(one), copied.folder(cell)

    return run


def start(t):
    return {"kind": "start", "guidance_start": t}


def imposed(**constraints):
    return {"kind": "constraints", "constraints": constraints}


def samples(folder):
    with np.load(folder / "samples.npz") as arrays:
        return arrays["images"], arrays["labels"]


def test_with_the_cells_own_settings_its_samples_come_out_again(base, draw):
    folder, source = draw(start(0.2))
    for ours, theirs in zip(samples(folder), samples(source), strict=True):
        assert np.array_equal(ours, theirs)
    assert (folder / "transcript.jsonl").read_bytes() == (source / "transcript.jsonl").read_bytes()
    ours, theirs = read_json(folder / "run.json"), read_json(source / "run.json")
    for name in ("epsilon", "transcript_sha256", "weights_sha256", "noise_seed"):
        assert ours[name] == theirs[name]
    assert set(theirs["weights_sha256"]) == {"model.pt", "moments.pt"}
    assert passed(folder, base[2].config) <= 1.2
    assert not (folder / "model.pt").exists() and not (folder / "state").exists()


def test_it_may_run_again_though_its_base_may_not(base, draw):
    """It spends nothing: a second run is no second release, and leaves the base as it is."""
    first, source = draw(start(None))
    before = samples(first)[0]
    (first / "state").mkdir()  # of a kill
    (first / "run.json").unlink()
    stamps = {path.name: path.stat().st_mtime_ns for path in source.iterdir()}
    again, _ = draw(start(None))
    assert again == first and np.array_equal(samples(again)[0], before)
    assert {path.name: path.stat().st_mtime_ns for path in source.iterdir()} == stamps
    workspace, done = Workspace(source.parent.parent), CellState("done")
    drawn = resampled(base[2], "x", start(None))
    rerun._refuse(drawn, workspace, done)
    with pytest.raises(rerun.ConfigError, match="noise of its own"):
        rerun._refuse(base[2], workspace, done)


def starting_points(draw, change, monkeypatch):
    """Where the integration begins: (times, points (n, d), labels)."""
    seen = []

    def integrate(model, table, x, labels, begin, *_):
        seen.append((begin, x, labels))
        return x

    monkeypatch.setattr(sampling, "integrate", integrate)
    folder, source = draw(change)
    times, points, labels = zip(*seen, strict=True)
    return set(times), torch.cat(points).double(), torch.cat(labels), source


def test_a_start_has_the_releases_marginal(draw, monkeypatch):
    """x_t0 ~ N(t0 mu_y, t0^2 Sigma + (1 - t0)^2 I), whitened here by Cholesky."""
    t = 0.7
    times, points, labels, source = starting_points(draw, start(t), monkeypatch)
    assert times == {t}
    moments = MomentModel.from_tensors(load_tensors(source / "moments.pt"))
    covariance = t**2 * moments.covariance() + (1 - t) ** 2 * torch.eye(points.shape[1])
    centred = points - t * moments.means[labels]
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance.double()), centred.T, upper=False
    )
    n = white.numel()  # 6,400: five standard errors each
    assert abs(white.mean().item()) < 5 / n**0.5
    assert abs(white.square().mean().item() - 1) < 5 * (2 / n) ** 0.5


def test_without_a_start_it_begins_at_noise(draw, monkeypatch):
    times, points, _, _ = starting_points(draw, start(None), monkeypatch)
    assert times == {0.0}
    assert abs(points.square().mean().item() - 1) < 5 * (2 / points.numel()) ** 0.5
    assert abs(points.mean().item()) < 5 / points.numel() ** 0.5


def test_a_clamp_bounds_every_token_at_generation_and_keeps_the_start(draw, token_norms):
    free, _ = draw(start(0.2))
    unbounded = max(token_norms)
    token_norms.clear()
    clamped, source = draw(imposed(clamp=0.5))
    assert unbounded > 1 and max(token_norms) <= 0.5 * (1 + 1e-5)
    assert not np.array_equal(samples(clamped)[0], samples(free)[0])
    never, _ = draw(imposed(clamp=1e6))
    assert np.array_equal(samples(never)[0], samples(source)[0])


def other_weights(path):
    state = load_tensors(path)
    save_tensors(path, {name: value + 1e-3 for name, value in state.items()})


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def edit(path):
    path.write_text(path.read_text().replace('"epsilon": 1.2', '"epsilon": 1.3', 1))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("model.pt", other_weights, "model.pt: is not the file that was published"),
        ("model.pt", truncate, "model.pt: is not the file that was published"),
        ("moments.pt", lambda path: path.unlink(), "moments.pt: not there"),
        ("transcript.jsonl", edit, "transcript.jsonl: declares epsilon 1.3"),
    ],
)
def test_a_base_that_is_not_as_published_is_refused(base, draw, tmp_path, name, damage, said):
    source = Workspace(tmp_path / "tiny").folder(base[2])
    damage(source / name)
    with pytest.raises(DamagedFile, match=f"{said}.*straightdp rerun {base[2].id}"):
        draw(start(0.5))


def test_a_base_from_before_its_weights_were_recorded_is_taken(base, draw, tmp_path):
    source = Workspace(tmp_path / "tiny").folder(base[2])
    text = (source / "run.json").read_text()
    (source / "run.json").write_text(text.replace("weights_sha256", "other"))
    draw(start(0.5))
    truncate(source / "model.pt")
    with pytest.raises(DamagedFile, match="model.pt: not a readable checkpoint.*straightdp rerun"):
        draw(start(0.4))


def test_from_scratch_no_weight_has_moved(tmp_path):
    """As initialised: modulations and output at zero, no bias, Xavier's bound elsewhere."""
    preset, workspace = Preset(**TINY), Workspace(tmp_path / "tiny")
    cell = variant_cell(preset, "uniform", "pixel", 1.0, 0, "from-scratch")
    for unit in prerequisites(cell):
        if unit.kind == "data" or unit == cell_public(cell.config):
            run_unit(unit, workspace, preset.execution, threads=1)
    state = load_tensors(workspace.folder(cell_public(cell.config)) / "public.pt")["network"]
    assert cell_base(cell.config) is None
    for name, value in state.items():
        if "modulation" in name or name.startswith("final") or name.endswith("bias"):
            assert not value.any(), name
        else:
            bound = (6 / sum(value.shape)) ** 0.5
            assert 0.8 * bound < value.abs().max().item() <= bound * (1 + 1e-6), name
    report = read_json(workspace.folder(cell_public(cell.config)) / "calibration.json")
    norms = np.array(report["gradients"]["full"]["norms"])
    assert (norms > 0).all() and np.isfinite(norms).all()  # clips can be calibrated there
