"""mini-swe-agent trajectories: a bare message list, or `{"info", "messages", "trajectory_format"}` (versions 1 and 2).

A trajectory is a chat in OpenAI's form. Its calls are tool calls, items of the Responses API, or one fenced block of
shell in the text; in the last case the next message is the result. The functions that take such a chat apart
(`text_of`, `call_of`, `usage_of`, `OpenCalls`, …) also serve the other agent harnesses' readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from composer_replication.ingestion.formats import Head, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Trace, Turn, Usage, dump_json, parse_arguments

NAME = "mini_swe_agent"
_OWN_BLOCK = re.compile(
    r"```mswea_bash_command\s*\n(.*?)\n```|<mswea_bash_command>(.*?)</mswea_bash_command>", re.DOTALL
)
_BASH_BLOCK = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)
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
        if message["role"] == "assistant" and _OWN_BLOCK.search(text):
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
        "instance_id": text_or_none(root.get("instance_id")) or text_or_none(info.get("instance_id")),
        "exit_status": text_or_none(info.get("exit_status")),
        "submission": text_or_none(info.get("submission")),
        "model_stats": info.get("model_stats"),
        "trajectory_format": text_or_none(root.get("trajectory_format")),
        **reader.ended,
    }
    if reader.turns:
        yield Trace(
            trace_id=log.stem,
            turns=reader.turns,
            source=log.source(NAME, version=text_or_none(info.get("mini_version"))),
            model=text_or_none(fields(config.get("model")).get("model_name")),
            cwd=text_or_none(fields(config.get("environment")).get("cwd")) or None,
            final_reward=reward_of(root, info),
            meta=known(meta),
        )


class _Reader:
    """Messages to turns, one at a time."""

    def __init__(self, stats: IngestionStats) -> None:
        self.turns: list[Turn] = []
        self.ended: dict[str, Any] = {}
        self._stats = stats
        self._calls = OpenCalls()
        self._derived = False

    def add(self, message: dict[str, Any]) -> None:
        role = message.get("role")
        if message.get("object") == "response" or role == "assistant":
            self._assistant(message)
        elif message.get("type") == "function_call_output":
            self._result(text_or_none(message.get("call_id")), message, text_of(message.get("output")))
        elif role == "tool":
            self._result(text_or_none(message.get("tool_call_id")), message, text_of(message.get("content")))
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
        turn.id = text_or_none(response.get("id"))
        turn.model = text_or_none(response.get("model"))
        turn.usage = usage_of(response.get("usage"))
        turn.timestamp = time_of(extra.get("timestamp"))
        self._derived = not turn.tool_calls
        if self._derived:
            turn.tool_calls = self._actions(extra, turn.content)
        self.turns.append(turn)
        self._calls.made(turn)

    def _actions(self, extra: dict[str, Any], text: str) -> list[ToolCall]:
        logged = [fields(action).get("command") for action in items(extra.get("actions"))]
        commands = [command for command in logged if isinstance(command, str)] or command_blocks(text)
        step = len(self.turns)
        return [shell_call(command, f"call_{step}_{number}") for number, command in enumerate(commands)]

    def _user(self, message: dict[str, Any]) -> None:
        extra = fields(message.get("extra"))
        text = text_of(message.get("content"))
        interrupt = text_or_none(extra.get("interrupt_type"))
        if self._derived and self._calls.waiting and interrupt != "FormatError":
            self._result(self._calls.waiting[0], message, text)
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
        if not reply and text_or_none(extra.get("model_response")):
            reply = {"content": extra["model_response"]}
        turn = assistant_turn(reply, self._stats, step=len(self.turns))
        if reply and not (self.turns and self.turns[-1].role == "assistant" and self.turns[-1].content == turn.content):
            follows = len(self.turns) - 1
            turn.usage = usage_of(response.get("usage"))
            self.turns.append(turn)
            self._calls.made(turn)
            self._derived = False
        self.turns.append(Turn(role="user", content=text, origin="format_error", follows=follows))

    def _exit(self, message: dict[str, Any]) -> None:
        extra = fields(message.get("extra"))
        for key in ("exit_status", "submission"):
            if text_or_none(extra.get(key)):
                self.ended[key] = extra[key]
        if extra.get("exit_status") == "Submitted" and len(self._calls.waiting) == 1:
            # The command that submits ends the run: its output is this message.
            self._result(self._calls.waiting[0], message, text_of(message.get("content")))
        else:
            self._stats.skip("exit message")

    def _result(self, call_id: str | None, message: dict[str, Any], text: str) -> None:
        extra = fields(message.get("extra"))
        code = extra.get("returncode")
        if not isinstance(code, int):
            found = _RETURN_CODE.match(text)
            code = int(found.group(1)) if found else 0
        failed = code != 0 or bool(extra.get("exception_info"))
        self.turns.append(
            Turn(
                role="tool",
                content=text,
                tool_call_id=self._calls.answered(call_id),
                is_error=failed,
                timestamp=time_of(extra.get("timestamp")),
            )
        )


def command_blocks(text: str) -> list[str]:
    """The one shell command of a text-protocol reply; none if the reply has several blocks, which are not run."""
    found = [first or second for first, second in _OWN_BLOCK.findall(text)] or _BASH_BLOCK.findall(text)
    return [found[0].strip()] if len(found) == 1 else []


def shell_call(command: str, call_id: str) -> ToolCall:
    """A call that the log has only as the text of a command."""
    return ToolCall(id=call_id, name="bash", arguments={"command": command})


def assistant_turn(message: dict[str, Any], stats: IngestionStats, *, step: int) -> Turn:
    """An assistant message, of chat completions or of the Responses API, as a turn. `step` names calls without ids."""
    calls: list[Any] = items(message.get("tool_calls"))
    texts = [text_of(message.get("content"))]
    thoughts = [thinking_of(message)]
    for item in items(message.get("output")):
        kind = fields(item).get("type")
        if kind == "message":
            texts.append(text_of(item.get("content")))
        elif kind == "function_call":
            calls.append(item)
        elif kind == "reasoning":
            thoughts.append(text_of(item.get("summary")) or text_of(item.get("content")))
        else:
            stats.skip(f"response item {name_of(kind)}")
    turn = Turn(role="assistant", content=joined(texts), thinking=joined(thoughts))
    for number, given in enumerate(calls):
        call = call_of(given, f"call_{step}_{number}")
        if call is None:
            stats.skip("tool call without a name")
        else:
            turn.tool_calls = [*turn.tool_calls, call]
    return turn


class OpenCalls:
    """Calls that wait for a result. An id that a log uses again is made different, so that results stay with theirs."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._logged: dict[str, str] = {}
        self._latest: dict[str, str] = {}

    def made(self, turn: Turn) -> None:
        """Take in the calls of a new turn; calls of earlier turns wait no longer for results that have no id."""
        self.waiting = []
        for call in turn.tool_calls:
            self.add(call)

    def add(self, call: ToolCall) -> None:
        """Take in one more call of the latest turn."""
        logged, number = call.id, 2
        while call.id in self._logged:
            call.id = f"{logged}#{number}"
            number += 1
        self._logged[call.id] = logged
        self._latest[logged] = call.id
        self.waiting.append(call.id)

    def answered(self, call_id: str | None) -> str | None:
        """The id in the trace of the call that a result with this id in the log answers."""
        open_ones = [one for one in self.waiting if call_id in (one, self._logged[one])]
        if not open_ones:
            return self._latest.get(call_id, call_id) if call_id is not None else None
        self.waiting.remove(open_ones[0])
        return open_ones[0]


def call_of(given: Any, fallback_id: str) -> ToolCall | None:
    """A call in OpenAI's form, nested under `function` or flat; None if it names no function."""
    record = fields(given)
    function = fields(record.get("function")) or record
    name = text_or_none(function.get("name"))
    if name is None:
        return None
    call_id = text_or_none(record.get("call_id")) or text_or_none(record.get("id")) or fallback_id
    arguments, raw = parse_arguments(function.get("arguments"))
    return ToolCall(id=call_id, name=name, arguments=arguments, raw_arguments=raw)


def thinking_of(message: dict[str, Any]) -> str:
    """The reasoning beside an assistant message: `reasoning_content`, or Anthropic's blocks."""
    plain = message.get("reasoning_content")
    if isinstance(plain, str) and plain:
        return plain
    blocks = [fields(block).get("thinking") for block in items(message.get("thinking_blocks"))]
    return joined([block for block in blocks if isinstance(block, str)])


def usage_of(given: Any) -> Usage | None:
    """Token counts as any of the providers name them; None if there are none."""
    record = fields(given)
    details = fields(record.get("prompt_tokens_details")) or fields(record.get("input_tokens_details"))
    extra = fields(record.get("extra"))

    def count(*names: str) -> int:
        for name in names:
            for place in (record, details, extra):
                if whole(place.get(name)):
                    return whole(place.get(name))
        return 0

    cached = count("cached_tokens", "cache_read_input_tokens", "cache_read_tokens")
    written = count("cache_creation_input_tokens", "cache_creation_tokens", "cache_write_tokens")
    prompt = count("prompt_tokens")
    if not prompt:
        prompt = count("input_tokens")
        if "cache_read_input_tokens" in record:
            # Anthropic's own form counts the cached part beside the rest of the prompt.
            prompt += cached + written
    usage = Usage(
        input_tokens=prompt,
        output_tokens=count("completion_tokens", "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
    )
    return usage if usage != Usage() else None


def reward_of(*records: dict[str, Any]) -> float | None:
    """The first verdict in the records: resolved or success (1 or 0), or a reward."""
    for record in records:
        for key in ("resolved", "success", "reward"):
            verdict = record.get(key)
            if isinstance(verdict, bool | int | float) and -1e300 < verdict < 1e300:
                return float(verdict)
    return None


def text_of(content: Any, *, levels: int = 4) -> str:
    """The text of a message's content: a string or parts. A part that is no text leaves its kind, as `[image]`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return joined([text_of(part, levels=levels - 1) for part in content]) if levels else "[content]"
    if isinstance(content, dict):
        if isinstance(content.get("text"), str):
            return str(content["text"])
        if isinstance(content.get("content"), str | list) and levels:
            return text_of(content["content"], levels=levels - 1)
        where = fields(content.get("source")).get("path")
        kind = name_of(content.get("type") or "content")
        return f"[{kind}: {where}]" if isinstance(where, str) else f"[{kind}]"
    return dump_json(content)


def joined(parts: list[str]) -> str:
    """Parts on lines of their own, empty ones left out."""
    return "\n".join(part for part in parts if part)


def fields(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one where the log has something else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A JSON array (as a new list), or an empty one where the log has something else."""
    return list(value) if isinstance(value, list) else []


def text_or_none(value: Any) -> str | None:
    """A string that says something, or None."""
    return value if isinstance(value, str) and value else None


def name_of(value: Any) -> str:
    """A type, role or kind as a log has it, short enough to count by."""
    return (value if isinstance(value, str) else type(value).__name__)[:40]


def whole(value: Any) -> int:
    """A count that fits 63 bits, or 0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else 0


def time_of(value: Any) -> str | None:
    """A time as text: as the log has it, or made from seconds since 1970."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, tz=timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def known(meta: dict[str, Any]) -> dict[str, Any]:
    """The entries that have a value."""
    return {key: value for key, value in meta.items() if value is not None and value not in ("", {}, [])}
