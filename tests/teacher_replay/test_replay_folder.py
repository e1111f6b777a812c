"""The folder of a replay: rows that stay, files that are whole, and what cannot be read named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.teacher_replay.replay_files import AnswerIndex, ReplayFolder, StateOptions
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import parse_action


def row(state_id: str, text: str, teacher: str = "t") -> TeacherRow:
    return TeacherRow(state_id, teacher, parse_action(text), 0.5, 1, 2, 0.25, None)


def teachers(*slugs: str) -> Any:
    return resolve_teachers([{"slug": slug, "base_url": "http://127.0.0.1:9/v1"} for slug in slugs])


@pytest.fixture
def folder(tmp_path: Path) -> ReplayFolder:
    return ReplayFolder(tmp_path / "deep" / "replayed", create=True)


def rows_in(folder: ReplayFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.answers.read_text().splitlines()]


def write(folder: ReplayFolder, *rows: TeacherRow) -> None:
    writer = folder.writer()
    writer.add(rows)
    writer.finish()


def test_rows_are_written_one_a_line_and_read_by_their_states(folder: ReplayFolder) -> None:
    rows = [row("a", "été\n"), row("b", "y"), row("a", "z", "u")]
    write(folder, *rows)
    assert [TeacherRow.of(one) for one in rows_in(folder)] == rows
    index = AnswerIndex(folder.answers)
    assert list(index.rows(["b", "a"])) == [rows[1], rows[0], rows[2]]
    assert list(index.rows(["no such"])) == []
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


def test_a_second_run_keeps_the_rows_of_states_that_it_did_not_replay(folder: ReplayFolder) -> None:
    write(folder, row("a", "old"), row("b", "old"), row("b", "old", "u"), row("c", "old"))
    write(folder, row("b", "new"), row("d", "new"))
    assert [(one["state_id"], one["response_text"]) for one in rows_in(folder)] == [
        ("b", "new"),
        ("d", "new"),
        ("a", "old"),
        ("c", "old"),
    ]


def test_until_the_end_the_old_answers_stay(folder: ReplayFolder) -> None:
    write(folder, row("a", "old"))
    killed = folder.writer()
    killed.add([row("a", "new")])
    assert [one["response_text"] for one in rows_in(folder)] == ["old"]  # and so it stays if nobody goes on
    killed.discard()
    assert [one["response_text"] for one in rows_in(folder)] == ["old"]
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


@pytest.mark.parametrize("line", [b"{", b'{"state_id": "x"}', b"", b"\xff", b"[]"])
def test_a_line_that_is_no_row_is_named_before_anything_is_paid(folder: ReplayFolder, line: bytes) -> None:
    write(folder, row("a", "old"))
    content = folder.answers.read_bytes() + line + b"\n"
    folder.answers.write_bytes(content)
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: no row of a replay \(.*its ledger has the answers"):
        folder.writer()
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: no row of a replay"):
        AnswerIndex(folder.answers)
    assert folder.answers.read_bytes() == content
    assert [file.name for file in folder.folder.iterdir()] == ["answers.jsonl"]


def test_how_a_replay_was_made_is_kept(folder: ReplayFolder) -> None:
    options = StateOptions(system_prompt="Mine.", max_history_tokens=77, limit=3)
    folder.write_settings(options, teachers("my-claude", "x"), {"calls": 3})
    assert json.loads(folder.settings.read_text())["report"] == {"calls": 3}
    assert folder.state_options() == StateOptions("Mine.", 77)  # a limit is no part of how states are made
    folder.write_settings(options, teachers("y"), {})
    assert folder.teacher_families() == {"my-claude": ["claude"], "x": [], "y": []}
    assert [file.name for file in folder.folder.iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    "content", [None, b"", b"[1]", b'{"states": []}', b'{"states": {"system_prompt": 3}}', b"\xff"]
)
def test_without_settings_nobody_can_say_how_states_were_made(folder: ReplayFolder, content: bytes | None) -> None:
    if content is not None:
        folder.settings.write_bytes(content)
    with pytest.raises(ValueError, match=r"replay\.json does not say how states were made: run the replay again"):
        folder.state_options()
    assert folder.teacher_families() == {}
    folder.write_settings(StateOptions(), teachers("x"), {})  # what is damaged is replaced
    assert folder.state_options() == StateOptions()


def test_settings_with_something_else_for_teachers_are_replaced(folder: ReplayFolder) -> None:
    folder.settings.write_text('{"teachers": ["a"]}')
    folder.write_settings(StateOptions(), teachers("x"), {})
    assert folder.teacher_families() == {"x": []}


def test_a_folder_without_answers_is_no_replay(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds no replay: make one with composer-replication replay TRACES -o"
    ):
        ReplayFolder(tmp_path)
    write(ReplayFolder(tmp_path, create=True), row("a", "x"))
    assert ReplayFolder(tmp_path).answers.is_file()


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"file/replayed: .*; a replay needs a folder that can be written"):
        ReplayFolder(tmp_path / "file" / "replayed", create=True)
    assert (tmp_path / "file").read_text() == "in the way"


def test_what_a_killed_run_left_is_cleared_away(folder: ReplayFolder) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left, alive = (
        folder.answers.with_name(f".{folder.answers.name}.{pid}.part") for pid in (process.pid, os.getppid())
    )
    left.touch()
    alive.touch()
    folder.writer().discard()
    assert (left.exists(), alive.exists()) == (False, True)
