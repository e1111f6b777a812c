"""Which results count as errors where the log has no flag."""

from __future__ import annotations

import pytest

from composer_replication.hint_generator import classify, looks_like_error


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
