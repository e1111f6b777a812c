"""The labelled sets of benchmarks/hints.py: what was reached on them is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hints import COMMANDS, command_figures, report, rows, session_figures


@pytest.mark.parametrize("name", COMMANDS)
def test_failures_of_commands_are_found(name: str) -> None:
    figures, _ = command_figures(rows(name))
    assert figures["failures"]["precision"] >= 0.97
    assert figures["failures"]["recall"] >= 0.94
    assert figures["masked"]["precision"] >= 0.97
    assert figures["whose"]["wrong"] <= 0.12 * sum(figures["whose"].values())
    assert figures["line_quoted"]["right"] >= 0.9 * sum(figures["line_quoted"].values())


def test_who_wrote_what_fails_is_charged() -> None:
    figures, _ = session_figures(rows("sessions"))
    assert figures["outcomes"]["precision"] >= 0.97
    assert figures["outcomes"]["recall"] >= 0.9
    assert figures["charged"]["precision"] == 1.0
    assert figures["charged"]["recall"] >= 0.75


def test_the_report_has_every_hint_once() -> None:
    found = report([])
    hints = [one["hint"] for one in found["hints"]]
    assert len(hints) == len(set(hints)) > 100
    assert found["results"]["constructed"]["share_with_hint"] >= 0.9
