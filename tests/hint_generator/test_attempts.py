"""A hint without the call that it is about; everything else in it stays."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.hint_generator.attempts import Attempt
from composer_replication.traces import ToolCall


def attempt(raw: str | None = None, **arguments: Any) -> Attempt:
    return Attempt([ToolCall("1", "run", arguments, raw)])


@pytest.mark.parametrize(
    "quoted",
    ['{"path": "ü.py", "n": 3}', '{"path": "\\u00fc.py", "n": 3}', "{'path': 'ü.py', 'n': 3}", '{"path":"ü.py","n":3}'],
)
def test_arguments_are_removed_however_they_are_written(quoted: str) -> None:
    made = attempt(path="ü.py", n=3)
    assert made.removed_from(f"Unexpected parameter in {quoted}. Use `read_file(file)`.") == (
        "Unexpected parameter in …. Use `read_file(file)`."
    )


def test_commands_and_lines_are_removed_whatever_the_white_space() -> None:
    made = attempt(command="pytest  -q tests &&\n ls")
    assert made.removed_from("Avoid this error: `pytest -q tests && ls` exits with 2") == (
        "Avoid this error: `…` exits with 2"
    )
    assert made.removed_from("pytest\n-q   tests && ls: no") == "…: no"
    made = attempt(content="import os\nprnt('hello there')\n", path="a.py")
    assert made.removed_from("a.py:2: prnt('hello there')\nNameError: prnt") == "a.py:2: …\nNameError: prnt"
    made = attempt(command=["bash", "-lc", "make all"])
    assert made.removed_from("make all: no rule") == "…: no rule"
    assert attempt('{"path": "a b').removed_from('not JSON: {"path": "a b') == "not JSON: …"


def test_an_attempt_may_be_cut_at_the_end_of_a_text() -> None:
    made = attempt(command="git commit --message 'a long story'")
    assert made.removed_from("error in git  commit --message 'a lo…") == "error in …"
    assert made.removed_from("git commit --message 'a lo") == ""
    # Only the last of two is cut by the end, and white space in it is as the error has it.
    twice = "git commit --message 'b' after git\n\tcommit  --message 'a \n… …"
    assert made.removed_from(twice) == "git commit --message 'b' after …"
    for other in ("error in git commit…", "error in git commit --message 'b lo…", "git commit --message 'a lo: no"):
        assert made.removed_from(other) == other


def test_names_paths_and_parts_of_words_stay() -> None:
    for made, text in (
        (attempt(path="src/a.py"), "File not found: src/a.py. Available tools: `run`, `read_file`."),
        (attempt(command="pytst"), "pytst: command not found"),
        (attempt(query="to do"), "You have to do it otherwise."),
        (attempt(command="ls -l"), "ls -la works here"),
        (attempt(), "The arguments are {}."),
        (Attempt(), "Nothing was called."),
    ):
        assert made.removed_from(text) == text


def test_a_hint_that_is_nothing_but_the_attempt_is_none() -> None:
    assert attempt(command="make all").removed_from("`make all`!") == ""


def test_the_message_of_an_error_loses_it_too() -> None:
    meta = {"error_message": "make all: no rule", "command": "make all"}
    assert attempt(command="make all").removed_from_meta(meta) == {"error_message": "…: no rule", "command": "make all"}
    assert attempt(command="make all").removed_from_meta({"n": 1}) == {"n": 1}
