"""What is read of the files that a configuration names, what is left out and counted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from trainer.training_material import json_lines, pair, trace_folder

from composer_replication.config.sections import DataSection
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.trainer.training_data import load_training_data, makes_tool_calls


def normalized(**changes: Any) -> dict[str, Any]:
    return {
        "state_id": "s::0000",
        "state_messages": [{"role": "user", "content": "Hello"}],
        "chosen_messages": [{"role": "assistant", "content": "Yes."}],
        "rejected_messages": [{"role": "assistant", "content": "No."}],
        "n_teachers_agreeing": 2,
        "metadata": {"skipped": True},
        **changes,
    }


def test_traces_and_their_errors_are_counted(tmp_path: Path) -> None:
    data = load_training_data(DataSection(traces=trace_folder(tmp_path)))
    assert len(data.traces) == 2
    assert data.counts == {"traces": {"traces": 2, "assistant_turns": 6, "error_turns": 2, "error_turns_with_hint": 2}}
    assert makes_tool_calls(data)
    assert len(load_training_data(DataSection(traces=tmp_path / "traces", max_traces=1)).traces) == 1


def test_errors_that_are_nobodys_fault_are_counted_apart(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, sessions=1)
    (file,) = (folder / "traces").glob("*.jsonl")
    trace = json.loads(file.read_text())
    (erring,) = [turn for turn in trace["turns"] if turn.get("tool_error")]
    erring["error_meta"] = {**erring.get("error_meta", {}), "students_mistake": False}
    file.write_text(json.dumps(trace) + "\n")
    counts = load_training_data(DataSection(traces=folder)).counts["traces"]
    assert (counts["error_turns"], counts["not_the_students_mistake"]) == (1, 1)
    assert "error_turns_with_hint" not in counts


def test_pairs_of_both_kinds_and_what_is_left_out(tmp_path: Path) -> None:
    flat = json_lines(
        tmp_path / "a.jsonl",
        pair(0),
        pair(1, state_messages=[]),
        pair(2, chosen="  "),
        pair(3, rejected=pair(3)["chosen"]),
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = json_lines(
        tmp_path / "b.jsonl",
        normalized(),
        normalized(chosen_messages=[{"role": "assistant", "content": ""}]),
        normalized(chosen_messages=[{"role": "assistant", "content": "", "tool_calls": [call]}]),
        normalized(rejected_messages=[{"role": "assistant", "content": "Yes. "}]),
    )
    data = load_training_data(DataSection(pairs=(flat, chat)))
    assert data.counts["pairs"] == {
        "pairs": 8,
        "usable": 3,
        "without_a_prompt": 1,
        "with_an_empty_side": 2,
        "with_equal_sides": 2,
    }
    assert data.pairs[0]["state_id"] == "s::0000"
    assert all(isinstance(one, NormalizedDPOPair) for one in data.pairs[1:])
    assert data.pairs[1].metadata == {"skipped": True}
    assert len(load_training_data(DataSection(pairs=(flat, chat), max_pairs=1)).pairs) == 1


def test_prompts_become_messages(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    rows = [{"prompt": "Hi", "answer": 3}, {"prompt": chat, "level": "easy"}]
    lines = load_training_data(DataSection(prompts=json_lines(tmp_path / "p.jsonl", *rows))).prompts
    assert lines == [{"prompt": [{"role": "user", "content": "Hi"}], "answer": 3}, {"prompt": chat, "level": "easy"}]
    table = pyarrow.Table.from_pylist([{"prompt": [{**chat[0], "name": "x"}, chat[1]], "answer": 3}])
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    (row,) = load_training_data(DataSection(prompts=tmp_path / "p.parquet")).prompts
    assert row == {"prompt": [{**chat[0], "name": "x"}, chat[1]], "answer": 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"traces": "nowhere"}, "data.traces: DIR/nowhere holds no traces: make some with"),
        ({"traces": "silent"}, "holds no turn of an assistant"),
        ({"pairs": ["nowhere.jsonl"]}, "data.pairs: DIR/nowhere.jsonl: there is no such file"),
        ({"pairs": ["pairs.parquet"]}, "data.pairs: DIR/pairs.parquet must be a .jsonl file"),
        ({"pairs": ["empty.jsonl"]}, "no pair can be used (there is none)"),
        ({"pairs": ["hollow.jsonl"]}, "no pair can be used (1 with_an_empty_side)"),
        ({"pairs": ["cut.jsonl"]}, "data.pairs: DIR/cut.jsonl, line 2: no JSON"),
        ({"pairs": ["prompts.jsonl"]}, "data.pairs: DIR/prompts.jsonl, line 1: no pair, 'state_id' is missing"),
        ({"pairs": ["half.jsonl"]}, "line 1: no normalised pair, 'state_id' is missing"),
        ({"prompts": "nowhere.jsonl"}, "data.prompts: DIR/nowhere.jsonl: there is no such file"),
        ({"prompts": "empty.jsonl"}, "data.prompts: DIR/empty.jsonl holds no prompt"),
        ({"prompts": "hollow.jsonl"}, "data.prompts: DIR/hollow.jsonl, row 1: `prompt` is missing, or neither"),
        ({"prompts": "cut.jsonl"}, "`prompt` is missing"),
        ({"prompts": "list.jsonl"}, "data.prompts: DIR/list.jsonl, line 1: no object, but a list"),
        ({"prompts": "fake.parquet"}, "data.prompts: DIR/fake.parquet is no Parquet"),
    ],
)
def test_what_cannot_be_used(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    silent = trace_folder(tmp_path, sessions=1)
    for file in (silent / "traces").iterdir():
        trace = json.loads(file.read_text())
        trace["turns"] = trace["turns"][:1]
        file.write_text(json.dumps(trace) + "\n")
    silent.rename(tmp_path / "silent")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "cut.jsonl").write_text(json.dumps(pair()) + '\n{"state_id": "x')
    (tmp_path / "fake.parquet").write_text("no")
    json_lines(tmp_path / "hollow.jsonl", pair(chosen=""))
    json_lines(tmp_path / "half.jsonl", {"chosen_messages": []})
    json_lines(tmp_path / "prompts.jsonl", {"prompt": "Hi"})
    json_lines(tmp_path / "list.jsonl", [1])
    paths = {
        name: tuple(tmp_path / one for one in value) if isinstance(value, list) else tmp_path / value
        for name, value in given.items()
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        load_training_data(DataSection(**paths))  # type: ignore[arg-type]
    assert message.replace("DIR", str(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)
