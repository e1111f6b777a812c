"""mini-swe-agent trajectories: a bare message list, or `{"info", "messages", "trajectory_format"}` (versions 1 and 2).

A trajectory is a chat in OpenAI's form. Its calls are tool calls, items of the Responses API, or one fenced block of
shell in the text; in the last case the next message is the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from composer_replication.ingestion.chat_conversation import AgentTurns
from composer_replication.ingestion.chat_messages import assistant_turn, text_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import (
    fields,
    items,
    known,
    name_of,
    reward_of,
    text_at,
    time_of,
    usage_of,
)
from composer_replication.ingestion.shell_commands import OWN_BLOCK, command_blocks
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn

NAME = "mini_swe_agent"
_RETURN_CODE = re.compile(
    r"\s*(?:<exception>.*?</exception>\s*)?<returncode>\s*(-?\d{1,12})\s*</returncode>", re.DOTALL
)


def sniff(head: Head) -> bool:
    """A document with mini-swe-agent's own marks; a plain chat is not one."""
    document = head.document
    if isinstance(document, list):
        return _has_marks(document)
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        return False
    named = document.get("trajectory_format")
    if isinstance(named, str) and named.startswith("mini-swe-agent"):
        return True
    info = document.get("info")
    return isinstance(info, dict) and ("mini_version" in info or _has_marks(document["messages"]))


def _has_marks(messages: list[Any]) -> bool:
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        return False
    for message in messages:
        text = text_of(message.get("content"))
        if message["role"] == "assistant" and OWN_BLOCK.search(text):
            return True
        if message["role"] == "user" and _RETURN_CODE.match(text):
            return True
    return False


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """One trace for the file. What ends a run and was never shown to the model (`role: "exit"`) goes into `meta`."""
    document = log.document(stats)
    messages = document if isinstance(document, list) else fields(document).get("messages")
    if not isinstance(messages, list) or not messages:
        if document is not None:
            stats.skip("document without messages")
        return
    root = fields(document)
    info = fields(root.get("info"))
    config = fields(info.get("config"))
    reader = _Reader(stats)
    for message in messages:
        if isinstance(message, dict):
            reader.add(message)
        else:
            stats.skip("message that is not an object")
    meta = {
        "instance_id": text_at(root, "instance_id") or text_at(info, "instance_id"),
        "exit_status": text_at(info, "exit_status"),
        "submission": text_at(info, "submission"),
        "model_stats": info.get("model_stats"),
        "trajectory_format": text_at(root, "trajectory_format"),
        "text_protocol": reader.protocol(("mswea_bash_command", "single_bash_code_block")),
        **reader.ended,
    }
    if reader.turns:
        yield Trace(
            trace_id=log.stem,
            turns=reader.turns,
            source=log.source(NAME, version=text_at(info, "mini_version")),
            model=text_at(fields(config.get("model")), "model_name"),
            cwd=text_at(fields(config.get("environment")), "cwd") or None,
            final_reward=reward_of(root, info),
            meta=known(meta),
        )


class _Reader(AgentTurns):
    """Messages to turns, one at a time."""

    def __init__(self, stats: IngestionStats) -> None:
        super().__init__(stats)
        self.ended: dict[str, Any] = {}

    def add(self, message: dict[str, Any]) -> None:
        role = message.get("role")
        if message.get("object") == "response" or role == "assistant":
            self._assistant(message)
        elif message.get("type") == "function_call_output":
            self._result(text_at(message, "call_id"), message, text_of(message.get("output")))
        elif role == "tool":
            self._result(text_at(message, "tool_call_id"), message, text_of(message.get("content")))
        elif role == "system":
            self.turns.append(Turn(role="system", content=text_of(message.get("content"))))
        elif role == "user":
            self._user(message)
        elif role == "exit":
            self._exit(message)
        else:
            self._stats.skip(f"role {name_of(role)}")

    def _assistant(self, message: dict[str, Any]) -> None:
        extra = fields(message.get("extra"))
        response = message if message.get("object") == "response" else fields(extra.get("response"))
        turn = assistant_turn(message, self._stats, step=len(self.turns))
        turn.id = text_at(response, "id")
        turn.model = text_at(response, "model")
        turn.usage = usage_of(response.get("usage"))
        turn.timestamp = time_of(extra.get("timestamp"))
        logged = [fields(action).get("command") for action in items(extra.get("actions"))]
        self.reply(turn, [command for command in logged if isinstance(command, str)] or command_blocks(turn.content))

    def _user(self, message: dict[str, Any]) -> None:
        extra = fields(message.get("extra"))
        text = text_of(message.get("content"))
        interrupt = text_at(extra, "interrupt_type")
        if self.next_is_result and interrupt != "FormatError":
            self._result(self.calls.waiting[0], message, text)
            return
        if interrupt == "FormatError":
            self._refused(extra, text)
            return
        answers_text = bool(self.turns) and self.turns[-1].role == "assistant" and not self.turns[-1].tool_calls
        origin = interrupt or ("format_error" if answers_text else "command" if "returncode" in extra else "prompt")
        self.turns.append(Turn(role="user", content=text, origin=origin, timestamp=time_of(extra.get("timestamp"))))

    def _refused(self, extra: dict[str, Any], text: str) -> None:
        """A reply that could not be parsed. The agent logs it beside its complaint and never shows it to the model."""
        follows: int | None = None
        response = fields(extra.get("response"))
        choice = fields(next(iter(items(response.get("choices"))), None))
        reply = fields(choice.get("message")) or (response if "output" in response else {})
        if not reply and text_at(extra, "model_response"):
            reply = {"content": extra["model_response"]}
        turn = assistant_turn(reply, self._stats, step=len(self.turns))
        if reply and not (self.turns and self.turns[-1].role == "assistant" and self.turns[-1].content == turn.content):
            follows = len(self.turns) - 1
            turn.usage = usage_of(response.get("usage"))
            self.put(turn)
            self.calls.made(turn)
            self._from_text = False
        self.turns.append(Turn(role="user", content=text, origin="format_error", follows=follows))

    def _exit(self, message: dict[str, Any]) -> None:
        extra = fields(message.get("extra"))
        for key in ("exit_status", "submission"):
            if text_at(extra, key):
                self.ended[key] = extra[key]
        if extra.get("exit_status") == "Submitted" and len(self.calls.waiting) == 1:
            # The command that submits ends the run: its output is this message.
            self._result(self.calls.waiting[0], message, text_of(message.get("content")))
        else:
            self._stats.skip("exit message")

    def _result(self, call_id: str | None, message: dict[str, Any], text: str) -> None:
        extra = fields(message.get("extra"))
        code = extra.get("returncode")
        if not isinstance(code, int):
            found = _RETURN_CODE.match(text)
            code = int(found.group(1)) if found else 0
        failed = code != 0 or bool(extra.get("exception_info"))
        self.result(call_id, text, failed=failed, time=extra.get("timestamp"))


FORMAT = LogFormat(NAME, sniff, read)
