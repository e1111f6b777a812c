"""The data that a configuration names, read and counted: traces, preference pairs, prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication._optional import require
from composer_replication.hint_generator import LayeredHints, as_collator_hint, is_students_mistake
from composer_replication.ingestion.store import load_traces
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.pair_files import load_pairs
from composer_replication.traces import Message, Trace, TraceExample

if TYPE_CHECKING:
    from composer_replication.config.sections import DataSection

_NORMALIZED_KEYS = ("state_id", "state_messages", "chosen_messages", "rejected_messages", "n_teachers_agreeing")
_NO_PAIRS = "set data.pairs to null to train without channel 3"


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from. `counts` says how much there is of what."""

    traces: list[TraceExample]
    pairs: list[Any]
    prompts: list[dict[str, Any]]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def load_training_data(settings: DataSection) -> TrainingData:
    """Read what the settings name.

    Raises:
        ValueError: a file or folder is missing, empty, or holds something else; the message names the setting.
    """
    counts: dict[str, dict[str, int]] = {}
    traces: list[TraceExample] = []
    pairs: list[Any] = []
    prompts: list[dict[str, Any]] = []
    if settings.traces is not None:
        counted: Counter[str] = Counter()
        traces = [_counted(trace, counted) for trace in islice(_traces(settings.traces), settings.max_traces)]
        if not counted["assistant_turns"]:
            raise ValueError(f"data.traces: {settings.traces} holds no turn of an assistant: there is nothing to learn")
        counts["traces"] = {"traces": len(traces), **counted}
    if settings.pairs:
        pairs = list(islice(_pairs(settings.pairs), settings.max_pairs))
        if not pairs:
            raise ValueError(f"data.pairs: {', '.join(map(str, settings.pairs))}: there is no pair in it; {_NO_PAIRS}")
        counts["pairs"] = {"pairs": len(pairs)}
    if settings.prompts is not None:
        prompts = list(islice(_prompts(settings.prompts), settings.max_prompts))
        if not prompts:
            raise ValueError(f"data.prompts: {settings.prompts} holds no prompt")
        counts["prompts"] = {"prompts": len(prompts)}
    return TrainingData(traces, pairs, prompts, counts)


def makes_tool_calls(data: TrainingData) -> bool:
    """Whether a trace holds a tool call, which the chat template then has to render."""
    return any(turn.get("tool_calls") for trace in data.traces for turn in trace["turns"])


def _traces(folder: Path) -> Iterator[Trace]:
    try:
        yield from load_traces(folder)
    except FileNotFoundError as error:
        raise ValueError(f"data.traces: {error}") from None


def _counted(trace: Trace, counts: Counter[str]) -> TraceExample:
    hint = as_collator_hint(LayeredHints())
    for turn in trace.turns:
        counts["assistant_turns"] += turn.role == "assistant" and not turn.repeats
        if turn.tool_error is None:
            continue
        meta = turn.error_meta or {}
        counts["error_turns"] += 1
        if meta.get("students_mistake") is False or not is_students_mistake(turn.tool_error):
            counts["not_the_students_mistake"] += 1
        elif hint(turn.tool_error, meta):
            counts["error_turns_with_hint"] += 1
        else:
            counts["error_turns_without_hint"] += 1
    return trace.example()


def _pairs(files: Iterable[Path]) -> Iterator[Any]:
    for file in files:
        if file.suffix not in (".jsonl", ".parquet"):
            raise ValueError(f"data.pairs: {file} must be .jsonl or .parquet, as `pairs` and `normalize` write them")
        if not file.is_file():
            raise ValueError(
                f"data.pairs: {file}: there is no such file; make it with `composer-replication pairs`, or {_NO_PAIRS}"
            )
        try:
            yield from _pairs_in(file)
        except (ValueError, OSError) as error:
            raise ValueError(f"data.pairs: {error}") from None


def _pairs_in(file: Path) -> Iterator[Any]:
    """The pairs of a file in one of the three forms that are written: flat, normalised, and TRL's."""
    if file.suffix == ".parquet":
        yield from (_preference(row, f"{file}, row {number}") for number, row in _parquet_rows(file))
        return
    first = next((row for _, row in _json_lines(file)), {})
    if "chosen_messages" in first:
        yield from _normalized(file)
    elif "prompt" in first:
        yield from (_preference(row, f"{file}, line {number}") for number, row in _json_lines(file))
    else:
        yield from load_pairs(file)


def _preference(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A row in TRL's form; in Parquet, every message is JSON."""
    made = {}
    for name in ("prompt", "chosen", "rejected", "tools"):
        messages = row.get(name)
        if name == "tools" and messages is None:
            continue
        if not isinstance(messages, list):
            raise ValueError(f"{place}: no pair, {name!r} is missing or no list of messages")
        try:
            made[name] = [json.loads(one) if isinstance(one, str) else one for one in messages]
        except ValueError:
            raise ValueError(f"{place}: no pair, {name!r} holds a text that is no message") from None
    return made


def _normalized(file: Path) -> Iterator[NormalizedDPOPair]:
    for number, row in _json_lines(file):
        missing = [key for key in _NORMALIZED_KEYS if key not in row]
        missing += [key for key in _NORMALIZED_KEYS[1:4] if not isinstance(row.get(key), list)]
        if missing:
            raise ValueError(f"{file}, line {number}: no normalised pair, {missing[0]!r} is missing")
        yield NormalizedDPOPair(**{key: row[key] for key in _NORMALIZED_KEYS}, metadata=row.get("metadata") or {})


def _prompts(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise ValueError(f"data.prompts: {file}: there is no such file")
    rows = _json_lines(file) if file.suffix == ".jsonl" else _parquet_rows(file)
    try:
        for number, row in rows:
            if "prompt" not in row:
                columns = ", ".join(row) or "no columns"
                raise ValueError(f"{file}, row {number}: `prompt` is missing (there are {columns})")
            yield {**row, "prompt": _prompt_messages(row["prompt"], f"{file}, row {number}")}
    except ValueError as error:
        raise ValueError(f"data.prompts: {error}") from None


def _prompt_messages(prompt: Any, place: str) -> list[Message]:
    """A prompt as chat messages; a text is what the user says."""
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    messages = [json.loads(one) if isinstance(one, str) else one for one in prompt] if isinstance(prompt, list) else []
    if not messages or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
        raise ValueError(f"{place}: `prompt` is neither a text nor chat messages")
    # Parquet gives every message every key that any of them has.
    return [{key: value for key, value in one.items() if value is not None} for one in messages]


def _parquet_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    parquet = require("pyarrow.parquet", "train")
    try:
        reader = parquet.ParquetFile(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is no Parquet: {' '.join(str(error).split())}") from None
    number = 0
    for batch in reader.iter_batches(1_000):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: no JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{file}, line {number}: no object, but a {type(row).__name__}")
            yield number, row
