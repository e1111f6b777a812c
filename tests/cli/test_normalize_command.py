"""`composer-replication normalize` as a user meets it: what it writes, says and refuses, and what it leaves alone."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet
import pytest
from replaysim.some_pairs import call, pair, recipe_file

from composer_replication.cli import app as cli
from composer_replication.replaysim import normalize as module
from composer_replication.replaysim.normalize import normalize_file
from composer_replication.teacher_replay.pair_files import (
    load_pairs,
    save_compact_pairs,
    save_pairs,
    stored_pairs,
    training_pairs,
)
from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Source, ToolCall, Trace, Turn

Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [pair(0), pair(1, chosen="no"), pair(2, chosen=call("ls"), rejected="x"), pair(3, chosen=call("pytest -q"))]
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: (cli.run(["normalize", *map(str, arguments)]), *capsys.readouterr())


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_pairs_are_written_and_counted(pairs: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "deep" / "out.jsonl"
    code, out, err = run(pairs, "-o", output)
    assert (code, err) == (0, "")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert cells[0] == ["in", "4", "2"]
    assert ["dropped by text_length_filter on chosen", "1", "0"] in cells
    assert ["dropped by text_length_filter on rejected", "1", "1"] in cells
    assert cells[-1] == ["kept", "2", "1"]
    assert [row["state_id"] for row in rows_of(output)] == ["state-000", "state-003"]
    row = rows_of(output)[1]
    assert list(row) == [
        "state_id",
        "state_messages",
        "chosen_messages",
        "rejected_messages",
        "n_teachers_agreeing",
        "metadata",
    ]
    assert row["chosen_messages"][0]["tool_calls"][0]["function"]["name"] == "Bash"
    summary = json.loads((tmp_path / "deep" / "out.jsonl.summary.json").read_text())
    assert [one["reason"] for one in summary["report"]["dropped"]] == [
        "text_length_filter on chosen: text_len 2 < 8",
        "text_length_filter on rejected: text_len 1 < 8",
    ]
    assert sorted(path.name for path in output.parent.iterdir()) == ["out.jsonl", "out.jsonl.summary.json"]
    assert str(tmp_path) not in json.dumps(summary)


def test_a_second_run_has_nothing_to_do(pairs: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.jsonl"
    code, first, _ = run(pairs, "-o", output, "--json")
    written = output.read_bytes()
    assert (code, json.loads(first)["up_to_date"]) == (0, False)
    with monkeypatch.context() as patch:
        patch.setattr(module, "DJNormalizer", _refuse_to_work(module.DJNormalizer))
        code, out, _ = run(pairs, "-o", output)
        assert code == 0
        assert "up to date" in out
        code, again, _ = run(pairs, "-o", output, "--json")
    assert json.loads(again) == {**json.loads(first), "up_to_date": True}
    for change in (
        lambda: pairs.write_text(pairs.read_text() + json.dumps(pair(9)) + "\n"),
        lambda: output.write_bytes(written[:-1]),
        lambda: output.unlink(),
        lambda: Path(f"{output}.summary.json").write_text("{"),
        lambda: Path(f"{output}.summary.json").write_text("{}"),
        lambda: Path(f"{output}.summary.json").unlink(),
    ):
        change()
        assert '"up_to_date": false' in run(pairs, "-o", output, "--json")[1]
        assert '"up_to_date": true' in run(pairs, "-o", output, "--json")[1]
    for options in (["--recipe", "prose"], ["--skip-dj"], ["--force"]):
        assert '"up_to_date": false' in run(pairs, "-o", output, "--json", *options)[1]


@pytest.fixture
def compact(tmp_path: Path) -> Path:
    """Twelve pairs of a session, in the form that `pairs` writes; the third is too short."""
    turns = [Turn("user", "Make it work")]
    for number in range(12):
        turns.append(Turn("assistant", "", tool_calls=[ToolCall(f"c{number}", "Bash", {"command": f"rm {number}"})]))
        turns.append(Turn("tool", f"result {number}", tool_call_id=f"c{number}"))
    states = Trace("t", turns, Source("f", "x")).states(system_prompt="Be brief.")
    tools = [{"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}]
    made: list[Any] = [
        pair(0, state_id=one["state_id"], state_messages=one["messages"], rejected=one["student_action"], tools=tools)
        for one in states
    ]
    made[2]["chosen"] = "no"
    save_compact_pairs(made, tmp_path / "compact.jsonl")
    return tmp_path / "compact.jsonl"


def test_the_output_is_in_the_form_of_the_input(compact: Path, tmp_path: Path, run: Run) -> None:
    save_pairs(load_pairs(compact), tmp_path / "plain.jsonl")
    reports = []
    for name in ("compact", "plain"):
        given = (tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}_out.jsonl", "--json")
        code, out, _ = run(*given, "--preference", tmp_path / f"{name}.parquet")
        reports.append({**json.loads(out), "output": None})
        assert (code, reports[-1]["pairs_out"], reports[-1]["up_to_date"]) == (0, 11, False)
        assert json.loads(run(*given)[1])["up_to_date"]
    assert reports[0] == reports[1]
    plain = rows_of(tmp_path / "plain_out.jsonl")
    assert [one["state_id"] for one in plain] == [f"t::{number:04d}" for number in range(12) if number != 2]
    stored = list(training_pairs(tmp_path / "compact_out.jsonl"))
    kept = [one for one in stored_pairs(compact) if one.state_id != "t::0002"]
    assert stored == list(training_pairs(tmp_path / "plain_out.jsonl")) == kept
    # Every message and the tools once, on the disk and in memory.
    lines = rows_of(tmp_path / "compact_out.jsonl")
    assert sum("message" in line for line in lines) == 2 + 2 * 11
    assert len({id(message) for one in stored for message in one.messages}) == 2 + 2 * 11
    assert sum(list(line) == ["tools"] for line in lines) == 1
    tables = [pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("compact", "plain")]
    assert tables[0].equals(tables[1])


def test_histories_are_never_all_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Message(dict[str, str]):
        alive, most = 0, 0

        def __init__(self, **given: str) -> None:
            super().__init__(**given)
            Message.alive += 1
            Message.most = max(Message.most, Message.alive)

        def __del__(self) -> None:
            Message.alive -= 1

    def read(_: Path) -> Any:
        for number in range(50):
            messages = [Message(role="user", content=f"{number} {part}") for part in range(4)]
            yield Pair.of(pair(number, state_messages=messages))

    monkeypatch.setattr(module, "stored_pairs", read)
    (tmp_path / "pairs.jsonl").touch()
    made = normalize_file(tmp_path / "pairs.jsonl", tmp_path / "out.jsonl", preference=tmp_path / "out.parquet")
    assert made.report["pairs_out"] == 50
    assert Message.most <= 4 * 4


def test_pairs_that_change_while_they_are_read_are_an_error(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changing(module.DJNormalizer):
        def kept(self, given: Any) -> Any:
            kept = super().kept(given)
            pairs.write_text("\n".join(pairs.read_text().splitlines()[2:]))
            return kept

    monkeypatch.setattr(module, "DJNormalizer", Changing)
    with pytest.raises(ValueError, match=r"pairs.jsonl: it changed while it was read; run this again"):
        normalize_file(pairs, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def _refuse_to_work(normalizer: Any) -> Any:
    class Refusing(normalizer):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            pytest.fail("it worked")

    return Refusing


def test_a_new_version_makes_them_again(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.jsonl"
    normalize_file(pairs, output)
    assert normalize_file(pairs, output).up_to_date
    monkeypatch.setattr(module, "version", lambda package: "9.9")
    assert not normalize_file(pairs, output).up_to_date


def test_skipping_keeps_all(pairs: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run(pairs, "-o", tmp_path / "out.jsonl", "--skip-dj", "--json")
    assert (code, json.loads(out)["pairs_out"], json.loads(out)["recipe"]) == (0, 4, None)
    assert rows_of(tmp_path / "out.jsonl")[1]["metadata"] == {"skipped": True}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_also_as_preference_data(ending: str, pairs: Path, tmp_path: Path, run: Run) -> None:
    tools = [{"type": "function", "function": {"name": "Bash", "description": "", "parameters": {}}}]
    pairs.write_text(pairs.read_text() + json.dumps(pair(4, chosen=call("ls -l"), tools=tools)))
    output, preference = tmp_path / "out.jsonl", tmp_path / "trl" / f"out.{ending}"
    given = (pairs, "-o", output, "--preference", preference, "--json")
    assert '"up_to_date": false' in run(*given)[1]
    if ending == "parquet":
        rows = [
            {name: column and [json.loads(one) for one in column] for name, column in row.items()}
            for row in pyarrow.parquet.read_table(preference).to_pylist()
        ]
    else:
        rows = rows_of(preference)
    assert len(rows) == 3
    assert rows[0]["prompt"] == [{"role": "user", "content": "Task 0"}]
    assert rows[0]["rejected"] == [{"role": "assistant", "content": "Rewrite the module at once."}]
    assert rows[2]["chosen"][0]["tool_calls"][0]["function"] == {"name": "Bash", "arguments": {"command": "ls -l"}}
    assert rows[2]["tools"] == tools
    assert '"up_to_date": true' in run(*given)[1]
    preference.unlink()
    assert '"up_to_date": false' in run(*given)[1]
    assert preference.exists()


def test_characters_survive(tmp_path: Path, run: Run) -> None:
    source = tmp_path / "pairs.jsonl"
    odd = [pair(0, chosen="Größe prüfen — 大小 \U0001f600"), pair(1, chosen="half \ud83d a character")]
    source.write_text("".join(json.dumps(row) + "\n" for row in odd), encoding="utf-8")
    assert run(source, "-o", tmp_path / "out.jsonl")[0] == 0
    content = [row["chosen_messages"][0]["content"] for row in rows_of(tmp_path / "out.jsonl")]
    assert content == ["Größe prüfen — 大小 \U0001f600", "half \ud83d a character"]
    assert "Größe" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_no_pair_left(tmp_path: Path, run: Run) -> None:
    source = tmp_path / "pairs.jsonl"
    source.write_text(json.dumps(pair(0, chosen="no")), encoding="utf-8")
    code, out, err = run(source, "-o", tmp_path / "out.jsonl", "--json")
    assert (code, err, json.loads(out)["pairs_out"]) == (1, "", 0)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["nowhere.jsonl", "-o", "OUT"], 2, "nowhere.jsonl: there is no such file of pairs"),
        (["FOLDER", "-o", "OUT"], 2, "there is no such file of pairs"),
        (["PAIRS"], 2, "Missing option '--output'"),
        (["PAIRS", "-o", "out.csv"], 1, "out.csv: this is written as .jsonl"),
        (["PAIRS", "-o", "OUT", "--preference", "out.csv"], 1, "out.csv: this is written as .jsonl or .parquet"),
        (["PAIRS", "-o", "OUT", "--preference", "PAIRS"], 1, "this is the input; give another file"),
        (["PAIRS", "-o", "OUT", "--preference", "OUT"], 1, "this is given for both outputs"),
        (["PAIRS", "-o", "PAIRS"], 1, "this is the input; give another file"),
        (["PAIRS", "-o", "PAIRS/out.jsonl"], 1, "the pairs need a place that can be written"),
        (["PAIRS", "-o", "OUT", "--recipe", "nowhere"], 2, "nowhere: there is no such recipe"),
        (["PAIRS", "-o", "OUT", "--recipe", "WRONG"], 1, "no_such_filter: Unknown operator 'no_such_filter'"),
        (["PAIRS", "-o", "OUT", "--executor", "dask"], 2, "'dask' is not one of"),
        (["PAIRS", "-o", "OUT", "-p", "0"], 2, "'--processes'"),
        (["CUT", "-o", "OUT"], 1, "cut.jsonl, line 3: not JSON"),
        (["LACKS", "-o", "OUT"], 1, "lacks.jsonl, line 1: not a pair, 'n_teachers_agreeing' is missing"),
        (["EMPTY", "-o", "OUT"], 1, "empty.jsonl: there is no pair in it"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    arguments: list[str],
    expected: int,
    message: str,
    pairs: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    (tmp_path / "cut.jsonl").write_text(pairs.read_text().partition("\n\n")[0] + '\n\n{"state_id": "x')
    (tmp_path / "lacks.jsonl").write_text(json.dumps({k: v for k, v in pair().items() if k != "n_teachers_agreeing"}))
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    recipe_file(tmp_path, "no_such_filter: {text_key: chosen}")
    names = {
        "PAIRS": pairs,
        "PAIRS/out.jsonl": pairs / "out.jsonl",
        "OUT": tmp_path / "out.jsonl",
        "CUT": tmp_path / "cut.jsonl",
        "LACKS": tmp_path / "lacks.jsonl",
        "EMPTY": tmp_path / "empty.jsonl",
        "FOLDER": tmp_path / "folder",
        "WRONG": tmp_path / "recipe.yaml",
    }
    before = sorted(path.name for path in tmp_path.iterdir())
    content = pairs.read_bytes()
    code, out, err = run(*(names.get(argument, argument) for argument in arguments))
    assert (code, out) == (expected, "")
    assert err.startswith("error: ")
    assert message in " ".join(err.split())
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert pairs.read_bytes() == content


def test_what_stood_there_before_stays_if_a_run_fails(pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    normalize_file(pairs, output)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out*")}
    pairs.write_text(pairs.read_text() + "{", encoding="utf-8")
    with pytest.raises(ValueError, match="line 9: not JSON"):
        normalize_file(pairs, output)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*out*")} == before
    assert list(tmp_path.glob(".*")) == []


def test_a_disk_that_is_full_is_named_with_its_path(pairs: Path, tmp_path: Path, run: Run) -> None:
    output, (soft, hard) = tmp_path / "out.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        code, out, err = run(pairs, "-o", output, "--skip-dj")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (1, "")
    assert err == f"error: {output}: File too large; the pairs need a place that can be written\n"
    assert [path.name for path in tmp_path.iterdir()] == [pairs.name]
