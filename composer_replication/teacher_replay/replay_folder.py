"""The folder of a replay: its ledger, its answers as rows, and how it was made.

DIR/ledger.sqlite   every call and every answer; a second run asks only for what is missing
DIR/answers.jsonl   a `TeacherCallResult` per line, of every state that was replayed
DIR/replay.json     how states were made, the teachers, the figures of the last run
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from composer_replication._whole_file import whole_file
from composer_replication.teacher_replay.gate_settings import GateSettings, add_gate
from composer_replication.teacher_replay.records import TeacherCallResult, TeacherRow
from composer_replication.teacher_replay.sources import StateOptions
from composer_replication.teacher_replay.teachers import Teacher
from composer_replication.traces import Turn

_ENCODER = msgspec.json.Encoder()


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
            ValueError: a line of the answers that are there is no row; better now than when new ones are paid for.
        """
        if self.answers.exists():
            AnswerIndex(self.answers)
        return AnswerWriter(self.answers)

    def write_settings(self, options: StateOptions, teachers: Iterable[Teacher], report: dict[str, Any]) -> None:
        """Keep how this replay was made."""
        states = {"system_prompt": options.system_prompt, "max_history_tokens": options.max_history_tokens}
        families = {**self.teacher_families(), **{teacher.slug: sorted(teacher.families) for teacher in teachers}}
        content = {"states": states, "limit": options.limit, "teachers": families, "report": report}
        with whole_file(self.settings, "settings") as temporary:
            temporary.write_bytes(msgspec.json.format(_ENCODER.encode(content), indent=2) + b"\n")

    def state_options(self) -> StateOptions:
        """How the states of this replay were made.

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
        """How many states the last run was to replay; None is all of them."""
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
        ValueError: a line is no row.
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
    if "turn" not in line:
        return TeacherRow.of(line)
    fields: dict[str, Any] = {name: value for name, value in line.items() if name != "response_text"}
    return TeacherRow(**fields)
