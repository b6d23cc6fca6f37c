"""Interleaved timing: every way in turn, round by round, compared inside the round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each way in each round, after one round of warming up.

    CPU time, on one thread, leaves out what other jobs take of a shared machine.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            if round_:
                times[name].append(time.process_time() - begin)
    return times


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    """Median over rounds of one way's time over another's."""
    pairs = zip(times[over], times[under], strict=True)
    return statistics.median(a / b for a, b in pairs)
