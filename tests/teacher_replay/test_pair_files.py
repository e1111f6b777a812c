"""Pairs on disk."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from composer_replication.teacher_replay import pair_files
from composer_replication.teacher_replay.pair_files import load_pairs, save_pairs, save_preference
from composer_replication.teacher_replay.records import DPOPair
from composer_replication.traces import Source, Trace, Turn


def pair(number: int = 0, **fields: Any) -> DPOPair:
    return {
        "state_id": f"s::{number:04d}",
        "state_messages": [{"role": "user", "content": "go é\n"}],
        "chosen": "read it",
        "rejected": "guess",
        "n_teachers_agreeing": 2,
        **fields,
    }


def left_over(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.endswith(".part")]


def test_pairs_come_back_as_they_were(tmp_path: Path) -> None:
    pairs = [pair(0, teachers=["a", "b"], margin=1, similarity=0.9, tools=[{"type": "function"}]), pair(1)]
    path = tmp_path / "deep" / "er" / "pairs.jsonl"
    save_pairs(pairs, path)
    assert list(load_pairs(path)) == pairs
    assert left_over(path.parent) == []


def test_histories_are_written_out(tmp_path: Path) -> None:
    trace = Trace("t", [Turn("user", "go"), Turn("assistant", "x")], Source("f", "made_up"))
    (state,) = trace.states()
    save_pairs([pair(state_messages=state["messages"])], tmp_path / "pairs.jsonl")
    (read,) = load_pairs(str(tmp_path / "pairs.jsonl"))
    assert read["state_messages"] == [{"role": "user", "content": "go"}]


def test_half_a_character_can_be_written(tmp_path: Path) -> None:
    cut = pair(chosen="cut \ud83d", state_messages=[{"role": "user", "content": "\udc00"}])
    save_pairs([cut], tmp_path / "pairs.jsonl")
    assert list(load_pairs(tmp_path / "pairs.jsonl")) == [cut]
    for ending in ("jsonl", "parquet"):
        assert save_preference([cut], tmp_path / f"preference.{ending}") == 1


@pytest.mark.parametrize("writer", [save_pairs, save_preference])
def test_a_failure_leaves_what_was_there(writer: Any, tmp_path: Path) -> None:
    for name in ("pairs.jsonl", *(["pairs.parquet"] if writer is save_preference else [])):
        path = tmp_path / name
        writer([pair()], path)
        before = path.read_bytes()

        def broken() -> Iterator[DPOPair]:
            yield pair(1)
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            writer(broken(), path)
        assert path.read_bytes() == before
        assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", "line 2: no pair, but a list"),
        ('{"state_id": "s"}', "line 2: no pair, 'state_messages' is missing or no list"),
        (json.dumps({**pair(), "chosen": None}), "line 2: no pair, 'chosen' is missing or no str"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(pair()) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message) as raised:
        list(load_pairs(path))
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_blank_lines_are_passed_over_and_a_missing_file_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n" + json.dumps(pair()) + "\n\n")
    assert len(list(load_pairs(path))) == 1
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: no such file"):
        load_pairs(tmp_path / "none.jsonl")


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'pairs.csv' must end in .jsonl or .parquet"):
        save_preference([pair()], tmp_path / "pairs.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_state_without_messages_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert save_preference([pair(state_messages=[]), pair()], tmp_path / "pairs.parquet") == 1
    assert "1 pairs are left out" in caplog.text


def test_no_pairs_make_an_empty_file(tmp_path: Path) -> None:
    assert save_preference([], tmp_path / "pairs.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "pairs.parquet")
    assert table.column_names == ["prompt", "chosen", "rejected", "tools"]
    assert save_preference([], tmp_path / "pairs.jsonl") == 0
    assert (tmp_path / "pairs.jsonl").read_bytes() == b""


def test_memory_stays_flat_while_pairs_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_files, "_GROUP_CHARACTERS", 1_000_000)

    def made(count: int) -> Iterator[DPOPair]:
        for number in range(count):
            yield pair(number, chosen="x" * 20_000, rejected="y" * 20_000)

    def peak(count: int, name: str) -> int:
        tracemalloc.start()
        save_preference(made(count), tmp_path / name)
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reached

    peak(10, "warm.parquet")
    assert peak(250, "many.parquet") < 1.3 * peak(50, "few.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "many.parquet")
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (250, 10)
    assert peak(250, "many.jsonl") < 1.3 * peak(50, "few.jsonl")


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        save_pairs([pair()], tmp_path / "file" / "pairs.jsonl")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
