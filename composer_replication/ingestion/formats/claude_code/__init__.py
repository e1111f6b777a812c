"""Claude Code session files: which they are, and their traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.formats.claude_code.conversation import Conversation
from composer_replication.ingestion.formats.claude_code.records import Origin, Record, RecordDecoder, RecordWithProgress
from composer_replication.ingestion.log_file import LogFile, values_in_line
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn

NAME = "claude_code"
# The versions whose logs this reader was tried on. Others are read too, with a warning in the statistics.
OLDEST, NEWEST = (1, 0, 98), (2, 1, 220)
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def sniff(head: Head) -> bool:
    """Whether a file is a Claude Code session: records with a type and a session, and messages in Anthropic's form."""
    return any(_is_session_record(record) for record in head.records)


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """The main conversation, then, if wanted, each sub-agent's."""
    yield from _Session(log, options, stats).traces()


class _Session:
    """One file, from its lines to its traces."""

    def __init__(self, log: LogFile, options: ReadOptions, stats: IngestionStats) -> None:
        self._log, self._options, self._stats = log, options, stats
        self._decoder = RecordDecoder(stats, subagents=options.subagents)
        self._main = self._conversation()
        self._agents: dict[str, Conversation] = {}
        self._agent_of: dict[str, str] = {}
        self._origin = Origin()
        self._version: str | None = None
        self._is_agent_file = log.path.name.startswith("agent-")

    def traces(self) -> Iterator[Trace]:
        stats = self._stats
        if self._log.path.name.startswith("agent-acompact-"):
            self._pass_over("summarising agent")
            return
        self._read_lines()
        if self._main:
            yield self._trace(self._main.turns(), self._log.stem)
        # An agent without messages, of which only a title is logged, gives no trace.
        agents = {name: conversation for name, conversation in self._agents.items() if conversation}
        for name, conversation in agents.items():
            whole_file = self._is_agent_file and len(agents) == 1
            trace_id = self._log.stem if whole_file else f"{self._log.stem}/{name}"
            trace = self._trace(conversation.turns(), trace_id)
            trace.parent = self._origin.session_id if whole_file else self._log.stem
            trace.meta = {"agent_id": name}
            yield trace
        if self._version is not None and not OLDEST <= _numbers(self._version) <= NEWEST:
            oldest, newest = ".".join(map(str, OLDEST)), ".".join(map(str, NEWEST))
            warning = f"Claude Code {self._version}: this reader was tried on {oldest} to {newest}"
            stats.version_warnings = [*(stats.version_warnings or []), warning]

    def _read_lines(self) -> None:
        decode, main = self._decoder.decode, self._main
        take_assistant, take_user, rewinds = main.take_assistant, main.take_user, main.rewinds
        total = progress = 0
        subagents = self._options.subagents
        with self._log.open() as file:
            for number, line in enumerate(file, 1):
                try:
                    record = decode(line)
                except _REFUSED:
                    for recovered in self._decoder.recover(line):
                        total += 1
                        self._take(recovered, number, line)
                    continue
                total += 1
                kind = record.type
                if kind == "progress" and not subagents:
                    progress += 1
                elif record.is_sidechain or rewinds or self._version is None or self._is_agent_file:
                    self._take(record, number, line)
                elif kind == "assistant":
                    take_assistant(record, number)
                elif kind == "user":
                    take_user(record, number)
                else:
                    self._take_other(record, number, main)
        self._stats.n_records_total += total
        if progress:
            self._stats.skip("progress", progress)

    def _take(self, record: Record, number: int, line: bytes) -> None:
        """A record on its way to the conversation it belongs to."""
        if self._version is None and record.version is not None:
            self._version = record.version
            self._origin = _origin(line)
        if record.is_sidechain or self._is_agent_file:
            self._take_agents(record, number)
            return
        if self._main.rewinds and record.parent_uuid is not None and record.type in ("user", "assistant"):
            self._main.check_rewinds(record.parent_uuid)
        self._give(self._main, record, number)

    def _give(self, conversation: Conversation, record: Record, number: int) -> None:
        if record.type == "assistant":
            conversation.take_assistant(record, number)
        elif record.type == "user":
            conversation.take_user(record, number)
        else:
            self._take_other(record, number, conversation)

    def _take_other(self, record: Record, number: int, conversation: Conversation) -> None:
        """Take a record that is not a message."""
        kind = record.type
        if kind == "progress":
            if type(record) is RecordWithProgress and record.data and record.data.type == "agent_progress":
                self._take_embedded(record, number)
            else:
                self._stats.skip("progress")
        elif kind == "system" and record.subtype == "compact_boundary":
            conversation.compact(record)
        elif kind == "system" and record.subtype == "microcompact_boundary":
            conversation.microcompact(record)
        elif kind == "attachment" and record.attachment and record.attachment.type == "queued_command":
            conversation.take_queued(record, number)
        else:
            if kind == "summary":
                self._stats.skipped_summary += 1
            self._stats.skip(f"{kind}/{record.subtype}" if record.subtype else kind or "no type")
            conversation.note(record)

    def _take_agents(self, record: Record, number: int) -> None:
        """A sub-agent's record: by its agent's id, or by the root of its chain where the version has no such id."""
        if not self._options.subagents:
            self._stats.skipped_subagent += 1
            self._stats.skip("sub-agent")
            return
        name = record.agent_id or self._agent_of.get(record.parent_uuid or "") or record.uuid or f"line {number}"
        if record.uuid:
            self._agent_of[record.uuid] = name
        self._agent_takes(name, record, number)

    def _take_embedded(self, record: RecordWithProgress, number: int) -> None:
        assert record.data is not None
        inner = record.data.message
        if inner is None or inner.type not in ("assistant", "user"):
            self._stats.skip("progress")
            return
        self._agent_takes(record.data.agent_id or record.parent_uuid or "agent", inner, number)

    def _agent_takes(self, name: str, record: Record, number: int) -> None:
        conversation = self._agents.get(name)
        if conversation is None:
            conversation = self._agents[name] = self._conversation()
        self._give(conversation, record, number)

    def _conversation(self) -> Conversation:
        return Conversation(self._stats, verbatim_results=self._options.verbatim_results)

    def _trace(self, turns: list[Turn], trace_id: str) -> Trace:
        model = next((turn.model for turn in turns if turn.model), None)
        return Trace(
            trace_id=trace_id,
            turns=turns,
            source=self._log.source(NAME, version=self._version),
            session_id=self._origin.session_id,
            model=model,
            cwd=self._origin.cwd,
            git_branch=self._origin.git_branch,
        )

    def _pass_over(self, reason: str) -> None:
        for _ in self._log.records(self._stats):
            self._stats.skipped_subagent += 1
            self._stats.skip(reason)


def _is_session_record(record: dict[str, Any]) -> bool:
    kind, message = record.get("type"), record.get("message")
    if kind in ("user", "assistant") and isinstance(message, dict) and "content" in message:
        return "sessionId" in record or "parentUuid" in record
    if kind in ("summary", "file-history-snapshot"):
        return "leafUuid" in record or "snapshot" in record
    return isinstance(kind, str) and isinstance(record.get("sessionId"), str) and "payload" not in record


def _origin(line: bytes) -> Origin:
    try:
        return msgspec.json.decode(line, type=Origin)
    except _REFUSED:
        # Damaged, or of types that are new: the first record that names a session, field by field.
        values = [value for value in values_in_line(line, IngestionStats()) if isinstance(value, dict)]
        value = next((one for one in values if "sessionId" in one), {})
        named = {field.name: value.get(field.encode_name) for field in msgspec.structs.fields(Origin)}
        return Origin(**{name: given for name, given in named.items() if isinstance(given, str)})


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) if part.isdecimal() else 0 for part in version.split("."))


FORMAT = LogFormat(NAME, sniff, read, flags_errors=True, unique_ids=True)
