"""Turns that several files hold."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingestion.sessions_on_disk import answer, append, call, result_of, session, turn, write

from composer_replication.ingestion import formats, workers
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.pipeline import IngestReport, ingest_logs
from composer_replication.ingestion.source import IngestOptions, find_owners, has_orphans, mark_repeats
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, load_traces
from composer_replication.traces import Source, Trace, Turn


def states(folder: Path) -> Counter[str]:
    """How often each turn is a state, over all outputs."""
    return Counter(
        turn.id or ""
        for trace in load_traces(folder)
        for turn in trace.turns
        if turn.role == "assistant" and not turn.repeats
    )


def ingest(*paths: Path, into: Path, options: IngestOptions | None = None) -> IngestReport:
    return ingest_logs(paths, into, options, processes=1)


@pytest.fixture
def family(tmp_path: Path) -> list[Path]:
    """A session, two forks of it, and a session that goes on from a fork."""
    logs = tmp_path / "logs"
    return [
        write(logs / "original.jsonl", session("a", "b", "c")),
        write(logs / "fork.jsonl", session("a", "b", "d")),
        write(logs / "early_fork.jsonl", session("a", "e")),
        write(logs / "resumed.jsonl", session("a", "b", "d", "f")),
    ]


ONCE = Counter({f"msg_{name}": 1 for name in "abcdef"})


def test_a_turn_is_a_state_once_and_context_everywhere(family: list[Path], tmp_path: Path) -> None:
    report = ingest(tmp_path / "logs", into=tmp_path / "out")
    assert states(tmp_path / "out") == ONCE
    assert report.copied_turns == 12 - 6
    assert report.stats.n_states_emitted == report.stats.n_assistant_turns == 6
    assert (report.stats.n_tool_use_blocks, report.stats.n_tool_results) == (6, 6)
    assert (report.stats.input_tokens, report.stats.output_tokens) == (6 * 15, 6 * 2)
    histories = {
        state["student_action"].split()[1]: [message["content"] for message in state["messages"]]
        for trace in load_traces(tmp_path / "out")
        for state in trace.states()
    }
    before_f = [text for name in "abd" for text in (f"please do {name}", f"doing {name}", "done")]
    assert histories["f"] == [*before_f, "please do f"]
    assert histories["e"] == ["please do a", "doing a", "done", "please do e"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_in_any_order_of_arrival(family: list[Path], tmp_path: Path, order: tuple[int, ...]) -> None:
    for index in order:  # a run per file: no run sees the others
        ingest(family[index], into=tmp_path / "out")
    assert states(tmp_path / "out") == ONCE


def test_a_folder_that_grows_file_by_file(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / "z.jsonl", session("a", "b"))
    ingest(logs, into=tmp_path / "out")
    write(logs / "a.jsonl", session("a", "b", "c"))
    ingest(logs, into=tmp_path / "out")
    append(logs / "z.jsonl", session("d"))
    report = ingest(logs, into=tmp_path / "out")
    assert states(tmp_path / "out") == Counter({f"msg_{name}": 1 for name in "abcd"})
    again = ingest(logs, into=tmp_path / "out")
    assert again.unchanged == 2
    assert again.copied_turns == report.copied_turns == 2
    assert again.stats == report.stats


def test_a_copy_of_a_file_gives_no_traces(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / "one.jsonl", session("a", "b"))
    write(logs / "two.jsonl", session("a", "b"))
    report = ingest(logs, into=tmp_path / "out")
    assert report.as_dict()["traces"] == 1
    assert report.stats.skipped["trace that another file holds"] == 1
    assert len(list((tmp_path / "out" / "traces").iterdir())) == 1
    assert ingest(logs, into=tmp_path / "out").as_dict()["files"]["unchanged"] == 2


def test_the_session_that_began_first_owns_the_turn(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / "a.jsonl", session("x", "y", began="12:00"))
    write(logs / "b.jsonl", session("x", "z", began="11:00"))
    report = ingest(logs, into=tmp_path / "out")
    assert [entry.copies for entry in report.sources] == [["msg_x"], []]


def test_a_turn_stays_where_an_earlier_run_put_it(tmp_path: Path) -> None:
    late = write(tmp_path / "late.jsonl", session("a", "b", began="12:00"))
    early = write(tmp_path / "early.jsonl", session("a", "c", began="09:00"))
    ingest(late, into=tmp_path / "out")
    before = next((tmp_path / "out" / "traces").iterdir()).stat().st_mtime_ns
    report = ingest(early, late, into=tmp_path / "out")
    assert [entry.copies for entry in report.sources] == [["msg_a"], []]
    (output,) = (tmp_path / "out" / "traces").glob("*-late.jsonl")
    assert output.stat().st_mtime_ns == before


def test_a_touched_owner_stays_the_owner(tmp_path: Path) -> None:
    original = write(tmp_path / "logs" / "z.jsonl", session("a", "b"))
    ingest(original, into=tmp_path / "out")
    original.touch()
    write(tmp_path / "logs" / "a.jsonl", session("a", "b", "c"))
    ingest(tmp_path / "logs", into=tmp_path / "out")
    assert states(tmp_path / "out") == Counter({f"msg_{name}": 1 for name in "abc"})


def test_what_a_run_did_not_settle_the_next_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    write(logs / "one.jsonl", session("a", "b"))
    write(logs / "two.jsonl", session("a", "c"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("composer_replication.ingestion.pipeline._settle_repeats", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(logs, into=tmp_path / "out")
    with monkeypatch.context() as patch:  # killed again, between an output and the manifest
        patch.setattr("composer_replication.ingestion.store.TraceStore.write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(logs, into=tmp_path / "out")
    report = ingest(logs, into=tmp_path / "out")
    assert report.unchanged == 2
    assert states(tmp_path / "out") == Counter({f"msg_{name}": 1 for name in "abc"})
    assert report.stats.n_states_emitted == 3


def test_turns_whose_owner_is_rewritten_go_to_the_next(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    owner = write(logs / "owner.jsonl", session("a", "b", began="09:00"))
    write(logs / "fork.jsonl", session("a", "c"))
    write(logs / "copy.jsonl", session("a"))
    ingest(logs, into=tmp_path / "out")
    write(owner, session("d"))
    ingest(owner, into=tmp_path / "out")  # not even the fork's folder is looked at
    assert states(tmp_path / "out") == Counter({f"msg_{name}": 1 for name in "acd"})


def test_nothing_is_learnt_twice_from_an_error(tmp_path: Path) -> None:
    failing = turn("a", result="Exit code 2\nmake: *** No rule to make target 'a'.", failed=True)
    write(tmp_path / "logs" / "one.jsonl", failing)
    write(tmp_path / "logs" / "two.jsonl", [*failing, *session("b")])
    report = ingest(tmp_path / "logs", into=tmp_path / "out")
    sites = [turn.id for trace in load_traces(tmp_path / "out") for turn in trace.turns if turn.tool_error]
    assert sites == ["msg_a"]
    assert sum(report.stats.errors.values()) == 1


def test_a_sub_agent_in_its_own_file_and_inside_the_session(tmp_path: Path) -> None:
    inside = [
        {
            **result_of("inside", ""),
            "type": "progress",
            "uuid": f"progress-{number}",
            "data": {"type": "agent_progress", "agentId": "k1", "message": record},
        }
        for number, record in enumerate(turn("agent"))
    ]
    write(tmp_path / "logs" / "s1.jsonl", [*session("a"), *inside, *session("b")])
    own_file = [{**record, "isSidechain": True, "agentId": "k1"} for record in [*turn("agent"), *turn("agent2")]]
    write(tmp_path / "logs" / "s1" / "subagents" / "agent-k1.jsonl", own_file)
    options = IngestOptions(subagents=True)
    ingest(tmp_path / "logs", into=tmp_path / "out", options=options)
    assert states(tmp_path / "out") == Counter(["msg_a", "msg_b", "msg_agent", "msg_agent2"])
    traces = list(load_traces(tmp_path / "out"))
    main = next(trace for trace in traces if trace.parent is None)
    assert {trace.parent for trace in traces if trace is not main} == {main.trace_id}
    ingest(tmp_path / "logs", into=tmp_path / "without")
    assert states(tmp_path / "without") == Counter(["msg_a", "msg_b"])


def test_turns_without_an_id_are_never_copies(tmp_path: Path) -> None:
    record = answer("a", [call("a")])
    del record["message"]["id"]
    for name in ("one", "two"):
        write(tmp_path / "logs" / f"{name}.jsonl", [record])
    assert ingest(tmp_path / "logs", into=tmp_path / "out").stats.n_states_emitted == 2


def test_numbers_of_steps_are_no_ids(tmp_path: Path) -> None:
    for name in ("one", "two"):
        steps = [
            {"step_id": 1, "source": "user", "message": f"task {name}"},
            {"step_id": 2, "source": "agent", "message": f"I do {name}"},
        ]
        log = {
            "schema_version": "ATIF-v1.5",
            "session_id": name,
            "agent": {"name": "x", "version": "1"},
            "steps": steps,
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(log))
    report = ingest(tmp_path / "one.json", tmp_path / "two.json", into=tmp_path / "out")
    assert report.as_dict()["formats"] == {"atif": 2}
    assert (report.stats.n_states_emitted, report.copied_turns) == (2, 0)


def _sniff(head: formats.Head) -> bool:
    return any("numbered" in record for record in head.records)


def _read(log: LogFile, options: formats.ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    turns = [Turn(role="user", content="hi"), Turn(role="assistant", content="hello", id="1")]
    yield Trace(log.stem, turns, log.source("numbered"))


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_reader_says_whether_its_ids_are_unique(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool, processes: int
) -> None:
    monkeypatch.setattr(formats, "_ADDED", {})
    monkeypatch.setattr(workers, "_TASK_BYTES", 1)
    formats.register_reader("numbered", _sniff, _read, unique_ids=unique)
    for name in ("one", "two"):
        write(tmp_path / "logs" / f"{name}.jsonl", [{"numbered": name}])
    report = ingest_logs([tmp_path / "logs"], tmp_path / "out", processes=processes)
    assert report.stats.n_states_emitted == (1 if unique else 2)


def entry(key: str, turns: str, copies: str = "", began: str = "") -> ManifestEntry:
    return ManifestEntry(f"/{key}", key, "read", 1, 1, turns=[*turns], copies=[*copies], began=began)


def test_an_earlier_run_goes_before_an_earlier_beginning() -> None:
    entries = [entry("new", "abc", began="1"), entry("known", "ab", "b", began="2"), entry("other", "b", began="3")]
    assert find_owners(entries, {"new"}) == {"a": "known", "b": "other", "c": "new"}
    assert find_owners(entries, set()) == {"a": "new", "b": "new", "c": "new"}


def test_a_copy_without_an_original_is_an_orphan() -> None:
    one, two = entry("one", "ab", "b"), entry("two", "b", "b")
    owners = find_owners([one, two], set())
    assert owners == {"a": "one"}
    assert has_orphans(one, owners)
    assert not has_orphans(one, {"a": "one", "b": "three"})


def test_only_assistant_turns_are_marked_and_each_once() -> None:
    turns = [
        Turn(role="user", id="x"),
        Turn(role="assistant", id="x", tool_error="k", error_meta={}),
        Turn("assistant"),
    ]
    trace = Trace("t", turns, Source("f", "claude_code"))
    assert mark_repeats(trace, {"x"}) == 1
    assert [turn.repeats for turn in turns] == [False, True, False]
    assert (turns[1].tool_error, turns[1].error_meta) == (None, None)
    assert mark_repeats(trace, {"x"}) == 0
