"""Traces after their errors are marked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from composer_replication.hint_generator import dispatch, mark_errors
from composer_replication.hint_generator import marking as marking_module
from composer_replication.traces import Source, ToolCall, Trace, Turn

NOT_READ = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
REJECTED = "The user doesn't want to proceed with this tool use."
FAILED = "Exit code 1\nbad luck"


class Story:
    """Builds a trace call by call."""

    def __init__(self, tools: list[dict[str, Any]] | None = None) -> None:
        self.trace = Trace("t", [], Source("f", "x"), tools=tools or [])
        self.count = 0

    def turn(self, *calls: tuple[str, dict[str, Any] | str, str | None], repeats: bool = False) -> Turn:
        """One assistant turn: name, arguments, and the error text of each call, None if it works."""
        made, results = [], []
        for name, arguments, error in calls:
            self.count += 1
            call = ToolCall(f"c{self.count}", name)
            if isinstance(arguments, str):
                call.raw_arguments = arguments
            else:
                call.arguments = arguments
            made.append(call)
            results.append(Turn("tool", content=error or "fine", tool_call_id=call.id, is_error=error is not None))
        turn = Turn("assistant", tool_calls=made, repeats=repeats)
        self.trace.turns += [turn, *results]
        return turn

    def mark(self) -> Counter[str]:
        mark_errors(self.trace)
        return Counter(turn.error_kind for turn in self.trace.turns if turn.error_kind is not None)


def run(command: str, error: str | None = FAILED) -> tuple[str, dict[str, Any], str | None]:
    return "Bash", {"command": command}, error


def test_a_failed_call_is_described_where_it_was_made() -> None:
    story = Story()
    story.turn(("Read", {"file_path": "a.py"}, None))
    erring = story.turn(("Edit", {"file_path": "a.py", "old_string": "x"}, NOT_READ))
    counts = story.mark()
    assert counts == {"edit_before_read": 1}
    assert erring.tool_error == "edit_before_read"
    assert erring.error_meta == {
        "error_kind": "edit_before_read",
        "students_mistake": True,
        "tool_name": "Edit",
        "tool_call_id": "c2",
        "error_message": "File has not been read yet. Read it first before writing to it.",
        "path": "a.py",
    }
    assert [turn.error_kind for turn in story.trace.turns] == [None, None, None, "edit_before_read"]
    assert dispatch(erring.tool_error, erring.error_meta) == "Read `a.py` before you edit or overwrite it."


def test_a_trace_without_errors_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for _ in range(5):
        story.turn(run("ls", None))
    before = msgspec.json.encode(story.trace)
    monkeypatch.setattr(marking_module, "classify", lambda *_, **__: pytest.fail("classified a result that worked"))
    monkeypatch.setattr(marking_module, "dump_json", lambda _: pytest.fail("wrote JSON for a call that worked"))
    assert story.mark() == {}
    assert msgspec.json.encode(story.trace) == before


def test_calls_that_work_are_never_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.turn(run("./a"))
    for _ in range(20):
        story.turn(run("./b", None))
    written = []
    monkeypatch.setattr(marking_module, "dump_json", lambda value: written.append(value) or json.dumps(value))
    story.mark()
    assert written == [{"command": "./a"}]


def test_the_students_mistake_comes_before_what_is_not() -> None:
    story = Story()
    cancelled = "<tool_use_error>Sibling tool call errored</tool_use_error>"
    erring = story.turn(run("ls", cancelled), run("./a"), run("./b", "Exit code 127\nsh: b: command not found"))
    only_others = story.turn(run("ls", REJECTED), run("pwd", cancelled))
    counts = story.mark()
    assert erring.tool_error == "command_failed"
    assert erring.error_meta is not None
    assert erring.error_meta["tool_call_id"] == "c2"
    assert only_others.tool_error == "user_rejected"
    assert only_others.error_meta is not None
    assert only_others.error_meta["students_mistake"] is False
    assert counts == {"parallel_cancelled": 2, "command_failed": 1, "command_not_found": 1, "user_rejected": 1}


@pytest.mark.parametrize("calls_between", [0, 1, 2])
def test_the_same_call_failing_again_soon_is_a_repetition(calls_between: int) -> None:
    story = Story()
    first = story.turn(("Bash", {"command": "./a", "timeout": 5}, FAILED))
    for _ in range(calls_between):
        story.turn(run("ls", None))
    again = story.turn(("Bash", {"timeout": 5, "command": "./a"}, FAILED))
    counts = story.mark()
    assert first.tool_error == "command_failed"
    assert again.tool_error == "repeated_failure"
    assert again.error_meta is not None
    assert again.error_meta["original_kind"] == "command_failed"
    assert again.error_meta["repeats"] == 1
    assert again.error_meta["error_kind"] == "repeated_failure"
    assert counts == {"command_failed": 1, "repeated_failure": 1}


def test_repetitions_are_counted_on() -> None:
    story = Story()
    turns = [story.turn(run("./a")) for _ in range(4)]
    story.mark()
    metas = [turn.error_meta or {} for turn in turns]
    assert [meta.get("repeats") for meta in metas] == [None, 1, 2, 3]
    assert {meta["original_kind"] for meta in metas[1:]} == {"command_failed"}


EDIT = ("Edit", {"file_path": "a.py"}, None)
CHANGING = [
    EDIT,
    ("Write", {"file_path": "a.py"}, None),
    ("apply_patch", "*** Begin Patch", None),
    ("str_replace_editor", {"command": "str_replace", "path": "a.py"}, None),
    ("mcp__files__write_file", {"path": "a"}, None),
    run("npm install x", None),
    run("sed -i s/a/b/ c", None),
    run("echo x > a.txt", None),
]
NOT_CHANGING = [
    ("Edit", {"file_path": "a.py"}, NOT_READ),
    ("str_replace_editor", {"command": "view", "path": "a.py"}, None),
    ("Read", {"file_path": "a.py"}, None),
    run("ls -la 2>&1", None),
    run("ls 2>/dev/null", None),
]


@pytest.mark.parametrize(
    ("turns", "is_repetition"),
    [
        *(([[run("./a")], [change], [run("./a")]], False) for change in CHANGING),
        *(([[run("./a")], [call], [run("./a")]], True) for call in NOT_CHANGING),
        # a change before the first failure is no reason to try again
        ([[run("./z")], [EDIT], [run("./a")], [run("./a")]], True),
        # after three other calls it is none
        ([[run("./a")], *[[run("ls", None)]] * 3, [run("./a")]], False),
        # other arguments are another call
        ([[run("./a")], [run("./a -v")], [("Shell", {"command": "./a"}, FAILED)]], False),
        # equal calls in one turn were made before either had failed
        ([[run("./a"), run("./a")]], False),
    ],
)
def test_a_repetition_has_no_reason_in_between(turns: Any, is_repetition: bool) -> None:
    story = Story()
    for calls in turns:
        story.turn(*calls)
    assert ("repeated_failure" in story.mark()) == is_repetition


def test_what_is_not_the_students_mistake_is_never_a_repetition() -> None:
    story = Story()
    for _ in range(3):
        story.turn(run("./a", REJECTED))
    story.turn(run("./a"))
    assert story.mark() == {"user_rejected": 3, "command_failed": 1}


def test_arguments_that_are_not_json() -> None:
    story = Story()
    broken = story.turn(("Read", '{"file_path": "a', "Something failed"))
    refused = story.turn(("Read", '{"file_path": "a', REJECTED))
    patch = story.turn(("apply_patch", "*** Begin Patch\n-a", "Something failed"))
    text = story.turn(
        ("apply_patch", "*** Begin Patch\n", "apply_patch verification failed: Failed to find expected lines")
    )
    story.turn(("Read", "not json but it worked", None))
    story.mark()
    kinds = [turn.tool_error for turn in (broken, refused, patch, text)]
    assert kinds == ["json_decode", "user_rejected", "runtime_error", "edit_no_match"]


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "function", "function": {"name": "read", "parameters": SCHEMA}},
        {"name": "read", "input_schema": SCHEMA},
    ],
)
def test_the_logs_own_tool_definitions_are_used(definition: dict[str, Any]) -> None:
    story = Story(tools=[definition, {"type": "function", "function": {"name": "write"}}, {"odd": 1}])
    erring = story.turn(("read", {"file": "a"}, "'path' is a required property"))
    unknown = story.turn(("raed", {}, "Unknown tool: raed"))
    story.mark()
    assert erring.error_meta is not None
    assert erring.error_meta["tool_schema"] == SCHEMA
    assert "available_tools" not in erring.error_meta
    assert unknown.error_meta is not None
    assert unknown.error_meta["available_tools"] == ["read", "write"]
    assert "tool_schema" not in unknown.error_meta
    assert "use `read`" in str(dispatch("tool_not_found", unknown.error_meta))


def _big_tools(parameters: int, required: int, tools: int = 60) -> list[dict[str, Any]]:
    properties = {f"parameter{n}": {"type": "string", "description": "what it is for " * 20} for n in range(parameters)}
    schema = {"type": "object", "properties": properties, "required": list(properties)[:required], "title": "x"}
    return [{"name": f"tool{n}", "input_schema": schema} for n in range(tools)]


def test_definitions_are_trimmed_to_what_hints_need() -> None:
    story = Story(tools=_big_tools(70, 2))
    wrong = story.turn(("tool1", {}, "'parameter0' is a required property"))
    again = story.turn(("tool1", {}, "'parameter0' is a required property"))
    missing = story.turn(("tolo1", {}, "Unknown tool: tolo1"))
    other = story.turn(("tool1", {"parameter0": "a"}, "Something failed"))
    story.mark()
    schema = {
        "type": "object",
        "properties": {"parameter0": {"type": "string"}, "parameter1": {"type": "string"}},
        "required": ["parameter0", "parameter1"],
    }
    assert (wrong.error_meta or {})["tool_schema"] == schema
    assert (again.error_meta or {})["tool_schema"] == schema
    assert len((missing.error_meta or {})["available_tools"]) == 40
    for meta in (wrong.error_meta, missing.error_meta, other.error_meta):
        assert ("tool_schema" in (meta or {})) == (meta is wrong.error_meta)
        assert ("available_tools" in (meta or {})) == (meta is missing.error_meta)


def test_a_schema_that_stays_large_is_left_out() -> None:
    story = Story(tools=_big_tools(200, 200))
    wrong = story.turn(("tool1", {}, "'parameter0' is a required property"))
    story.mark()
    assert "tool_schema" not in (wrong.error_meta or {})


def test_choices_and_alternatives_stay() -> None:
    properties = {
        "a": {"enum": ["r", "w"], "title": "A"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "c": 3,
    }
    story = Story(tools=[{"name": "read", "input_schema": {"properties": properties, "required": "a"}}])
    wrong = story.turn(("read", {}, "'a' is a required property"))
    story.mark()
    assert (wrong.error_meta or {})["tool_schema"] == {
        "type": "object",
        "properties": {"a": {"enum": ["r", "w"]}, "b": {"type": ["integer", "null"]}, "c": {}},
        "required": [],
    }


def test_what_is_written_stays_in_proportion_to_what_was_read() -> None:
    story = Story(tools=_big_tools(70, 2))
    for number in range(400):
        story.turn((f"tool{number % 60}", {"parameter0": number}, "'parameter1' is a required property"))
    before = len(msgspec.json.encode(story.trace))
    story.mark()
    assert len(msgspec.json.encode(story.trace)) < 2 * before


class _CountedTurns(list[Turn]):
    """Counts the turns that are taken out of it."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.taken += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Iterator[Turn]:
        for turn in super().__iter__():
            self.taken += 1
            yield turn


@pytest.mark.parametrize("text", ["<tool_use_error>No such tool available: Raed</tool_use_error>", FAILED])
@pytest.mark.parametrize("change", [None, ("Edit", {"file_path": "a.py"}, NOT_READ)])
def test_twice_the_errors_take_twice_the_looks(text: str, change: Any) -> None:
    def looks(errors: int) -> int:
        story = Story()
        story.turn(("Read", {}, None))
        for _ in range(errors):
            story.turn(("Raed", {"command": "./a"}, text))
            if change is not None:
                story.turn(change)
        turns = _CountedTurns(story.trace.turns)
        story.trace.turns = turns
        story.mark()
        return turns.taken

    assert looks(400) < 2.2 * looks(200)


def test_without_definitions_no_tools_are_made_up() -> None:
    story = Story()
    story.turn(("Read", {}, None))
    missing = story.turn(("Raed", {}, "<tool_use_error>Error: No such tool available: Raed</tool_use_error>"))
    other = story.turn(run("./a"))
    story.mark()
    assert missing.error_meta is not None
    assert missing.error_meta["available_tools"] == ["Read"]
    assert other.error_meta is not None
    assert "available_tools" not in other.error_meta


def test_copies_teach_nothing_twice() -> None:
    story = Story()
    copy = story.turn(run("./a"), repeats=True)
    story.mark()
    assert copy.tool_error is None
    assert copy.error_meta is None
    assert story.trace.turns[1].error_kind == "command_failed"


def test_a_result_without_a_call_is_still_classified() -> None:
    trace = Trace("t", [Turn("tool", content=NOT_READ, tool_call_id="lost", is_error=True)], Source("f", "x"))
    mark_errors(trace)
    assert trace.turns[0].error_kind == "edit_before_read"


def test_long_texts_are_trimmed() -> None:
    story = Story()
    noise = "\n".join(["", "> build"] * 500)
    erring = story.turn(run("./a " + "x" * 5000, f"Exit code 2\n{noise}\nfatal error: it broke\n" + "y" * 5000))
    story.mark()
    meta = erring.error_meta
    assert meta is not None
    assert meta["error_message"].startswith("fatal error: it broke\n")
    assert len(meta["error_message"]) <= 400
    assert len(meta["command"]) == 200
    assert meta["exit_code"] == 2


def test_a_marked_trace_can_be_written_and_read() -> None:
    story = Story()
    story.turn(run("./a"))
    story.mark()
    assert msgspec.json.decode(msgspec.json.encode(story.trace), type=Trace) == story.trace
