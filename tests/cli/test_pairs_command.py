"""`composer-replication pairs` as a user meets it: a replay on disk, files, exit codes, a judge over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from datasets import Dataset
from teacher_replay.loopback_teacher import LoopbackTeachers, states_of

from composer_replication.cli import app as cli
from composer_replication.ingestion.store import ManifestEntry, TraceStore
from composer_replication.teacher_replay.pair_files import load_pairs
from composer_replication.teacher_replay.records import TeacherRow
from composer_replication.teacher_replay.replay_files import ReplayFolder, StateOptions
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import Source, ToolCall, Trace, Turn, dump_json, parse_action

Run: TypeAlias = Callable[..., tuple[int, str, str]]
TEACHERS = ("some-claude", "some-gpt", "some-qwen")


def call(**arguments: Any) -> str:
    return f"[TOOL_USE] name=Bash input={dump_json(arguments)}"


def row(state_id: str, teacher: str, text: str | None, gated_by: Any = None) -> TeacherRow:
    turn = None if text is None else parse_action(text)
    return TeacherRow(state_id, teacher, turn, 1.0, 10, 2, error=None if turn else "HTTP 500", gated_by=gated_by)


def replay_of(
    folder: Path,
    answers: dict[str, Sequence[str | None]],
    report: dict[str, Any] | None = None,
    gated_by: dict[str, Any] | None = None,
) -> Path:
    """A replay as the command leaves it: by state, what each teacher said."""
    replayed = ReplayFolder(folder, create=True)
    writer = replayed.writer()
    for state_id, texts in answers.items():
        writer.add(row(state_id, teacher, text, gated_by) for teacher, text in zip(TEACHERS, texts, strict=True))
    writer.finish()
    specs = [{"slug": slug, "base_url": "http://127.0.0.1:9/v1"} for slug in TEACHERS]
    replayed.write_settings(StateOptions(), resolve_teachers(specs), report or {})
    return folder


@pytest.fixture
def states(tmp_path: Path) -> Path:
    file = tmp_path / "states.jsonl"
    rows = [dict(state) for state in states_of("a", "b", "c", student=call(command="rm -rf build"))]
    file.write_text("".join(dump_json(one) + "\n" for one in rows))
    return file


@pytest.fixture
def replayed(tmp_path: Path) -> Path:
    listing = (call(command="ls -la src"), call(command="ls -al ./src", description="look"), "I am done.")
    student = (call(command="rm  -rf  build"), call(command="rm -rf build/"), call(command="ls"))
    return replay_of(
        tmp_path / "replayed", {"t::0000": listing, "t::0001": student, "t::0002": (None, "One thing.", "Another.")}
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: (cli.run(["pairs", *map(str, arguments)]), *capsys.readouterr())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def stored_session(folder: Path, steps: int) -> Path:
    """A folder of traces with one session, in which every step has a long result."""
    turns = [Turn("user", "Make it work")]
    for number in range(steps):
        turns.append(Turn("assistant", "", tool_calls=[ToolCall(f"c{number}", "Bash", {"command": f"rm {number}"})]))
        turns.append(Turn("tool", f"{number} " * 200, tool_call_id=f"c{number}"))
    store = TraceStore(folder)
    store.write_traces("t.jsonl", [Trace("t", turns, Source("s", "x"))])
    store.note(ManifestEntry(source="s", key="t", status="read", size=0, modified_ns=0, output="t.jsonl"))
    return folder


def test_pairs_by_meaning_with_their_figures(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "made" / "pairs.jsonl"
    code, out, _ = run(states, "--replay", replayed, "-o", output, "--json")
    figures = json.loads(out)
    assert (code, figures["pairs"], figures["states"], figures["states_with_answers"]) == (0, 1, 3, 3)
    assert (figures["failed_rows"], figures["student_supported"], figures["judge"]) == (1, 1, None)
    (pair,) = load_pairs(output)
    assert (pair["state_id"], pair["rejected"]) == ("t::0000", call(command="rm -rf build"))
    assert (pair["teachers"], pair["n_teachers_agreeing"], pair["margin"]) == (["some-claude", "some-gpt"], 2, 1)


def test_texts_that_differ_are_no_agreement_by_text(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run(states, "-r", replayed, "-o", tmp_path / "p.jsonl", "--agreement", "exact", "--json")
    assert (code, json.loads(out)["pairs"]) == (1, 0)
    assert list(load_pairs(tmp_path / "p.jsonl")) == []


def test_the_file_grows_as_the_traces_do(tmp_path: Path, run: Run) -> None:
    steps = 60
    traces = stored_session(tmp_path / "traces", steps)
    listing = (call(command="ls"), call(command="ls"), call(command="ls"))
    replayed = replay_of(tmp_path / "replayed", {f"t::{number:04d}": listing for number in range(steps)})
    output = tmp_path / "p.jsonl"
    code, _, _ = run(traces, "-r", replayed, "-o", output)
    size = sum(path.stat().st_size for path in traces.rglob("*") if path.is_file())
    assert (code, output.stat().st_size < 2 * size) == (0, True)
    code, _, _ = run(traces, "-r", replayed, "-o", tmp_path / "whole.jsonl", "--self-contained")
    assert (code, (tmp_path / "whole.jsonl").stat().st_size > 10 * size) == (0, True)
    assert [one["state_id"] for one in lines(tmp_path / "whole.jsonl")] == [f"t::{n:04d}" for n in range(steps)]
    assert list(load_pairs(output)) == lines(tmp_path / "whole.jsonl")


AT_THREE = {"agreement": "action", "agreement_threshold": 3, "min_margin": 0}


def test_pairs_are_looked_for_as_the_replay_was_gated(states: Path, tmp_path: Path, run: Run) -> None:
    answers = (call(command="ls -la src"), call(command="ls -al ./src"), call(command="ls -l -a src"))
    replayed = replay_of(tmp_path / "replayed", dict.fromkeys(["t::0000", "t::0001", "t::0002"], answers), {}, AT_THREE)
    given = (states, "-r", replayed, "-o", tmp_path / "p.jsonl")
    code, out, _ = run(*given, "--json")
    assert (code, json.loads(out)["pairs"], json.loads(out)["warnings"]) == (0, 3, [])
    code, out, _ = run(*given, "--json", "--threshold", "2")
    (told,) = json.loads(out)["warnings"]
    assert "gated by agreement action, threshold 3, margin 0, and pairs are looked for by agreement action, t" in told
    code, out, _ = run(*given, "--agreement", "exact")
    assert code == 1
    assert " ".join(out.split()).count("looked for by agreement exact, threshold 3, margin 0") == 1
    # Half of the states as the other run had it.
    writer = ReplayFolder(replayed).writer()
    writer.add(row("t::0000", slug, answers[0], {**AT_THREE, "agreement_threshold": 2}) for slug in "ab")
    writer.finish()
    code, out, _ = run(*given, "--json")
    assert (json.loads(out)["pairs"], len(json.loads(out)["warnings"])) == (3, 1)


def test_an_unfinished_replay_is_told_and_used(states: Path, tmp_path: Path, run: Run) -> None:
    report = {
        "stopped": True,
        "not_asked_for_money": 4,
        "teachers": {"some-gpt": {"left_alone": "HTTP 401: no such key"}, "some-qwen": {"left_alone": None}},
    }
    listing = (call(command="ls"), call(command="ls"), call(command="ls"))
    replayed = replay_of(tmp_path / "replayed", {"t::0001": listing}, report)
    given = (states, "-r", replayed, "-o", tmp_path / "p.jsonl")
    code, out, _ = run(*given, "--json")
    figures = json.loads(out)
    assert (code, figures["pairs"]) == (0, 1)
    assert figures["unfinished"] == {
        "stopped": True,
        "limit": None,
        "states_not_asked": 2,
        "not_asked_for_money": 4,
        "left_alone": {"some-gpt": "HTTP 401: no such key"},
    }
    assert figures["warnings"] == [
        "the replay is unfinished: it was stopped early; 2 of 3 states were not asked; 4 calls were not made for want "
        "of money; some-gpt was given up (HTTP 401: no such key)"
    ]
    code, out, _ = run(*given)
    assert (code, "the replay is unfinished: it was stopped early; 2 of 3" in " ".join(out.split())) == (0, True)


def test_a_replay_that_was_killed_is_not_called_none(states: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "replayed").mkdir()
    (tmp_path / "replayed" / "ledger.sqlite").touch()
    code, _, errors = run(states, "-r", tmp_path / "replayed", "-o", tmp_path / "p.jsonl")
    assert code == 2
    assert "is unfinished: run it again" in " ".join(errors.split())


def test_a_finished_replay_is_not_called_unfinished(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    _, out, _ = run(states, "-r", replayed, "-o", tmp_path / "p.jsonl", "--json")
    nothing = {"stopped": False, "limit": None, "states_not_asked": 0, "not_asked_for_money": 0, "left_alone": {}}
    assert (json.loads(out)["unfinished"], json.loads(out)["warnings"]) == (nothing, [])
    _, out, _ = run(states, "-r", replayed, "-o", tmp_path / "p.jsonl")
    assert "unfinished" not in out
    # Nobody is asked where the student did nothing: that is no gap.
    silent = [dict(state) for state in states_of("a", student="[THINKING]\nhm\n[/THINKING]")]
    states.write_text("".join(dump_json({**one, "state_id": "t::0009"}) + "\n" for one in silent))
    _, out, _ = run(states, "-r", replayed, "-o", tmp_path / "p.jsonl", "--json")
    assert json.loads(out)["unfinished"] == nothing


def test_the_preference_format_by_the_ending(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    for name in ("p.jsonl", "p.parquet"):
        target = tmp_path / "preference" / name
        code, out, _ = run(states, "-r", replayed, "-o", tmp_path / "pairs.jsonl", "--preference", target)
        assert (code, "pairs" in out) == (0, True)
    (row,) = lines(tmp_path / "preference" / "p.jsonl")
    assert row["chosen"][0]["tool_calls"][0]["function"]["name"] == "Bash"
    assert Dataset.from_parquet(str(tmp_path / "preference" / "p.parquet")).num_rows == 1


def test_teachers_of_the_students_family_are_named_and_can_be_left_out(
    replayed: Path, tmp_path: Path, run: Run
) -> None:
    turns = [
        Turn("user", "go"),
        Turn("assistant", "I deleted it."),
        Turn("user", "and"),
        Turn("assistant", "I deleted it again."),
    ]
    store = TraceStore(tmp_path / "traces")
    store.write_traces("t.jsonl", [Trace("t", turns, Source("s", "x"), model="claude-opus-4-5")])
    store.note(ManifestEntry(source="s", key="t", status="read", size=0, modified_ns=0, output="t.jsonl"))
    given = (tmp_path / "traces", "-r", replayed, "-o", tmp_path / "p.jsonl", "--json")
    code, out, _ = run(*given)
    assert (code, json.loads(out)["same_family"], json.loads(out)["pairs"]) == (0, {"some-claude": "claude"}, 2)
    code, out, _ = run(*given, "--exclude-same-family")
    assert (code, json.loads(out)["pairs"], list(json.loads(out)["by_teacher"])) == (1, 0, ["some-gpt", "some-qwen"])


def test_a_judge_is_asked_about_near_misses_and_paid_once(states: Path, tmp_path: Path, run: Run) -> None:
    near = (call(command="make check-fast"), call(command="make fast-check"), call(command="make lint"))
    replayed = replay_of(tmp_path / "replayed", {"t::0000": near})
    with LoopbackTeachers(lambda asked: "SAME" if asked.text.count("check") == 2 else "DIFFERENT") as server:
        judges = tmp_path / "judge.json"
        judges.write_text(json.dumps([server.spec("judge", input_per_mtok=1, output_per_mtok=1)]))
        given = (states, "-r", replayed, "-o", tmp_path / "p.jsonl", "--judges", judges, "--json")
        code, out, _ = run(*given)
        asked = len(server.asked)
        assert (code, json.loads(out)["pairs"]) == (0, 1)
        assert (json.loads(out)["judge"]["asked"], json.loads(out)["judge"]["said_same"]) == (asked, 1)
        run(*given)
        assert len(server.asked) == asked


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--preference", "p.csv"), "must end in .jsonl or .parquet"),
        (("--max-usd", "inf", "--judge", "openai/gpt-5"), "--max-usd must be an amount"),
        (("--judge", "no-such-model"), "no price is known for no-such-model"),
        (("--judges", "."), "the judge"),
        (("--threshold", "0"), "--threshold"),
    ],
)
def test_bad_usage_is_one_line_and_writes_nothing(
    more: tuple[str, ...],
    message: str,
    states: Path,
    replayed: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    code, out, err = run(states, "-r", replayed, "-o", tmp_path / "p.jsonl", *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "p.jsonl").exists()


def test_what_is_not_there_is_named(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "p.jsonl"
    code, _, err = run(tmp_path / "nothing", "-r", replayed, "-o", output)
    assert (code, "there is no such folder of traces" in err) == (2, True)
    code, _, err = run(states, "-r", tmp_path / "nothing", "-o", output)
    assert (code, "holds no replay" in err) == (2, True)
    (replayed / "answers.jsonl").write_text('{"half": ')
    code, _, err = run(states, "-r", replayed, "-o", output)
    assert (code, "answers.jsonl, line 1" in err, err.count("\n")) == (1, True, 1)
    (replayed / "replay.json").unlink()
    code, _, err = run(states, "-r", replayed, "-o", output)
    assert (code, "run the replay again" in err) == (1, True)
    assert not output.exists()


def test_a_place_that_cannot_be_written_is_named(states: Path, replayed: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").touch()
    code, _, err = run(states, "-r", replayed, "-o", tmp_path / "file" / "p.jsonl")
    assert (code, err.count("\n")) == (1, 1)
    assert f"{tmp_path / 'file' / 'p.jsonl'}: " in err
    assert ".part" not in err
