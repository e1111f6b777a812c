"""Turns that several files hold: a session that was resumed or forked begins with a copy of the one it came from.

A turn belongs to one file. In the others it stays as context, marked `repeats`, and is no state of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.ingestion.store import ManifestEntry, TraceStore
from composer_replication.traces import Trace


def own_turns(trace: Trace) -> Iterable[str]:
    """The ids of the assistant turns that are this trace's own."""
    return (turn.id for turn in trace.turns if turn.role == "assistant" and turn.id is not None and not turn.repeats)


def mark_repeats(trace: Trace, elsewhere: Collection[str]) -> int:
    """Mark the turns that another file has; returns how many were marked. Nothing is to be learnt from them here."""
    marked = 0
    for turn in trace.turns:
        if turn.role == "assistant" and not turn.repeats and turn.id in elsewhere:
            turn.repeats = True
            turn.tool_error = turn.error_meta = None
            marked += 1
    return marked


def has_own_turns(trace: Trace) -> bool:
    """Whether anything is left to learn from."""
    return any(turn.role == "assistant" and not turn.repeats for turn in trace.turns)


def find_owners(entries: Iterable[ManifestEntry], just_read: Collection[str]) -> dict[str, str]:
    """The key of the source that each turn belongs to.

    A turn stays with the source that has it from an earlier run; else the first session to begin has it. Turns that
    are copies in every source are left out: the source they belonged to no longer has them.

    Args:
        just_read: the keys of the sources that were read in this run.
    """
    owners: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.key in just_read, entry.began, entry.source)):
        copies = set(entry.copies)
        for turn in entry.turns:
            if turn not in copies:
                owners.setdefault(turn, entry.key)
    return owners


def has_orphans(entry: ManifestEntry, owners: Mapping[str, str]) -> bool:
    """Whether a source has copies of turns that no other source has any longer."""
    return any(turn not in owners for turn in entry.copies)


def settle(entry: ManifestEntry, owners: Mapping[str, str], store: TraceStore) -> bool:
    """Make a source's output and entry agree with who owns its turns; returns whether anything had to be changed.

    Traces without a turn of their own are left out. Doing it again changes nothing.
    """
    copies = [turn for turn in entry.turns if owners.get(turn) != entry.key]
    if copies == entry.copies:
        return False
    entry.copies = copies
    if entry.output is None or not store.has(entry.output):
        return True
    traces = list(store.read(entry.output))
    elsewhere = set(copies)
    for trace in traces:
        mark_repeats(trace, elsewhere)
    kept = [trace for trace in traces if has_own_turns(trace)]
    stats = IngestionStats.from_dict(entry.stats)
    stats.skipped["trace that another file holds"] += entry.traces - len(kept)
    stats.recount(kept)
    stats.n_states_emitted = sum(turn.role == "assistant" and not turn.repeats for one in kept for turn in one.turns)
    entry.stats = stats.as_dict()
    entry.traces = store.write_traces(entry.output, kept)
    if not kept:
        entry.output = None
    return True
