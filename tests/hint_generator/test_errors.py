"""The table of errors: whose mistake each kind is, and what its hint says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import pytest

from composer_replication.hint_generator import (
    HINT_TEMPLATES,
    OTHERS_KINDS,
    OUTCOME_KINDS,
    STUDENT_KINDS,
    HintContext,
    dispatch,
    hint_json_decode,
    hint_repeated_failure,
    hint_runtime_error,
    hint_tool_not_found,
    hint_type_error,
    is_students_mistake,
    register,
)

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "mode": {"enum": ["r", "w"]}, "lines": {"type": ["integer", "null"]}},
    "required": ["path", "mode"],
}
FULL: HintContext = {
    "error_message": "src/a.py:3: it is broken in a certain way\nand more",
    "tool_name": "Frob",
    "path": "/w/src/a.py",
    "command": "./frob --x",
    "command_name": "frob",
    "exit_code": 3,
    "name": "frobs",
    "available_tools": ["Frob", "Read"],
    "available_names": ["frob", "brof"],
    "tool_schema": SCHEMA,
    "missing_parameters": ["path"],
    "matches": 4,
    "limit": "25000",
    "status": 404,
    "test": "test_x",
    "original_kind": "edit_before_read",
}


@pytest.fixture(autouse=True)
def _same_registry() -> Iterator[None]:
    before = dict(HINT_TEMPLATES)
    yield
    HINT_TEMPLATES.clear()
    HINT_TEMPLATES.update(before)


def sentences(text: str) -> int:
    return len([part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text) if part])


def test_every_kind_of_the_students_has_a_template_and_no_other() -> None:
    # Nobody can be charged with the other outcomes: they name no line.
    assert set(HINT_TEMPLATES) == STUDENT_KINDS | (OUTCOME_KINDS - {"no_match", "failing_checks", "merge_conflict"})


@pytest.mark.parametrize(
    ("kind", "meta", "expected"),
    [
        ("timeout", None, True),
        ("timeout", {}, True),
        ("timeout", {"students_mistake": False}, False),
        ("user_rejected", {"students_mistake": True}, False),
        ("test_failure", {"students_mistake": True}, True),
        ("registered by a user", None, True),
    ],
)
def test_whose_mistake_it_is(kind: str, meta: dict[str, Any] | None, expected: bool) -> None:
    assert is_students_mistake(kind, meta) is expected


@pytest.mark.parametrize("kind", sorted(HINT_TEMPLATES))
@pytest.mark.parametrize("ctx", [None, {}, FULL, {"error_message": ""}], ids=["none", "empty", "full", "blank"])
def test_hints_are_short_and_whole(kind: str, ctx: HintContext | None) -> None:
    hint = dispatch(kind, ctx)
    assert hint
    assert sentences(hint) <= 2
    assert len(hint) < 500
    assert hint.endswith(".")
    assert "None" not in hint
    assert "``" not in hint
    assert "\n" not in hint
    assert "  " not in hint


@pytest.mark.parametrize("kind", sorted(HINT_TEMPLATES))
def test_hints_do_not_speak_of_an_error_that_has_not_happened(kind: str) -> None:
    for ctx in ({}, FULL):
        hint = str(dispatch(kind, cast(HintContext, ctx))).lower()
        assert not re.search(r"\b(?:previous|last|earlier|you tried|failed|error occurred)\b", hint)


@pytest.mark.parametrize(
    ("kind", "ctx", "hint"),
    [
        ("edit_before_read", {"path": "a.py"}, "Read `a.py` before you edit or overwrite it."),
        ("edit_stale", {"path": "a.py"}, "Read `a.py` again before you edit it: it has changed since you read it."),
        ("is_directory", {"path": "/w"}, "`/w` is a directory: list it, and open a file in it."),
        ("file_exists", {"path": "a.py"}, "`a.py` exists already: edit it, or choose another name."),
        (
            "blocked_command",
            {"name": "sleep 120", "error_message": "Blocked: sleep 120. Use a background task to wait. And more."},
            "Do not run `sleep 120` here: this environment does not allow it. Use a background task to wait.",
        ),
        (
            "edit_syntax_error",
            {
                "path": "a.py",
                "error_message": "Your edit has introduced it\n\nERRORS:\n- E999 IndentationError: unexpected",
            },
            "Write the edit of `a.py` so that the file still parses (E999 IndentationError: unexpected). "
            "Keep the indentation of the lines around it and replace whole statements.",
        ),
        (
            "file_too_large",
            {"limit": "25000"},
            "What this asks for is too large for one answer (the limit is 25000). "
            "Ask for less, by a filter, a range or a limit.",
        ),
        (
            "command_not_found",
            {"name": "jq", "command_name": "cat"},
            "`jq` is not installed here. Use a program that is, or install it first.",
        ),
    ],
)
def test_hints_name_what_they_are_about(kind: str, ctx: Any, hint: str) -> None:
    assert dispatch(kind, ctx) == hint


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("edit_no_match", "/w/src/a.py"),
        ("edit_multiple_matches", "4 times"),
        ("file_not_found", "/w/src/a.py"),
        ("file_too_large", "25000"),
        ("bad_option", "`frob`"),
        ("test_failure", "Write this so that the tests pass: they would stop at src/a.py:3: it is broken"),
        ("type_or_lint_error", "it would report src/a.py:3: it is broken in a certain way."),
        ("compile_error", "the compiler would report src/a.py:3: it is broken in a certain way."),
        ("git_error", "it is broken in a certain way"),
        ("traceback", "it is broken in a certain way"),
        ("command_failed", "`frob`"),
        ("http_error", "404"),
        ("unknown_name", "`frobs` here: use `frob`. Available: `frob`, `brof`."),
    ],
)
def test_hints_use_the_context(kind: str, expected: str) -> None:
    assert expected in str(dispatch(kind, FULL))


def test_unknown_tools() -> None:
    ctx: HintContext = {"tool_name": "read-file", "available_tools": ["Bash", "ReadFile", "Write"]}
    hint = hint_tool_not_found(ctx)
    assert (
        hint == "There is no tool named `read-file` here: use `ReadFile`. Available tools: `Bash`, `ReadFile`, `Write`."
    )
    far = hint_tool_not_found({"tool_name": "zzz", "available_tools": ["Bash"]})
    assert far == "There is no tool named `zzz` here. Available tools: `Bash`."
    assert "Available tools: `Read`, `Write`." in hint_tool_not_found({"available_tools": ["Read", "Write"]})
    # The nearest spelling is another effect: where signatures are known, all of them stand there instead of a guess.
    signatures = ["erase_file(path)", "move_file(old, new)"]
    signed: HintContext = {
        "name": "remove_file",
        "available_tools": ["erase_file", "move_file"],
        "signatures": signatures,
    }
    assert hint_tool_not_found(signed) == (
        "There is no tool named `remove_file` here. Available tools: `erase_file(path)`, `move_file(old, new)`."
    )
    assert "use `move_file(old, new)`" in hint_tool_not_found({**signed, "suggestion": "move_file"})
    many = hint_tool_not_found({"available_tools": [f"tool{number}" for number in range(100)]})
    assert "`tool11`, …" in many


def test_what_the_harness_suggests_is_passed_on() -> None:
    assert dispatch("file_not_found", {"path": "a.py", "suggestion": "b.py"}) == "There is no file `a.py`: use `b.py`."
    assert dispatch("unknown_name", {"name": "axi", "suggestion": "app"}) == "There is no `axi` here: use `app`."
    assert "use `Read`" in hint_tool_not_found({"name": "View", "suggestion": "Read"})


def test_json_arguments() -> None:
    assert str(dispatch("json_decode")).startswith("Reminder: tool arguments must be valid JSON.")
    hint = hint_json_decode({"tool_name": "read", "tool_schema": SCHEMA})
    assert hint.startswith("Reminder: tool arguments must be valid JSON. Call `read` with one object such as ")
    assert '{"path": "<string>", "mode": "<r | w>"}' in hint


def test_wrong_parameters() -> None:
    ctx: HintContext = {
        "tool_name": "read",
        "tool_schema": SCHEMA,
        "missing_parameters": ["path"],
        "unexpected_parameters": ["file"],
        "expected_types": {"lines": "number"},
    }
    assert hint_type_error(ctx) == (
        "When you call `read`, always give `path`, leave out `file`, and give `lines` as integer | null. "
        '`read` takes {"path": "<string>", "mode": "<r | w>"}.'
    )
    assert "put(path, text)" in hint_type_error({"tool_name": "put", "signature": "put(path, text)"})
    assert "3 is odd" in hint_type_error({"error_message": "3 is odd"})


def test_repetitions_carry_the_first_advice() -> None:
    ctx: HintContext = {"tool_name": "Edit", "path": "a.py", "original_kind": "edit_before_read"}
    assert hint_repeated_failure(ctx) == (
        "Do not make the same call of `Edit` again unchanged: it fails the same way. "
        "Read `a.py` before you edit or overwrite it."
    )
    two = hint_repeated_failure({"path": "a.py", "original_kind": "file_not_found"})
    assert two.endswith("fails the same way. There is no file `a.py`.")
    assert "it is broken" in hint_repeated_failure({**FULL, "original_kind": "never heard of"})
    assert hint_repeated_failure({"original_kind": "repeated_failure"})


def test_what_the_tool_says_is_trimmed_and_hides_credentials() -> None:
    long = hint_runtime_error({"error_message": "x" * 5000})
    assert len(long) < 300
    for secret in ("sk-abcdefghijklmnop1234", "ghp_0123456789abcdefghij", "hunter22secret"):
        text = f"cannot log in: password={secret}" if "hunter" in secret else f"bad key {secret} given"
        for kind in HINT_TEMPLATES:
            assert secret not in str(dispatch(kind, {"error_message": text, "path": text, "name": text}))


def test_long_paths_keep_their_end() -> None:
    hint = str(dispatch("edit_before_read", {"path": "/very" * 100 + "/a.py"}))
    assert "/very/a.py`" in hint
    assert len(hint) < 200


def test_unknown_kinds_and_others_mistakes_get_no_hint() -> None:
    assert dispatch("never heard of") is None
    for kind in OTHERS_KINDS:
        HINT_TEMPLATES[kind] = lambda _: "Not even then."
        assert dispatch(kind, FULL) is None


def test_templates_can_be_added_and_replaced() -> None:
    register("my_error", lambda ctx: f"Reminder: try {ctx.get('path', 'X')}.")
    assert dispatch("my_error") == "Reminder: try X."
    assert dispatch("my_error", {"path": "Y"}) == "Reminder: try Y."
    register("json_decode", lambda _: "Mine.")
    assert dispatch("json_decode") == "Mine."
    with pytest.raises(ValueError, match="user_rejected"):
        register("user_rejected", lambda _: "No.")
