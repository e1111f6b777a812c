"""Fixtures of tests that replay: teachers on loopback, and the path of a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from teacher_replay.loopback_teacher import LoopbackTeachers


@pytest.fixture
def server() -> Iterator[LoopbackTeachers]:
    """Teachers that echo the question, unless a test gives them another answer."""
    with LoopbackTeachers() as server:
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"
