"""The time that is left, by a clock of the test's own."""

from __future__ import annotations

from composer_replication.cli.pace import Pace


def test_time_left_follows_from_what_was_done_since_the_start() -> None:
    now = 100.0
    pace = Pace(10, clock=lambda: now)
    assert pace.left(10, 20) == ""
    now = 130.0
    assert pace.left(12, 20) == "2:00 left"
    assert pace.left(20, 20) == ""
    assert pace.left(11, 1011) == "8:20:00 left"
    assert pace.left(25, 20) == ""


def test_a_line_is_due_once_in_a_while() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now, every=10.0)
    assert not pace.is_due()
    now = 10.0
    assert pace.is_due()
    assert not pace.is_due()
    now = 25.0
    assert pace.is_due()
