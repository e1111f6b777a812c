"""The files of a replay: traces and states that are read, the traces that is written, and bad lines named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.ingestion import SYSTEM_PROMPT
from composer_replication.ingestion.store import ManifestEntry, TraceStore
from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.teacher_replay.replay_files import (
    AnswerIndex,
    ReplayFolder,
    StateOptions,
    trace_to_replay,
    traces_to_replay,
)
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import Source, ToolCall, Trace, Turn, parse_action


def trace(name: str, steps: int, *, last_tool: str = "Bash", **fields: Any) -> Trace:
    turns = [Turn("user", f"task of {name}")]
    for step in range(steps):
        tool = last_tool if step == steps - 1 else "Bash"
        turns.append(Turn("assistant", f"{name} {step}", tool_calls=[ToolCall(f"c{step}", tool, {"command": "ls"})]))
        turns.append(Turn("tool", "done", tool_call_id=f"c{step}"))
    return Trace(name, turns, Source(f"{name}.jsonl", "test"), **fields)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Three traces in two files; the second has no turn of an assistant."""
    store = TraceStore(tmp_path / "traces-folder")
    store.write_traces("one.jsonl", [trace("a", 3, last_tool="Finish"), trace("empty", 0)])
    store.write_traces("two.jsonl", [trace("b", 2)])
    for number, output in enumerate(("one.jsonl", "two.jsonl")):
        store.note(ManifestEntry(f"/logs/{output}", str(number), "read", 1, 1, output=output))
    return store.folder


def write_lines(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts) + b"\n")
    return path


STATE = {"state_id": "s::0", "messages": [{"role": "user", "content": "go"}], "student_action": "ok"}


def test_a_folder_gives_its_traces_in_order_without_the_empty_ones(traces: Path) -> None:
    found = list(traces_to_replay(traces))
    assert [one.trace_id for one in found] == ["a", "b"]
    assert [[step.state_id for step in one.steps] for one in found] == [
        ["a::0000", "a::0001", "a::0002"],
        ["b::0000", "b::0001"],
    ]
    assert found[0].steps[0].messages[0] == {"role": "system", "content": SYSTEM_PROMPT}


def test_the_limit_counts_states_over_all_traces(traces: Path) -> None:
    def ids(limit: int) -> list[list[str]]:
        found = traces_to_replay(traces, StateOptions(limit=limit))
        return [[step.state_id for step in one.steps] for one in found]

    a, b = ["a::0000", "a::0001", "a::0002"], ["b::0000", "b::0001"]
    assert [ids(limit) for limit in range(1, 7)] == [[a[:1]], [a[:2]], [a], [a, b[:1]], [a, b], [a, b]]
    (traces / "traces" / "two.jsonl").write_text("damaged")
    assert ids(3) == [a]  # what is behind the limit is not read


def test_a_trace_that_is_cut_has_the_tools_of_the_whole_one(traces: Path) -> None:
    """Or its states would be other calls when the rest of it is replayed, and be paid for again."""
    (whole, _), (cut,) = traces_to_replay(traces), traces_to_replay(traces, StateOptions(limit=1))
    assert len(cut.steps) == 1
    assert [tool["function"]["name"] for tool in complete_tools(cut.tools, cut.steps)] == ["Bash", "Finish"]
    assert complete_tools(cut.tools, cut.steps) == complete_tools(whole.tools, whole.steps)


def test_a_trace_of_a_known_agent_has_its_tools_whatever_part_of_it_is_replayed(tmp_path: Path) -> None:
    store, one = TraceStore(tmp_path), trace("a", 3)
    one.source = Source("a.jsonl", "claude_code", "2.1.39")
    store.write_traces("one.jsonl", [one])
    store.note(ManifestEntry("/logs/one.jsonl", "0", "read", 1, 1, output="one.jsonl"))
    (whole,), (cut,) = traces_to_replay(tmp_path), traces_to_replay(tmp_path, StateOptions(limit=1))
    assert {"Bash", "Edit", "Write"} <= {tool["function"]["name"] for tool in cut.tools}
    assert cut.tools == whole.tools == complete_tools(whole.tools, whole.steps)


def test_the_models_of_a_trace_are_those_that_its_log_names() -> None:
    one = trace("a", 3, model="claude-sonnet-4-5")
    one.turns[1].model, one.turns[3].model = "gpt-5", "claude-sonnet-4-5"
    one.turns[2].model = "no model of an assistant"
    assert trace_to_replay(one, StateOptions()).student_models == ("claude-sonnet-4-5", "gpt-5")
    assert trace_to_replay(trace("a", 1), StateOptions()).student_models == ()


def test_options_reach_the_steps() -> None:
    options = StateOptions(system_prompt="Mine.", max_history_tokens=1)
    found = trace_to_replay(trace("a", 3, tools=[{"name": "Bash"}]), options)
    assert found.steps[2].messages[0]["content"] == "Mine."
    assert len(found.steps[2].messages) == 3  # the system prompt, and the newest call with its result
    assert [tool["function"]["name"] for tool in found.tools] == ["Bash"]


def test_a_file_of_states_is_one_trace(tmp_path: Path) -> None:
    second = {**STATE, "state_id": "s::1", "more": "is passed over"}
    (found,) = traces_to_replay(write_lines(tmp_path / "mine.jsonl", STATE, b"", second, b"  "))
    assert (found.trace_id, found.tools, found.student_models) == ("mine", (), ())
    assert [step.state() for step in found.steps] == [STATE, {**STATE, "state_id": "s::1"}]
    (cut,) = traces_to_replay(tmp_path / "mine.jsonl", StateOptions(limit=1))
    assert [step.state() for step in cut.steps] == [STATE]
    assert list(traces_to_replay(write_lines(tmp_path / "empty.jsonl"))) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"state_id": ', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"state_id": "\xff"}', "not JSON"),
        ([STATE], "a state is an object, not list"),
        ({**STATE, "state_id": 7}, "a state needs 'state_id', a text"),
        ({"state_id": "x", "student_action": "y"}, "a state needs 'messages', a list"),
        ({**STATE, "messages": "go"}, "a state needs 'messages', a list"),
        ({**STATE, "student_action": None}, "a state needs 'student_action', a text"),
        ({**STATE, "messages": ["go"]}, "every message needs a role"),
        ({**STATE, "messages": [{"content": "go"}]}, "every message needs a role"),
        (
            {**STATE, "messages": [{"role": "user", "content": 3}]},
            "the content of a message is a text, or a list of parts",
        ),
        ({**STATE, "messages": [{"role": "user", "content": ["go"]}]}, "the content of a message is a text, or a list"),
        (
            {**STATE, "messages": [{"role": "assistant", "tool_calls": "ls"}]},
            "the tool_calls of a message are a list of objects",
        ),
        (
            {**STATE, "messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "the tool_calls of a message are a list",
        ),
        (STATE, "state_id 's::0' comes twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    file = write_lines(tmp_path / "states.jsonl", STATE, b"", line)
    with pytest.raises(ValueError, match=f"states.jsonl, line 3: {message}") as raised:
        list(traces_to_replay(file))
    assert "\n" not in str(raised.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder of traces, or file of states"):
        next(traces_to_replay(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"holds no traces: make some with composer-replication ingest"):
        next(traces_to_replay(tmp_path))


@pytest.mark.parametrize("damage", [b'{"trace_id": "x", "turns"', b'{"trace_id": "x"}', b"\xff\n"])
def test_a_damaged_trace_is_an_error_that_names_its_folder(traces: Path, damage: bytes) -> None:
    with (traces / "traces" / "two.jsonl").open("ab") as file:
        file.write(damage)
    found = traces_to_replay(traces)
    assert [next(found).trace_id, next(found).trace_id] == ["a", "b"]
    with pytest.raises(ValueError, match=r"traces-folder holds damaged traces \(.*\): ingest their logs again"):
        next(found)


def row(state_id: str, text: str, teacher: str = "t") -> TeacherRow:
    return TeacherRow(state_id, teacher, parse_action(text), 0.5, 1, 2, 0.25, None)


def teachers(*slugs: str) -> Any:
    return resolve_teachers([{"slug": slug, "base_url": "http://127.0.0.1:9/v1"} for slug in slugs])


@pytest.fixture
def folder(tmp_path: Path) -> ReplayFolder:
    return ReplayFolder(tmp_path / "deep" / "replayed", create=True)


def rows_in(folder: ReplayFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.answers.read_text().splitlines()]


def write(folder: ReplayFolder, *rows: TeacherRow) -> None:
    writer = folder.writer()
    writer.add(rows)
    writer.finish()


def test_rows_are_written_one_a_line_and_read_by_their_states(folder: ReplayFolder) -> None:
    rows = [row("a", "été\n"), row("b", "y"), row("a", "z", "u")]
    write(folder, *rows)
    assert [TeacherRow.of(one) for one in rows_in(folder)] == rows
    index = AnswerIndex(folder.answers)
    assert list(index.rows(["b", "a"])) == [rows[1], rows[0], rows[2]]
    assert list(index.rows(["no such"])) == []
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


def test_a_text_that_was_edited_counts(folder: ReplayFolder) -> None:
    write(folder, row("a", "mail bob@example.test"))
    (written,) = rows_in(folder)
    folder.answers.write_text(json.dumps({**written, "response_text": "mail [address]"}) + "\n")
    (read,) = AnswerIndex(folder.answers).rows(["a"])
    assert read.turn == parse_action("mail [address]")


def test_a_second_run_keeps_the_rows_of_states_that_it_did_not_replay(folder: ReplayFolder) -> None:
    write(folder, row("a", "old"), row("b", "old"), row("b", "old", "u"), row("c", "old"))
    write(folder, row("b", "new"), row("d", "new"))
    assert [(one["state_id"], one["response_text"]) for one in rows_in(folder)] == [
        ("b", "new"),
        ("d", "new"),
        ("a", "old"),
        ("c", "old"),
    ]


def test_until_the_end_the_old_answers_stay(folder: ReplayFolder) -> None:
    write(folder, row("a", "old"))
    killed = folder.writer()
    killed.add([row("a", "new")])
    assert [one["response_text"] for one in rows_in(folder)] == ["old"]  # and so it stays if nobody goes on
    killed.discard()
    assert [one["response_text"] for one in rows_in(folder)] == ["old"]
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


@pytest.mark.parametrize("line", [b"{", b'{"state_id": "x"}', b"", b"\xff", b"[]"])
def test_a_line_that_is_no_row_is_named_before_anything_is_paid(folder: ReplayFolder, line: bytes) -> None:
    write(folder, row("a", "old"))
    content = folder.answers.read_bytes() + line + b"\n"
    folder.answers.write_bytes(content)
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: no row of a replay \(.*its ledger has the answers"):
        folder.writer()
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: no row of a replay"):
        AnswerIndex(folder.answers)
    assert folder.answers.read_bytes() == content
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


def test_how_a_replay_was_made_is_kept(folder: ReplayFolder) -> None:
    options = StateOptions(system_prompt="Mine.", max_history_tokens=77, limit=3)
    folder.write_settings(options, teachers("my-claude", "x"), {"calls": 3})
    assert json.loads(folder.settings.read_text())["report"] == {"calls": 3}
    assert folder.state_options() == StateOptions("Mine.", 77)  # a limit is no part of how states are made
    folder.write_settings(options, teachers("y"), {})
    assert folder.teacher_families() == {"my-claude": ["claude"], "x": [], "y": []}
    assert [file.name for file in folder.folder.iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    "content", [None, b"", b"[1]", b'{"states": []}', b'{"states": {"system_prompt": 3}}', b"\xff"]
)
def test_without_settings_nobody_can_say_how_states_were_made(folder: ReplayFolder, content: bytes | None) -> None:
    if content is not None:
        folder.settings.write_bytes(content)
    with pytest.raises(ValueError, match=r"replay\.json does not say how states were made: run the replay again"):
        folder.state_options()
    assert folder.teacher_families() == {}
    folder.write_settings(StateOptions(), teachers("x"), {})  # what is damaged is replaced
    assert folder.state_options() == StateOptions()


def test_settings_with_something_else_for_teachers_are_replaced(folder: ReplayFolder) -> None:
    folder.settings.write_text('{"teachers": ["a"]}')
    folder.write_settings(StateOptions(), teachers("x"), {})
    assert folder.teacher_families() == {"x": []}


def test_a_folder_without_answers_is_no_replay(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds no replay: make one with composer-replication replay TRACES -o"
    ):
        ReplayFolder(tmp_path)
    write(ReplayFolder(tmp_path, create=True), row("a", "x"))
    assert ReplayFolder(tmp_path).answers.is_file()


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"file/replayed: .*; a replay needs a folder that can be written"):
        ReplayFolder(tmp_path / "file" / "replayed", create=True)
    assert (tmp_path / "file").read_text() == "in the way"


def test_what_a_killed_run_left_is_cleared_away(folder: ReplayFolder) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left, alive = (
        folder.answers.with_name(f".{folder.answers.name}.{pid}.part") for pid in (process.pid, os.getppid())
    )
    left.touch()
    alive.touch()
    folder.writer().discard()
    assert (left.exists(), alive.exists()) == (False, True)
