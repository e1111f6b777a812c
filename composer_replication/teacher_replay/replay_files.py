"""The files of a replay: the traces or states that it reads, and the folder that it writes.

DIR/ledger.sqlite   every call and every answer; a second run asks only for what is missing
DIR/answers.jsonl   a `TeacherCallResult` per line, of every state that was replayed, with the answer's `turn`
DIR/replay.json     how states were made, the teachers, the figures of the last run
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from composer_replication._files import whole_file
from composer_replication.ingestion import SYSTEM_PROMPT
from composer_replication.ingestion.loose_json import objects
from composer_replication.ingestion.shell_commands import PROTOCOLS
from composer_replication.ingestion.store import load_traces
from composer_replication.teacher_replay.records import (
    GateSettings,
    TeacherCallResult,
    TeacherRow,
    add_gate,
    check_state,
)
from composer_replication.teacher_replay.teachers import RemoteTeacher
from composer_replication.teacher_replay.tool_schemas import complete_tools, offered_tools
from composer_replication.traces import Step, Trace, Turn, render_action

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True)
class TraceToReplay:
    """The steps of one trace, the tools of its agent (without any, they are inferred from its calls), and the models
    that its log names as the student. `protocol` is how an agent without tool calls writes its commands
    (`Trace.meta["text_protocol"]`): its teachers get texts and no tools, and answer in the same way."""

    trace_id: str
    steps: Sequence[Step]
    tools: Sequence[dict[str, Any]] = ()
    student_models: Sequence[str] = ()
    protocol: str | None = None


@dataclass(frozen=True)
class StateOptions:
    """Options for making steps from traces. Pairs must be made with the options of their replay."""

    system_prompt: str = SYSTEM_PROMPT
    max_history_tokens: int | None = None
    limit: int | None = None


def traces_to_replay(path: str | os.PathLike[str], options: StateOptions | None = None) -> Iterator[TraceToReplay]:
    """Yield the traces of a folder that `ingest` wrote, or of a JSONL file of states; empty ones are skipped. `limit`
    counts states over all traces.

    Raises:
        FileNotFoundError: nothing there, or no traces in it.
        ValueError: a line of the file is not a state, or the traces are damaged.
    """
    options = options or StateOptions()
    left = options.limit
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source}: there is no such folder of traces, or file of states")
    for trace in _from_file(source) if source.is_file() else _from_folder(source, options):
        if left is not None and len(trace.steps) > left:
            # With the tools of the whole trace: when more of it is replayed, these states are not asked again.
            tools = complete_tools(trace.tools, trace.steps)
            trace = replace(trace, steps=trace.steps[:left], tools=tools)
        if trace.steps:
            yield trace
        if left is not None:
            left -= len(trace.steps)
            if left <= 0:
                return


def trace_to_replay(trace: Trace, options: StateOptions) -> TraceToReplay:
    """Return one trace with the tools of its agent and the models that its log names."""
    steps = list(trace.steps(system_prompt=options.system_prompt, max_history_tokens=options.max_history_tokens))
    named = [trace.model, *(turn.model for turn in trace.turns if turn.role == "assistant")]
    models = tuple(dict.fromkeys(name for name in named if name))
    protocol = trace.meta.get("text_protocol")
    known = protocol if protocol in PROTOCOLS else None
    return TraceToReplay(trace.trace_id, steps, offered_tools(trace), models, known)


def _from_folder(folder: Path, options: StateOptions) -> Iterator[TraceToReplay]:
    try:
        for trace in load_traces(folder):
            yield trace_to_replay(trace, options)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder} holds damaged traces ({error}): ingest their logs again") from None


def _from_file(path: Path) -> Iterator[TraceToReplay]:
    """A file of states is one trace: its lines are taken to be the steps of one session."""
    steps: dict[str, Step] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            step = _step(line, f"{path}, line {number}")
            if step.state_id in steps:
                raise ValueError(f"{path}, line {number}: state_id {step.state_id!r} comes twice")
            steps[step.state_id] = step
    yield TraceToReplay(path.stem, list(steps.values()))


def _step(line: bytes, where: str) -> Step:
    try:
        state: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    check_state(state, where)
    for message in state["messages"]:
        if problem := _problem(message):
            raise ValueError(f"{where}: {problem}")
    return Step.of(state)


def _problem(message: Any) -> str | None:
    """Return what is wrong with a message, None if nothing is."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "every message needs a role"
    content = message.get("content")
    if content is not None and not isinstance(content, str) and objects(content) != content:
        return "the content of a message is a text, or a list of parts"
    calls = message.get("tool_calls")
    if calls is not None and (objects(calls) != calls or not all(isinstance(c.get("function"), dict) for c in calls)):
        return "the tool_calls of a message are a list of objects with a function"
    return None


class _Line(TeacherCallResult, total=False):
    """A line of the answers. `turn` is the answer itself; lines of earlier versions have its text alone."""

    turn: Turn | None


_LINES = msgspec.json.Decoder(_Line)


class ReplayFolder:
    """A replay on disk. Files appear whole or not at all.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.ledger = self.folder / "ledger.sqlite"
        self.answers = self.folder / "answers.jsonl"
        self.settings = self.folder / "replay.json"
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OSError(
                    f"{self.folder}: {error.strerror}; a replay needs a folder that can be written"
                ) from error
        elif not self.answers.is_file() and self.ledger.is_file():
            raise FileNotFoundError(
                f"the replay in {self.folder} is unfinished: run it again; what is stored is not paid for again"
            )
        elif not self.answers.is_file():
            raise FileNotFoundError(
                f"{self.folder} holds no replay: make one with composer-replication replay TRACES -o {self.folder}"
            )

    def writer(self) -> AnswerWriter:
        """Write new answers; those of states that it does not get stay.

        Raises:
            ValueError: a line of the existing answers is not a row; raised now, before new answers are paid for.
        """
        if self.answers.exists():
            AnswerIndex(self.answers)
        return AnswerWriter(self.answers)

    def write_settings(self, options: StateOptions, teachers: Iterable[RemoteTeacher], report: dict[str, Any]) -> None:
        """Store how this replay was made."""
        states = {"system_prompt": options.system_prompt, "max_history_tokens": options.max_history_tokens}
        families = {**self.teacher_families(), **{teacher.slug: sorted(teacher.families) for teacher in teachers}}
        content = {"states": states, "limit": options.limit, "teachers": families, "report": report}
        with whole_file(self.settings, "settings") as temporary:
            temporary.write_bytes(msgspec.json.format(_ENCODER.encode(content), indent=2) + b"\n")

    def state_options(self) -> StateOptions:
        """Return how the steps of this replay were made.

        Raises:
            ValueError: `replay.json` does not say.
        """
        states = self._settings().get("states")
        if not isinstance(states, dict) or not isinstance(states.get("system_prompt"), str):
            raise ValueError(f"{self.settings} does not say how states were made: run the replay again")
        return StateOptions(states["system_prompt"], states.get("max_history_tokens"))

    def teacher_families(self) -> dict[str, list[str]]:
        """The model families of all teachers that were ever asked here."""
        families = self._settings().get("teachers")
        return families if isinstance(families, dict) else {}

    def last_report(self) -> dict[str, Any]:
        """The figures of the last run, as `ReplayReport.as_dict` has them; empty if there are none."""
        report = self._settings().get("report")
        return report if isinstance(report, dict) else {}

    def limit(self) -> int | None:
        """Return the limit of states of the last run; None is all of them."""
        limit = self._settings().get("limit")
        return limit if isinstance(limit, int) else None

    def _settings(self) -> dict[str, Any]:
        try:
            settings = msgspec.json.decode(self.settings.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return settings if isinstance(settings, dict) else {}


class AnswerWriter:
    """Rows into a file beside the answers, which they replace at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        for left in path.parent.glob(f".{path.name}.*.part"):
            if not _is_running(left.suffixes[-2][1:]):
                left.unlink(missing_ok=True)  # of a run that was killed
        self._file = self._part.open("wb")
        self._states: set[str] = set()

    def add(self, rows: Iterable[TeacherRow]) -> None:
        """Rows of states; all rows of a state at once."""
        for row in rows:
            self._states.add(row.state_id)
            self._file.write(_ENCODER.encode({**row.result(), "turn": row.turn}) + b"\n")

    def finish(self) -> None:
        """Put the file in place, with the earlier rows of states that were not replayed this time."""
        if self._path.exists():
            with self._path.open("rb") as earlier:
                self._file.writelines(line for line in earlier if _LINES.decode(line)["state_id"] not in self._states)
        self._file.close()
        self._part.replace(self._path)

    def discard(self) -> None:
        """Leave the answers as they are."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:  # somebody else's
        return True
    return True


class AnswerIndex:
    """The rows of an answer file by state, read when they are asked for; `gates` is how they were gated.

    Raises:
        ValueError: a line is not a row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, list[int]] = defaultdict(list)
        self.gates: list[GateSettings] = []
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = _LINES.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise ValueError(
                        f"{path}, line {number}: no row of a replay ({error}); put the file away, and run the replay "
                        "again: its ledger has the answers"
                    ) from None
                self._offsets[row["state_id"]].append(offset)
                add_gate(self.gates, row)
                offset += len(line)

    def rows(self, state_ids: Iterable[str]) -> Iterator[TeacherRow]:
        """The rows of these states, in their order."""
        with self._path.open("rb") as file:
            for state_id in state_ids:
                for offset in self._offsets.get(state_id, ()):
                    file.seek(offset)
                    yield _row(_LINES.decode(file.readline()))


def _row(line: _Line) -> TeacherRow:
    turn = line.get("turn")
    # The text counts if it is alone, or was edited, as by a user who took something out of it.
    if line["response_text"] != (None if turn is None else render_action(turn)):
        return TeacherRow.of(line)
    fields: dict[str, Any] = {name: value for name, value in line.items() if name != "response_text"}
    return TeacherRow(**{**fields, "turn": turn})
