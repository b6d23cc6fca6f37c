"""The embedding release: sensitivities by search, charge before noise, noise by measurement."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.embeddings import (
    embedding_sensitivity,
    into_cube,
    mean_embedding,
    release_embedding,
)
from straightdp.mechanisms.feature_maps import hermite_map, random_fourier, tangent
from straightdp.mechanisms.transcript import Ledger, replay
from straightdp.rng import Streams

D, CLASSES, DECLARED = 6, 3, 60
STREAMS = Streams.from_seed("test", 0)
ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


def records(count: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x, labels = rng.random((count, D)), rng.integers(CLASSES, size=count)
    return torch.from_numpy(x).float(), torch.from_numpy(labels)


def maps():
    return {
        "dp_merf": random_fourier(2, D, 0.02, STREAMS),  # few: features can be opposite
        "dp_hp": hermite_map(records(50)[0], 8, 5, 3, 0.5, 0.3 * D, STREAMS),
        "dp_ntk": tangent(5, D, STREAMS),
    }


class Charges(list):
    charge = list.append


def test_the_embedding_against_a_loop():
    one, (x, labels) = maps()["dp_merf"], records(40)
    expected = np.zeros((CLASSES, one.size))
    for row, label in zip(x, labels.tolist(), strict=True):
        angles = one.frequencies.double().numpy() @ row.double().numpy()
        expected[label] += np.concatenate([np.cos(angles), np.sin(angles)])
    expected /= math.sqrt(one.size / 2) * DECLARED  # N as declared, not the 40 that are there
    found = mean_embedding(one, x, labels, CLASSES, DECLARED)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-7)


def test_chunks_add_up():
    one, (x, labels) = maps()["dp_ntk"], records(2500)
    sums = one.class_sums(x.double().float(), labels, CLASSES).double() / 2500
    found = mean_embedding(one, x, labels, CLASSES, 2500)
    np.testing.assert_allclose(found.numpy(), sums.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["dp_merf", "dp_hp", "dp_ntk"])
def test_no_pair_of_neighbours_exceeds_the_declared_sensitivity(name):
    """Records of all kinds, wild ones too, in one class or in two."""
    one, (x, labels), rng = maps()[name], records(20), np.random.default_rng(2)
    base = mean_embedding(one, x, labels, CLASSES, DECLARED)
    pool = torch.cat([torch.from_numpy(rng.random((60, D))).float(), records(60, 3)[0].round()])
    pool[3], pool[9], pool[11], pool[12] = math.nan, math.inf, -math.inf, 1e30
    worst = {ADD: 0.0, REPLACE: 0.0}
    moved = []
    for row in pool:
        for label in range(CLASSES):
            more = torch.cat([x, row[None]]), torch.cat([labels, torch.tensor([label])])
            moved.append(mean_embedding(one, *more, CLASSES, DECLARED) - base)
            worst[ADD] = max(worst[ADD], float(moved[-1].norm()))
    stacked = torch.stack(moved).flatten(1)
    worst[REPLACE] = float(
        torch.cdist(stacked, stacked, compute_mode="donot_use_mm_for_euclid_dist").max()
    )
    for adjacency, found in worst.items():
        bound = embedding_sensitivity(DECLARED, adjacency)
        assert found <= bound * (1 + 1e-6), adjacency
    assert worst[ADD] >= 0.9 / DECLARED  # the search comes near the bound of 1/N
    # classes apart reach sqrt(2)/N; opposite features in one class come near the bound of 2/N
    reached = 1.95 if name == "dp_merf" else 1.25
    assert worst[REPLACE] >= reached / DECLARED
    assert embedding_sensitivity(DECLARED, ADD) == 1 / DECLARED
    assert embedding_sensitivity(DECLARED, REPLACE) == 2 / DECLARED


def test_a_wild_record_touches_no_other():
    x, _ = records(8)
    wild = x.clone()
    wild[2], wild[4], wild[5, 1] = math.nan, math.inf, -7
    found = into_cube(wild)
    assert bool(((found >= 0) & (found <= 1)).all())
    kept = [0, 1, 3, 6, 7]
    assert torch.equal(found[kept], x[kept]) and torch.equal(found[5, 2:], x[5, 2:])


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(0.3, 11.238), (1.0, 3.731), (3.0, 1.391), (10.0, 0.500)]
)
@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_the_charge_replays_within_the_budget(tmp_path, epsilon, sigma, adjacency):
    """Known multipliers of one Gaussian at delta 1e-5, whatever the adjacency."""
    multiplier = calibrate_releases(epsilon, 1e-5, 1)
    assert multiplier == pytest.approx(sigma, abs=6e-4)
    path, (x, labels) = tmp_path / "transcript.jsonl", records(40)
    ledger = Ledger(path, epsilon, 1e-5, adjacency, DECLARED, "fixed")
    release_embedding(
        x, labels, maps()["dp_merf"], CLASSES, DECLARED, multiplier, adjacency, STREAMS, ledger
    )
    check = replay(path)
    assert check.ok and check.epsilon == pytest.approx(epsilon, rel=1e-6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["declaration", "gaussian"]
    assert lines[1]["sensitivity"] == (2 if adjacency is REPLACE else 1) / DECLARED
    assert lines[1]["adjacency"] == adjacency.value


def test_nothing_is_drawn_before_its_charge():
    class Refuses:
        def charge(self, line):
            raise RuntimeError("refused")

    class Draws:
        def generator(self, *_):
            raise AssertionError("noise was drawn")

    with pytest.raises(RuntimeError, match="refused"):
        x, labels = records(4)
        release_embedding(
            x, labels, maps()["dp_ntk"], CLASSES, DECLARED, 1.0, ADD, Draws(), Refuses()
        )


@pytest.mark.parametrize(("adjacency", "factor"), [(ADD, 1), (REPLACE, 2)])
def test_the_noise_is_what_was_charged(adjacency, factor):
    one, charges = random_fourier(4000, D, 1.0, STREAMS), Charges()
    x, labels = records(30)
    released = release_embedding(
        x, labels, one, CLASSES, DECLARED, 2.5, adjacency, STREAMS, charges
    )
    noise = (released - mean_embedding(one, x, labels, CLASSES, DECLARED)).flatten().numpy()
    deviation = 2.5 * factor / DECLARED
    assert charges[0]["noise_std"] == pytest.approx(deviation)
    assert kstest(noise / deviation, "norm").pvalue > 1e-3
    again = release_embedding(x, labels, one, CLASSES, DECLARED, 2.5, adjacency, STREAMS, Charges())
    assert torch.equal(released, again)
    other = release_embedding(
        x, labels, one, CLASSES, DECLARED, 2.5, adjacency, Streams.from_seed("other"), Charges()
    )
    assert not torch.equal(released, other)


def test_what_is_refused_is_refused_before_any_charge():
    x, labels = records(30)
    good = {"records": DECLARED, "noise_multiplier": 1.0, "labels": labels}
    for change, said in (
        ({"records": 29}, "30 records, more than the declared 29"),
        ({"noise_multiplier": math.inf}, "finite"),
        ({"noise_multiplier": -1.0}, "not negative"),
        ({"labels": labels + 1}, r"labels must lie in 0\.\.2"),
        ({"labels": labels[:4]}, "30 records have 4 labels"),
    ):
        charges, now = Charges(), good | change
        with pytest.raises(ValueError, match=said):
            release_embedding(
                x,
                now["labels"],
                maps()["dp_merf"],
                CLASSES,
                now["records"],
                now["noise_multiplier"],
                ADD,
                STREAMS,
                charges,
            )
        assert not charges
