"""Preference pairs in whichever form a file holds them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.histories import History
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.compact_pairs import stored_rows
from composer_replication.teacher_replay.pair_files import stored_pairs
from composer_replication.trainer.row_files import parquet_rows

_NORMALIZED_KEYS = ("state_id", "state_messages", "chosen_messages", "rejected_messages", "n_teachers_agreeing")


def pairs_in(file: str | os.PathLike[str]) -> Iterator[Any]:
    """The pairs of a file that `pairs` or `normalize` wrote: flat, normalised, or in TRL's form.

    Pairs of a compact file share their messages, which are views (`History`): all cost no more than the file.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    file = Path(file)
    if file.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{file} must be .jsonl or .parquet, as `pairs` and `normalize` write them")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if file.suffix == ".parquet":
        yield from (_preference(row, f"{file}, row {number}") for number, row in parquet_rows(file))
        return
    first = next((row for _, row in stored_rows(file)), {})
    if "chosen_messages" in first:
        yield from _normalized(file)
    elif "prompt" in first:
        yield from (_preference(row, f"{file}, line {number}") for number, row in stored_rows(file))
    else:
        yield from stored_pairs(file)


def _preference(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A row in TRL's form; in Parquet, every message is JSON."""
    made = {"tools": row["tools"]} if row.get("tools") else {}
    for name in ("prompt", "chosen", "rejected"):
        messages = row.get(name)
        if not isinstance(messages, list):
            raise ValueError(f"{place}: no pair, {name!r} is missing or no list of messages")
        try:
            made[name] = [json.loads(one) if isinstance(one, str) else one for one in messages]
        except ValueError:
            raise ValueError(f"{place}: no pair, {name!r} holds a text that is no message") from None
    return made


def _normalized(file: Path) -> Iterator[NormalizedDPOPair]:
    for number, row in stored_rows(file):
        missing = [key for key in _NORMALIZED_KEYS if key not in row]
        missing += [key for key in _NORMALIZED_KEYS[1:4] if not isinstance(row.get(key), list | History)]
        if missing:
            raise ValueError(f"{file}, line {number}: no normalised pair, {missing[0]!r} is missing")
        yield NormalizedDPOPair(**{key: row[key] for key in _NORMALIZED_KEYS}, metadata=row.get("metadata") or {})
