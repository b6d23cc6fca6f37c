"""Progress that a person can follow: one short line a few seconds, to the terminal and a log."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path


class Progress:
    """Says what a unit is doing; `step` is limited to a line every `interval` seconds."""

    def __init__(self, label: str, log: Path | None = None, interval: float = 5.0):
        self.label, self.log, self.interval = label, log, interval
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        line = f"[{self.label}] {text}"
        print(line, file=sys.stderr, flush=True)
        self.note(text)

    def note(self, text: str) -> None:
        """To the log alone; where that cannot be written, the run matters more."""
        if self.log is None:
            return
        with suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "a", encoding="utf-8") as handle:
                handle.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def step(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if time.monotonic() - self._last >= self.interval:
            self._last = time.monotonic()
            self.say(f"{phase} {done}/{total}{' ' + detail if detail else ''}")
