"""Leaving when told to: SIGTERM ends a phase at its next step, with a checkpoint written.

A cluster, a container or a person sends SIGTERM before it kills. Inside a phase the step
under way is finished first; elsewhere nothing would be saved by waiting, and the run leaves
at once. Either way the next start goes on from the newest checkpoint.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager

EXIT_STATUS = 128 + signal.SIGTERM

_state = {"told": False, "patient": False}


class Stopped(BaseException):
    """The process was told to leave. Not an Exception: nothing may take it for a failure."""


def _told(signum, frame) -> None:
    _state["told"] = True
    if not _state["patient"]:
        raise Stopped


def listen() -> None:
    """Treat SIGTERM as described above, from now on in this process (main thread only)."""
    _state["told"] = False
    signal.signal(signal.SIGTERM, _told)


def told_to_leave() -> bool:
    """Whether SIGTERM has come while it was not to interrupt."""
    return _state["told"]


@contextmanager
def at_step_boundaries():
    """SIGTERM waits inside; the caller asks :func:`told_to_leave` and raises :class:`Stopped`."""
    _state["patient"] = True
    try:
        yield
    finally:
        _state["patient"] = False
