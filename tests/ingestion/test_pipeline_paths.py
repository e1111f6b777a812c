"""Which files are meant: folders, globs, links, odd names, and paths that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ingestion.sessions_on_disk import session, write

from composer_replication.ingestion.log_file import NoSuchPathError, find_files
from composer_replication.ingestion.pipeline import IngestReport, ingest_logs
from composer_replication.ingestion.store import load_traces


def ingest(*paths: Path | str, into: Path, **more: Any) -> IngestReport:
    return ingest_logs(paths, into, **{"processes": 1, **more})


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "logs" / "good.jsonl", session("a"))
    closed = tmp_path / "logs" / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = ingest(tmp_path / "logs", into=tmp_path / "out")
    assert report.as_dict()["failures"] == {str(closed): "PermissionError: Permission denied"}
    assert report.as_dict()["files"]["logs"] == 1
    assert find_files([tmp_path / "logs"]) == [tmp_path / "logs" / "good.jsonl"]


def test_the_output_may_lie_in_or_be_the_input(tmp_path: Path) -> None:
    write(tmp_path / "s1.jsonl", session("a"))
    for into in (tmp_path / "out", tmp_path):
        for _ in range(2):
            figures = ingest(tmp_path, into=into).as_dict()["files"]
        assert figures["logs"] == figures["unchanged"] - figures["no_log"] == 1


@pytest.mark.parametrize(
    "name", ["a b\nc..jsonl", "汉" * 80 + ".jsonl", "x" * 240 + ".jsonl", "[a]*?.jsonl", "é.jsonl"]
)
def test_any_file_name(tmp_path: Path, name: str) -> None:
    log = write(tmp_path / "logs" / name, session("a"))
    assert ingest(log, into=tmp_path / "out").stats.n_states_emitted == 1
    assert ingest(str(log), into=tmp_path / "out").unchanged == 1
    assert [trace.source.file for trace in load_traces(tmp_path / "out")] == [name]


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    log = tmp_path / os.fsdecode(b"bad\xff.jsonl")
    try:
        write(log, session("a"))
    except OSError:
        pytest.skip("this file system takes only names that are text")
    assert ingest(tmp_path, into=tmp_path / "out").stats.n_states_emitted == 1
    report = ingest(tmp_path, into=tmp_path / "out")
    assert (report.unchanged, report.gone) == (1, 0)
    (trace,) = load_traces(tmp_path / "out")
    assert trace.trace_id.endswith(":bad\N{REPLACEMENT CHARACTER}")


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in ("nowhere", "*.none", "link"):
        with pytest.raises(NoSuchPathError, match=r"there is no such file|the link is broken"):
            ingest(tmp_path / path, into=tmp_path / "out")
    for path in ("", "/dev/null"):
        with pytest.raises(NoSuchPathError):
            ingest(path, into=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_globs_and_loops_of_links(tmp_path: Path) -> None:
    for name in ("a/one.jsonl", "a/b/two.jsonl", "three.txt"):
        write(tmp_path / name, [])
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "nowhere").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "a" / "pipe")
    names = [path.name for path in find_files([tmp_path / "**/*.jsonl", tmp_path / "a"])]
    assert sorted(names) == ["one.jsonl", "two.jsonl"]
    assert find_files([tmp_path], leave_out=[tmp_path / "a"]) == [tmp_path / "three.txt"]
