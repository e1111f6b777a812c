"""What a model was trained on: evaluation refuses tasks and sessions that training has seen.

A checkpoint in a run folder says it by the run's configuration, whose data is read again. For any other model, a user
names the run, or its files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.envs.registry import NAMES, built_in
from composer_replication.ingestion.store import holds_traces, load_traces
from composer_replication.run.configuration import Config
from composer_replication.run.data import load_training_data, trained_pairs, trained_traces
from composer_replication.run.held_out import Sessions
from composer_replication.run.loading import load_config
from composer_replication.run.sections import DataSection
from composer_replication.traces import Trace

_LAST_STEPS = 10
_WAY_OUT = "start it where the run was started, or name what it was trained on with --trained-on"


@dataclass(frozen=True)
class Trained:
    """What a model was trained on, by the run that made it or as a user named it."""

    place: Path
    data: DataSection
    config: Config | None = None


def trained_by_run(model: str) -> Trained | None:
    """Return what the run of a checkpoint was trained on; None if the model is not in a run folder.

    Raises:
        ValueError: the run's configuration cannot be read.
    """
    place = Path(model).expanduser().resolve()
    for folder in (place, place.parent):
        if is_run(folder):
            config = load_config(folder / "config.yaml")
            return Trained(folder, config.data, config)
    return None


def trained_on(place: Path, *, tasks: bool) -> Trained:
    """Return what a user named: a run folder, a file of tasks or, without `tasks`, a folder of traces or pairs.

    Raises:
        ValueError: it is none of these.
    """
    if (found := trained_by_run(str(place))) is not None:
        return found
    if holds_traces(place) and not tasks:
        return Trained(place, DataSection(traces=place))
    if not place.is_file():
        wanted = "a file of tasks" if tasks else "traces or a file of pairs"
        raise ValueError(f"--trained-on: {place} is neither a run nor {wanted}")
    return Trained(place, DataSection(prompts=place) if tasks else DataSection(pairs=(place,)))


def is_run(folder: Path) -> bool:
    """Whether `train` wrote this folder."""
    return (folder / "config.yaml").is_file() and (folder / "environment.json").is_file()


def check_tasks(tasks: Sequence[Mapping[str, Any]], trained: Trained) -> int:
    """Require tasks that are not among the training tasks, and return the number of those.

    Tasks are compared by their content: the prompt and the columns that both files have, but for `task_id`.

    Raises:
        ValueError: the training tasks cannot be read, or a task is one of them; the message names the first.
    """
    settings = DataSection(prompts=trained.data.prompts, max_prompts=trained.data.max_prompts)
    try:
        known = load_training_data(settings, trained.config.environment if trained.config else None).prompts
    except ValueError as error:
        raise ValueError(f"{trained.place}: {error}; {_WAY_OUT}") from None
    columns = {name for row in known for name in row} & {name for row in tasks for name in row} - {"task_id"}
    seen = {_content(row, columns) for row in known}
    overlap = [number for number, row in enumerate(tasks) if _content(row, columns) in seen]
    if overlap:
        first = tasks[overlap[0]]
        asked = " ".join(str(first["prompt"][-1].get("content")).split())[:80]
        raise ValueError(
            f"{len(overlap)} of {len(tasks)} tasks are among those that {trained.place} was trained on; the first is "
            f"task {first.get('task_id') or overlap[0]} ({asked}): evaluate on tasks that it has not seen"
        )
    return len(known)


def _content(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    # A column that a row does not have is null in Parquet.
    given = {name: row[name] for name in columns if row.get(name) is not None}
    return json.dumps(given, sort_keys=True, default=str)


def training_gap(trained: Trained, held_out_reward: float) -> dict[str, float]:
    """Return the mean reward of a run's last ten logged steps, and by how much it is above that on held-out tasks.

    With reward functions besides the environment's own, only the environment's counts. Empty if none was logged.
    """
    file = trained.place / "metrics.jsonl"
    if trained.config is None or trained.config.environment is None or not file.is_file():
        return {}
    name = trained.config.environment.class_ or ""
    own = f"rewards/{built_in(name).environment.__name__ if name in NAMES else name.rpartition(':')[2]}/mean"
    rewards: list[Any] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # a line that was cut by a kill
            step = json.loads(line)
            rewards.append(step.get(own, step.get("reward")))
    last = [reward for reward in rewards if isinstance(reward, int | float)][-_LAST_STEPS:]
    if not last:
        return {}
    reward = sum(last) / len(last)
    return {"training_reward": reward, "held_out_reward": held_out_reward, "gap": reward - held_out_reward}


def read_traces(trained: Trained) -> Iterator[Trace]:
    """Yield all traces of the folder that training has read, those that it held out too.

    Raises:
        ValueError: there are none any more.
    """
    try:
        yield from load_traces(trained.data.traces) if trained.data.traces is not None else ()
    except FileNotFoundError as error:
        raise ValueError(f"{trained.place}: data.traces: {error}; {_WAY_OUT}") from None


def check_sessions(evaluated: Iterable[str], trained: Trained, sessions: Sessions) -> int:
    """Require sessions that were not trained on, and return the number of training pairs that name no session.

    Raises:
        ValueError: the training data cannot be read, or a session is part of it; the message names the first.
    """
    seen: set[str | None] = set()
    unnamed = 0
    try:
        seen.update(sessions.of(trace.trace_id) for trace in trained_traces(trained.data, sessions))
        for pair in trained_pairs(trained.data, sessions):
            session = sessions.of_pair(pair)
            unnamed += session is None
            seen.add(session)
    except (ValueError, OSError) as error:
        raise ValueError(f"{trained.place}: {error}; {_WAY_OUT}") from None
    wanted = dict.fromkeys(evaluated)
    overlap = [session for session in wanted if session in seen]
    if overlap:
        raise ValueError(
            f"{len(overlap)} of {len(wanted)} sessions are among those that {trained.place} was trained on; the first "
            f"is {overlap[0]}: train with data.held_out, or evaluate on logs that it has not seen"
        )
    return unnamed
