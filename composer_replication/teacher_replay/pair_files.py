"""Pairs on disk: as they are (JSONL, plain or compact), and as preference data for training (JSONL or Parquet).

Files appear whole or not at all, and are written as the pairs come: a million of them need no more memory than a few.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from composer_replication._optional import require
from composer_replication._whole_file import whole_file
from composer_replication.histories import History
from composer_replication.teacher_replay.compact_pairs import compact_lines, encoded, stored_rows
from composer_replication.teacher_replay.preference import preference_row
from composer_replication.teacher_replay.records import DPOPair

logger = logging.getLogger(__name__)

_COLUMNS = ("prompt", "chosen", "rejected", "tools")
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "state_id": (str,),
    "state_messages": (list, History),
    "chosen": (str,),
    "rejected": (str,),
    "n_teachers_agreeing": (int,),
}
# A row group ends with whichever comes first: long histories make few rows large.
_GROUP_ROWS = 1_000
_GROUP_CHARACTERS = 16_000_000


def save_pairs(pairs: Iterable[DPOPair], path: str | os.PathLike[str]) -> None:
    """Write pairs to JSONL, one a line, each with its whole history; parent folders are made.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    _write_lines(({**pair, "state_messages": list(pair["state_messages"])} for pair in pairs), Path(path))


def save_compact_pairs(pairs: Iterable[DPOPair], path: str | os.PathLike[str]) -> None:
    """Write pairs to JSONL in which every message stands once (see `compact_pairs`), as the command `pairs` does.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    with whole_file(Path(path), "pairs") as temporary, temporary.open("wb", buffering=1 << 18) as file:
        file.writelines(compact_lines(pairs))


def load_pairs(path: str | os.PathLike[str]) -> Iterator[DPOPair]:
    """The pairs of a JSONL file, plain or compact, one at a time; blank lines are passed over.

    Pairs of a compact file share their messages and tools: copy what you change.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no pair, or the file was cut; the message names the line.
    """
    return ({**pair, "state_messages": list(pair["state_messages"])} for pair in stored_pairs(path))


def stored_pairs(path: str | os.PathLike[str]) -> Iterator[DPOPair]:
    """`load_pairs`, with histories of a compact file as views (`History`): all pairs cost no more than the file."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file; save_pairs writes one")
    return _pairs_in(source)


def save_preference(pairs: Iterable[DPOPair], path: str | os.PathLike[str]) -> int:
    """Write pairs as preference data for TRL (see `preference_row`), by the ending of the path; returns how many.

    `.parquet` is read back exactly by `datasets` (messages are JSON there, so no message gets keys of another); large
    `.jsonl` files are better read with `features` given, for `datasets` guesses them from the beginning. A pair whose
    state has no messages cannot be rendered by any chat template, and is left out.

    Raises:
        ValueError: another ending.
        MissingExtraError: Parquet without the extra "replay".
        OSError: the file cannot be written; what was there before is still there.
    """
    target = Path(path)
    writers = {".jsonl": _write_lines, ".parquet": _write_parquet}
    if target.suffix not in writers:
        raise ValueError(f"{target.name!r} must end in .jsonl or .parquet: the ending says how the pairs are written")
    return writers[target.suffix](_rows(pairs), target)


def _rows(pairs: Iterable[DPOPair]) -> Iterator[dict[str, Any]]:
    without_messages = 0
    for pair in pairs:
        if len(pair["state_messages"]):
            yield preference_row(pair)
        else:
            without_messages += 1
    if without_messages:
        logger.warning("%d pairs are left out: their states have no messages to render", without_messages)


def _pairs_in(path: Path) -> Iterator[DPOPair]:
    for number, pair in stored_rows(path):
        for key, kinds in _FIELDS.items():
            if not isinstance(pair.get(key), kinds):
                raise ValueError(f"{path}, line {number}: no pair, {key!r} is missing or no {kinds[0].__name__}")
        yield pair  # type: ignore[misc]


def _write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    count = 0
    with whole_file(path, "pairs") as temporary, temporary.open("wb", buffering=1 << 18) as file:
        for row in rows:
            file.write(encoded(row) + b"\n")
            count += 1
    return count


def _write_parquet(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    arrow = require("pyarrow", "replay")
    parquet = require("pyarrow.parquet", "replay")
    # Each message is JSON: as a struct it would get every key that any message has, and templates look for keys.
    messages = arrow.list_(arrow.json_())
    schema = arrow.schema([(column, messages) for column in _COLUMNS])
    count = 0
    remaining = iter(rows)

    def write_group(writer: Any) -> int:
        # A function of its own, so that a group is gone before the next one is made.
        group = list(_group(remaining))
        if not group:
            return 0
        texts = arrow.list_(arrow.string())
        columns = [arrow.array([row[column] for row in group], texts).cast(messages) for column in _COLUMNS]
        writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
        return len(group)

    with whole_file(path, "pairs") as temporary, parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
        while written := write_group(writer):
            count += written
    return count


def _group(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, list[str] | None]]:
    """The next rows that go into the file together, every message as JSON text."""
    characters = 0
    for row in islice(rows, _GROUP_ROWS):
        texts = {
            column: None if row.get(column) is None else [encoded(one).decode() for one in row[column]]
            for column in _COLUMNS
        }
        yield texts
        characters += sum(len(text) for column in texts.values() for text in column or ())
        if characters > _GROUP_CHARACTERS:
            return
