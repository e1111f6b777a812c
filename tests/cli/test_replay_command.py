"""`composer-replication replay` as a user meets it: logs, teachers in a file, a real server, exit codes, files left."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ingestion.sessions_on_disk import names, session, write
from processes import start
from teacher_replay.loopback_teacher import Asked, Cut, Held, LoopbackTeachers, Refusal, Said, states_of

from composer_replication.cli import app as cli
from composer_replication.ingestion.pipeline import ingest_logs
from composer_replication.teacher_replay.ledger import Ledger
from composer_replication.traces import ToolCall, dump_json

PRICES = {"input_per_mtok": 2, "output_per_mtok": 10}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("OPENROUTER_API_KEY", "NO_SUCH_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[LoopbackTeachers]:
    with LoopbackTeachers() as server:
        yield server


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two sessions with five steps, as `ingest` writes them. The student is a Claude."""
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b", "c"))
    write(tmp_path / "logs" / "s2.jsonl", session("d", "e"))
    ingest_logs([str(tmp_path / "logs")], tmp_path / "traces", processes=1)
    return tmp_path / "traces"


@pytest.fixture
def teachers(server: LoopbackTeachers, tmp_path: Path) -> Path:
    return teachers_file(tmp_path, server.spec("one", **PRICES), server.spec("two", **PRICES))


def teachers_file(folder: Path, *specs: dict[str, Any]) -> Path:
    file = folder / "teachers.yaml"
    file.write_text(yaml.safe_dump({"teachers": list(specs)}))
    return file


def states_file(path: Path, count: int, **options: Any) -> Path:
    states = states_of(*(f"question {number}" for number in range(count)), **options)
    path.write_text("".join(json.dumps(state) + "\n" for state in states))
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: (cli.run(["replay", *map(str, arguments)]), *capsys.readouterr())


def figures_of(run: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    figures: dict[str, Any] = json.loads(out)
    return figures


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_logs_to_answers_and_a_second_run_asks_nobody(
    server: LoopbackTeachers, traces: Path, teachers: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "replayed"
    code, shown, errors = run(traces, "-o", out, "--teachers", teachers, "--gate", "none")
    assert (code, errors) == (0, "")
    assert len(server.asked) == 10
    assert "5 states of 2 traces, 10 calls" in shown
    assert f"answers: {out}" in shown
    assert "one" in shown
    assert "two" in shown
    assert names(out) == ["answers.jsonl", "ledger.sqlite", "ledger.sqlite-owners", "replay.json"]
    rows = rows_in(out)
    assert len({(row["state_id"], row["teacher_slug"]) for row in rows}) == len(rows) == 10
    assert all(row["error"] is None and row["cost_usd"] > 0 for row in rows)
    settings = json.loads((out / "replay.json").read_text())
    assert settings["teachers"] == {"one": [], "two": []}
    assert settings["report"]["calls"] == 10
    figures = figures_of(run, traces, "-o", out, "--teachers", teachers, "--gate", "none")
    assert len(server.asked) == 10
    assert (figures["calls"], figures["stored"], figures["spent_usd"]) == (0, 10, 0.0)
    assert figures["saved_by_ledger_usd"] == pytest.approx(sum(row["cost_usd"] for row in rows))
    assert sorted(map(dump_json, rows_in(out))) == sorted(dump_json({**row, "stored": True}) for row in rows)


def test_off_a_terminal_progress_is_lines(
    server: LoopbackTeachers, traces: Path, teachers: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.cli.replay.SECONDS_BETWEEN_LINES", 0.0)
    given = [traces, "--teachers", teachers, "--gate", "none", "--concurrency", 1]
    _, _, errors = run(*given, "-o", tmp_path / "out")
    lines = errors.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"1 of 10 questions \| 1 answered \| \$0\.\d{4} spent \| \d+:\d\d left", lines[0])
    assert re.fullmatch(r"10 of 10 questions \| 10 answered \| \$0\.\d{4} spent", lines[-1])
    _, _, errors = run(*given, "-o", tmp_path / "out")
    assert errors.splitlines()[-1] == "10 of 10 questions | 10 stored | $0.0000 spent"
    assert figures_of(run, *given, "-o", tmp_path / "out")["stored"] == 10


def test_by_default_the_cheapest_are_asked_first_and_meaning_decides(
    server: LoopbackTeachers, traces: Path, tmp_path: Path, run: Run
) -> None:
    commands = {"cheap": "rm -rf build && make", "middle": "rm  -rf 'build' && make", "dear": "ls"}

    def call(asked: Asked) -> Said:
        return {"content": "", "tool_calls": [ToolCall("c", "Bash", {"command": commands[asked.model]}).message()]}

    server.answer = call
    prices = {"dear": 9, "cheap": 1, "middle": 2}
    specs = [server.spec(slug, input_per_mtok=price, output_per_mtok=price) for slug, price in prices.items()]
    file = teachers_file(tmp_path, *specs)
    figures = figures_of(run, traces, "-o", tmp_path / "out", "--teachers", file)
    assert (figures["calls"], figures["not_asked_by_gate"]) == (10, 5)
    assert Counter(asked.model for asked in server.asked) == {"cheap": 5, "middle": 5}
    assert {"Bash", "Write"} <= {tool["function"]["name"] for tool in server.asked[0].body["tools"]}


def test_the_json_has_these_figures(
    server: LoopbackTeachers, traces: Path, teachers: Path, tmp_path: Path, run: Run
) -> None:
    figures = figures_of(run, traces, "-o", tmp_path / "out", "--teachers", teachers, "--gate", "none")
    assert set(figures) == {
        *("answered", "cut", "cut_usd", "unusable", "unusable_usd"),
        *("traces", "states", "calls", "stored", "failed", "not_asked_by_gate", "not_asked_for_money", "spent_usd"),
        *("saved_by_ledger_usd", "saved_by_prompt_cache_usd", "saved_by_gate_usd", "budget", "same_family"),
        *("excluded", "stopped", "teachers", "too_long"),
    }
    assert set(figures["budget"]) == {"spent_usd", "in_doubt", "in_doubt_usd", "in_flight_elsewhere", "repeated"}
    assert set(figures["teachers"]) == {"one", "two"}
    assert set(figures["teachers"]["one"]) == {
        *("answered", "stored", "failed", "not_asked_by_gate", "not_asked_for_money", "retries", "spent_usd"),
        *("prompt_tokens", "cached_tokens", "completion_tokens", "latency_p50_s", "latency_p95_s", "left_alone"),
        *("cut", "cut_usd", "unusable", "unusable_usd", "last_error", "last_unusable", "last_too_long", "too_long"),
    }
    assert (figures["traces"], figures["states"], figures["stopped"]) == (2, 5, False)


def test_a_dry_run_prices_it_asks_nobody_and_writes_nothing(
    server: LoopbackTeachers, traces: Path, teachers: Path, tmp_path: Path, run: Run
) -> None:
    before = sorted(tmp_path.rglob("*"))
    shared = (traces, "--teachers", teachers, "--dry-run", "--agreement", "exact")
    code, shown, errors = run(*shared, "-o", tmp_path / "out", "--gate", "none")
    assert (code, errors) == (0, "")
    assert "5 states of 2 traces; tokens are counted as four bytes each" in shown
    assert "the cap is $5.00" in shown
    assert "expected: $" in shown
    estimate = figures_of(run, *shared)
    assert estimate["teachers"]["one"]["calls"] == 5
    total = sum(teacher["expected_usd"] for teacher in estimate["teachers"].values())
    assert 0 < estimate["at_least_usd"] < estimate["at_most_usd"] == pytest.approx(total)
    assert "with the gate: between $" in run(*shared)[1]
    assert sorted(tmp_path.rglob("*")) == before
    assert server.asked == []
    figures_of(run, traces, "--teachers", teachers, "-o", tmp_path / "out", "--gate", "none", "--limit", "2")
    estimate = figures_of(run, *shared, "-o", tmp_path / "out")
    assert (estimate["teachers"]["one"]["stored"], estimate["teachers"]["one"]["calls"]) == (2, 3)


def test_a_dry_run_needs_no_key(traces: Path, run: Run) -> None:
    """And the three default teachers are there by themselves; one of them is of the student's family."""
    estimate = figures_of(run, traces, "--dry-run")
    assert list(estimate["teachers"]) == ["anthropic/claude-opus-4.7", "openai/gpt-5", "deepseek/deepseek-v4-pro"]
    assert estimate["same_family"] == {"anthropic/claude-opus-4.7": "claude"}
    _, shown, _ = run(traces, "--dry-run")
    assert "teaches its own kind (--exclude-same-family leaves it out)" in shown
    _, shown, _ = run(traces, "--dry-run", "--exclude-same-family")
    assert "anthropic/claude-opus-4.7 is a claude, as the student was; it is not asked" in shown
    estimate = figures_of(run, traces, "--dry-run", "--teacher", "openai/gpt-5", "--gate", "none")
    assert list(estimate["teachers"]) == ["openai/gpt-5"]


def test_a_trial_of_a_few_states_is_not_paid_again(
    server: LoopbackTeachers, traces: Path, teachers: Path, tmp_path: Path, run: Run
) -> None:
    shared = (traces, "-o", tmp_path / "out", "--teachers", teachers, "--gate", "none")
    assert figures_of(run, *shared, "--limit", "2")["calls"] == 4
    assert len(rows_in(tmp_path / "out")) == 4
    figures = figures_of(run, *shared)
    assert (figures["calls"], figures["stored"]) == (6, 4)
    assert figures_of(run, *shared, "--limit", "1")["stored"] == 2
    assert len(rows_in(tmp_path / "out")) == 10  # the rows of the other states stay
    asked = Counter((one.model, json.dumps(one.body["messages"])) for one in server.asked)
    assert set(asked.values()) == {1}


def test_what_calls_in_doubt_reserve_can_be_given_back(
    server: LoopbackTeachers, teachers: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    with Ledger(out / "ledger.sqlite") as ledger:  # closed with a call under way, which is thereby in doubt
        ledger.begin("a key", "one", 4_999_000_000, cap=10**10, budget="replay")
    shared = (states_file(tmp_path / "states.jsonl", 2), "-o", out, "--teachers", teachers, "--gate", "none")
    code, shown, _ = run(*shared)
    assert code == 1
    assert "the cap: 4 calls were not made" in shown
    assert "in doubt: 1 calls may have been billed without an answer; $4.9990 stay reserved" in shown
    assert server.asked == []
    code, shown, errors = run(*shared, "--release")
    assert (code, errors) == (0, "released $4.9990 of 1 calls in doubt\n")
    assert "in doubt" not in shown
    assert len(server.asked) == 4
    code, _, errors = run(*shared, "--release")
    assert (code, errors) == (0, "released $0.0000 of 0 calls in doubt\n")


def test_keys_come_from_a_file_of_the_users(server: LoopbackTeachers, tmp_path: Path, run: Run) -> None:
    (tmp_path / "keys.env").write_text("export A_KEY='abc-123'  # mine\n")
    file = teachers_file(tmp_path, server.spec("one", api_key_variable="A_KEY"))
    states = states_file(tmp_path / "states.jsonl", 1)
    shared = (states, "-o", tmp_path / "out", "--teachers", file, "--gate", "none")
    figures_of(run, *shared, "--env-file", tmp_path / "keys.env")
    assert server.asked[0].headers["Authorization"] == "Bearer abc-123"
    shown = "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "out").iterdir() if path.is_file())
    assert "abc-123" not in shown


def test_teachers_that_fail_are_named_and_the_exit_code_is_1(
    server: LoopbackTeachers, tmp_path: Path, run: Run
) -> None:
    refusals = {"[b]": Refusal(401, "go away"), "c": Refusal(400, "not [this]")}
    server.answer = lambda asked: refusals.get(asked.model, "x")
    states = states_file(tmp_path / "states.jsonl", 3)
    bad = teachers_file(tmp_path, server.spec("a"), server.spec("[b]"), server.spec("c"))
    code, shown, errors = run(states, "-o", tmp_path / "out", "--teachers", bad, "--gate", "none")
    assert (code, errors) == (1, "")
    assert "left alone: [b]: HTTP 401: go away" in shown
    assert "failed: c: the last time, HTTP 400: not [this]" in shown
    assert len(rows_in(tmp_path / "out")) == 9
    # One that fails now and then is no failure of the run.
    some = teachers_file(tmp_path, server.spec("a"), server.spec("c"))
    assert run(states, "-o", tmp_path / "out", "--teachers", some, "--gate", "none")[0] == 0
    # A run without a single answer is one.
    none = teachers_file(tmp_path, server.spec("c"))
    assert run(states, "-o", tmp_path / "other", "--teachers", none, "--gate", "none")[0] == 1


def test_answers_that_cannot_be_used_are_said_with_their_dollars_and_the_exit_code_is_1(
    server: LoopbackTeachers, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.cli.replay.SECONDS_BETWEEN_LINES", 0.0)
    broken = {"id": "c", "type": "function", "function": {"name": "[f]", "arguments": "{"}}
    said: dict[str, Said] = {
        "[a]": Cut("half", "length"),
        "b": {"content": "", "tool_calls": [broken]},
        "c": "an answer",
    }
    server.answer = lambda asked: said[asked.model]
    states = states_file(tmp_path / "states.jsonl", 3)
    specs = [server.spec(slug, **PRICES) for slug in said]
    given = [states, "-o", tmp_path / "out", "--gate", "none", "--teachers"]
    for times in (1, 2):  # stored answers are no better
        code, shown, errors = run(*given, teachers_file(tmp_path, *specs[:2]))
        assert code == 1
        assert re.search(
            r"cut: \[a\]: 3 answers \(\$0\.0\d+\) ended at their limit of tokens.*raise its max_output_tokens", shown
        )
        assert re.search(r"unusable: b: 3 answers \(\$0\.0\d+\); the last time, .*call of \[f\] has arguments", shown)
        assert errors.splitlines()[-1].startswith("6 of 6 questions | 3 cut, 3 unusable | $0.")
        assert len(server.asked) == 6, times
    code, shown, _ = run(*given, teachers_file(tmp_path, *specs))
    assert code == 0
    figures = json.loads((tmp_path / "out" / "replay.json").read_text())["report"]
    assert (figures["calls"], figures["stored"], figures["cut"], figures["unusable"]) == (3, 0, 3, 3)


def test_the_students_family_can_be_left_out(server: LoopbackTeachers, traces: Path, tmp_path: Path, run: Run) -> None:
    file = teachers_file(tmp_path, server.spec("claude-y"), server.spec("z"), server.spec("zz"))
    shared = (traces, "-o", tmp_path / "out", "--teachers", file, "--gate", "none")
    figures = figures_of(run, *shared, "--exclude-same-family")
    assert (figures["same_family"], figures["excluded"]) == ({"claude-y": "claude"}, ["claude-y"])
    assert {asked.model for asked in server.asked} == {"z", "zz"}
    _, shown, _ = run(*shared)
    assert "same family: claude-y is a claude, as the student was; it teaches its own kind" in shown


TEACHERS = ["--teachers", "teachers.yaml"]
MADE = ["-o", "out", *TEACHERS]
BAD: dict[str, tuple[list[str], int, str]] = {
    "no output": (["states.jsonl", *TEACHERS], 2, "-o DIR is missing"),
    "no traces": (["nowhere", *MADE], 2, "nowhere: there is no such folder of traces"),
    "unknown teacher": (["states.jsonl", "-o", "out", "--teacher", "no/such"], 2, "no price is known for no/such"),
    "two ways": (["states.jsonl", *MADE, "--teacher", "a"], 2, "give --teacher or --teachers, not both"),
    "no teachers": (["states.jsonl", "-o", "out", "--teachers", "no.yaml"], 2, "there is no such file of teachers"),
    "missing key": (
        ["states.jsonl", "-o", "out", "--teacher", "openai/gpt-5", "--gate", "none"],
        1,
        "teacher openai/gpt-5 needs a key: set OPENROUTER_API_KEY",
    ),
    "no env file": (["states.jsonl", *MADE, "--env-file", "no.env"], 2, "'no.env' does not exist"),
    "cap": (["states.jsonl", *MADE, "--max-usd", "-1"], 2, "Invalid value for '--max-usd'"),
    "no cap": (["states.jsonl", *MADE, "--max-usd", "inf"], 2, "max_total_usd must be an amount of 0 or more, not inf"),
    "limit": (["states.jsonl", *MADE, "--limit", "0"], 2, "Invalid value for '--limit'"),
    "gate": (["states.jsonl", *MADE, "--gate", "often"], 2, "'often' is not one of"),
    "too few": (["states.jsonl", *MADE, "--threshold", "3"], 2, "3 teachers cannot agree where 2 are asked: name more"),
    "release": (["states.jsonl", "--dry-run", "--release", *TEACHERS], 2, "--dry-run writes nothing, and --release"),
    "empty folder": (["empty", *MADE], 1, "empty holds no traces: make some with composer-replication ingest"),
    "no states": (["none.jsonl", *MADE], 1, "none.jsonl holds no turn of an assistant: there is nothing to replay"),
    "nothing to price": (["none.jsonl", "--dry-run", *TEACHERS], 1, "none.jsonl holds no turn of an assistant"),
    "bad line": (["bad.jsonl", *MADE], 1, "bad.jsonl, line 2: a state needs 'messages', a list"),
    "bad line to price": (["bad.jsonl", "--dry-run", *TEACHERS], 1, "bad.jsonl, line 2: a state needs"),
    "ledger": (["states.jsonl", *MADE, "--ledger", "text"], 1, "text cannot be used as a replay ledger"),
    "output is a file": (["states.jsonl", "-o", "text", *TEACHERS], 2, "'text' is a file"),
    "file in the way": (
        ["states.jsonl", "-o", "text/out", *TEACHERS],
        1,
        "a replay needs a folder that can be written",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(
    case: str, server: LoopbackTeachers, teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "text").write_text("neither a folder nor a database, but long enough to be one" * 100)
    states = states_file(tmp_path / "states.jsonl", 1)
    (tmp_path / "bad.jsonl").write_text(states.read_text() + '{"state_id": "x"}\n')
    arguments, expected, message = BAD[case]
    before = {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}
    code, out, err = run(*arguments)
    assert (code, out) == (expected, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert message in err
    assert {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")} == before
    assert server.asked == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"input_per_mtok": -3}, "teacher one: input_per_mtok must be dollars per million tokens, 0 or more, not -3"),
        ({"model": ["m"]}, "teacher one: model must be a text, not ['m']"),
        ({"colour": "red"}, "teacher one: unknown field 'colour'"),
    ],
)
def test_a_bad_teacher_in_a_file_is_bad_usage(
    spec: dict[str, Any], message: str, server: LoopbackTeachers, tmp_path: Path, run: Run
) -> None:
    file = teachers_file(tmp_path, server.spec("one", **spec))
    states = states_file(tmp_path / "states.jsonl", 1)
    code, out, err = run(states, "-o", tmp_path / "out", "--teachers", file)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_answers_that_cannot_be_read_are_an_error_before_anybody_is_asked(
    server: LoopbackTeachers, teachers: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "answers.jsonl").write_text("{}\n")
    states = states_file(tmp_path / "states.jsonl", 1)
    code, _, err = run(states, "-o", tmp_path / "out", "--teachers", teachers, "--gate", "none")
    assert code == 1
    assert "answers.jsonl, line 1: no row of a replay" in err
    assert len(err.splitlines()) == 1
    assert server.asked == []
    assert (tmp_path / "out" / "answers.jsonl").read_text() == "{}\n"


def interrupted(server: LoopbackTeachers, folder: Path) -> tuple[tuple[object, ...], Path, Any]:
    """A replay of 12 states that got Ctrl-C with four answers stored and three calls under way."""
    file = teachers_file(folder, server.spec("one", **PRICES))
    states, out = states_file(folder / "states.jsonl", 12), folder / "out"
    shared = ("replay", states, "-o", out, "--teachers", file, "--gate", "none", "--concurrency", "3")
    process = start(*shared)
    server.wait_until(lambda: server.in_flight == 3)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    told = process.stderr.readline()
    assert told == "stopping: waiting for the calls under way (Ctrl-C again leaves them in doubt)\n"
    return shared, out, process


def test_ctrl_c_waits_for_what_is_under_way_and_the_next_run_goes_on(server: LoopbackTeachers, tmp_path: Path) -> None:
    held = server.answer = Held(let_first=4)
    shared, out, process = interrupted(server, tmp_path)
    held.go.set()
    shown, errors = process.communicate()
    assert (process.returncode, errors) == (130, "stopped\n")
    assert "7 calls" in shown
    assert len(server.asked) == 7
    rows = rows_in(out)
    assert [row["response_text"] for row in rows] == [f"one on question {number}" for number in range(7)]
    assert all(not name.endswith(".part") for name in names(out))
    with Ledger(out / "ledger.sqlite") as ledger:
        assert (ledger.balance("replay").answered, ledger.balance("replay").in_doubt) == (7, 0)
    again = start(*shared, "--json")
    figures = json.loads(again.communicate()[0])
    assert (again.returncode, figures["calls"], figures["stored"]) == (0, 5, 7)
    assert len(rows_in(out)) == 12
    assert set(Counter(asked.text for asked in server.asked).values()) == {1}


def test_a_second_ctrl_c_leaves_what_is_under_way_in_doubt(server: LoopbackTeachers, tmp_path: Path) -> None:
    held = server.answer = Held(let_first=4)
    shared, out, process = interrupted(server, tmp_path)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not (out / "answers.jsonl").exists()
    assert all(not name.endswith(".part") for name in names(out))
    with Ledger(out / "ledger.sqlite") as ledger:
        balance = ledger.balance("replay")
        assert (balance.answered, balance.in_doubt, balance.in_flight) == (4, 3, 0)
    held.go.set()
    again = start(*shared)
    shown, _ = again.communicate()
    assert again.returncode == 0
    assert "repeated: 3 calls in doubt were made a second time" in shown
    assert len(rows_in(out)) == 12
    assert sorted(Counter(asked.text for asked in server.asked).values()) == [1] * 9 + [2] * 3
