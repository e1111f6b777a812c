"""The data that a configuration names, read and counted: traces, preference pairs, prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from composer_replication.envs.registry import built_in
from composer_replication.hint_generator import LayeredHints, as_collator_hint, is_students_mistake
from composer_replication.ingestion.store import load_traces
from composer_replication.run.configuration import Config
from composer_replication.run.held_out import Sessions, is_held_out
from composer_replication.run.sections import DataSection, EnvironmentSection, TasksSection
from composer_replication.teacher_replay.compact_pairs import json_lines
from composer_replication.teacher_replay.pair_files import parquet_rows, training_pairs
from composer_replication.traces import Message, Trace, TraceExample

_NO_PAIRS = "set data.pairs to null to train without channel 3"


@dataclass(frozen=True)
class TrainingData:
    """The training data of a run, and counts of it."""

    traces: list[TraceExample]
    pairs: list[Any]
    prompts: list[dict[str, Any]]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def load_training_data(settings: DataSection, environment: EnvironmentSection | None = None) -> TrainingData:
    """Read what the settings name, and generate the tasks of the environment if they say so.

    Raises:
        ValueError: a file or folder is missing, empty, or holds something else, or there are no such tasks; the message
            names the setting.
    """
    counts: dict[str, dict[str, int]] = {}
    traces: list[TraceExample] = []
    pairs: list[Any] = []
    prompts: list[dict[str, Any]] = []
    sessions = training_sessions(settings)
    beside = f" beside what data.held_out ({settings.held_out:g}) leaves out" if settings.held_out else ""
    if settings.traces is not None:
        counted: Counter[str] = Counter()
        traces = [_counted(trace, counted) for trace in trained_traces(settings, sessions)]
        if not counted["assistant_turns"]:
            raise ValueError(
                f"data.traces: {settings.traces} holds no turn of an assistant{beside}: there is nothing to learn"
            )
        counts["traces"] = {"traces": len(traces), **counted}
    if settings.pairs:
        pairs = list(trained_pairs(settings, sessions))
        if not pairs:
            names = ", ".join(map(str, settings.pairs))
            raise ValueError(f"data.pairs: {names}: there is no pair in it{beside}; {_NO_PAIRS}")
        counts["pairs"] = {"pairs": len(pairs)}
    if environment is not None and environment.tasks is not None:
        prompts = _tasks(str(environment.class_), environment.tasks)[: settings.max_prompts]
        counts["prompts"] = {"prompts": len(prompts)}
    elif settings.prompts is not None:
        prompts = list(islice(_prompts(settings.prompts), settings.max_prompts))
        if not prompts:
            raise ValueError(f"data.prompts: {settings.prompts} holds no prompt")
        counts["prompts"] = {"prompts": len(prompts)}
    return TrainingData(traces, pairs, prompts, counts)


def training_sessions(settings: DataSection) -> Sessions:
    """The sessions of the traces, as far as they are needed to hold some out."""
    return Sessions(_traces(settings.traces) if settings.held_out and settings.traces is not None else ())


def trained_traces(settings: DataSection, sessions: Sessions) -> Iterator[Trace]:
    """The traces that are trained on: not those of sessions that are held out.

    Raises:
        ValueError: there are no traces in the folder.
    """
    traces = () if settings.traces is None else _traces(settings.traces)
    kept = (one for one in traces if not is_held_out(sessions.of(one.trace_id), settings.held_out))
    return islice(kept, settings.max_traces)


def trained_pairs(settings: DataSection, sessions: Sessions) -> Iterator[Any]:
    """The pairs that are trained on: not those of sessions that are held out.

    Raises:
        ValueError: a file is missing or holds something else; or its pairs do not say which session they come from.
    """

    def kept(pair: Any) -> bool:
        session = sessions.of_pair(pair) if settings.held_out else ""
        if session is None:
            raise ValueError(
                f"data.held_out: {settings.held_out:g} needs pairs that say which session they come from, and data in "
                "TRL's format does not; give data.pairs the file that `pairs` or `normalize` wrote with --output"
            )
        return not is_held_out(session, settings.held_out)

    return islice(filter(kept, _pairs(settings.pairs)), settings.max_pairs)


def described(data: TrainingData, config: Config) -> dict[str, str]:
    """The data in words for a model card: names without their paths, and counts."""
    given = config.data
    sources = {"traces": [given.traces], "pairs": given.pairs, "prompts": [given.prompts]}
    words = {}
    for source, counts in data.counts.items():
        names = ", ".join(f"`{path.resolve().name}`" for path in sources[source] if path is not None)
        words[source] = f"{names}: " + ", ".join(
            f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()
        )
    environment = config.environment
    if environment is not None and environment.tasks is not None:
        tasks = environment.tasks
        words["prompts"] = f"{len(data.prompts):,} generated tasks (split {tasks.split}, seed {tasks.seed})"
    if environment is not None and environment.class_ is not None:
        words["environment"] = f"`{Path(environment.class_).name}`"
    if environment is not None and environment.rewards:
        words["rewards"] = ", ".join(f"`{Path(one.function).name}` × {one.weight:g}" for one in environment.rewards)
    return words


def makes_tool_calls(data: TrainingData) -> bool:
    """Whether a trace holds a tool call, which the chat template then has to render."""
    return any(turn.get("tool_calls") for trace in data.traces for turn in trace["turns"])


def has_thinking(data: TrainingData) -> bool:
    """Whether a trace holds an assistant's thinking."""
    return any(turn.get("thinking") for trace in data.traces for turn in trace["turns"])


def _traces(folder: Path) -> Iterator[Trace]:
    try:
        yield from load_traces(folder)
    except FileNotFoundError as error:
        raise ValueError(f"data.traces: {error}") from None


def _counted(trace: Trace, counts: Counter[str]) -> TraceExample:
    hint = as_collator_hint(LayeredHints())
    for turn in trace.turns:
        counts["assistant_turns"] += turn.role == "assistant" and not turn.repeats
        if turn.outcome:
            counts["outcomes"] += 1
            counts["outcomes_charged"] += bool(turn.charged_to)
        if turn.tool_error is None:
            continue
        meta = turn.error_meta or {}
        counts["error_turns"] += 1
        if not is_students_mistake(turn.tool_error, meta):
            counts["not_the_students_mistake"] += 1
        elif hint(turn.tool_error, meta):
            counts["error_turns_with_hint"] += 1
        else:
            counts["error_turns_without_hint"] += 1
    return trace.example()


def _pairs(files: Iterable[Path]) -> Iterator[Any]:
    for file in files:
        if file.suffix in (".jsonl", ".parquet") and not file.exists():
            raise ValueError(
                f"data.pairs: {file}: there is no such file; make it with `composer-replication pairs`, or {_NO_PAIRS}"
            )
        try:
            yield from training_pairs(file)
        except (ValueError, OSError) as error:
            raise ValueError(f"data.pairs: {error}") from None


def _tasks(name: str, settings: TasksSection) -> list[dict[str, Any]]:
    try:
        return built_in(name).make_tasks(settings.split, settings.count, seed=settings.seed, **settings.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"environment.tasks: {name} cannot make them: {error}") from None


def _prompts(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise ValueError(f"data.prompts: {file}: there is no such file")
    rows = json_lines(file) if file.suffix == ".jsonl" else parquet_rows(file)
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
