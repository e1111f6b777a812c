"""`ClaudeCodeIngester`: one session file to a stream of states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from composer_replication.histories import is_truncated
from composer_replication.ingestion.formats import ReadOptions
from composer_replication.ingestion.formats.claude_code import read
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, TraceState

__all__ = ["SYSTEM_PROMPT", "ClaudeCodeIngester", "IngestionStats"]

SYSTEM_PROMPT = (
    "You are a senior software engineer working as a coding agent in a terminal environment. You read and change files "
    "and run commands through the tools you are given. Look before you edit, make the smallest change that does the "
    "job, check that it works, and say briefly what you did."
)
"""The first message of every history: Claude Code does not log its own system prompt."""


class ClaudeCodeIngester:
    """Convert a Claude Code session to `TraceState`s, one per assistant turn (not per `tool_use` block).

    Args:
        system_prompt: the first message of every history; an empty one leaves it out.
        skip_sidechain: skip sub-agents (files named `agent-*.jsonl`, records with `isSidechain`, records that
            are embedded in progress records). If False, each becomes a trace after the session's own.
        strip_thinking: leave `[THINKING]` blocks out of the histories; they stay in `student_action`.
        max_history_tokens: drop the oldest messages of a history until it fits (see `Trace.states`).
        count_tokens: counts the tokens of a text for `max_history_tokens`; without it a token is four bytes.
    """

    def __init__(
        self,
        *,
        system_prompt: str = SYSTEM_PROMPT,
        skip_sidechain: bool = True,
        strip_thinking: bool = True,
        max_history_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        if max_history_tokens is not None and max_history_tokens < 1:
            raise ValueError(f"max_history_tokens must be at least 1, or None for no limit; got {max_history_tokens}")
        self.system_prompt = system_prompt
        self.skip_sidechain = skip_sidechain
        self.strip_thinking = strip_thinking
        self.max_history_tokens = max_history_tokens
        self.count_tokens = count_tokens
        self.last_stats = IngestionStats()

    def traces(self, path: str | Path) -> Iterator[Trace]:
        """Yield the file's traces with their errors classified: the session's own, then its sub-agents' if wanted.

        Replaces `last_stats`.
        """
        from composer_replication.hint_generator import mark_errors

        stats = self.last_stats = IngestionStats()
        for trace in read(LogFile(path), ReadOptions(subagents=not self.skip_sidechain), stats):
            mark_errors(trace)
            stats.count(trace)
            yield trace

    def ingest(self, path: str | Path) -> Iterator[TraceState]:
        """Yield the file's states, with plain lists of messages. `state_id` is `{file's stem}::{number of the turn}`.

        Replaces `last_stats`. Holding all states of a long session at once holds a list of its messages for each; the
        states of `traces(...)` share one.
        """
        for trace in self.traces(path):
            for state in trace.states(
                system_prompt=self.system_prompt,
                strip_thinking=self.strip_thinking,
                max_history_tokens=self.max_history_tokens,
                count_tokens=self.count_tokens,
            ):
                self.last_stats.n_states_emitted += 1
                self.last_stats.states_truncated += is_truncated(state["messages"])
                yield {**state, "messages": list(state["messages"])}
