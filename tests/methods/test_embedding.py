"""Cells of the embedding family: matching, one release, resume, and a run as a user makes it."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from conftest import TINY, run, write_preset

from straightdp.cli.units import Workspace, prerequisites, run_unit
from straightdp.config import load_preset
from straightdp.device import Compute
from straightdp.files import load_tensors, read_json
from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.embeddings import embedding_charge, mean_embedding
from straightdp.mechanisms.feature_maps import hermite_map, random_fourier, tangent
from straightdp.methods.cell import PrivacyViolation, open_ledger, publish
from straightdp.methods.embedding import (
    build_feature_map,
    generate,
    matching_phase,
    unit_pixels,
)
from straightdp.methods.progress import Progress
from straightdp.methods.spaces import PixelCodec
from straightdp.model.generator import Generator
from straightdp.resolved import parse_cell
from straightdp.rng import Streams
from straightdp.sections import Matching
from straightdp.studies.cells import resolve

METHODS = ("dp_merf", "dp_hp", "dp_ntk")
CPU = Compute(torch.device("cpu"), False, 1, 8, 5)
STREAMS = Streams.from_seed("test", 0)
D = 16


# ---- matching


@pytest.mark.parametrize("name", METHODS)
def test_the_generator_finds_the_classes_whose_embedding_it_matches(name):
    """Ten tight classes around known images, without noise: the class means come back."""
    rng = np.random.default_rng(0)
    centres = rng.random((10, D)).round() * 0.8 + 0.1
    labels = torch.arange(2000) % 10
    spread = 0.05 * rng.standard_normal((2000, D))
    x = torch.from_numpy(np.clip(centres[labels] + spread, 0, 1)).float()
    one = {
        "dp_merf": random_fourier(200, D, 2.0, STREAMS),
        "dp_hp": hermite_map(x, 8, 20, 3, 0.5, 0.3 * D, STREAMS),
        "dp_ntk": tangent(60, D, STREAMS),
    }[name]
    target = mean_embedding(one, x, labels, 10, 2000).float()
    torch.manual_seed(0)
    generator = Generator(code=2, classes=10, width=64, depth=2, pixels=D)
    settings = Matching(steps=400, batch=50, learning_rate=3e-3)
    phase = matching_phase(generator, one, target, settings, STREAMS, CPU)
    for index in range(settings.steps):
        phase.step(index)
    samples, made = generate(generator, 500, STREAMS, CPU)
    assert (np.bincount(made) == 50).all()
    means = np.stack([samples.numpy()[made == label].mean(0) for label in range(10)])
    distances = np.abs(means[:, None] - centres[None]).mean(-1)
    assert (distances.argmin(1) == np.arange(10)).all()
    assert np.diag(distances).max() < 0.12 < np.median(distances)


def test_the_generator_is_the_perceptron_of_table_9():
    torch.manual_seed(1)
    network = Generator(code=3, classes=10, width=512, depth=2, pixels=784)
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [(512, 13), (512,), (512, 512), (512,), (784, 512), (784,)]
    codes, labels = torch.randn(4, 3), torch.tensor([0, 9, 9, 4])
    one = np.concatenate([codes.numpy(), np.eye(10)[labels.numpy()]], axis=1)
    weights = [p.detach().numpy().astype(float) for p in network.parameters()]
    hidden = one
    for weight, bias in zip(weights[:4:2], weights[1:4:2], strict=True):
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    expected = 1 / (1 + np.exp(-(hidden @ weights[4].T + weights[5])))
    np.testing.assert_allclose(network(codes, labels).detach().numpy(), expected, atol=1e-6)


def test_pixels_are_images_over_255_with_background_0():
    images = np.random.default_rng(0).integers(256, size=(5, 28, 28)).astype(np.uint8)
    x = unit_pixels(PixelCodec(28), images)
    np.testing.assert_allclose(x.numpy(), images.reshape(5, -1) / 255, atol=1e-6)
    assert torch.equal(unit_pixels(PixelCodec(8), 0 * images), torch.zeros(5, 64))


@pytest.mark.parametrize("name", METHODS)
def test_the_map_depends_on_seed_and_public_images_alone(tmp_path, name):
    preset = load_preset(write_preset(tmp_path / "tiny.yaml", TINY))
    public = torch.from_numpy(np.random.default_rng(0).random((50, 64))).float()

    def features(epsilon, seed, public=public):
        cell = resolve(preset, name, "pixel", epsilon, seed)
        return build_feature_map(parse_cell(cell.config, "x"), public).features(public[:3])

    assert torch.equal(features(1.0, 0), features(3.0, 0))
    assert not torch.equal(features(1.0, 0), features(1.0, 1))


# ---- cells


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder in which the three methods' tiny cells were run and evaluated from the shell."""
    folder = tmp_path_factory.mktemp("embedding")
    preset = load_preset(write_preset(folder / "tiny.yaml", TINY))
    cells = {name: resolve(preset, name, "pixel", 1.0, 0) for name in METHODS}
    for cell in cells.values():
        run("straightdp", "cell", cell.id, "--preset", "tiny.yaml", cwd=folder)
    run("straightdp", "evaluate", cells["dp_hp"].id, "--preset", "tiny.yaml", cwd=folder)
    return folder, preset, Workspace(folder / "results" / "tiny"), cells


@pytest.mark.parametrize("name", METHODS)
def test_a_cell_runs_without_a_public_stage(runs, name):
    folder, _, workspace, cells = runs
    done = workspace.folder(cells[name])
    assert [unit.kind for unit in prerequisites(cells[name])] == ["data"]
    assert not (workspace.root / "public").exists()
    with np.load(done / "samples.npz") as samples:
        assert samples["images"].shape == (100, 28, 28) and samples["images"].dtype == np.uint8
        assert samples["images"].std() > 1
        assert (np.bincount(samples["labels"]) == 10).all()
    assert read_json(done / "run.json")["status"] == "ok" and not (done / "state").exists()
    shown = run("straightdp", "replay", cells[name].id, "--preset", "tiny.yaml", cwd=folder)
    assert 0.999 < float(shown.stdout.split()[1]) <= 1.0
    assert "mean_embedding: Gaussian, sensitivity 5e-05, multiplier 3.7306" in shown.stdout


def test_status_and_metrics_know_the_cells(runs):
    folder, _, workspace, cells = runs
    shown = run("straightdp", "status", "--preset", "tiny.yaml", cwd=folder).stdout
    assert "1 of 16 cells done" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("prior: ")]
    marks = {row[1]: row[3] for row in rows}  # prior: METHOD (pixel) MARK
    assert marks.pop("private_evolution") == "."
    assert marks == {"dp_merf": "samples", "dp_hp": "done", "dp_ntk": "samples"}
    metrics = list(workspace.folder(cells["dp_hp"]).glob("metrics-*.json"))
    assert len(metrics) == 1 and 0 <= read_json(metrics[0])["metrics"]["accuracy"]["value"] <= 1


def same(a, b) -> bool:
    arrays = [np.load(one / "samples.npz")["images"] for one in (a, b)]
    one, other = load_tensors(a / "model.pt"), load_tensors(b / "model.pt")
    return (
        (a / "transcript.jsonl").read_bytes() == (b / "transcript.jsonl").read_bytes()
        and np.array_equal(*arrays)
        and all(torch.equal(one[key], other[key]) for key in one)
    )


# 12 steps, a checkpoint every 5: after the release, between checkpoints, right after one, last.
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("stop", [1, 4, 6, 12])
def test_an_interrupted_cell_ends_bit_for_bit_the_same(runs, name, stop, monkeypatch, tmp_path):
    _, preset, kept, cells = runs
    workspace = Workspace(tmp_path)
    shutil.copytree(kept.root / "data", tmp_path / "data")

    def interrupt(self, phase, done, total, detail=""):
        if done == stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_unit(cells[name], workspace, preset.execution, threads=1)
    folder = workspace.folder(cells[name])
    assert (folder / "state" / "released.npz").exists() and not (folder / "run.json").exists()
    if stop == 4:  # killed between the charge and the release's way to the disk
        (folder / "state" / "released.npz").unlink()
    run_unit(cells[name], workspace, preset.execution, threads=1)
    assert same(folder, kept.folder(cells[name]))


def test_replacement_charges_twice_the_sensitivity(runs, tmp_path):
    _, _, kept, _ = runs
    values = copy.deepcopy(TINY)
    values["privacy"]["adjacency"] = "replace_one"
    preset, workspace = load_preset(write_preset(tmp_path / "p.yaml", values)), Workspace(tmp_path)
    shutil.copytree(kept.root / "data", tmp_path / "data")
    cell = resolve(preset, "dp_merf", "pixel", 1.0, 0)
    run_unit(cell, workspace, preset.execution, threads=1)
    text = (workspace.folder(cell) / "transcript.jsonl").read_text()
    line = json.loads(text.splitlines()[1])
    assert line["sensitivity"] == 2 / 20000 and line["adjacency"] == "replace_one"
    assert line["noise_std"] == pytest.approx(3.7306 * 2 / 20000, rel=1e-4)


def test_a_transcript_above_the_budget_publishes_nothing(runs, tmp_path):
    _, _, _, cells = runs
    config = parse_cell(cells["dp_merf"].config, "x")
    ledger = open_ledger(config, tmp_path / "state")
    ledger.charge(embedding_charge(config.data.records, 3.7, Adjacency.ADD_OR_REMOVE_ONE))
    images, labels = np.zeros((10, 28, 28), np.uint8), np.arange(10)
    with pytest.raises(PrivacyViolation, match="above the declared 1"):
        publish(config, tmp_path, images, labels, None, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
