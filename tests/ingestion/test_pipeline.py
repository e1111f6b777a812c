"""Many logs to a folder of traces, again and again, from any paths."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ingestion.sessions_on_disk import answer, append, names, result_of, session, turn, write

from composer_replication.ingestion import workers
from composer_replication.ingestion.log_file import LogFile, NoSuchPathError, find_files
from composer_replication.ingestion.pipeline import IngestReport, ingest_logs
from composer_replication.ingestion.source import IngestOptions
from composer_replication.ingestion.store import load_traces
from composer_replication.traces import Trace

SECRET = "sk-ant-api03-" + "Zq9x" * 23 + "-AA"
MAIL = "jane.roe@northwind.com"


def ingest(*paths: Path | str, into: Path, **more: Any) -> IngestReport:
    return ingest_logs(paths, into, **{"processes": 1, **more})


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "traces").iterdir()}


def replace_unseen(path: Path, records: list[dict[str, Any]]) -> None:
    """Other content of the same size and time: whoever reads the file would notice."""
    status = path.stat()
    write(path, records)
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_outputs_and_manifest(tmp_path: Path) -> None:
    log = write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    (tmp_path / "logs" / "nothing.jsonl").write_text("")
    report = ingest(tmp_path / "logs", into=tmp_path / "out")
    assert names(tmp_path / "out") == ["manifest.jsonl", "traces"]
    notes, nothing, entry = manifest(tmp_path / "out")
    assert (notes["status"], notes["reason"]) == ("no log", "no known log format")
    assert (nothing["status"], nothing["reason"]) == ("no log", "empty")
    assert (entry["source"], entry["status"], entry["format"]) == (str(log), "read", "claude_code")
    assert (entry["size"], entry["digest"]) == (log.stat().st_size, LogFile(log).digest())
    assert list(outputs(tmp_path / "out")) == [entry["output"]] == [f"{entry['key']}-s1.jsonl"]
    (line,) = outputs(tmp_path / "out")[entry["output"]].splitlines()
    trace = json.loads(line)
    assert trace["trace_id"] == f"{entry['key']}:s1"
    assert [one["role"] for one in trace["turns"]] == ["user", "assistant", "tool"] * 2
    assert trace["source"] == {"file": "s1.jsonl", "format": "claude_code", "version": "2.1.0"}
    assert [one.trace_id for one in load_traces(tmp_path / "out")] == [trace["trace_id"]]
    figures = report.as_dict()
    assert figures["files"] == {"logs": 1, "unchanged": 0, "no_log": 2, "failed": 0, "gone": 0, "other_settings": 0}
    assert (figures["traces"], figures["bytes"], figures["formats"]) == (1, entry["size"], {"claude_code": 1})
    assert json.loads(json.dumps(figures)) == figures
    assert (report.stats.n_states_emitted, report.stats.n_turns, report.stats.n_records_total) == (2, 6, 6)


def test_a_second_run_reads_nothing_and_says_the_same(tmp_path: Path) -> None:
    log = write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    first = ingest(tmp_path / "logs", into=tmp_path / "out")
    before = outputs(tmp_path / "out")
    replace_unseen(log, session("x", "y"))
    second = ingest(tmp_path / "logs", into=tmp_path / "out")
    assert outputs(tmp_path / "out") == before
    assert (first.unchanged, second.unchanged) == (0, 2)
    assert second.stats == first.stats
    assert second.as_dict()["files"]["logs"] == 1


def test_a_touched_file_is_known_by_its_hash(tmp_path: Path) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    written = next((tmp_path / "out" / "traces").iterdir()).stat().st_mtime_ns
    os.utime(log, ns=(1, 1))
    assert ingest(log, into=tmp_path / "out").unchanged == 1
    assert next((tmp_path / "out" / "traces").iterdir()).stat().st_mtime_ns == written
    replace_unseen(log, session("x"))
    assert ingest(log, into=tmp_path / "out").unchanged == 1  # the new time was noted: no need for the hash again
    os.utime(log, ns=(2, 2))
    assert ingest(log, into=tmp_path / "out").unchanged == 0  # same size, another time, another content


def test_what_changed_is_read_again(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    grown, steady = write(logs / "grown.jsonl", session("a")), write(logs / "steady.jsonl", session("b"))
    ingest(logs, into=tmp_path / "out")
    ids = {trace.trace_id for trace in load_traces(tmp_path / "out")}
    replace_unseen(steady, session("x"))
    append(grown, session("c"))
    report = ingest(logs, into=tmp_path / "out")
    assert report.unchanged == 1
    traces = {trace.source.file: trace for trace in load_traces(tmp_path / "out")}
    assert [one.id for one in traces["grown.jsonl"].turns if one.id] == ["msg_a", "msg_c"]
    assert [one.id for one in traces["steady.jsonl"].turns if one.id] == ["msg_b"]
    assert {trace.trace_id for trace in traces.values()} == ids


@pytest.mark.parametrize("options", [IngestOptions(redact=False), IngestOptions(subagents=True)])
def test_other_options_read_again(tmp_path: Path, options: IngestOptions) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    assert ingest(log, into=tmp_path / "out", options=options).unchanged == 0
    assert ingest(log, into=tmp_path / "out", options=options).unchanged == 1


def test_a_deleted_output_is_written_again(tmp_path: Path) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    before = outputs(tmp_path / "out")
    next((tmp_path / "out" / "traces").iterdir()).unlink()
    assert ingest(log, into=tmp_path / "out").unchanged == 0
    assert outputs(tmp_path / "out") == before


def test_a_source_that_is_gone_keeps_its_traces(tmp_path: Path) -> None:
    log = write(tmp_path / "logs" / "s1.jsonl", session("a"))
    note = write(tmp_path / "logs" / "note.jsonl", [])
    ingest(tmp_path / "logs", into=tmp_path / "out")
    log.unlink()
    note.unlink()
    write(tmp_path / "logs" / "s2.jsonl", session("b"))
    for _ in range(2):
        report = ingest(tmp_path / "logs", into=tmp_path / "out", options=IngestOptions(redact=False))
        assert (report.gone, report.other_settings) == (1, 1)
        assert report.stats.n_states_emitted == 1
        assert [trace.source.file for trace in load_traces(tmp_path / "out")] == ["s1.jsonl", "s2.jsonl"]
        assert [Path(entry["source"]).name for entry in manifest(tmp_path / "out")] == ["s1.jsonl", "s2.jsonl"]


def test_what_a_source_no_longer_gives_is_taken_away(tmp_path: Path) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    log.write_text("now a shopping list")
    assert ingest(log, into=tmp_path / "out").as_dict()["files"]["no_log"] == 1
    assert outputs(tmp_path / "out") == {}
    write(log, [answer("a", [], isSidechain=True)])
    assert ingest(log, into=tmp_path / "out").as_dict()["files"]["logs"] == 1
    assert outputs(tmp_path / "out") == {}


def test_files_of_one_name_have_traces_of_different_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name / "session.jsonl", session(name))
    ingest(tmp_path / "one", tmp_path / "two", into=tmp_path / "out")
    ids = [trace.trace_id for trace in load_traces(tmp_path / "out")]
    assert len(set(ids)) == 2
    assert all(one.endswith(":session") for one in ids)


def test_a_file_is_one_source_whatever_leads_to_it(tmp_path: Path) -> None:
    log = write(tmp_path / "real" / "s1.jsonl", session("a"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "other_name.jsonl").symlink_to(log)
    ingest(tmp_path / "real", tmp_path / "link", log, into=tmp_path / "out")
    assert len(outputs(tmp_path / "out")) == 1
    assert ingest(tmp_path / "link", into=tmp_path / "out").unchanged == 1
    append(log, session("b"))
    ingest(tmp_path / "other_name.jsonl", into=tmp_path / "out")
    (trace,) = load_traces(tmp_path / "out")
    assert [one.id for one in trace.turns if one.id] == ["msg_a", "msg_b"]
    assert len(outputs(tmp_path / "out")) == len(manifest(tmp_path / "out")) == 1


def test_two_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number}" for number in range(6)]
    for name in names:
        write(tmp_path / "logs" / f"{name}.jsonl", session("shared", f"{name}-1", f"{name}-2", f"{name}-3"))
    monkeypatch.setattr(workers, "_TASK_BYTES", 1)  # a task per file
    one = ingest(tmp_path / "logs", into=tmp_path / "one", processes=1)
    two = ingest(tmp_path / "logs", into=tmp_path / "two", processes=2)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "two")
    assert (tmp_path / "one" / "manifest.jsonl").read_bytes() == (tmp_path / "two" / "manifest.jsonl").read_bytes()
    assert one.stats == two.stats
    assert one.stats.n_states_emitted == 1 + 3 * len(names)


def test_secrets_and_personal_data_are_nowhere_unless_wanted(tmp_path: Path) -> None:
    records = [
        *turn("a", prompt=f"my key is {SECRET}, mail me at {MAIL}"),
        *turn("b", result=f"Exit code 1\nbad key {SECRET} of {MAIL}", failed=True),
        answer("c", [{"type": "tool_use", "id": "call_c", "name": "Write", "input": {"text": f"{MAIL} {SECRET}"}}]),
        result_of("c", f"{MAIL}\n{SECRET}"),
    ]
    for record in records:
        record["cwd"] = "/home/janeroe/secret-project"
    log = write(tmp_path / "s1.jsonl", records)
    report = ingest(log, into=tmp_path / "safe")
    written = b"".join(outputs(tmp_path / "safe").values())
    for found in (SECRET, MAIL, "janeroe", str(tmp_path)):
        assert found.encode() not in written
    assert report.stats.redactions["EMAIL"] >= 3
    ingest(log, into=tmp_path / "plain", options=IngestOptions(redact=False))
    written = b"".join(outputs(tmp_path / "plain").values())
    assert SECRET.encode() in written
    assert MAIL.encode() in written
    ingest(log, into=tmp_path / "plain")
    assert SECRET.encode() not in b"".join(outputs(tmp_path / "plain").values())


def test_every_trace_is_also_an_example_and_has_its_states(tmp_path: Path) -> None:
    write(tmp_path / "s1.jsonl", session("a", "b"))
    ingest(tmp_path / "s1.jsonl", into=tmp_path / "out", options=IngestOptions(redact=False))
    (line,) = next(iter(outputs(tmp_path / "out").values())).splitlines()
    (trace,) = load_traces(tmp_path / "out")
    assert isinstance(trace, Trace)
    assert [state["state_id"] for state in trace.states()] == [f"{trace.trace_id}::{n:04d}" for n in range(2)]
    raw = json.loads(line)
    assert [one["content"] for one in raw["turns"]] == [one["content"] for one in trace.example()["turns"]]


def test_what_other_code_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path / "s1.jsonl", session("a"))
    ingest(log, into=tmp_path / "out")
    assert ingest(log, into=tmp_path / "out").unchanged == 1
    monkeypatch.setattr("composer_replication.ingestion.source._code_digest", lambda: "another version")
    assert ingest(log, into=tmp_path / "out").unchanged == 0


def test_a_turn_that_a_log_itself_repeats_is_no_state(tmp_path: Path) -> None:
    def call(*messages: str) -> str:
        said = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(messages)]
        answer = {"choices": [{"message": said.pop()}]}
        return json.dumps({"request": {"messages": said}, "response": answer})

    log = tmp_path / "proxy.jsonl"
    log.write_text(call("hello", "hi") + "\n" + call("hello", "hi", "and now?", "done") + "\n")
    report = ingest(log, into=tmp_path / "out")
    states = [state for trace in load_traces(tmp_path / "out") for state in trace.states()]
    assert (report.stats.n_states_emitted, len(states)) == (2, 2)
    assert sum(turn.role == "assistant" for trace in load_traces(tmp_path / "out") for turn in trace.turns) == 3


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
