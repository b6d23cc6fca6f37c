"""The transcript: write-ahead, the same bytes after a resume, and a replay that trusts nothing."""

from __future__ import annotations

import json
import math
import os

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from straightdp.mechanisms import transcript
from straightdp.mechanisms.accounting import Adjacency
from straightdp.mechanisms.transcript import Ledger, TranscriptError, replay


def open_ledger(path, **changes) -> Ledger:
    settings = {
        "epsilon": 3.0,
        "delta": 1e-5,
        "adjacency": Adjacency.ADD_OR_REMOVE_ONE,
        "records": 60000,
        "noise_seed": "fixed",
    }
    return Ledger(path, **{**settings, **changes})


def release(name="counts and sums", multiplier=8.0, sensitivity=2.0) -> dict:
    return {
        "kind": "gaussian",
        "name": name,
        "sensitivity": sensitivity,
        "noise_std": multiplier * sensitivity,
        "noise_multiplier": multiplier,
        "normalised_by": "nothing",
    }


def block(first: int, count: int, bucket=0, multiplier=1.5, clip=40.0) -> dict:
    return {
        "kind": "subsampled_gaussian",
        "name": "dp-sgd",
        "bucket": bucket,
        "clip": clip,
        "noise_std": multiplier * clip,
        "noise_multiplier": multiplier,
        "sampling_rate": 0.02,
        "first_step": first,
        "steps": count,
        "normalised_by": "sampling rate x declared records",
    }


CHARGES = [
    release(),
    release("second moment", 8.0, 3e-4),
    *(block(first, 50, bucket) for first in (0, 100, 200) for bucket in (0, 1)),
]


@pytest.fixture
def path(tmp_path):
    """A finished run's transcript."""
    ledger = open_ledger(tmp_path / "transcript.jsonl")
    for line in CHARGES:
        ledger.charge(line)
    return tmp_path / "transcript.jsonl"


def rewrite(path, number: int, change) -> None:
    """Tamper with one line (from 1): a dict of new values, a name to drop, or a whole text."""
    lines = path.read_text().splitlines()
    if isinstance(change, dict):
        lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), **change})
    elif callable(change):
        line = json.loads(lines[number - 1])
        change(line)
        lines[number - 1] = json.dumps(line)
    else:
        lines[number - 1] = change
    path.write_text("\n".join(lines) + "\n")


def test_replay_is_the_joint_composition(path):
    """Against dp-accounting's own event interface, at a finer discretisation."""
    step = PoissonSampledDpEvent(0.02, GaussianDpEvent(1.5))
    event = ComposedDpEvent(
        [GaussianDpEvent(8.0), GaussianDpEvent(8.0), SelfComposedDpEvent(step, 300)]
    )
    exact = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-5)
    result = replay(path)
    assert exact * (1 - 1e-3) < result.epsilon < exact * (1 + 2e-3)
    assert (result.declared_epsilon, result.delta) == (3.0, 1e-5)
    assert result.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert len(result.mechanisms) == len(CHARGES)
    assert result.ok


def test_replay_is_pure(path):
    before = path.read_bytes()
    assert replay(path) == replay(path)
    assert path.read_bytes() == before


def test_a_run_above_its_declaration_is_not_ok(path):
    spent = replay(path).epsilon
    rewrite(path, 1, {"epsilon": spent * (1 - 1e-6)})
    assert not replay(path).ok
    rewrite(path, 1, {"epsilon": spent})
    assert replay(path).ok


def test_a_stated_multiplier_is_never_what_is_composed(path):
    before = replay(path)
    rewrite(path, 2, {"noise_multiplier": 8.0 * (1 + 5e-10)})
    rewrite(path, 4, {"noise_multiplier": 1.5 * (1 + 5e-10)})
    assert replay(path) == before


def test_replacement_is_replayed_as_replacement(path):
    add = replay(path).epsilon
    for number in range(1, len(CHARGES) + 2):
        rewrite(path, number, {"adjacency": "replace_one"})
    assert replay(path).epsilon > 1.3 * add


def test_a_run_without_noise_declares_inf_in_strict_json(tmp_path):
    ledger = open_ledger(tmp_path / "t", epsilon=math.inf)
    ledger.charge(block(0, 10, multiplier=0.0))
    head = (tmp_path / "t").read_text().splitlines()[0]

    def refuse(name):
        raise AssertionError(f"{name} in {head}")

    assert json.loads(head, parse_constant=refuse)["epsilon"] == "inf"
    result = replay(tmp_path / "t")
    assert result.epsilon == result.declared_epsilon == math.inf and result.ok


def test_noise_left_out_of_a_private_run_is_not_ok(path):
    rewrite(path, 4, {"noise_std": 0.0, "noise_multiplier": 0.0})
    assert replay(path).epsilon == math.inf and not replay(path).ok


def test_a_declaration_alone_costs_nothing(tmp_path):
    open_ledger(tmp_path / "t")
    assert replay(tmp_path / "t").epsilon == 0


def test_charges_are_on_disk_before_charge_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        transcript.os, "fsync", lambda d: (synced.append(os.fstat(d).st_size), real(d))[1]
    )
    ledger = open_ledger(tmp_path / "deep" / "t")
    for line in CHARGES:
        ledger.charge(line)
        text = (tmp_path / "deep" / "t").read_bytes()
        assert json.loads(text.splitlines()[-1]) == line | {"adjacency": "add_or_remove_one"}
        assert synced[-1] == len(text)


@pytest.mark.parametrize("done", range(len(CHARGES) + 1))
def test_a_resumed_run_leaves_the_same_bytes(path, tmp_path, done):
    """A run stopped after any number of charges and started again, twice."""
    resumed = tmp_path / "resumed.jsonl"
    for stop in (done, max(done - 1, 0), len(CHARGES)):
        ledger = open_ledger(resumed)
        for line in CHARGES[:stop]:
            ledger.charge(line)
    assert resumed.read_bytes() == path.read_bytes()


def test_a_line_torn_by_a_kill_is_written_anew(path, tmp_path):
    whole = path.read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(whole) if byte == 10)]
    for cut in (1, starts[1] - 1, starts[1] + 9, starts[3] - 1, len(whole) - 1):
        torn = tmp_path / f"torn{cut}.jsonl"
        torn.write_bytes(whole[:cut])
        ledger = open_ledger(torn)
        assert whole.startswith(torn.read_bytes()) and torn.read_bytes().endswith(b"\n")
        for line in CHARGES:
            ledger.charge(line)
        assert torn.read_bytes() == whole


def test_another_charge_at_a_resumed_place_is_refused(path):
    before = path.read_bytes()
    ledger = open_ledger(path)
    ledger.charge(CHARGES[0])
    with pytest.raises(TranscriptError, match=r"transcript\.jsonl:3: an earlier start"):
        ledger.charge(release("second moment", 8.0000001, 3e-4))
    with pytest.raises(TranscriptError, match=":1: an earlier start"):
        open_ledger(path, epsilon=4.0)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line, words",
    [
        ({**release(), "noise_std": -1.0}, "noise_std is -1.0"),
        ({**release(), "noise_multiplier": 9.0}, "states noise multiplier 9"),
        ({"kind": "laplace"}, "unknown kind 'laplace'"),
        (block(40, 50), "charged twice"),
        (block(50, 0), "steps is 0"),
        ({**block(50, 1), "epsilon": 1}, "has unknown"),
    ],
)
def test_what_could_not_be_replayed_is_not_charged(tmp_path, line, words):
    ledger = open_ledger(tmp_path / "t")
    ledger.charge(block(0, 50))
    before = (tmp_path / "t").read_bytes()
    with pytest.raises(TranscriptError, match=f":3: .*{words}"):
        ledger.charge(line)
    assert (tmp_path / "t").read_bytes() == before


def test_not_a_number_is_not_charged(tmp_path):
    with pytest.raises(ValueError):
        open_ledger(tmp_path / "t").charge({**release(), "noise_std": math.nan})


@pytest.mark.parametrize(
    "number, change, words",
    [
        # the declaration
        (1, {"schema": 2}, "schema 2"),
        (1, {"epsilon": 0}, "epsilon is 0"),
        (1, {"epsilon": "3"}, "epsilon is '3'"),
        (1, {"delta": 1.0}, "delta is 1.0"),
        (1, {"delta": True}, "delta is True"),
        (1, {"adjacency": "both"}, "adjacency is 'both'"),
        (3, {"adjacency": "replace_one"}, "adjacency is 'replace_one', but the declaration's"),
        (1, {"noise_seed": 7}, "noise_seed is 7"),
        (1, {"records": 0}, "records is 0"),
        (1, json.dumps(release() | {"adjacency": "replace_one"}), "expected a declaration"),
        (1, '{"kind": "declaration", "epsilon": Infinity}', "not JSON"),
        # a release
        (2, {"noise_std": 15.0}, "states noise multiplier 8, but .* give 7.5"),
        (2, {"noise_multiplier": 80.0}, "states noise multiplier 80, but .* give 8"),
        (2, {"sensitivity": 1.0}, "give 16"),
        (2, {"sensitivity": 0.0}, "sensitivity is 0.0"),
        (2, {"noise_std": 10**400}, "noise_std is 1000"),
        (2, lambda line: line.pop("sensitivity"), r"lacks \['sensitivity'\]"),
        (2, {"comment": "x"}, "has unknown"),
        # steps
        (4, {"noise_std": 30.0}, "give 0.75"),
        (4, {"clip": 4.0}, "give 15"),
        (4, {"clip": -40.0}, "clip is -40.0"),
        (4, {"steps": -50}, "steps is -50"),
        (4, {"steps": 2.5}, "steps is 2.5"),
        (4, {"first_step": -1}, "first_step is -1"),
        (4, {"bucket": None}, "bucket is None"),
        (4, {"sampling_rate": 1.5}, "sampling_rate 1.5 is above 1"),
        (4, {"sampling_rate": "0.02"}, "sampling_rate is '0.02'"),
        (4, lambda line: line.pop("first_step"), r"lacks \['first_step'\]"),
        (6, {"first_step": 49}, "bucket 0 are charged twice"),
        (6, {"bucket": 1, "first_step": 20}, "bucket 1 are charged twice"),
        # neither
        (5, '{"kind": "gaussian", "na', "not JSON"),
        (5, "", "not JSON"),
        (5, "[1, 2]", "unknown kind None"),
        (5, '{"kind": ["gaussian"]}', "unknown kind"),
        (5, {"kind": "exponential"}, "unknown kind 'exponential'"),
    ],
)
def test_tampering_is_reported_with_its_line(path, number, change, words):
    rewrite(path, number, change)
    with pytest.raises(TranscriptError, match=rf"transcript\.jsonl:{number}: .*{words}") as caught:
        replay(path)
    assert "\n" not in str(caught.value)


def test_a_second_declaration_is_refused(path):
    head = path.read_text().splitlines()[0]
    rewrite(path, 3, head)
    with pytest.raises(TranscriptError, match=":3: a second declaration"):
        replay(path)


def test_gaps_between_charges_are_no_error(path):
    """A run that was given up half way through has spent what it charged, and no more."""
    rewrite(path, 6, {"first_step": 5000})
    whole = replay(path).epsilon
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:5] + lines[6:]) + "\n")
    assert replay(path).epsilon < whole


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_files_that_are_no_transcript(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TranscriptError, match="/t: "):
        replay(tmp_path / "t")


def test_noise_too_small_to_account_for_is_an_error_of_the_file(tmp_path):
    ledger = open_ledger(tmp_path / "t")
    ledger.charge(block(0, 10, multiplier=0.01))
    with pytest.raises(TranscriptError, match="/t: noise multiplier 0.01"):
        replay(tmp_path / "t")


def test_the_description_names_every_mechanism(path):
    text = replay(path).describe()
    assert len(text) == 3
    assert "counts and sums" in text[0] and "sensitivity 2" in text[0]
    assert "300 steps" in text[2] and "1.5000" in text[2]
