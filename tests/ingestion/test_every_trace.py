"""Traces of many logs, read one after another without writing anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingestion.sessions_on_disk import session, write

from composer_replication.ingestion.formats import find_format
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.pipeline import ingest_logs
from composer_replication.ingestion.reading import EveryTrace
from composer_replication.ingestion.source import IngestOptions
from composer_replication.traces import Trace


def student_turns(traces: list[Trace]) -> list[str | None]:
    return [turn.id for trace in traces for turn in trace.turns if turn.role == "assistant" and not turn.repeats]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "fork.jsonl", session("a", "c"))
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    return tmp_path / "logs"


def test_a_turn_that_two_files_hold_comes_once(logs: Path) -> None:
    every = EveryTrace([logs])
    assert student_turns(list(every)) == ["msg_a", "msg_c", "msg_b"]
    assert (every.logs, every.failures) == (2, {})


def test_every_file_is_counted_while_it_is_read(logs: Path) -> None:
    every, read = EveryTrace([logs]), []
    every.on_file = lambda: read.append(1)
    list(every)
    assert len(read) == every.sources == 3


def test_a_folder_of_traces_is_read_as_one(logs: Path, tmp_path: Path) -> None:
    ingest_logs([logs], tmp_path / "out", processes=1)
    every = EveryTrace([tmp_path / "out"])
    assert sorted(map(str, student_turns(list(every)))) == ["msg_a", "msg_b", "msg_c"]
    assert (every.logs, every.files) == (1, [])


def test_sub_agents_are_read_if_they_are_wanted(tmp_path: Path) -> None:
    agent = [{**record, "isSidechain": True, "agentId": "k1"} for record in session("agent")]
    log = write(tmp_path / "s1.jsonl", [*session("a"), *agent])
    assert len(list(EveryTrace([log]))) == 1
    assert len(list(EveryTrace([log], IngestOptions(subagents=True)))) == 2


def test_a_file_that_fails_is_named_and_the_rest_is_read(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: LogFile) -> object:
        if log.stem == "fork":
            raise RuntimeError("bad file")
        return find_format(log)

    monkeypatch.setattr("composer_replication.ingestion.reading.find_format", fail)
    every = EveryTrace([logs])
    assert student_turns(list(every)) == ["msg_a", "msg_b"]
    assert every.failures == {str(logs / "fork.jsonl"): "RuntimeError: bad file"}
