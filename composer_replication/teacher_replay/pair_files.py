"""Files of pairs: plain JSONL, compact JSONL, and preference data for TRL (JSONL or Parquet).

Files appear whole or not at all, and are written as the pairs come: memory does not grow with their number.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from composer_replication._files import whole_file
from composer_replication._optional import require
from composer_replication.histories import assistant_message
from composer_replication.ingestion.chat_messages import text_of
from composer_replication.teacher_replay.compact_pairs import Row, compact_rows, encoded, stored_rows
from composer_replication.teacher_replay.records import DPOPair, Pair, check_pair
from composer_replication.traces import Message, ToolCall, Turn, parse_arguments

logger = logging.getLogger(__name__)

_COLUMNS = ("prompt", "chosen", "rejected", "tools")
# A row group ends with whichever comes first: long histories make few rows large.
_GROUP_ROWS = 1_000
_GROUP_CHARACTERS = 16_000_000


def save_pairs(pairs: Iterable[Pair | DPOPair], path: str | os.PathLike[str]) -> None:
    """Write pairs to JSONL, one a line, each with its whole history; parent folders are made.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    rows = (pair.with_texts() if isinstance(pair, Pair) else pair for pair in pairs)
    write_lines(({**row, "state_messages": list(row["state_messages"])} for row in rows), Path(path))


def save_compact_pairs(pairs: Iterable[Pair | DPOPair], path: str | os.PathLike[str]) -> None:
    """Write pairs to JSONL in which every message stands once, as the command `pairs` does.

    Raises:
        ValueError: a message or the tools of a pair are of the wrong type.
        OSError: the file cannot be written; what was there before is still there.
    """
    write_lines(compact_rows(pairs), Path(path))


def save_preference(pairs: Iterable[Pair | DPOPair], path: str | os.PathLike[str]) -> int:
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
    writers = {".jsonl": write_lines, ".parquet": _write_parquet}
    if target.suffix not in writers:
        raise ValueError(f"{target.name!r} must end in .jsonl or .parquet: the ending says how the pairs are written")
    return writers[target.suffix](_preference_rows(pairs), target)


def load_pairs(path: str | os.PathLike[str]) -> Iterator[DPOPair]:
    """Return the pairs of a JSONL file, plain or compact, one at a time; blank lines are skipped.

    Pairs of a compact file share their messages and tools: copy what you change.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not a pair, or the file was cut; the message names the line.
    """
    return (_with_texts(row, where) for row, where in _rows_of(path))


def stored_pairs(path: str | os.PathLike[str]) -> Iterator[Pair]:
    """`load_pairs` as `Pair`s. Histories of a compact file are views: all pairs take no more memory than the file."""
    return (Pair.of(row, where) for row, where in _rows_of(path))


def training_pairs(path: str | os.PathLike[str]) -> Iterator[Pair | dict[str, Any]]:
    """Return the pairs of a file that `pairs` or `normalize` wrote; rows of a preference file stay as TRL has them.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    file = Path(path)
    if file.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{file} must be .jsonl or .parquet, as `pairs` and `normalize` write them")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if file.suffix == ".parquet":
        yield from (_preference(row, f"{file}, row {number}") for number, row in parquet_rows(file))
        return
    for number, row in stored_rows(file):
        read = _normalized if "chosen_messages" in row else _preference if "prompt" in row else Pair.of
        yield read(row, f"{file}, line {number}")


def preference_row(pair: Pair) -> dict[str, Any]:
    """Return a pair in TRL's form: `prompt`, `chosen` and `rejected` as lists of messages, and `tools` if it has any.

    Arguments of tool calls are objects, not JSON text: chat templates write them out as they are, and would quote a
    text once more. Arguments that are not a JSON object stay as the text they are.
    """
    row: dict[str, Any] = {
        "prompt": [message_for_templates(message) for message in pair.messages],
        "chosen": [message_for_templates(assistant_message(pair.chosen))],
        "rejected": [message_for_templates(assistant_message(pair.rejected))],
    }
    # Some templates take an empty list for tools that are there.
    return {**row, "tools": pair.tools} if pair.tools else row


def message_for_templates(message: Message) -> Message:
    """Return a message in OpenAI's form with the arguments of its calls as objects, where they are objects."""
    if not message.get("tool_calls"):
        # A template that looks for the key would find calls in an empty list.
        return {key: value for key, value in message.items() if key != "tool_calls"}
    calls = []
    for call in message["tool_calls"]:
        arguments, raw = parse_arguments(call["function"].get("arguments"))
        calls.append({**call, "function": {**call["function"], "arguments": arguments if raw is None else raw}})
    return {**message, "tool_calls": calls}


def _preference_rows(pairs: Iterable[Pair | DPOPair]) -> Iterator[dict[str, Any]]:
    without_messages = 0
    for given in pairs:
        pair = given if isinstance(given, Pair) else Pair.of(given)
        if len(pair.messages):
            yield preference_row(pair)
        else:
            without_messages += 1
    if without_messages:
        logger.warning("%d pairs are left out: their states have no messages to render", without_messages)


def _with_texts(row: Row, where: str) -> DPOPair:
    check_pair(row, where)
    if isinstance(row["chosen"], str) and isinstance(row["rejected"], str):
        return {**row, "state_messages": list(row["state_messages"])}  # type: ignore[typeddict-item]
    return Pair.of(row, where).with_texts()


def _preference(row: Row, where: str) -> dict[str, Any]:
    """Return a row in TRL's form; in Parquet, every message is JSON."""
    made = {"tools": row["tools"]} if row.get("tools") else {}
    for name in ("prompt", "chosen", "rejected"):
        messages = row.get(name)
        if not isinstance(messages, list):
            raise ValueError(f"{where}: not a pair, {name!r} is missing or not a list of messages")
        try:
            made[name] = [json.loads(one) if isinstance(one, str) else one for one in messages]
        except ValueError:
            raise ValueError(f"{where}: not a pair, {name!r} holds a text that is not a message") from None
    return made


def _normalized(row: Row, where: str) -> Pair:
    """Return the pair of a normalised row; its metadata holds the other keys of the pair."""
    metadata = row.get("metadata")
    pair = {**((metadata.get("pair") if isinstance(metadata, dict) else None) or {})}
    pair |= {key: row.get(key) for key in ("state_id", "state_messages", "n_teachers_agreeing")}
    for side in ("chosen", "rejected"):
        try:
            (message,) = row[f"{side}_messages"]
            if message["role"] != "assistant":
                raise ValueError(message["role"])
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            calls = [ToolCall("", one["name"], *parse_arguments(one["arguments"])) for one in functions]
            pair[side] = Turn("assistant", text_of(message.get("content")), tool_calls=calls)
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = f"'{side}_messages' is not one assistant message"
            raise ValueError(f"{where}: not a normalised pair, {problem}") from None
    return Pair.of(pair, where)


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a Parquet file with their numbers, from 1.

    Raises:
        ValueError: it is not a Parquet file.
    """
    parquet = require("pyarrow.parquet", "train")
    try:
        reader = parquet.ParquetFile(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {' '.join(str(error).split())}") from None
    rows = (row for batch in reader.iter_batches(1_000) for row in batch.to_pylist())
    yield from enumerate(rows, start=1)


def write_lines(rows: Iterable[Row], path: Path) -> int:
    """Write rows to JSONL; returns how many.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    with whole_file(path, "pairs") as temporary:
        return put_lines(rows, temporary)


def put_lines(rows: Iterable[Row], path: Path) -> int:
    """Write rows to a file that is put in its place later; returns how many."""
    count = 0
    with path.open("wb", buffering=1 << 18) as file:
        for row in rows:
            file.write(encoded(row) + b"\n")
            count += 1
    return count


def _write_parquet(rows: Iterable[Row], path: Path) -> int:
    arrow = require("pyarrow", "replay")
    parquet = require("pyarrow.parquet", "replay")
    # Each message is JSON: as a struct it would get every key that any message has, and templates look for keys.
    messages = arrow.list_(arrow.json_())
    schema = arrow.schema([(column, messages) for column in _COLUMNS])
    count, remaining = 0, iter(rows)
    with whole_file(path, "pairs") as temporary, parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
        while group := list(_group(remaining)):
            texts = arrow.list_(arrow.string())
            columns = [arrow.array([row[column] for row in group], texts).cast(messages) for column in _COLUMNS]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
            count += len(group)
            del group, columns  # before the next one is made
    return count


def _group(rows: Iterator[Row]) -> Iterator[dict[str, list[str] | None]]:
    """Return the next rows that go into the file together, every message as JSON text."""
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


def _rows_of(path: str | os.PathLike[str]) -> Iterator[tuple[dict[str, Any], str]]:
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file; save_pairs writes one")
    return ((row, f"{source}, line {number}") for number, row in stored_rows(source))
