"""Unwraps a tool's result: exit codes, error tags and JSON objects that a harness puts around the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_WINDOW = 5_000
_LARGEST_OBJECT = 1_000_000

_REMINDER = re.compile(r"\n*<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
# What a terminal obeys: colours, cleared lines, links.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_TAGGED = re.compile(r"\A\s*<(tool_use_error|error)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_HEADERS = (
    # Claude Code
    re.compile(r"\A(?:Error: )?Exit code (?P<code>-?\d+)(?:\n|\Z)"),
    # Codex
    re.compile(
        r"\A(?:Chunk ID: [^\n]*\n)?(?:Exit code: (?P<code>-?\d+)\n)?Wall time: [^\n]*\n"
        r"(?:Process exited with code (?P<exited>-?\d+)\n)?(?:[A-Z][a-z ]+: \d+\n)*(?:Output:\n?)?"
    ),
    # mini-swe-agent
    re.compile(r"\A\s*<returncode>(?P<code>-?\d+)</returncode>\s*(?:<output>\n?)?"),
)
_TRAILERS = (
    # OpenHands: the last lines of a command's output. The code stands once or twice, between other bracketed lines.
    re.compile(
        r"(?:\n|\A)\[(?:The command completed|Command finished) with exit code (?P<code>-?\d+)\.?[^\n]*\]"
        r"(?:\s*\[[^\n]*\])*\s*\Z"
    ),
    # Gemini
    re.compile(r"\n(?:Error: [^\n]*\n)?Exit Code: (?P<code>-?\d+)\n(?:Signal|Background|Process)[^\n]*[\s\S]{0,200}\Z"),
    re.compile(r"(?:\n|\A)</output>\s*\Z"),
)
_CODE_KEYS = ("exit_code", "exitCode", "returncode", "return_code")


@dataclass(frozen=True)
class Envelope:
    """A result without its wrapping.

    `failed` is what the wrapping says (None: it says nothing); `refused` is set if the harness itself answered, and
    the tool never ran; `code` is that of a JSON-RPC error.
    """

    body: str
    exit_code: int | None = None
    failed: bool | None = None
    refused: bool = False
    code: int | None = None


def open_envelope(text: str) -> Envelope:
    """Take the wrapping off. Of a long text the beginning and the end stay."""
    for opener in _OPENERS:
        envelope = opener(text)
        if envelope is not None:
            return envelope
    return Envelope(clean(text))


def clean(text: str) -> str:
    """The part of a text worth reading: no reminders of the harness, no colours, one kind of line end, no bulk."""
    if len(text) > 2 * _WINDOW:
        text = f"{text[:_WINDOW]}\n{text[-_WINDOW:]}"
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if "\x1b" in text:
        text = _CONTROL.sub("", text)
    if "<system-reminder>" in text:
        text = _REMINDER.sub("", text)
    return text.strip("\n")


def _tagged(text: str) -> Envelope | None:
    if not text[:40].lstrip().startswith(("<tool_use_error>", "<error>")):
        return None
    found = _TAGGED.match(clean(text))
    return None if found is None else Envelope(found[2].strip(), failed=True, refused=found[1] == "tool_use_error")


def _headed(text: str) -> Envelope | None:
    head = text[:400].replace("\r\n", "\n")
    for header in _HEADERS:
        found = header.match(head)
        if found is not None and found.end() > 0:
            codes = [value for value in found.groupdict().values() if value is not None]
            body = clean(text.replace("\r\n", "\n")[found.end() :])
            return _command_result(_TRAILERS[-1].sub("", body), int(codes[0]) if codes else None)
    return None


def _trailed(text: str) -> Envelope | None:
    tail = text[-1000:].replace("\r\n", "\n")
    for trailer in _TRAILERS[:-1]:
        found = trailer.search(tail)
        if found is not None:
            body = clean(text)
            return _command_result(trailer.sub("", body), int(found["code"]))
    return None


def _command_result(body: str, exit_code: int | None) -> Envelope:
    # -1 is a command that still runs (OpenHands), or one that never began.
    failed = None if exit_code is None or exit_code < 0 else exit_code != 0
    return Envelope(body, exit_code=exit_code, failed=failed)


def _json_object(text: str) -> Envelope | None:
    if text[:1] != "{" or len(text) > _LARGEST_OBJECT:
        return None
    try:
        given = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return _from_object(given) if isinstance(given, dict) else None


def _from_object(given: Mapping[str, Any]) -> Envelope | None:
    metadata = given.get("metadata")
    for holder in (given, metadata if isinstance(metadata, Mapping) else {}):
        for key in _CODE_KEYS:
            exit_code = holder.get(key)
            if isinstance(exit_code, int) and not isinstance(exit_code, bool):
                parts = [given.get(name) for name in ("stderr", "stdout", "output")]
                body = "\n".join(part for part in parts if isinstance(part, str) and part)
                return _command_result(clean(body), exit_code)
    if isinstance(metadata, Mapping) and isinstance(given.get("output"), str):
        # Codex, of a call that ran no command
        return Envelope(clean(given["output"]))
    error = given.get("error")
    if isinstance(error, Mapping) and error:
        code = error.get("code")
        message = error.get("message")
        body = message if isinstance(message, str) else msgspec.json.encode(error).decode()
        return Envelope(clean(body), failed=True, code=code if isinstance(code, int) else None)
    if isinstance(error, str) and error:
        return Envelope(clean(error), failed=True)
    if given.get("isError") is True or given.get("is_error") is True:
        return Envelope(clean(_text_of(given.get("content"))), failed=True)
    if given.get("success") is False:
        message = given.get("message")
        return Envelope(clean(message if isinstance(message, str) else ""), failed=True)
    return None


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, Mapping))


_OPENERS: tuple[Callable[[str], Envelope | None], ...] = (_tagged, _headed, _json_object, _trailed)
