"""Turns that several files hold: a session that was resumed or forked begins with a copy of the one it came from.

A turn belongs to one file. In the others it stays as context, marked `repeats`, and is no state of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from composer_replication.traces import Trace


def own_turns(trace: Trace) -> Iterable[str]:
    """The ids of the assistant turns that are this trace's own."""
    return (turn.id for turn in trace.turns if turn.role == "assistant" and turn.id is not None and not turn.repeats)


def mark_repeats(trace: Trace, elsewhere: Collection[str]) -> int:
    """Mark the turns that another file has; returns how many were marked."""
    marked = 0
    for turn in trace.turns:
        if turn.role == "assistant" and not turn.repeats and turn.id in elsewhere:
            turn.repeats = True
            marked += 1
    return marked


def has_own_turns(trace: Trace) -> bool:
    """Whether anything is left to learn from."""
    return any(turn.role == "assistant" and not turn.repeats for turn in trace.turns)
