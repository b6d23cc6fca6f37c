"""The driver's record: a live driver and a dead one can be told apart, by anyone."""

import json
import subprocess
import sys

import pytest

from straightdp.cli.driver import RECORD, last_driver
from straightdp.cli.main import main

HOLD = """
import sys, time
from straightdp.cli.driver import hold
hold()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A process that holds the record of tmp_path, where the test runs."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--profile", "profiles/slurm", "table1"]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_driver_is_alive_until_it_is_killed(driver):
    found = last_driver()
    assert found.alive and found.pid == driver.pid
    assert found.arguments == ["--profile", "profiles/slurm", "table1"]
    driver.kill()
    driver.wait()
    found = last_driver()
    assert not found.alive and found.pid == driver.pid


def test_asking_does_not_take_the_record(driver):
    assert last_driver().alive and last_driver().alive
    assert json.loads(RECORD.read_text())["pid"] == driver.pid


def test_recover_refuses_while_the_driver_lives_and_names_it(driver, capsys):
    assert main(["recover"]) == 2
    assert f"process {driver.pid} on " in (said := capsys.readouterr().err)
    assert "alive" in said and said.count("\n") == 1


def test_recover_repeats_the_dead_drivers_command(driver, capsys):
    driver.kill()
    driver.wait()
    assert main(["recover", "--dry-run"]) == 0
    command = capsys.readouterr().out.split()
    assert command[-3:] == ["--profile", "profiles/slurm", "table1"]
    assert "--rerun-incomplete" in command


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"pid": "x"}'])
def test_without_a_readable_record_there_is_nothing_to_recover(
    tmp_path, monkeypatch, capsys, content
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        RECORD.parent.mkdir()
        RECORD.write_text(content)
    assert last_driver() is None
    assert main(["recover"]) == 2
    assert "no workflow has run in this folder" in capsys.readouterr().err
