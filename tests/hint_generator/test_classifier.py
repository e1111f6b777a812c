"""Results of real harnesses and tools: which count as errors, of which kind, and what is read out of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from composer_replication.hint_generator import (
    OTHERS_KINDS,
    OUTCOME_KINDS,
    STUDENT_KINDS,
    HintContext,
    classify,
    dispatch,
    looks_like_error,
)
from composer_replication.hint_generator.envelope import open_envelope


def bash(command: str) -> dict[str, Any]:
    return {"tool_name": "Bash", "arguments": {"command": command}}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_name": name, "arguments": arguments}


def wrapped(text: str) -> str:
    return f"<tool_use_error>{text}</tool_use_error>"


CASES = [json.loads(line) for line in (Path(__file__).parent / "fixtures" / "classified.jsonl").open(encoding="utf-8")]
"""Results of tools of Claude Code ("from" claude_code) and other harnesses (other), and of commands (exit)."""

_RESULT = re.compile(r"^#### (\d+) \$ (.*)\n> (\w+) \| (.*)\n((?:(?!#### ).*\n)*)", re.MULTILINE)


def call_of(case: dict[str, Any]) -> dict[str, Any]:
    return {"tool_name": case["tool_name"], "arguments": case["arguments"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']} {case['text'][:40]!r}")
def test_results_are_told_apart(case: dict[str, Any]) -> None:
    kind, details = classify(case["text"], **call_of(case))
    assert kind == case["kind"]
    if case["from"] == "exit":
        assert f"Exit code {details['exit_code']}" == case["text"].partition("\n")[0]
        assert details["command"] == case["arguments"]["command"]


def test_every_kind_it_can_say_is_known() -> None:
    known = STUDENT_KINDS | OTHERS_KINDS | OUTCOME_KINDS
    said = {case["kind"] for case in CASES}
    assert said <= known
    # Repetitions are seen on the trace, not on a text. All else is said by some row above.
    assert known - said == {"repeated_failure"}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["from"] == "claude_code" and case["text"]],
    ids=lambda case: str(case["kind"]),
)
def test_a_reminder_after_the_text_changes_nothing(case: dict[str, Any]) -> None:
    reminder = "\n\n<system-reminder>\nFile does not exist. Traceback (most recent call last):\n</system-reminder>"
    assert classify(case["text"] + reminder, **call_of(case))[0] == case["kind"]


@pytest.mark.parametrize(
    ("text", "call", "expected"),
    [
        (
            "Exit code 1\n[x] $ go vet\nok  \ta\n--- FAIL: TestCut (0.0s)\n    a_test.go:8: got 1",
            bash("go test"),
            {"error_line": "a_test.go:8: got 1", "test": "TestCut", "command_name": "go"},
        ),
        (
            "Exit code 1\n\nnpm warn x\n> a@1 b\nno luck: it failed",
            bash("cd a && ./b | tail"),
            {"error_line": "no luck: it failed", "command_name": "b"},
        ),
        (
            "Exit code 1\nTraceback (most recent call last):\n  File 'a'\nKeyError: 'x'\n\nDuring\n\nValueError: y",
            bash("python a"),
            {"error_line": "ValueError: y"},
        ),
        ("Exit code 2\nls: cannot access 'src/x': No such file or directory", bash("ls src/x"), {"path": "src/x"}),
        ("Exit code 127\nbash: line 1: jq: command not found", bash("jq"), {"name": "jq"}),
        (
            wrapped("File does not exist."),
            tool("Read", file_path="/w/a.py"),
            {"path": "/w/a.py", "error_line": "File does not exist."},
        ),
        (wrapped("Path does not exist: /w/src"), tool("Grep"), {"path": "/w/src"}),
        (
            "Your proposed edit has introduced new syntax error(s).\n\n- E999 Syntax\n[File: /w/a.py (9 lines)]",
            tool("edit"),
            {"path": "/w/a.py"},
        ),
        (
            "[Your proposed edit has introduced new syntax error(s).]\n/w/a.tsx:22\n[x]",
            tool("run_ipython"),
            {"path": "/w/a.tsx"},
        ),
        ("### Error\nRef e12 not there.", tool("mcp__b__click"), {"error_line": "Ref e12 not there."}),
        (wrapped("Blocked: sleep 120. Use a task to wait."), bash("sleep 120"), {"name": "sleep 120"}),
        ("Found 3 matches of the string to replace, but", tool("Edit", file_path="a"), {"matches": 3, "path": "a"}),
        (
            "File content (33320 tokens) exceeds maximum allowed tokens (25000).",
            tool("Read"),
            {"size": "33320 tokens", "limit": "25000"},
        ),
        (
            "Unknown tool: find. Available tools: read_file, `write_file`.",
            tool("find"),
            {"name": "find", "available_tools": ["read_file", "write_file"]},
        ),
        (
            "unknown tool; available: open(path), put(path, text)",
            tool("read"),
            {"available_tools": ["open", "put"], "signatures": ["open(path)", "put(path, text)"]},
        ),
        (
            "Agent type 'coder' not found. Available agents: Explore, Plan",
            tool("Task"),
            {"name": "coder", "available_names": ["Explore", "Plan"]},
        ),
        ("wrong arguments; signature put(path, text)", tool("put"), {"signature": "put(path, text)"}),
        (
            wrapped(
                "InputValidationError: T failed:\nThe required parameter `a` is missing\n"
                "An unexpected parameter `b` was provided\n"
                "The parameter `c` type is expected as `number` but provided as `string`"
            ),
            tool("T"),
            {"missing_parameters": ["a"], "unexpected_parameters": ["b"], "expected_types": {"c": "number"}},
        ),
        (
            "2 validation errors for X\na.b\n  Field required [type=missing]\nc\n  Input should be a valid integer",
            tool("X"),
            {"missing_parameters": ["a.b"], "expected_types": {"c": "integer"}},
        ),
        ("f() missing 2 required positional arguments: 'a' and 'b'", tool("f"), {"missing_parameters": ["a", "b"]}),
        (
            "Additional properties are not allowed ('x', 'y' were unexpected)",
            tool("f"),
            {"unexpected_parameters": ["x", "y"]},
        ),
        (
            '[{"code": "invalid_type", "expected": "string", "received": "undefined", "path": ["q"]}]',
            tool("f"),
            {"missing_parameters": ["q"]},
        ),
        (wrapped("Unknown skill: axi. Did you mean app?"), tool("Skill"), {"name": "axi", "suggestion": "app"}),
        (
            "File does not exist. Did you mean b.py?",
            tool("Read", file_path="a.py"),
            {"path": "a.py", "suggestion": "b.py"},
        ),
        (wrapped("Error: No such tool available: Raed"), tool("Raed"), {"name": "Raed", "available_tools": None}),
        ("Request failed with status code 404", tool("WebFetch"), {"status": 404}),
        (
            '{"output":"x","metadata":{"exit_code":2}}',
            tool("shell", command=["bash", "-lc", "./x"]),
            {"exit_code": 2, "command": "./x"},
        ),
    ],
)
def test_details_are_read_out_of_the_text(text: str, call: dict[str, Any], expected: dict[str, Any]) -> None:
    details = classify(text, **call)[1]
    assert {key: details.get(key) for key in expected} == expected


@pytest.mark.parametrize("unit", ["a", "(", "x.go:", "\n", "Error: at\n", "{", "<system-reminder>"])
def test_of_a_long_text_the_beginning_and_the_end_are_read(unit: str) -> None:
    middle = unit * 200_000
    assert len(open_envelope(f"Exit code 1\n{middle}").body) < 20_000
    assert classify(f"Exit code 1\n{middle}\nFAILED a.py::b\n", **bash("x"))[0] in ("test_failure", "command_failed")
    assert classify(f"Exit code 1\nFAILED a.py::b\n{middle}", **bash("x"))[0] == "test_failure"


@pytest.mark.parametrize(
    "text", ["\x00\ud800", "Exit code 99999999999999999999\n", "{" * 5000, "<tool_use_error>", "Exit code 1"]
)
def test_odd_texts_are_classified_too(text: str) -> None:
    kind, _ = classify(text, tool_name="Bash", arguments={"command": ["a", 1], "path": 3})
    assert kind in STUDENT_KINDS


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("File does not exist. Note: your current working directory is /w/app.", None),
        ("Path does not exist: /w/src. Note: your current working directory is /w/app.", "/w/src"),
        ("Directory does not exist: src. Note: your current working directory is /w/app. Did you mean lib?", "src"),
        ("File does not exist: a.py. Did you mean b.py?", "a.py"),
        ("File not found: my notes.md", "my notes.md"),
    ],
)
def test_a_note_is_no_part_of_a_path(text: str, path: str | None) -> None:
    _, details = classify(f"<tool_use_error>{text}</tool_use_error>", tool_name="Read", arguments={})
    assert details.get("path") == path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('No such tool available: Task" > <parameter name="prompt', "Task"),
        ("No such tool available: Bash</invoke>", "Bash"),
        ("No such tool available: Read<parameter", "Read"),
        ("Unknown tool: Bash command=ls", 'Bash command="ls"'),
        ("Unknown tool", "Read\n<parameter>"),
        ("unsupported call: shell{", "shell{"),
    ],
)
def test_a_name_with_more_than_the_name_is_a_malformed_call(text: str, name: str) -> None:
    kind, details = classify(f"<tool_use_error>Error: {text}</tool_use_error>", tool_name=name, arguments={})
    wanted = {"B": "Bash", "R": "Read", "T": "Task", "s": "shell"}[name[0]]
    assert (kind, details["name"]) == ("malformed_call", wanted)
    said = dispatch(kind, {"name": details["name"]})
    assert said == f"Write the tool's name alone, `{wanted}`, and everything else into its arguments."


@pytest.mark.parametrize(
    "text", ["No such tool available: 'Raed'", "Unknown tool: mcp__a__b.", "No such tool available: Raed"]
)
def test_a_tool_that_does_not_exist_is_still_one(text: str) -> None:
    assert classify(f"<tool_use_error>{text}</tool_use_error>", tool_name="Raed", arguments={})[0] == "tool_not_found"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_use_error>File does not exist.</tool_use_error>",
        "The user doesn't want to proceed with this tool use. The tool use was rejected.",
        "Exit code 1\nFAIL",
        "Exit code: 2\nWall time: 1 seconds\nOutput:\n",
        '{"output":"","metadata":{"exit_code":1}}',
        "x\n[The command completed with exit code 1.]\n[Current working directory: /w]",
        "<returncode>1</returncode>\n<output>\n</output>",
        "Error: no such thing",
        "Traceback (most recent call last):\n  File 'a'\nValueError: b" + "\nmore" * 2000,
        "-" * 75 + "\nNameError    Traceback (most recent call last)\nCell In[1]\n\nNameError: name 'x' is not defined",
        "bash: pyhton: command not found",
        '{"error": "bad"}',
        '{"isError": true, "content": [{"type": "text", "text": "bad"}]}',
        "json.decoder.JSONDecodeError: Expecting value: line 1",
        "API Error: 529 {}",
        "Request was aborted.",
        "Connection error.",
        "Tool result missing due to internal error",
    ],
)
def test_what_looks_like_an_error(text: str) -> None:
    assert looks_like_error(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        "1\tError: this file is about errors\n2\traise ValueError",
        "import logging\n\nlogger.error('Error: failed')\nTraceback",
        "Errors are values.\n\nA page about error handling: exit code 1 means failure.",
        "# Error handling\nError: see below",
        "Exit code 0\nfine",
        "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nerror: this is only quoted\n",
        '{"output":"Error: quoted","metadata":{"exit_code":0}}',
        '{"error": null, "result": 3}',
        '{"errors": [], "error": ""}',
        "Error: quoted\n[The command completed with exit code 0.]\n[Command finished with exit code 0]",
        "waiting\n[The command has no new output.]\n[The command completed with exit code -1.]",
        "ERROR: 12:00 first line of a log\n" + "INFO: and it goes on\n" * 200,
        "The user story: The user doesn't want to wait.",
        "def test_status():\n    assert status == 500",
        "Found 3 matches",
        "[" + "1," * 10,
        "{not json",
    ],
)
def test_what_does_not_look_like_an_error(text: str) -> None:
    assert not looks_like_error(text)
    assert classify(text, is_error=False) == ("", {})


def test_without_a_flag_the_text_decides() -> None:
    assert classify("Error: No such tool available: X", is_error=False)[0] == "tool_not_found"


class Case(NamedTuple):
    exit_code: int
    command: str
    kind: str
    said: str
    output: str


def printed_results() -> list[Case]:
    """The results of commands in `results/`.

    #### exit code $ command
    > kind | the hint, or of an outcome the line that is quoted
    output
    """
    texts = [path.read_text() for path in sorted((Path(__file__).parent / "results").glob("*.txt"))]
    return [
        Case(int(found[1]), found[2].replace("\\n", "\n"), found[3], found[4], found[5].strip("\n"))
        for text in texts
        for found in _RESULT.finditer(text)
    ]


RESULTS = printed_results()


def said(case: Case) -> tuple[str, str]:
    """The kind of a result, and the hint that its turn gets; of an outcome the line that is quoted."""
    text = f"Exit code {case.exit_code}\n{case.output}"
    kind, details = classify(text, tool_name="Bash", arguments={"command": case.command})
    line = str(details.pop("error_line", ""))
    if kind in OUTCOME_KINDS:
        return kind, line
    return kind, str(dispatch(kind, cast(HintContext, {**details, "error_message": line})))


@pytest.mark.parametrize("case", RESULTS, ids=lambda case: f"{case.kind} {case.command[:40]}")
def test_what_is_said(case: Case) -> None:
    assert said(case) == (case.kind, case.said)


def test_all_results_are_read() -> None:
    folder = Path(__file__).parent / "results"
    assert len(RESULTS) == sum(path.read_text().count("#### ") for path in folder.glob("*.txt")) > 100


def test_colours_are_not_read() -> None:
    coloured = "\x1b[96msrc/a.ts\x1b[0m:\x1b[93m3\x1b[0m:5 - \x1b[91merror\x1b[0m\x1b[90m TS2304: \x1b[0mNo 'x'."
    kind, details = classify(f"Exit code 2\n{coloured}", tool_name="Bash", arguments={"command": "npx tsc --pretty"})
    assert (kind, details["error_line"]) == ("type_or_lint_error", "src/a.ts:3:5 - error TS2304: No 'x'.")
