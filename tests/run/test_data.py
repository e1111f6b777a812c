"""What is read of the files that a configuration names, what is left out and counted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from run.training_material import json_lines, pair, trace_folder

from composer_replication._tiny import tiny_tokenizer
from composer_replication.envs.house_style import make_tasks
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.run.data import load_training_data, makes_tool_calls
from composer_replication.run.sections import DataSection, EnvironmentSection, TasksSection
from composer_replication.teacher_replay.compact_pairs import compact_rows
from composer_replication.teacher_replay.pair_files import save_preference, write_lines
from composer_replication.teacher_replay.records import Pair
from composer_replication.trainer.preference_rows import preference_rows


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


def test_pairs_in_every_form_that_is_written(tmp_path: Path) -> None:
    flat = json_lines(tmp_path / "a.jsonl", pair(0), pair(1))
    chat = json_lines(tmp_path / "b.jsonl", normalized())
    save_preference([pair(2)], tmp_path / "c.jsonl")  # type: ignore[list-item]
    save_preference([pair(3)], tmp_path / "d.parquet")  # type: ignore[list-item]
    files = (flat, chat, tmp_path / "c.jsonl", tmp_path / "d.parquet")
    data = load_training_data(DataSection(pairs=files))
    assert data.counts == {"pairs": {"pairs": 5}}
    assert [one.state_id for one in data.pairs[:3]] == ["s::0000", "s::0001", "s::0000"]
    assert (data.pairs[2].chosen.content, data.pairs[2].rejected.content) == ("Yes.", "No.")
    for number, row in zip((2, 3), data.pairs[3:], strict=True):
        assert row["prompt"] == [{"role": "user", "content": f"Show me file {number}."}]
        (call,) = row["chosen"][0]["tool_calls"]
        assert call["function"] == {"name": "Read", "arguments": {"file_path": f"f{number}.py"}}
    rows = preference_rows(tiny_tokenizer("qwen2_5"), data.pairs, max_length=512)
    assert len(rows) == 5
    assert len(load_training_data(DataSection(pairs=files, max_pairs=1)).pairs) == 1


def test_pairs_of_compact_files_share_their_messages(tmp_path: Path) -> None:
    steps: list[Any] = [{"role": "user", "content": f"Step {number}"} for number in range(5)]
    flat = [{**pair(number), "state_messages": steps[: number + 1]} for number in range(5)]
    chat = [normalized(state_messages=[dict(step) for step in steps[: number + 1]]) for number in range(5)]
    for name, rows in (("flat", flat), ("chat", chat)):
        write_lines(compact_rows(rows), tmp_path / f"{name}.jsonl")
    files = (tmp_path / "flat.jsonl", tmp_path / "chat.jsonl")
    pairs = load_training_data(DataSection(pairs=files)).pairs
    assert pairs[:5] == list(map(Pair.of, flat))
    assert [list(one.messages) for one in pairs[5:]] == [row["state_messages"] for row in chat]
    assert len({id(message) for one in pairs for message in one.messages}) == 2 * 5
    rendered = preference_rows(tiny_tokenizer("qwen2_5"), pairs, max_length=512)
    assert rendered == preference_rows(
        tiny_tokenizer("qwen2_5"), [*flat, *(NormalizedDPOPair(**row) for row in chat)], max_length=512
    )
    cut = files[1].read_bytes().rpartition(b'{"pairs"')[0]
    files[1].write_bytes(cut)
    with pytest.raises(
        ValueError, match=r"data.pairs: .*chat.jsonl, line 12: the last line is missing: the file was cut"
    ):
        load_training_data(DataSection(pairs=files))


def test_a_normalised_side_may_have_parts_or_no_text(tmp_path: Path) -> None:
    parts = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]}
    file = json_lines(tmp_path / "n.jsonl", normalized(chosen_messages=[parts], rejected_messages=[call]))
    (pair,) = load_training_data(DataSection(pairs=(file,))).pairs
    assert (pair.chosen.content, pair.rejected.content, pair.rejected.tool_calls[0].name) == ("Yes.", "", "ls")


def test_prompts_become_messages(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    rows = [{"prompt": "Hi", "answer": 3}, {"prompt": chat, "level": "easy"}]
    lines = load_training_data(DataSection(prompts=json_lines(tmp_path / "p.jsonl", *rows))).prompts
    assert lines == [{"prompt": [{"role": "user", "content": "Hi"}], "answer": 3}, {"prompt": chat, "level": "easy"}]
    table = pyarrow.Table.from_pylist([{"prompt": [{**chat[0], "name": "x"}, chat[1]], "answer": 3}])
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    (row,) = load_training_data(DataSection(prompts=tmp_path / "p.parquet")).prompts
    assert row == {"prompt": [{**chat[0], "name": "x"}, chat[1]], "answer": 3}


def test_tasks_are_generated() -> None:
    tasks = TasksSection(split="dev", count=5, seed=1, arguments={"calls": 2})
    environment = EnvironmentSection(class_="house_style", tasks=tasks)
    data = load_training_data(DataSection(), environment)
    assert data.prompts == make_tasks("dev", 5, seed=1, calls=2)
    assert data.counts == {"prompts": {"prompts": 5}}
    assert load_training_data(DataSection(max_prompts=3), environment).prompts == data.prompts[:3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calls": 9}, "calls must be numbers between 1 and 4, got 9"),
        ({"call": 1}, "unexpected keyword argument 'call'"),
        ({"seed": 1}, "multiple values for keyword argument 'seed'"),
    ],
)
def test_tasks_that_cannot_be_made(arguments: dict[str, Any], message: str) -> None:
    environment = EnvironmentSection(class_="house_style", tasks=TasksSection(arguments=arguments))
    with pytest.raises(ValueError, match=rf"^environment\.tasks: house_style cannot make them: .*{message}$"):
        load_training_data(DataSection(), environment)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"traces": "nowhere"}, "data.traces: DIR/nowhere holds no traces: make some with"),
        ({"traces": "silent"}, "holds no turn of an assistant"),
        ({"pairs": ["nowhere.jsonl"]}, "data.pairs: DIR/nowhere.jsonl: there is no such file"),
        ({"pairs": ["pairs.csv"]}, "data.pairs: DIR/pairs.csv must be .jsonl or .parquet"),
        ({"pairs": ["fake.parquet"]}, "data.pairs: DIR/fake.parquet is not a Parquet file"),
        ({"pairs": ["empty.jsonl"]}, "DIR/empty.jsonl: there is no pair in it"),
        ({"pairs": ["cut.jsonl"]}, "data.pairs: DIR/cut.jsonl, line 2: not JSON"),
        (
            {"pairs": ["prompts.jsonl"]},
            "data.pairs: DIR/prompts.jsonl, line 1: not a pair, 'prompt' is missing",
        ),
        ({"pairs": ["other.jsonl"]}, "data.pairs: DIR/other.jsonl, line 1: not a pair, 'state_id' is missing"),
        ({"pairs": ["half.jsonl"]}, "line 1: not a normalised pair, 'chosen_messages' is not one"),
        ({"pairs": ["users.jsonl"]}, "line 1: not a normalised pair, 'rejected_messages' is not one"),
        ({"prompts": "nowhere.jsonl"}, "data.prompts: DIR/nowhere.jsonl: there is no such file"),
        ({"prompts": "empty.jsonl"}, "data.prompts: DIR/empty.jsonl holds no prompt"),
        ({"prompts": "hollow.jsonl"}, "data.prompts: DIR/hollow.jsonl, row 1: `prompt` is missing (there are"),
        ({"prompts": "mute.jsonl"}, "data.prompts: DIR/mute.jsonl, row 1: `prompt` is neither a text nor chat"),
        ({"prompts": "cut.jsonl"}, "`prompt` is missing"),
        ({"prompts": "list.jsonl"}, "data.prompts: DIR/list.jsonl, line 1: not an object, but a list"),
        ({"prompts": "fake.parquet"}, "data.prompts: DIR/fake.parquet is not a Parquet file"),
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
    json_lines(tmp_path / "mute.jsonl", {"prompt": " "})
    json_lines(tmp_path / "half.jsonl", {"chosen_messages": []})
    json_lines(tmp_path / "users.jsonl", normalized(rejected_messages=[{"role": "user", "content": "No."}]))
    json_lines(tmp_path / "prompts.jsonl", {"prompt": "Hi"})
    json_lines(tmp_path / "list.jsonl", [1])
    json_lines(tmp_path / "other.jsonl", {"text": "Hi"})
    paths = {
        name: tuple(tmp_path / one for one in value) if isinstance(value, list) else tmp_path / value
        for name, value in given.items()
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        load_training_data(DataSection(**paths))  # type: ignore[arg-type]
    assert message.replace("DIR", str(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)
