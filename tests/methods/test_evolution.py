"""Private Evolution: its rounds on cases worked by hand, and a cell from start to table values."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TINY, write_preset
from test_resume import KILLER

from straightdp.cli.units import Workspace, run_unit
from straightdp.config import load_preset
from straightdp.device import Compute
from straightdp.files import load_tensors
from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.transcript import replay
from straightdp.mechanisms.votes import VoteReleases
from straightdp.methods.cell import PrivacyViolation, refuse_second_release
from straightdp.methods.evolution import (
    Population,
    Variation,
    by_class,
    evolution_phase,
    renoising_time,
)
from straightdp.methods.sampling import sample_labels
from straightdp.resolved import parse_cell
from straightdp.rng import Role, Streams
from straightdp.studies.cells import resolve

CPU = Compute(torch.device("cpu"), False, 1, 8, 3)
STREAMS = Streams.from_seed(3)


class Book(list):
    charge = list.append


class Jitter:
    """Variations without a model: a small step from where a candidate is."""

    streams = STREAMS

    def __init__(self, size):
        self.size, self.calls = size, []

    def __call__(self, z, t, index, copy):
        self.calls.append((len(z), t, index, copy))
        return z + self.size * STREAMS.normal(Role.EVOLVE, index, z.shape, sub=1 + copy)


def settings(**changes):
    values = {"rounds": 4, "population": 20, "variations": 2, "renoise": (0.4, 0.8)}
    return SimpleNamespace(**values | {"threshold": 1.0} | changes)


def releases(rounds=4, multiplier=0.0):
    return VoteReleases(rounds, multiplier, Adjacency.ADD_OR_REMOVE_ONE, STREAMS, Book())


def targets(count=400, spread=0.1, seed=1):
    """Private points (n, 2), a cluster a class on a circle of radius 2."""
    labels = torch.arange(count) % 10
    angles = 2 * torch.pi * labels / 10
    centres = 2 * torch.stack([angles.cos(), angles.sin()], 1)
    return centres + spread * Streams.from_seed(seed).normal(Role.EVOLVE, 0, (count, 2)), labels


def run(phase):
    for index in range(phase.steps):
        phase.step(index)


# ---- the rounds


def test_renoising_grows_milder_linearly():
    times = [renoising_time(index, 10, (0.45, 0.85)) for index in range(10)]
    assert (times[0], times[-1]) == (0.45, pytest.approx(0.85))
    assert np.diff(times) == pytest.approx([0.4 / 9] * 9)
    assert renoising_time(0, 1, (0.45, 0.85)) == 0.45


def mean_distance(population, private):
    z, labels = private
    own = by_class(population.z)
    return float(torch.stack([(z[labels == k][:, None] - own[k]).norm(dim=2).mean()
                              for k in range(10)]).mean())  # fmt: skip


def test_without_noise_the_population_moves_to_the_private_records():
    private, start = targets(), STREAMS.normal(Role.SAMPLE, 0, (200, 2))
    moved, drifted = Population(start), Population(start)
    run(evolution_phase(moved, Jitter(0.2), lambda z: z, private, settings(), 20, releases()))
    blind = releases()
    blind.release = lambda histogram, index: torch.zeros_like(histogram)
    run(evolution_phase(drifted, Jitter(0.2), lambda z: z, private, settings(), 20, blind))
    before = mean_distance(Population(start), private)
    assert mean_distance(moved, private) < 0.5 * before
    assert mean_distance(drifted, private) > 0.8 * before


def test_noise_in_the_votes_costs_some_of_that():
    private, start = targets(), STREAMS.normal(Role.SAMPLE, 0, (200, 2))
    found = []
    for multiplier in (0.0, 5.0, 500.0):
        population, noisy = Population(start), releases(multiplier=multiplier)
        run(evolution_phase(population, Jitter(0.2), lambda z: z, private, settings(), 20, noisy))
        found.append(mean_distance(population, private))
    assert found[0] < found[1] < found[2]


def test_private_records_reach_the_population_by_their_votes_alone():
    """Two private sets and one sequence of released histograms: the same population."""
    start, ends = STREAMS.normal(Role.SAMPLE, 0, (200, 2)), []
    for seed in (1, 2):
        fixed = releases()
        fixed.release = lambda histogram, index: (
            torch.arange(200, dtype=torch.float64).view(10, 20) % (index + 3)
        )
        population = Population(start)
        phase = evolution_phase(
            population, Jitter(0.2), lambda z: z, targets(seed=seed), settings(), 30, fixed
        )
        run(phase)
        ends.append(population)
    assert torch.equal(ends[0].z, ends[1].z) and torch.equal(ends[0].kept, ends[1].kept)


def test_votes_go_to_the_mean_of_the_lookahead_at_this_rounds_time():
    private, start = targets(100), STREAMS.normal(Role.SAMPLE, 0, (200, 2))
    vary, seen = Jitter(0.5), []
    watched = releases()
    watched.release = lambda histogram, index: seen.append(histogram) or histogram
    phase = evolution_phase(
        Population(start), vary, lambda z: z, private, settings(variations=3), 20, watched
    )
    phase.step(2)
    time = pytest.approx(0.4 + 0.4 * 2 / 3)
    assert vary.calls == [(200, time, 2, copy) for copy in range(4)]  # the last makes the children
    noise = [STREAMS.normal(Role.EVOLVE, 2, (200, 2), sub=1 + copy) for copy in range(3)]
    candidates = (start + 0.5 * sum(noise) / 3).numpy()
    expected = np.zeros((10, 20))
    for point, label in zip(private[0].numpy(), private[1].tolist(), strict=True):
        own = candidates[label::10]
        expected[label, np.linalg.norm(own - point, axis=1).argmin()] += 1
    assert np.array_equal(seen[0].numpy(), expected)


def test_children_are_of_their_parents_class_and_the_last_round_draws_the_samples():
    """Candidates carry their class and number; only those with votes have children."""
    labels = sample_labels(200)
    start = torch.stack([labels.float(), torch.arange(200.0) // 10], 1)
    chosen = releases(rounds=2)
    chosen.release = lambda histogram, index: torch.eye(20)[[3, 7] * 5].double()
    population = Population(start)
    phase = evolution_phase(
        population, Jitter(0.0), lambda z: z, targets(), settings(rounds=2), 35, chosen
    )
    phase.step(0)
    assert torch.equal(population.z[:, 0], labels.float())
    assert torch.equal(population.z[:, 1], torch.where(labels % 2 == 0, 3.0, 7.0))
    phase.step(1)
    assert len(population.z) == 350
    assert torch.equal(population.z[:, 0], sample_labels(350).float())
    assert population.kept.tolist() == [[1] * 10] * 2


# ---- variations


class Field(torch.nn.Module):
    """A velocity that draws everything to a point, exactly at t = 1; counts its calls."""

    def __init__(self, point):
        super().__init__()
        self.point, self.times = point, []

    def forward(self, x, t, captions):
        self.times.append(float(t[0]))
        return torch.zeros_like(x) if self.point is None else (self.point - x) / (1 - t[:, None])


def variation(field, steps=25):
    return Variation(field, torch.zeros(11, 1, 1), steps, 1.0, STREAMS, CPU)


@pytest.mark.parametrize(("t", "steps"), [(0.45, 14), (0.85, 4), (0.2, 20), (0.98, 1)])
def test_a_variation_integrates_from_t_to_1_at_the_samplers_step(t, steps):
    field = Field(torch.tensor(0.3))
    z = STREAMS.uniform(Role.SAMPLE, 0, (20, 5)) * 2 - 1
    assert variation(field)(z, t, 0, 0) == pytest.approx(np.full((20, 5), 0.3), abs=1e-5)
    assert field.times == pytest.approx([t + (1 - t) * k / steps for k in range(steps)])


def test_a_variation_keeps_t_of_the_candidate_and_stays_within_pixel_range():
    z = STREAMS.uniform(Role.SAMPLE, 0, (20, 500)) * 2 - 1
    still = variation(Field(None))
    varied = still(z, 0.6, 1, 0)
    noise = (varied - 0.6 * z) / 0.4
    inside = varied.abs() < 1
    assert 0.5 < inside.float().mean() < 1
    assert float(varied.abs().max()) == 1
    # Clipping keeps what is small: the noise inside is a standard normal's middle part.
    middle = noise[z.abs() < 0.2]
    assert float((middle.abs() < 1).float().mean()) == pytest.approx(0.6827, abs=0.03)
    assert torch.equal(varied, still(z, 0.6, 1, 0))
    for index, copy in ((1, 1), (2, 0)):
        assert not torch.equal(varied, still(z, 0.6, index, copy))


# ---- a cell


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tiny cell run to its end, and kept aside."""
    folder = tmp_path_factory.mktemp("evolution")
    preset = load_preset(write_preset(folder / "tiny.yaml", TINY))
    workspace = Workspace(folder / "results" / "tiny")
    cell = resolve(preset, "private_evolution", "pixel", 1.0, 0)
    run_unit(cell, workspace, preset.execution, threads=1)
    kept = folder / "undisturbed"
    shutil.move(workspace.folder(cell), kept)
    return folder, preset, workspace, cell, kept


def test_a_cell_leaves_samples_of_each_class_and_a_line_a_round(finished):
    _, _, _, _, kept = finished
    with np.load(kept / "samples.npz") as samples:
        assert samples["images"].shape == (100, 28, 28)
        assert samples["images"].dtype == np.uint8
        assert np.bincount(samples["labels"]).tolist() == [10] * 10
    found = replay(kept / "transcript.jsonl")
    assert found.ok and found.epsilon == pytest.approx(1.0, rel=1e-6)
    assert [one.name for one in found.mechanisms] == [f"votes_round_{k}" for k in (1, 2, 3)]
    record = json.loads((kept / "evolution.json").read_text())
    assert record["threshold_votes"] == pytest.approx(1.414 * record["noise_std"])
    assert np.shape(record["kept_by_round_and_class"]) == (3, 10)
    assert not (kept / "state").exists()


def test_the_prior_stays_frozen(finished):
    _, _, workspace, _, kept = finished
    public = next((workspace.root / "public").iterdir())
    prior, used = load_tensors(public / "public.pt")["network"], load_tensors(kept / "model.pt")
    assert prior.keys() == used.keys()
    assert all(torch.equal(prior[name], used[name]) for name in prior)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_cell_killed_in_any_round_ends_the_same(finished, step):
    folder, preset, workspace, cell, kept = finished
    shutil.rmtree(workspace.folder(cell), ignore_errors=True)
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(step), cell.id, "9"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    state = workspace.folder(cell) / "state"
    assert len((state / "transcript.jsonl").read_text().splitlines()) == 1 + step
    assert len(list(state.glob("evolution-*.pt"))) == min(step - 1, 2)
    run_unit(cell, workspace, preset.execution, threads=1)
    for name in ("transcript.jsonl", "evolution.json"):
        assert (workspace.folder(cell) / name).read_bytes() == (kept / name).read_bytes()
    with (
        np.load(workspace.folder(cell) / "samples.npz") as one,
        np.load(kept / "samples.npz") as other,
    ):
        assert np.array_equal(one["images"], other["images"])


def test_the_aggressive_schedule_is_another_cell_with_the_same_budget(finished):
    _, preset, _, cell, _ = finished
    other = resolve(preset, "private_evolution_aggressive", "pixel", 1.0, 0)
    assert other.id != cell.id
    assert other.config["evolution"]["renoise"] == [0.1, 0.5]
    same = {**other.config["evolution"], "renoise": [0.45, 0.85]}
    assert same == cell.config["evolution"]
    assert {**other.config, "evolution": same} == cell.config


def test_on_data_of_ones_own_a_finished_cell_votes_no_second_time(finished):
    _, _, _, cell, kept = finished
    config = json.loads(json.dumps(cell.config))
    config["privacy"]["noise_seed"] = "system"
    with pytest.raises(PrivacyViolation, match="a second time"):
        refuse_second_release(parse_cell(config, "x"), kept)
