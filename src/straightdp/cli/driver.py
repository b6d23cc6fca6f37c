"""The workflow's driver, on record: who runs it, and with what command.

Snakemake's own lock survives a killed driver and does not say whose it was. Every driver
holds `.snakemake/driver.json` locked while it lives, so anyone can tell a live one from a
dead one, and knows what to start again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(".snakemake") / "driver.json"
_held = []  # open for as long as this process lives


@dataclass(frozen=True)
class Driver:
    """A driver's own record; `alive` where it still holds its file."""

    pid: int
    host: str
    arguments: list[str]
    started: float
    alive: bool

    def describe(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.started))
        return f"process {self.pid} on {self.host}, since {when}"


def hold(record: Path = RECORD) -> None:
    """Called by the workflow as it starts: this process is the driver until it ends."""
    record.parent.mkdir(parents=True, exist_ok=True)
    handle = open(record, "a+", encoding="utf-8")  # noqa: SIM115 - held, not closed
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return  # Snakemake's lock allows two drivers on disjoint targets; the first is on record
    handle.truncate(0)
    values = {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "arguments": sys.argv[1:],
        "started": time.time(),
    }
    handle.write(json.dumps(values))
    handle.flush()
    _held.append(handle)


def last_driver(record: Path = RECORD) -> Driver | None:
    """The driver that ran here last, or runs here now; None where none ever did."""
    try:
        with open(record, "r+", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alive = False
            except BlockingIOError:
                alive = True
            values = json.loads(handle.read())
        return Driver(
            int(values["pid"]),
            str(values["host"]),
            [str(one) for one in values["arguments"]],
            float(values["started"]),
            alive,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
