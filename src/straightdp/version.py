"""Which code computed a result: release, commit, and a hash of the modules that decide numbers.

A result is stale where that hash differs from today's. Reports, the command line and the
workflow are left out: editing them changes no sample.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

from straightdp import __version__

PACKAGE = Path(__file__).parent
VOTING = ("evaluation/extractors.py", "evaluation/probe.py")  # the features of votes
DECIDING = ("data", "flow", "mechanisms", "methods", "model", "rng.py", *VOTING)
EVALUATING = ("data", "evaluation", "model/adam.py", "rng.py")


@cache
def source_hash(parts: tuple[str, ...] = DECIDING) -> str:
    """A short hash over the named modules' source."""
    total = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            total.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def code_version(parts: tuple[str, ...] = DECIDING) -> dict:
    """What is recorded with a result; commit and dirty are null outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", ".") if commit else None
    return {
        "version": __version__,
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "source": source_hash(parts),
    }
