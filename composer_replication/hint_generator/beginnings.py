"""How a failed result begins or ends, for logs without an error flag. A file that tells of errors does not count."""

from __future__ import annotations

import re

# A text of any length that begins like this is an error: nothing but a harness writes it.
_UNMISTAKABLE = re.compile(
    "|".join(
        (
            r"The user doesn.t want to (?:proceed|take)",
            r"Claude requested permissions? to",
            r"\[Request interrupted by user",
            r"(?:exec command|patch) rejected by user",
            r"aborted by user",
            r"Sibling tool call errored",
            r"\[?Tool result missing due to internal error",
            r"Cancelled: parallel tool call",
            r"(?:Pre|Post)ToolUse:\S* hook",
            r"String to replace not found",
            r"No replacement was performed",
            r"Found \d+ matches of the string to replace",
            r"No changes to make: ",
            r"File has (?:not been read yet|been (?:unexpectedly )?modified since)",
            r"File does not exist\.",
            r"Path does not exist: ",
            r"File content \([^)\n]*\) exceeds maximum",
            r"Invalid `\w+` parameter",
            r"Parameter `\w+` is required",
            r"(?:[Ee]rror: )?apply_patch verification failed",
            r"(?:[Ee]rror: )?Failed to find (?:expected lines|context)\b[^\n]* in ",
            r"tool call error: ",
            r"(?:exec_command|write_stdin) failed\b",
            r"failed to parse function arguments",
            r"failed in sandbox",
            r"\[?Your (?:proposed )?edit has introduced",
            r"Your (?:output|response) (?:could not be parsed|was not formatted correctly)",
            r"Your bash command contained syntax errors",
            r"Please always provide EXACTLY ONE action",
            r"ErrorObservation",
            r"MCP error -?\d+",
            r"JSON-RPC error",
            r"### Error\b",
            r"Traceback \(most recent call last\):",
            # IPython
            r"-{20,}\n\w+ +Traceback \(most recent call last\)",
        )
    )
)
# Ordinary texts begin like this too, if seldom: log files, documents, source code. Those are longer than a message.
_LIKELY = re.compile(
    "|".join(
        (
            r"(?:ERROR|Error|error):\s",
            r"Error (?:executing|calling|running|while|parsing)\b",
            r"(?:\w+\.)*\w*(?:Error|Exception):\s",
            r"E[A-Z]{3,12}: \w",
            r"API Error: \S",
            r"(?:Request was aborted|Connection error)\.?\s*\Z",
            r"\*\*ERROR\*\*|ERROR\b.{0,40}: ",
            r"(?:No such|Unknown|Invalid|Unsupported|unknown|unsupported) (?:tool|function|call|custom tool call)\b",
            r"(?:Tool|Function) \S+ (?:is )?not (?:found|available)",
            r"[Tt]ool not found",
            r"\S+ is not a valid tool",
            r"Unknown (?:skill|agent|task)\b",
            r"File \S+ not found",
            r"Missing required (?:parameter|argument)",
            r"\d+ validation errors? for \w",
            r"(?:/(?:usr/)?bin/)?(?:ba|z|da)?sh: (?:line )?[^\n]{1,200}"
            r"(?:not found|syntax error|No such file|Permission denied|unexpected)",
        )
    )
)
_LONGEST_MESSAGE = 2_000
TRACEBACK = "Traceback (most recent call last):"
# Frames, then what was raised; behind it at most the prompt of SWE-agent's shell.
_TO_THE_END = re.compile(r"\n(?:[ \t][^\n]*\n)+[A-Za-z_][\w.]*(?:: [^\n]*)?\s*(?:\([A-Z][^\n]*\)\s*|bash-\$\s*)*\Z")


def begins_like_an_error(text: str) -> bool:
    """Whether a text begins as the errors of known harnesses and tools do."""
    head = text[:600].lstrip()
    if _UNMISTAKABLE.match(head) is not None:
        return True
    return len(text) <= _LONGEST_MESSAGE and _LIKELY.match(head) is not None


def ends_in_a_traceback(text: str) -> bool:
    """Whether a text's last lines, after others, are a Python traceback, to the line that names what was raised."""
    start = text.rfind(f"\n{TRACEBACK}\n")
    return start >= 0 and _TO_THE_END.match(text, start + len(TRACEBACK) + 1) is not None
