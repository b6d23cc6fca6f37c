"""A cell is believed for its transcript's replay alone, against its own configuration."""

import hashlib
import json

import pytest

from straightdp.evaluation.record import NotPassed, digests, passed, unchanged
from straightdp.files import DamagedFile, read_json, write_json
from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.transcript import Ledger, replay

INF = float("inf")


def configuration(epsilon=1.0, **privacy) -> dict:
    settings = {"epsilon": "inf" if epsilon == INF else epsilon, "delta": 1e-5}
    settings |= {"adjacency": "add_or_remove_one", "noise_seed": "fixed"} | privacy
    return {"data": {"private": "embedded", "records": 20000}, "privacy": settings}


def finish(folder, epsilon=1.0, lines=2):
    """A folder as a finished cell leaves it, with equal releases that spend epsilon in full."""
    folder.mkdir(exist_ok=True)
    path = folder / "transcript.jsonl"
    ledger = Ledger(path, epsilon, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, 20000, "fixed")
    sigma = calibrate_releases(epsilon, 1e-5, lines)
    for index in range(lines):
        ledger.charge(
            {
                "kind": "gaussian",
                "name": f"release {index}",
                "sensitivity": 2.0,
                "noise_std": 2.0 * sigma,
                "noise_multiplier": sigma,
                "normalised_by": 20000,
            }
        )
    spent = replay(path).epsilon
    write_json(folder / "run.json", {"status": "ok", "epsilon": "inf" if spent == INF else spent})
    (folder / "samples.npz").write_bytes(b"samples")
    return folder


@pytest.fixture
def folder(tmp_path):
    return finish(tmp_path / "cell")


def edit(folder, change):
    """Change the transcript's lines in place."""
    path = folder / "transcript.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def less_noise(lines):
    for name in ("noise_std", "noise_multiplier"):
        lines[1][name] /= 2


def test_a_cell_within_its_budget_passes(folder, tmp_path):
    assert 0.99 < passed(folder, configuration()) <= 1
    assert passed(finish(tmp_path / "open", INF), configuration(INF)) == INF


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (less_noise, "replays to epsilon .* above 1"),
        (lambda lines: lines[0].update(epsilon=9.0), "declares epsilon 9.0, where the cell's is 1"),
        (lambda lines: lines[0].update(delta=1e-3), "declares delta 0.001"),
        (lambda lines: lines[0].update(records=10**6), "declares records 1000000"),
        (
            lambda lines: [line.update(adjacency="replace_one") for line in lines],
            "declares adjacency replace_one",
        ),
        (lambda lines: lines.pop(), "replays to epsilon .* where .*run.json states"),
        (lambda lines: lines.pop(0), "expected a declaration"),
        (lambda lines: lines.clear(), "empty"),
    ],
)
def test_an_edited_transcript_does_not_pass(folder, change, words):
    edit(folder, change)
    with pytest.raises(NotPassed, match=f"transcript.jsonl.*{words}"):
        passed(folder, configuration())


@pytest.mark.parametrize(
    "content", ["[]", "{}", "null", '{"status": "failed"}', '{"status": null}']
)
def test_a_record_that_does_not_say_ok_does_not_pass(folder, content):
    (folder / "run.json").write_text(content)
    with pytest.raises(NotPassed, match="run.json: (status is|not the record)"):
        passed(folder, configuration())


@pytest.mark.parametrize("stated", ["NaN", "0.5", "1.1", "[]", "null", '"much"'])
def test_a_record_that_states_another_epsilon_does_not_pass(folder, stated):
    (folder / "run.json").write_text(f'{{"status": "ok", "epsilon": {stated}}}')
    with pytest.raises(NotPassed, match="run.json states"):
        passed(folder, configuration())


def test_a_garbled_record_is_named(folder):
    (folder / "run.json").write_text("{")
    with pytest.raises(NotPassed, match="run.json: not valid JSON.*straightdp rerun"):
        passed(folder, configuration())


@pytest.mark.parametrize("name", ["run.json", "transcript.jsonl"])
def test_what_is_gone_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(NotPassed, match=f"{name}: not there"):
        passed(folder, configuration())


@pytest.mark.parametrize("name", ["run.json", "transcript.jsonl", "samples.npz"])
def test_a_change_after_the_evaluation_is_seen(folder, name):
    believed = digests(folder)
    unchanged(folder, believed)
    with pytest.raises(DamagedFile, match="run.json: is not the file"):
        unchanged(folder, None)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(DamagedFile, match=f"{name}: is not the file that was evaluated"):
        unchanged(folder, believed)
    (folder / name).unlink()
    with pytest.raises(DamagedFile, match=f"{name}: not there"):
        unchanged(folder, believed)


def test_the_published_replay_is_believed_only_for_the_very_files(tmp_path):
    """With the transcript's digest in run.json no replay is repeated; an edit brings it."""
    folder = finish(tmp_path)
    run = read_json(folder / "run.json")
    text = (folder / "transcript.jsonl").read_bytes()
    believed = run | {"epsilon": 0.5, "transcript_sha256": hashlib.sha256(text).hexdigest()}
    for name in ("run.json", "published.json"):
        write_json(folder / name, believed)
    assert passed(folder, configuration()) == 0.5
    write_json(folder / "run.json", believed | {"epsilon": 0.4})  # not its copy any more
    with pytest.raises(NotPassed, match="run.json states 0.4"):
        passed(folder, configuration())
    write_json(folder / "run.json", believed)
    (folder / "transcript.jsonl").write_bytes(text + b" ")
    with pytest.raises(NotPassed):
        passed(folder, configuration())
