"""The journal: names, whole files, and which records belong to which submission."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_executor_plugin_submitit.journal import (
    ACTIVE,
    DONE,
    Entry,
    Journal,
    job_key,
    log_tail,
    new_token,
)

ENTRY = Entry(
    key="cell-0",
    outputs=["results/a.json", "results/b.json"],
    backend="slurm",
    command="c0ffee",
    state=ACTIVE,
    token="t1",
    index=3,
    ids=["10", "12_3"],
    memory_mb=4000,
    log="/x/12_3_0_log.out",
    submitted=1.5,
    seen=False,
)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "home")


def record_result(journal, key, record):
    path = journal.result_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))


@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=4))
def test_a_key_is_a_safe_file_name(name, outputs):
    key = job_key(name, outputs)
    assert re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*", key)
    assert len(key) <= 100


def test_a_key_is_stable_readable_and_of_its_outputs():
    key = job_key("cell-pixel-eps1.0-seed0", ["a/x.json", "b"])
    assert key.startswith("cell-pixel-eps1.0-seed0-")
    assert key == job_key("cell-pixel-eps1.0-seed0", ["b", "a/x.json"])
    assert key != job_key("cell-pixel-eps1.0-seed0", ["a/y.json", "b"])
    assert job_key("n" * 90 + "1", ["a"]) != job_key("n" * 90 + "2", ["b"])


def test_an_entry_comes_back_as_it_was_written(journal):
    assert journal.write(ENTRY) == ENTRY
    assert Journal(journal.home).read("cell-0") == ENTRY
    changed = journal.write(ENTRY, state=DONE, seen=True)
    assert changed == replace(ENTRY, state=DONE, seen=True)
    assert journal.read("cell-0") == changed
    assert changed.id == "12_3"
    assert replace(ENTRY, ids=[]).id is None


def test_a_crash_while_writing_leaves_the_old_entry(journal, monkeypatch):
    journal.write(ENTRY)

    def crash(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="no space"):
        journal.write(ENTRY, state=DONE, ids=["99"])
    monkeypatch.undo()
    assert journal.read("cell-0") == ENTRY
    assert [path.name for path in journal.folder.iterdir()] == ["cell-0.json"]


def test_what_a_killed_writer_leaves_is_no_entry_and_no_result(journal):
    journal.write(ENTRY)
    record_result(journal, "cell-0", {"token": "t1"})
    (journal.folder / ".cell-1.json.77.tmp").write_text("{")
    (journal.home / "results" / ".cell-1.json.77.tmp").write_text("{")
    assert journal.entries() == [ENTRY]
    assert journal.results() == {"cell-0"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        '{"schema": 1}',
        '{"schema": 99, "key": "cell-0"}',
        "\xff\xfe",
        json.dumps({"schema": 1, "key": "cell-0", "unknown": 1}),
    ],
)
def test_damaged_entries_are_skipped(journal, text):
    journal.write(replace(ENTRY, key="whole"))
    journal.path("cell-0").write_bytes(text.encode("latin-1"))
    assert journal.read("cell-0") is None
    assert [entry.key for entry in journal.entries()] == ["whole"]


def test_entries_are_found_by_each_output(journal):
    other = replace(ENTRY, key="cell-1", outputs=["results/c.json"])
    journal.write(ENTRY)
    journal.write(other)
    assert journal.by_output() == {
        "results/a.json": ENTRY,
        "results/b.json": ENTRY,
        "results/c.json": other,
    }


def test_an_empty_journal_has_nothing(journal):
    assert journal.entries() == [] and journal.results() == set()
    assert journal.read("cell-0") is None and journal.result(ENTRY) is None
    assert journal.starts("cell-0") == [] == journal.stops("cell-0")


def test_only_results_of_this_submission_count(journal):
    record_result(journal, "cell-0", {"token": "t1", "status": 0})
    assert journal.result(ENTRY) == {"token": "t1", "status": 0}
    assert journal.result(replace(ENTRY, token="t2")) is None


@pytest.mark.parametrize("text", ["", '{"token": "t1"', "[]", "null", "\xff"])
def test_damaged_results_are_none(journal, text):
    record_result(journal, "cell-0", "")
    journal.result_path("cell-0").write_bytes(text.encode("latin-1"))
    assert journal.result(ENTRY) is None


def test_a_forgotten_job_has_neither_entry_nor_result(journal):
    journal.write(ENTRY)
    record_result(journal, "cell-0", {"token": "t1"})
    journal.forget("cell-0")
    journal.forget("never there")
    assert journal.entries() == [] and journal.results() == set()


def test_a_new_series_counts_from_nothing_and_keeps_the_old_lines(journal):
    tries = journal.home / "tries" / "cell-0.jsonl"
    tries.parent.mkdir(parents=True)
    tries.write_text('{"start": 1}\n{"stop": 2, "why": "SIGTERM"}\n{"start": 3}\n{"st')
    record_result(journal, "cell-0", {"token": "t1"})
    assert [line["start"] for line in journal.starts("cell-0")] == [1, 3]
    assert [line["why"] for line in journal.stops("cell-0")] == ["SIGTERM"]
    journal.begin_series("cell-0")
    assert journal.starts("cell-0") == [] and journal.results() == set()
    assert len(tries.with_suffix(".old").read_text().splitlines()) == 3


def test_tokens_differ():
    tokens = {new_token("cell-0") for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[0-9a-f]{12}", token) for token in tokens)


# -- the ends of logs ------------------------------------------------------------------------

LOG = """\
submitit INFO (2026-11-30 08:28:56,159) - Starting with JobEnvironment(job_id=31333)
submitit INFO (2026-11-30 08:28:56,160) - Loading pickle: /x/31333_submitted.pkl
line one

Traceback (most recent call last):
  File "cell.py", line 3, in <module>
ValueError: the cause
"""


def test_the_tail_is_the_commands_own(tmp_path):
    (tmp_path / "log").write_text(LOG)
    assert log_tail(tmp_path / "log") == [
        "line one",
        "Traceback (most recent call last):",
        '  File "cell.py", line 3, in <module>',
        "ValueError: the cause",
    ]
    assert log_tail(tmp_path / "log", 1) == ["ValueError: the cause"]


def test_a_traceback_that_is_not_the_commands_stays(tmp_path):
    broken = LOG[: LOG.index("line one")] + (
        "Traceback (most recent call last):\n"
        '  File "submission.py", line 50, in process_job\n'
        "ModuleNotFoundError: No module named 'snakemake_executor_plugin_submitit'\n"
    )
    (tmp_path / "log").write_text(broken)
    assert log_tail(tmp_path / "log")[-1].startswith("ModuleNotFoundError")
    assert len(log_tail(tmp_path / "log")) == 3


def test_a_long_log_is_read_from_its_end_only(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 10**6 + b"\xff\nlast but one\nlast\n")
    assert log_tail(tmp_path / "log", 2) == ["last but one", "last"]


def test_no_log_has_no_lines(tmp_path):
    assert log_tail(tmp_path / "none") == []
    (tmp_path / "empty").write_text("")
    assert log_tail(tmp_path / "empty") == []
