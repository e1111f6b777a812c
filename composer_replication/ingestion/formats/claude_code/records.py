"""Claude Code's records, typed: only the fields that a trace needs are built, the rest of a line is skipped over.

Most bytes of a session are never used (`toolUseResult` repeats whole files), so the typed decoder passes them without
building anything. New versions change the types of fields now and then: a record that does not fit is read again
without types and made to fit, field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from composer_replication.ingestion.log_file import REPLACED, UNREADABLE, decode_value, values_in_line
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import dump_json


class Part(msgspec.Struct, gc=False):
    """A part of a tool result."""

    type: str = ""
    text: str = ""


class Block(msgspec.Struct, gc=False):
    """A content block of a message."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str | None = None
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")  # of a tool result: not decoded until it is needed
    is_error: bool | None = None


class Tokens(msgspec.Struct, gc=False):
    """Anthropic's usage: `input_tokens` leaves the cached part out."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0


class RecordedMessage(msgspec.Struct, gc=False):
    """The `message` of a record."""

    id: str | None = None
    model: str | None = None
    content: str | list[Block] | None = None
    usage: Tokens | None = None


class Preserved(msgspec.Struct, gc=False):
    """Messages that a compaction keeps after its summary."""

    uuids: list[str] = []


class CompactMetadata(msgspec.Struct, gc=False):
    """The messages that a compaction kept."""

    preserved: Preserved | None = msgspec.field(name="preservedMessages", default=None)


class MicrocompactMetadata(msgspec.Struct, gc=False):
    """Calls whose results a microcompaction took out of the context."""

    compacted_tools: list[str] = msgspec.field(name="compactedToolIds", default_factory=list)


class Attachment(msgspec.Struct, gc=False):
    """An attachment of a message; only queued prompts are read."""

    type: str = ""
    prompt: str | list[Part] | None = None


class Record(msgspec.Struct, gc=False, rename="camel"):
    """One record of a session."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    is_sidechain: bool | None = None
    message: RecordedMessage | None = None
    timestamp: str | None = None
    version: str | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None
    agent_id: str | None = None
    attachment: Attachment | None = None
    compact_metadata: CompactMetadata | None = None
    microcompact_metadata: MicrocompactMetadata | None = None


class Progress(msgspec.Struct, gc=False, rename="camel"):
    """The `data` of a progress record: a sub-agent's record, in the versions that embed them."""

    type: str = ""
    message: Record | None = None
    agent_id: str | None = None


class RecordWithProgress(Record, gc=False, rename="camel"):
    """A record with what its sub-agents did inside it; decoded only if sub-agents are wanted."""

    data: Progress | None = None


class Origin(msgspec.Struct, gc=False, rename="camel"):
    """The session, its working directory and its branch."""

    session_id: str | None = None
    cwd: str | None = None
    git_branch: str | None = None


_RESULT = msgspec.json.Decoder(str | list[Part] | None)


def result_text(content: bytes, stats: IngestionStats) -> str:
    """Return a tool result's content as text; other parts leave their type, as `[image]`."""
    try:
        return joined(_RESULT.decode(content))
    except msgspec.ValidationError:
        value = decode_value(content, stats)
        try:
            return content.decode("utf-8", "replace") if value is UNREADABLE else dump_json(value)
        except RecursionError:
            return content.decode("utf-8", "replace")
    except UnicodeDecodeError:
        stats.recovered[REPLACED] += 1
        return result_text(content.decode("utf-8", "replace").encode(), stats)


def joined(content: str | list[Part] | None) -> str:
    """The text of a content that may come in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in content)


class RecordDecoder:
    """Lines to records."""

    def __init__(self, stats: IngestionStats, *, subagents: bool) -> None:
        self._type: type[Record] = RecordWithProgress if subagents else Record
        self._stats = stats
        self.decode = msgspec.json.Decoder(self._type).decode
        """The fast way: one whole, undamaged line to one record; raises `msgspec.MsgspecError` or another."""

    def recover(self, line: bytes) -> Iterator[Record]:
        """The slow way, for a line that the fast way refused: damaged, or of types that are new."""
        for value in values_in_line(line, self._stats, accept=_is_whole_record):
            if not isinstance(value, dict):
                self._stats.n_records_total += 1
                self._stats.skip("not a JSON object")
                continue
            try:
                record = fit(value, self._type)
            except RecursionError:
                self._stats.skip_line("nested too deeply")
                continue
            yield record


def _is_whole_record(value: dict[str, Any]) -> bool:
    """Tell a session's record from a piece of one, such as the sub-agent's record inside a progress record."""
    return isinstance(value.get("type"), str) and ("sessionId" in value or "leafUuid" in value or "snapshot" in value)


def fit(value: dict[str, Any], record_type: type[Record] = Record) -> Record:
    """Make a record of any object: fields that fit are taken, fields of another type are converted or left out."""
    message = value.get("message")
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(record_type):
        given = value.get(field.encode_name)
        if field.name not in ("message", "data") and given is not None:
            try:
                fields[field.name] = msgspec.convert(given, field.type)
            except (msgspec.ValidationError, RecursionError):
                continue
    if isinstance(message, dict):
        fields["message"] = _fit_message(message)
    elif isinstance(message, str):
        fields["message"] = RecordedMessage(content=message)
    data = value.get("data")
    if record_type is RecordWithProgress and isinstance(data, dict):
        inner = data.get("message")
        fields["data"] = Progress(
            type=_text(data.get("type")),
            message=fit(inner) if isinstance(inner, dict) else None,
            agent_id=data.get("agentId") if isinstance(data.get("agentId"), str) else None,
        )
    return record_type(**fields)


def _fit_message(message: dict[str, Any]) -> RecordedMessage:
    content = message.get("content")
    usage = message.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    blocks: str | list[Block] | None
    if isinstance(content, list):
        blocks = [_fit_block(block) for block in content]
    else:
        blocks = None if content is None else _text(content)
    return RecordedMessage(
        id=_name(message.get("id")),
        model=_name(message.get("model")),
        content=blocks,
        usage=Tokens(**{name: _count(counts.get(name)) for name in Tokens.__struct_fields__}) if counts else None,
    )


def _fit_block(block: Any) -> Block:
    if not isinstance(block, dict):
        return Block(type="text", text=_text(block))
    content = block.get("content")
    given = block.get("input")
    return Block(
        type=_text(block.get("type")),
        text=_text(block.get("text")),
        thinking=_text(block.get("thinking")),
        id=_name(block.get("id")),
        name=_text(block.get("name")),
        input=given if isinstance(given, dict) else None if given is None else {"input": given},
        tool_use_id=_name(block.get("tool_use_id")),
        content=msgspec.Raw(msgspec.json.encode(content)),
        is_error=None if block.get("is_error") is None else block["is_error"] in (True, "true", 1),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dump_json(value)


def _name(value: Any) -> str | None:
    return None if value is None else _text(value)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
