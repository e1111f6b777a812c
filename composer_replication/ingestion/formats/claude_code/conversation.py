"""One conversation of a Claude Code file: its records, in file order, to its turns.

A turn is all assistant records with one `message.id`, wherever in the file they stand: other records, mostly the
results of the turn's own calls, come between them. Results go to the call with their id. The `parentUuid` tree is used
only to find rewinds: walking it from a leaf loses parallel calls and their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from composer_replication.ingestion.formats.claude_code.records import (
    Block,
    Record,
    RecordedMessage,
    Tokens,
    joined,
    result_text,
)
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import ToolCall, Turn, Usage, parse_arguments

SYNTHETIC = "<synthetic>"
_QUOTE = ord('"')
_NESTING = frozenset([dict, list])
_ERROR_TAG = b'"<tool_use_error>'
# What user records hold besides a human's prompt, by how their text begins.
_ORIGINS = (
    ("<command-name>", "command"),
    ("<command-message>", "command"),
    ("<local-command-", "local_output"),
    ("Caveat: The messages below", "meta"),
    ("<bash-", "bash"),
    ("[Request interrupted", "interrupt"),
    ("<task-notification", "notification"),
)


# Origins of what a user may take back by going back.
_SAID_BY_THE_USER = frozenset(["prompt", "command", "bash"])


@dataclass
class _Rewind:
    """A prompt that takes the place of an earlier one: the entries from `since` up to `at` leave the context."""

    since: int
    at: int


class Conversation:
    """Collects records with `take_assistant`, `take_user` and their like; `turns` gives the result.

    Entries are turns without the results; results are kept by their call's id and put after the turn at the end.
    """

    def __init__(self, stats: IngestionStats, *, verbatim_results: bool = False) -> None:
        self._stats = stats
        self._verbatim_results = verbatim_results
        self._entries: list[Turn] = []
        self._by_message: dict[str, int] = {}
        self._usage: dict[int, Tokens] = {}
        self._calls: dict[str, int] = {}
        self._results: dict[str, Turn] = {}
        # The entry that each record belongs to, by the record's uuid.
        self._entry_of: dict[str, int] = {}
        # The user's prompt after a record, by that record's uuid; None is the beginning of the file.
        self._prompts: dict[str | None, int] = {}
        self._has_parents = False
        self._late: set[str] = set()
        self.rewinds: list[_Rewind] = []
        """As long as there are any, `check_rewinds` wants to see every record's parent."""
        self._keeps: dict[int, list[int]] = {}
        self._boundaries: set[str] = set()
        self._context_begins = False
        self._kept: list[str] = []
        self._cleared: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def take_assistant(self, record: Record, line: int) -> None:
        """A fragment of an assistant turn."""
        message = record.message
        if message is None:
            self._stats.skip("assistant record without a message")
            return
        if message.model == SYNTHETIC or record.is_api_error_message:
            self._stats.skip("synthetic message")
            return
        uuid = record.uuid
        key = message.id or uuid or f"line {line}"
        entry = self._by_message.get(key)
        if entry is None:
            turn = Turn(role="assistant", id=message.id, model=message.model, timestamp=record.timestamp, line=line)
            entry = self._by_message[key] = self._add(turn)
            if record.parent_uuid is not None:
                self._has_parents = True
        else:
            turn = self._entries[entry]
            if uuid is not None and uuid in self._entry_of and self._is_repeated(turn, message):
                self._stats.skip("doubled record")
                return
        content = message.content
        if isinstance(content, list):
            for block in content:
                kind = block.type
                if kind == "tool_use" or kind == "server_tool_use" or kind == "mcp_tool_use":
                    call_id = block.id or f"{key}#{len(turn.tool_calls)}"
                    if call_id not in self._calls:
                        self._calls[call_id] = entry
                        call = ToolCall(call_id, block.name, block.input or {})
                        if not _NESTING.isdisjoint(map(type, call.arguments.values())):
                            call.arguments, call.raw_arguments = parse_arguments(call.arguments)
                        turn.tool_calls.append(call)
                elif kind == "text":
                    turn.content = f"{turn.content}\n{block.text}" if turn.content else block.text
                elif kind == "thinking":
                    if block.thinking:
                        turn.thinking = f"{turn.thinking}\n{block.thinking}" if turn.thinking else block.thinking
                elif block.tool_use_id:  # results of the provider's own tools are in the turn itself
                    self._take_result(block, record, line)
                else:
                    self._stats.skipped[f"assistant block: {kind}"] += 1
        elif content:
            turn.content = f"{turn.content}\n{content}" if turn.content else content
        if message.usage is not None:
            self._usage[entry] = message.usage
        if uuid is not None:
            self._entry_of[uuid] = entry

    def take_user(self, record: Record, line: int) -> None:
        """Results of calls, or a text of the user's side, or both."""
        message = record.message
        if message is None:
            self._stats.skip("user record without a message")
            return
        content = message.content
        if isinstance(content, list):
            texts = []
            entry = -1
            used = False
            for block in content:
                if block.type == "tool_result":
                    entry = self._take_result(block, record, line)
                    used = used or entry >= 0
                elif block.type == "text":
                    texts.append(block.text)
                else:
                    texts.append(f"[{block.type}]")
            if not texts:
                if record.uuid is not None:
                    self._entry_of.setdefault(record.uuid, entry if entry >= 0 else len(self._entries) - 1)
                if not used:
                    self._stats.skip("doubled record" if content else "empty message")
                return
            text = "\n".join(texts)
        else:
            text = content or ""
        if self._has_text(record, text):
            self._stats.skip("doubled record")
            return
        self._take_text(record, text, line)

    def take_queued(self, record: Record, line: int) -> None:
        """A prompt that was typed while the model worked: it exists only as an attachment."""
        prompt = record.attachment.prompt if record.attachment else None
        text = joined(prompt)
        if not text:
            self._stats.skip("empty message")
        elif self._has_text(record, text):
            self._stats.skip("doubled record")
        else:
            self._add(Turn(role="user", content=text, origin="steering", timestamp=record.timestamp, line=line))
        self.note(record)

    def compact(self, record: Record) -> None:
        """Begin a new context with the next entry."""
        if self._is_known_boundary(record):
            return
        self._context_begins = True
        preserved = record.compact_metadata.preserved if record.compact_metadata else None
        self._kept = preserved.uuids if preserved else []
        self.note(record)

    def microcompact(self, record: Record) -> None:
        """From the next entry on, the results of some calls are out of the context."""
        if self._is_known_boundary(record):
            return
        if record.microcompact_metadata:
            self._cleared += record.microcompact_metadata.compacted_tools
        self.note(record)

    def note(self, record: Record) -> None:
        """Remember the position of a record that is not a turn: others may name it as their parent."""
        if record.uuid is not None:
            self._entry_of.setdefault(record.uuid, len(self._entries) - 1)

    def check_rewinds(self, parent: str) -> None:
        """Drop the rewinds that a record disproves: its parent is in the part that was taken for abandoned."""
        entry = self._entry_of.get(parent, -1)
        self.rewinds[:] = [one for one in self.rewinds if not one.since <= entry < one.at]

    def turns(self) -> list[Turn]:
        """Return all turns in order, every result after the turn that asked for it."""
        ordered: list[Turn] = []
        place = []
        for turn in self._entries:
            place.append(len(ordered))
            if turn.role == "tool":
                if turn.tool_call_id in self._calls and turn.tool_call_id not in self._late:
                    continue  # its call came later in the file, and has it by now
                ordered.append(turn)
                continue
            ordered.append(turn)
            for call in turn.tool_calls:
                result = self._results.get(call.id)
                if result is not None and call.id not in self._late:
                    ordered.append(result)
        place.append(len(ordered))
        for entry, tokens in self._usage.items():
            self._entries[entry].usage = _usage(tokens)
        for rewind in self.rewinds:
            replaced = self._entries[rewind.since].follows
            self._entries[rewind.at].follows = place[rewind.since] - 1 if replaced is None else replaced
        for entry, kept in self._keeps.items():
            self._entries[entry].keeps = [index for one in kept for index in range(place[one], place[one + 1])]
        return ordered

    def _add(self, turn: Turn) -> int:
        if self._context_begins:
            turn.follows = -1
            kept = {self._entry_of[uuid] for uuid in self._kept if self._entry_of.get(uuid, -1) >= 0}
            if kept:
                self._keeps[len(self._entries)] = sorted(kept)
            self._context_begins, self._kept = False, []
        if self._cleared:
            turn.clears, self._cleared = self._cleared, []
        self._entries.append(turn)
        return len(self._entries) - 1

    def _take_text(self, record: Record, text: str, line: int) -> None:
        origin = "compact_summary" if record.is_compact_summary else "meta" if record.is_meta else _origin(text)
        turn = Turn(role="user", content=text, origin=origin, timestamp=record.timestamp, line=line)
        if record.is_compact_summary:
            self._context_begins = True
        entry = self._add(turn)
        parent = record.parent_uuid
        if origin in _SAID_BY_THE_USER:
            # Twice after the same record: the user went back and wrote the second in place of the first. At the
            # beginning that is so only if the log has parents at all.
            first = self._prompts.setdefault(parent, entry)
            if first != entry and (parent is not None or self._has_parents) and self._was_answered(first):
                self.rewinds.append(_Rewind(first, entry))
        if record.uuid is not None:
            self._entry_of[record.uuid] = entry

    def _was_answered(self, entry: int) -> bool:
        """Commands of the harness are mostly answered by the harness: those of them that the model answered count."""
        said = self._entries[entry]
        return said.origin == "prompt" or any(turn.role == "assistant" for turn in self._entries[entry:])

    def _take_result(self, block: Block, record: Record, line: int) -> int:
        """Keep a result; returns the entry of its call, or -1 if the result is a copy."""
        call_id = block.tool_use_id or f"line {line}"
        if call_id in self._results:
            self._stats.duplicate_results += 1
            return -1
        raw = bytes(block.content)
        # Some tools report a failure in the text alone.
        failed = block.is_error or (block.is_error is None and raw.startswith(_ERROR_TAG))
        verbatim = self._verbatim_results and not failed and raw[0] == _QUOTE and _is_text(raw)
        content: Any = msgspec.Raw(raw) if verbatim else result_text(raw, self._stats)
        result = Turn("tool", content, tool_call_id=call_id, is_error=failed, timestamp=record.timestamp, line=line)
        self._results[call_id] = result
        entry = self._calls.get(call_id)
        if entry is not None and entry < len(self._entries) - 1 and self._went_on(entry):
            self._late.add(call_id)
            entry = None
        if entry is None:
            # Not by `_add`: its call may still come, and then it is put elsewhere and must not begin the context.
            self._entries.append(result)
            entry = len(self._entries) - 1
        return entry

    def _went_on(self, entry: int) -> bool:
        """Whether the user spoke after a turn and the model answered that: results of the turn then came too late."""
        spoken = False
        for turn in self._entries[entry + 1 :]:
            if turn.role == "user":
                spoken = spoken or turn.origin != "meta"
            elif turn.role == "assistant" and spoken:
                return True
        return False

    def _has_text(self, record: Record, text: str) -> bool:
        """Whether a record of the user's side is there already."""
        if record.uuid is None:
            return False
        entry = self._entry_of.get(record.uuid, -1)
        return entry >= 0 and self._entries[entry].role == "user" and self._entries[entry].content == text

    def _is_known_boundary(self, record: Record) -> bool:
        if record.uuid is None or record.uuid not in self._boundaries:
            if record.uuid is not None:
                self._boundaries.add(record.uuid)
            return False
        self._stats.skip("doubled record")
        return True

    def _is_repeated(self, turn: Turn, message: RecordedMessage) -> bool:
        """Whether a fragment is in the turn already. Only asked about a record whose uuid was seen before."""
        if not isinstance(message.content, list):
            return (message.content or "") in turn.content
        known = {call.id for call in turn.tool_calls}
        return all(
            (block.id in known if block.id else block.text in turn.content and block.thinking in turn.thinking)
            for block in message.content
        )


def _is_text(raw: bytes) -> bool:
    """Whether bytes can be copied into JSON: the decoder skips the content of a result without checking it."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _origin(text: str) -> str:
    start = text.lstrip()[:32]
    return next((origin for beginning, origin in _ORIGINS if start.startswith(beginning)), "prompt")


def _usage(tokens: Tokens) -> Usage:
    cached = tokens.cache_read_input_tokens or 0
    written = tokens.cache_creation_input_tokens or 0
    return Usage(
        input_tokens=(tokens.input_tokens or 0) + cached + written,
        output_tokens=tokens.output_tokens or 0,
        cached_tokens=cached,
        cache_write_tokens=written,
    )
