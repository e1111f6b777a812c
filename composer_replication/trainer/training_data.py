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


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from. `counts` says how much of what there is, and why the rest cannot be used."""

    traces: list[TraceExample]
    pairs: list[Any]
    prompts: list[dict[str, Any]]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def load_training_data(settings: DataSection) -> TrainingData:
    """Read what the settings name.

    Pairs without a prompt, with an empty side or with two equal sides are left out and counted.

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
        left_out: Counter[str] = Counter()
        pairs = list(_usable(islice(_pairs(settings.pairs), settings.max_pairs), left_out))
        if not pairs:
            files = ", ".join(map(str, settings.pairs))
            why = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) or "there is none"
            raise ValueError(f"data.pairs: {files}: no pair can be used ({why})")
        counts["pairs"] = {"pairs": len(pairs) + sum(left_out.values()), "usable": len(pairs), **left_out}
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
        if file.suffix != ".jsonl":
            raise ValueError(f"data.pairs: {file} must be a .jsonl file, as `pairs` and `normalize` write them")
        try:
            if _is_normalized(file):
                yield from _normalized(file)
            else:
                yield from load_pairs(file)
        except FileNotFoundError:
            raise ValueError(f"data.pairs: {file}: there is no such file") from None
        except (ValueError, OSError) as error:
            raise ValueError(f"data.pairs: {error}") from None


def _is_normalized(file: Path) -> bool:
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"{}")
    try:
        row = json.loads(first)
    except ValueError:
        return False
    return isinstance(row, dict) and "chosen_messages" in row


def _normalized(file: Path) -> Iterator[NormalizedDPOPair]:
    for number, row in _json_lines(file):
        missing = [key for key in _NORMALIZED_KEYS if key not in row]
        if missing:
            raise ValueError(f"{file}, line {number}: no normalised pair, {missing[0]!r} is missing")
        yield NormalizedDPOPair(**{key: row[key] for key in _NORMALIZED_KEYS}, metadata=row.get("metadata") or {})


def _usable(pairs: Iterable[Any], left_out: Counter[str]) -> Iterator[Any]:
    for pair in pairs:
        chosen, rejected = _sides(pair)
        messages = pair.state_messages if isinstance(pair, NormalizedDPOPair) else pair["state_messages"]
        if not messages:
            left_out["without_a_prompt"] += 1
        elif not chosen or not rejected:
            left_out["with_an_empty_side"] += 1
        elif chosen == rejected:
            left_out["with_equal_sides"] += 1
        else:
            yield pair


def _sides(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, NormalizedDPOPair):
        return pair["chosen"].strip(), pair["rejected"].strip()
    return _said(pair.chosen_messages), _said(pair.rejected_messages)


def _said(messages: list[Message]) -> list[Any]:
    """What messages say and do; nothing if they are empty."""
    said = [(str(one.get("content") or "").strip(), one.get("tool_calls") or []) for one in messages]
    return said if any(content or calls for content, calls in said) else []


def _prompts(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise ValueError(f"data.prompts: {file}: there is no such file")
    rows = _json_lines(file) if file.suffix == ".jsonl" else _parquet_rows(file)
    try:
        for number, row in rows:
            yield {**row, "prompt": _prompt_messages(row.get("prompt"), f"{file}, row {number}")}
    except ValueError as error:
        raise ValueError(f"data.prompts: {error}") from None


def _prompt_messages(prompt: Any, place: str) -> list[Message]:
    """A prompt as chat messages; a text is what the user says."""
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    messages = [json.loads(one) if isinstance(one, str) else one for one in prompt] if isinstance(prompt, list) else []
    if not messages or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
        raise ValueError(f"{place}: `prompt` is missing, or neither a text nor chat messages")
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
