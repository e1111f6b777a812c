"""Files of pairs: plain, compact (every message stands once), and preference data."""

from __future__ import annotations

import json
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from composer_replication.teacher_replay import pair_files
from composer_replication.teacher_replay.compact_pairs import compact_rows, stored_rows
from composer_replication.teacher_replay.pair_files import (
    load_pairs,
    preference_row,
    save_compact_pairs,
    save_pairs,
    save_preference,
    stored_pairs,
    training_pairs,
)
from composer_replication.teacher_replay.records import DPOPair, Pair
from composer_replication.traces import Source, ToolCall, Trace, Turn

# Pairs of a session and one made by hand, as release 0.1.0 wrote them.
OLD = Path(__file__).parent / "fixtures" / "pairs_of_version_0_1"
TOOLS = [{"type": "function", "function": {"name": "Bash"}}]


def pair(number: int = 0, **fields: Any) -> DPOPair:
    return {
        "state_id": f"s::{number:04d}",
        "state_messages": [{"role": "user", "content": "go é\n"}],
        "chosen": "read it",
        "rejected": "guess",
        "n_teachers_agreeing": 2,
        **fields,
    }


def of_states(trace: Trace, **options: Any) -> list[DPOPair]:
    """A pair at every state of a trace, its history a view as `states` gives it."""
    return [
        pair(
            state_id=state["state_id"],
            state_messages=state["messages"],
            chosen=f"better {number}",
            rejected=state["student_action"],
            tools=TOOLS,
        )
        for number, state in enumerate(trace.states(**options))
    ]


def session(steps: int, name: str = "t") -> Trace:
    turns = [Turn("user", f"Task of {name}")]
    for number in range(steps):
        turns.append(Turn("assistant", "", tool_calls=[ToolCall(f"c{number}", "Bash", {"command": f"ls {number}"})]))
        turns.append(Turn("tool", f"result {number} of {name}", tool_call_id=f"c{number}"))
    return Trace(name, turns, Source("f", "made_up"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plain(pairs: Iterable[Any]) -> list[Any]:
    return [{**pair, "state_messages": list(pair["state_messages"])} for pair in pairs]


def compact(pairs: Iterable[DPOPair | Pair], folder: Path) -> Path:
    path = folder / "compact.jsonl"
    save_compact_pairs(pairs, path)
    return path


@pytest.mark.parametrize("save", [save_pairs, save_compact_pairs])
def test_pairs_come_back_as_they_were(save: Any, tmp_path: Path) -> None:
    cut = pair(2, chosen="cut \ud83d", state_messages=[{"role": "user", "content": "\udc00"}])
    call = pair(3, rejected='First.\n[TOOL_USE] name=Bash input={"command": "ls"}\n[TOOL_USE] name=Bash input=no JSON')
    pairs = [pair(0, teachers=["a", "b"], margin=1, similarity=0.9, tools=TOOLS), pair(1, mine={"a": 1}), cut, call]
    path = tmp_path / "deep" / "er" / "pairs.jsonl"
    for given in (pairs, map(Pair.of, pairs)):
        save(given, path)
        assert list(load_pairs(path)) == pairs
        assert list(stored_pairs(path)) == list(training_pairs(path)) == list(map(Pair.of, pairs))
    assert [entry.name for entry in path.parent.iterdir()] == ["pairs.jsonl"]
    for ending in ("jsonl", "parquet"):
        assert save_preference([cut], tmp_path / f"preference.{ending}") == 1


def test_a_compact_file_holds_turns_and_a_plain_one_texts(tmp_path: Path) -> None:
    given = [Pair.of(pair(rejected='[TOOL_USE] name=Bash input={"command": "ls"}'))]
    row = lines(compact(given, tmp_path))[-2]
    assert row["chosen"] == {"role": "assistant", "content": "read it"}
    call = {"id": "call_0", "name": "Bash", "arguments": {"command": "ls"}}
    assert row["rejected"] == {"role": "assistant", "content": "", "tool_calls": [call]}
    save_pairs(given, tmp_path / "plain.jsonl")
    (row,) = lines(tmp_path / "plain.jsonl")
    assert row == pair(rejected='[TOOL_USE] name=Bash input={"command": "ls"}')


def test_files_of_release_0_1_are_read_with_the_same_content() -> None:
    pairs = lines(OLD / "plain.jsonl")
    assert len(pairs) == 6
    assert list(load_pairs(OLD / "plain.jsonl")) == list(load_pairs(OLD / "compact.jsonl")) == pairs
    read = list(map(Pair.of, pairs))
    assert [one.with_texts() for one in read] == pairs
    for name in ("plain", "compact", "normalized", "normalized_compact"):
        assert list(training_pairs(OLD / f"{name}.jsonl")) == read, name
    rows = lines(OLD / "preference.jsonl")
    assert list(map(preference_row, read)) == list(training_pairs(OLD / "preference.jsonl")) == rows
    assert list(training_pairs(OLD / "preference.parquet")) == [
        {key: [json.dumps(tool) for tool in value] if key == "tools" else value for key, value in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("writer", [save_pairs, save_compact_pairs, save_preference])
@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.parquet"])
def test_a_failure_leaves_what_was_there(writer: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    writer([pair()], path)
    before = path.read_bytes()

    def broken() -> Iterator[DPOPair]:
        yield pair(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        writer(broken(), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not an object, but a list"),
        ('{"state_id": "s"}', "line 2: not a pair, 'state_messages' is missing or not a list"),
        (json.dumps({**pair(), "chosen": None}), "line 2: not a pair, 'chosen' is missing or not a text"),
        (json.dumps({**pair(), "chosen": {"content": "x"}}), "line 2: not a pair, a side is not a turn"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n" + line + "\n" + json.dumps(pair()) + "\n\n")
    for load in (load_pairs, stored_pairs, training_pairs):
        with pytest.raises(ValueError, match=message) as raised:
            list(load(path))
        assert "\n" not in str(raised.value)
        assert str(path) in str(raised.value)
    path.write_text("\n" + json.dumps(pair()) + "\n\n")
    assert len(list(load_pairs(path))) == 1


def test_what_is_missing_or_has_another_ending_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: no such file"):
        load_pairs(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=r"'pairs.csv' must end in .jsonl or .parquet"):
        save_preference([pair()], tmp_path / "pairs.csv")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        save_pairs([pair()], tmp_path / "file" / "pairs.jsonl")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_no_pairs_and_states_without_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert save_preference([pair(state_messages=[]), pair()], tmp_path / "pairs.parquet") == 1
    assert "1 pairs are left out" in caplog.text
    assert save_preference([], tmp_path / "pairs.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "pairs.parquet")
    assert table.column_names == ["prompt", "chosen", "rejected", "tools"]
    assert save_preference([], tmp_path / "pairs.jsonl") == 0
    assert (tmp_path / "pairs.jsonl").read_bytes() == b""
    path = compact([], tmp_path)
    assert lines(path) == [{"begin": "pairs"}, {"pairs": 0}]
    assert list(load_pairs(path)) == []


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


def test_tools_of_earlier_pairs_are_not_kept_alive() -> None:
    class Tools(list[Any]):
        """A list that can be watched."""

    watched: list[weakref.ref[Tools]] = []

    def given() -> Iterator[dict[str, Any]]:
        for number in range(20):
            tools = Tools([{"type": "function", "function": {"name": "ls"}}])
            watched.append(weakref.ref(tools))
            yield {"state_id": f"t::{number:04d}", "state_messages": [], "tools": tools}
            del tools
            assert sum(one() is not None for one in watched) <= 2

    assert sum("state_id" in row for row in compact_rows(given())) == 20


def test_every_message_and_every_set_of_tools_stands_once(tmp_path: Path) -> None:
    path = compact([*of_states(session(3, "a")), *of_states(session(2, "b"))], tmp_path)
    of_a, of_b = (
        list(list(of_states(session(steps, name)))[-1]["state_messages"]) for steps, name in ((3, "a"), (2, "b"))
    )
    written = lines(path)
    assert [line["message"] for line in written if "message" in line] == [*of_a, *of_b]
    assert [line for line in written if list(line) == ["tools"]] == [{"tools": TOOLS}]
    assert [line for line in written if list(line) == ["trace"]] == [{"trace": "a"}, {"trace": "b"}]
    histories = [line["state_messages"] for line in written if "chosen" in line]
    assert histories == [[[0, 1]], [[0, 3]], [[0, 5]], [[0, 1]], [[0, 3]]]
    assert written[-1] == {"pairs": 5}


def test_both_forms_give_the_same_pairs_in_the_same_order(tmp_path: Path) -> None:
    pairs = [*of_states(session(4, "a"), system_prompt="Be brief."), *of_states(session(3, "b"))]
    pairs[2] = {key: value for key, value in pairs[2].items() if key != "tools"}  # type: ignore[assignment]
    pairs[3]["tools"] = [{"type": "function", "function": {"name": "Read"}}]
    pairs[4]["state_messages"] = []
    save_pairs(pairs, tmp_path / "plain.jsonl")
    assert list(load_pairs(compact(pairs, tmp_path))) == list(load_pairs(tmp_path / "plain.jsonl")) == plain(pairs)
    # Once through the other form: what is equal is one message, whichever objects it comes as.
    again = compact(load_pairs(tmp_path / "plain.jsonl"), tmp_path)
    assert list(load_pairs(again)) == plain(pairs)
    assert sum("message" in line for line in lines(again)) == 8 + 5


def branched() -> Trace:
    """A trace that goes back, is compacted, and has a result cleared."""
    turns = session(4).turns
    turns += [Turn("assistant", "another way", follows=2), Turn("user", "go on"), Turn("assistant", "so")]
    turns += [Turn("user", "In short: ...", follows=-1), Turn("assistant", "after the summary")]
    turns += session(2, "later").turns[1:]
    turns += [Turn("assistant", "cleared", clears=["c0"]), Turn("user", "then"), Turn("assistant", "last")]
    return Trace("t", turns, Source("f", "made_up"))


@pytest.mark.parametrize("options", [{}, {"system_prompt": "Be brief."}, {"max_history_tokens": 12}])
def test_ranges_are_right_where_the_context_does_not_simply_grow(options: dict[str, Any], tmp_path: Path) -> None:
    pairs = of_states(branched(), **options)
    path = compact(pairs, tmp_path)
    assert list(load_pairs(path)) == plain(pairs)
    histories = [line["state_messages"] for line in lines(path) if "chosen" in line]
    assert max(map(len, histories)) > 1
    messages = [json.dumps(line["message"]) for line in lines(path) if "message" in line]
    assert len(set(messages)) == len(messages)


def test_readers_share_the_messages(tmp_path: Path) -> None:
    steps = 60
    path = compact([*of_states(session(steps, "a"), system_prompt="x"), *of_states(session(steps, "b"))], tmp_path)
    rows = [row for _, row in stored_rows(path)]
    objects = {id(message) for row in rows for message in row["state_messages"]}
    assert len(rows) == 2 * steps
    assert len(objects) == sum("message" in line for line in lines(path)) == 2 * (1 + 2 * (steps - 1)) + 1
    assert len({id(row["tools"]) for row in rows}) == 1
    # And no list of references for each: 120 pairs have three lists between them.
    assert len({id(row["state_messages"].body[0]) for row in rows}) == 2
    assert len({id(message) for pair in load_pairs(path) for message in [pair["state_messages"][0]]}) == 2


def test_files_can_be_put_one_after_the_other(tmp_path: Path) -> None:
    ours, theirs = of_states(session(3, "a")), of_states(session(2, "b"))
    theirs[0]["tools"] = [{"type": "function", "function": {"name": "Read"}}]
    save_pairs(theirs, tmp_path / "plain.jsonl")
    content = compact(ours, tmp_path).read_bytes()
    both = content + (tmp_path / "plain.jsonl").read_bytes() + compact(theirs, tmp_path).read_bytes() + b"\n" + content
    (tmp_path / "both.jsonl").write_bytes(both)
    assert list(load_pairs(tmp_path / "both.jsonl")) == plain([*ours, *theirs, *theirs, *ours])


def test_a_file_that_was_cut_is_an_error_also_where_another_follows(tmp_path: Path) -> None:
    content = compact(of_states(session(2)), tmp_path).read_bytes()
    both = tmp_path / "both.jsonl"
    for end in range(1, content.count(b"\n")):
        cut = b"".join(content.splitlines(keepends=True)[:end])
        both.write_bytes(cut + content)
        with pytest.raises(ValueError, match=rf"both.jsonl, line {end + 1}: .*was cut"):
            list(load_pairs(both))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"tools": 3}, "t::0000: 'tools' is not"), ({"state_messages": ["x"]}, "a message is not an object")],
)
def test_what_could_not_be_read_is_not_written(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    (pair, *_) = of_states(session(2))
    with pytest.raises(ValueError, match=message):
        compact([{**pair, **wrong}], tmp_path)  # type: ignore[typeddict-item]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_is_an_error_wherever_the_cut_is(tmp_path: Path) -> None:
    content = compact(of_states(session(2)), tmp_path).read_bytes()
    cut = tmp_path / "cut.jsonl"
    for end in range(1, len(content) - 1):
        cut.write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"cut.jsonl, line \d+: ") as raised:
            list(load_pairs(cut))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[4].update(state_messages=[[0, 2]]), "line 5: it names messages 0 to 1, and 1 stand above"),
        (lambda rows: rows[4].update(state_messages=[[0]]), "line 5: 'state_messages' are neither messages nor ranges"),
        (lambda rows: rows[4].update(state_messages=[[0, True]]), "line 5: 'state_messages' are neither"),
        (lambda rows: rows[4].update(state_messages=[[1, 0]]), "line 5: 'state_messages' are neither"),
        (lambda rows: rows[4].update(state_messages=[[-1, 1]]), "line 5: 'state_messages' are neither"),
        (lambda rows: rows[4].update(tools=1), "line 5: it names tools 1, and 1 stand above"),
        (lambda rows: rows[4].update(tools=-1), "line 5: it names tools -1, and 1 stand above"),
        (lambda rows: rows[2].update(message=[]), "line 3: 'message' is not an object"),
        (lambda rows: rows[3].update(tools={}), "line 4: 'tools' is not a list"),
        (lambda rows: rows.pop(4), "line 6: 2 pairs are said to stand above, and there are 1"),
        (lambda rows: rows.pop(), "line 6: the last line is missing: the file was cut; make it again"),
        (lambda rows: rows.pop(2), "line 4: it names messages 0 to 0, and 0 stand above"),
    ],
)
def test_damage_is_named_with_its_line(change: Any, message: str, tmp_path: Path) -> None:
    path = compact(of_states(session(2)), tmp_path)
    rows = lines(path)
    kinds = "begin trace message tools state_id message message state_id pairs"
    assert [next(iter(row)) for row in rows] == kinds.split()
    rows[5:7] = []  # the second pair then names what the first has
    rows[5]["state_messages"] = [[0, 1]]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=f"{path}, {message}"):
        list(load_pairs(path))
