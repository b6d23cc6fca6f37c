"""How many threads the environment grants: OMP_NUM_THREADS, where that is a number."""

from __future__ import annotations

import os

MOST = 1024


def granted() -> int | None:
    """The first number of OMP_NUM_THREADS; None where there is none that makes sense."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not (first.isascii() and first.isdecimal() and int(first[:9]) > 0):
        return None
    return min(int(first[:9]), MOST)
