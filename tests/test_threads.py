"""OMP_NUM_THREADS as users set it."""

import pytest

from straightdp.threads import MOST, granted


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("4", 4),
        ("4,2", 4),
        (" 2 ", 2),
        ("", None),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("many", None),
        ("\u00b2", None),
        ("1" * 30, MOST),
        ("99999", MOST),
    ],
)
def test_what_makes_sense_is_taken(monkeypatch, value, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert granted() == expected


def test_nothing_is_granted_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert granted() is None
