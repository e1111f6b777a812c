"""Which reader a file belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.ingestion import LogFile, ingest_logs, load_traces
from composer_replication.ingestion.formats import find_format

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_are_found_by_their_content(path: Path) -> None:
    found = find_format(LogFile(path))
    assert found is not None
    assert found.name == path.parent.name


def test_objects_printed_one_after_another_are_ingested(tmp_path: Path) -> None:
    report = ingest_logs([FIXTURES / "otel" / "console.txt"], tmp_path, processes=1)
    (trace,) = load_traces(tmp_path)
    assert (trace.source.format, len(trace.turns)) == ("otel", 4)
    assert report.stats.skipped == {"broken line": 1}  # what the program itself printed


def test_a_first_value_that_is_too_long_is_not_looked_for(tmp_path: Path) -> None:
    console = (FIXTURES / "otel" / "console.txt").read_text()
    path = tmp_path / "console.txt"
    path.write_text(console.replace("{", "{" + "\n" * 1024 * 1024, 1))
    assert find_format(LogFile(path)) is None
