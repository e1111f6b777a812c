"""Logs read by one reader, and damage that no reader may be stopped by."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.ingestion.formats import Head, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

FIXTURES = Path(__file__).parent / "fixtures"
JUNK = (None, 3, -1, True, 0.5, "", "junk", [], [None], [[1]], ["junk"], {}, {"junk": 1}, {"text": 5}, 10**30)


def read_path(reader: ModuleType, path: Path, *, subagents: bool = False) -> tuple[list[Trace], IngestionStats]:
    stats = IngestionStats()
    return list(reader.read(LogFile(path), ReadOptions(subagents=subagents), stats)), stats


def read_value(
    reader: ModuleType, folder: Path, value: Any, *, subagents: bool = False
) -> tuple[list[Trace], IngestionStats]:
    path = folder / "log.json"
    path.write_text(json.dumps(value))
    return read_path(reader, path, subagents=subagents)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a document."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        found += places(child, (*path, key))
    return found


def damage(document: Any, path: tuple[Any, ...], junk: Any, *, drop: bool) -> Any:
    """The document with the value at a path replaced or dropped."""
    damaged = copy.deepcopy(document)
    holder = damaged
    for key in path[:-1]:
        holder = holder[key]
    if drop:
        del holder[path[-1]]
    else:
        holder[path[-1]] = junk
    return damaged


def survives_damage(reader: ModuleType, folder: Path, document: Any) -> None:
    """Every value replaced by everything it should not be, one at a time, then many at random: nothing raises."""

    def check(damaged: Any) -> None:
        reader.sniff(Head(records=[damaged] if isinstance(damaged, dict) else [], document=damaged))
        traces, _ = read_value(reader, folder, damaged, subagents=True)
        for trace in traces:
            assert trace.turns
            assert all(state["state_id"] for state in trace.states())
            msgspec.json.decode(msgspec.json.encode(trace), type=Trace)
            assert all(turn.tool_call_id is None or turn.role == "tool" for turn in trace.turns)

    everywhere = places(document)
    for path in everywhere:
        check(damage(document, path, None, drop=True))
        for junk in (None, 3, "junk", [[1]], {"junk": 1}):
            check(damage(document, path, junk, drop=False))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.sampled_from(everywhere), st.sampled_from(JUNK), st.booleans()), max_size=6))
    def many(changes: list[tuple[tuple[Any, ...], Any, bool]]) -> None:
        damaged = document
        for path, junk, drop in changes:
            try:
                damaged = damage(damaged, path, junk, drop=drop)
            except (KeyError, IndexError, TypeError):
                continue
        check(damaged)

    many()


ODD_VALUES = st.one_of(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.sampled_from(([], {}, [None, 1, {"type": 2}]))
)


def damaged(data: st.DataObject, value: Any, most: int) -> Any:
    """A copy of a JSON value, with up to `most` values inside it replaced or dropped."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, most))):
        found = places(value)
        if not found:
            break
        path = found[data.draw(st.integers(0, len(found) - 1))]
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        drop = not data.draw(st.booleans()) and not isinstance(holder, list)
        value = damage(value, path, copy.deepcopy(data.draw(ODD_VALUES)) if not drop else None, drop=drop)
    return value
