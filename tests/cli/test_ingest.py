"""`composer-replication ingest` as a user meets it: real processes, their exit codes, what is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingestion.failing_traces import failing_trace
from ingestion.sessions_on_disk import answer, call, result_of, session, turn, write

from composer_replication.cli import app as cli
from composer_replication.ingestion.claude_code import ClaudeCodeIngester
from composer_replication.ingestion.formats import find_format
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.store import ManifestEntry, TraceStore, load_traces

REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."

# Each of another kind.
TOOL_ERRORS = (
    "File has not been read yet. Read it first before writing to it.",
    "String to replace not found in file.",
    "File does not exist.",
    "No such tool available: Fly",
    "InputValidationError: missing",
    "EISDIR: illegal operation on a directory, read",
    "Path does not exist: /x",
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    write(tmp_path / "logs" / "fork.jsonl", session("a", "c"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    return tmp_path / "logs"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run(["ingest", *map(str, arguments)])
    return code, *capsys.readouterr()


def unbroken(text: str) -> str:
    """Without white space and borders: where a long line is broken depends on the length of a path."""
    return "".join(text.replace("│", "").split())


def test_the_summary(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        logs / "errors.jsonl",
        [*turn("e", result="Exit code 1\nunknown flag: --x", failed=True), *turn("r", result=REJECTED, failed=True)],
    )
    code, out, _ = run(capsys, logs, "-o", tmp_path / "out", "-p", "1")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    figures = dict(row for row in rows if len(row) == 2)
    assert figures["files that are logs"] == figures["claude_code"] == "3"
    assert figures["files that are not logs"] == "1"
    assert figures["of the student (states)"] == figures["tool calls"] == figures["tool results"] == "5"
    assert figures["copied from another file"] == "1"
    assert (figures["turns"], figures["records"]) == ("18", "18")
    assert (figures["tokens in"], figures["from the cache"], figures["tokens out"]) == ("75", "25", "10")
    assert ["user_rejected", "1", "not the student's"] in rows
    assert any(row[1:] == ["1", "student's"] for row in rows)
    _, out, _ = run(capsys, logs, "-o", tmp_path / "out")
    assert "files not read again" in out


def test_no_figure_is_cut_on_a_narrow_terminal(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write(logs / "errors.jsonl", turn("e", result="<tool_use_error>File has not been read yet.", failed=True))
    for arguments in (
        [logs, "-o", tmp_path / "out"],
        ["--audit", logs],
        ["--explain", logs / "errors.jsonl"],
        ["--stats", logs],
        ["--hints", logs],
    ):
        _, out, _ = run(capsys, *arguments)
        assert max(map(len, out.splitlines())) <= 40
        assert "…" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of PATHS (with -o DIR), --explain FILE, --audit PATH, --stats PATHS or --hints PATHS"),
        (["LOGS"], "-o DIR is missing"),
        (["nowhere", "-o", "OUT"], "nowhere: there is no such file or folder"),
        (["no\nwhere", "-o", "OUT"], "there is no such file or folder"),
        (["LOGS", "-o", "FILE"], "is a file"),
        (["LOGS", "-o", "OUT", "-p", "0"], "'--processes'"),
        (["--stats", "LOGS", "-p", "2"], "--processes goes with PATHS, not --stats"),
        (["--explain", "nowhere"], "nowhere: there is no such file"),
        (["--explain", "LOGS"], "this is a folder; give one of its files"),
        (["--audit", "nowhere"], "nowhere: there is no such file or folder"),
        (["--explain", "FILE", "--audit", "FILE"], "not --explain and --audit"),
        (["LOGS", "--explain", "FILE"], "not PATHS and --explain"),
        (["--audit", "LOGS", "-o", "OUT"], "--audit writes nothing"),
        (["--explain", "FILE", "-o", "OUT"], "--explain writes nothing"),
        (["--stats", "LOGS", "-o", "OUT"], "--stats writes nothing"),
        (["--stats", "--hints", "LOGS"], "not --stats and --hints"),
        (["--hints", "LOGS", "--explain", "FILE"], "not PATHS and --explain and --hints"),
        (["--stats"], "--stats needs PATHS"),
        (["--hints"], "--hints needs PATHS"),
        (["--hints", "nowhere"], "nowhere: there is no such file or folder"),
        (["--stats", "LOGS", "--errors-only"], "--errors-only goes with --explain"),
        (["--stats", "LOGS", "--kind", "timeout"], "--kind goes with --explain or --hints"),
        (["LOGS", "-o", "OUT", "--tool", "Bash"], "--tool goes with --explain or --hints"),
        (["--hints", "LOGS", "--around", "2"], "--around goes with --explain"),
        (["--explain", "FILE", "--around", "2"], "--around goes with --errors-only, --kind or --tool"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    names = {"LOGS": str(logs), "OUT": str(tmp_path / "out"), "FILE": str(logs / "s1.jsonl")}
    code, out, err = run(capsys, *(names.get(one, one) for one in arguments))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert "ingest --help" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain", "NOTES"], "is not in a recognized log format (claude_code"),
        (["--audit", "NOTES"], "no Claude Code log in"),
        (["EMPTY", "-o", "OUT"], "no log in"),
        (["--stats", "NOTES"], "is in a recognized log format (claude_code"),
        (["--hints", "EMPTY"], "no log in"),
        (["--hints", "LOGS", "--kind", "timeout"], "no error of kind timeout here; there are none at all"),
        (["--explain", "LOGS/s1.jsonl", "--tool", "Bash"], "no error of tool Bash here; there are none at all"),
        (["NOTES", "-o", "OUT"], "none of 1 files is in a recognized log format (claude_code"),
        (["LOGS", "-o", "NOTES/deeper"], "Not a directory; traces need a folder that can be written"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    for one, path in {
        "NOTES": logs / "notes.txt",
        "EMPTY": tmp_path / "empty",
        "LOGS": logs,
        "OUT": tmp_path / "out",
    }.items():
        arguments = [argument.replace(one, str(path)) for argument in arguments]
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_failing_file_is_named_and_the_exit_code_is_1(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log: LogFile) -> Any:
        if log.stem == "fork":
            raise RuntimeError("bad [bold]file")
        return find_format(log)

    with monkeypatch.context() as patch:
        patch.setattr("composer_replication.ingestion.source.find_format", fail)
        code, out, _ = run(capsys, logs, "-o", tmp_path / "out", "-p", "1")
    assert code == 1
    assert "failed:" in out
    assert "bad [bold]file" in " ".join(out.split())
    assert len(list(load_traces(tmp_path / "out"))) == 1
    assert run(capsys, logs, "-o", tmp_path / "out")[0] == 0


def test_options_reach_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mail = "jane.roe@northwind.com"
    agent = [{**record, "isSidechain": True, "agentId": "k1"} for record in session("agent")]
    log = write(tmp_path / "s1.jsonl", [*turn("a", prompt=f"ask {mail}"), *agent])
    for options, traces, shown in (([], 1, False), (["--no-redact"], 1, True), (["--subagents"], 2, False)):
        run(capsys, log, "-o", tmp_path / "out", *options)
        written = list(load_traces(tmp_path / "out"))
        assert (len(written), mail in written[0].turns[0].content) == (traces, shown)
        _, out, _ = run(capsys, "--explain", log, "--json", *options)
        explained = json.loads(out)["traces"]
        assert (len(explained), mail in explained[0]["turns"][0]["text"]) == (traces, shown)


def test_explain_shows_error_sites_hints_and_whose_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
    log = write(
        tmp_path / "s1.jsonl", [*turn("a", result=missing, failed=True), *turn("b", result=REJECTED, failed=True)]
    )
    code, out, _ = run(capsys, "--explain", log)
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert "error site: edit_before_read" in lines
    assert "✗ edit_before_read" in lines
    assert "error site: user_rejected (not the student's mistake)" in lines
    assert sum(line.startswith("hint: ") for line in lines) == 1
    assert lines.index("error site: edit_before_read") < next(
        n for n, line in enumerate(lines) if line.startswith("hint: ")
    )
    assert lines[-1] == "6 turns, 2 error sites, 1 with a hint"


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A folder that `ingest` might have written, with `failing_trace` in it."""
    store = TraceStore(tmp_path / "failing")
    store.write_traces("s1.jsonl", [failing_trace()])
    store.write_manifest([ManifestEntry("s1.jsonl", "k", "read", 1, 1, output="s1.jsonl")])
    return store.folder


@pytest.fixture
def failing_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A log that is read as `failing_trace`: what is charged and masked is others' to find."""
    monkeypatch.setattr(
        "composer_replication.ingestion.pipeline.read_as", lambda *_: iter([failing_trace(), failing_trace()])
    )
    return write(tmp_path / "s1.jsonl", session("a"))


def said(out: str) -> list[str]:
    """Lines that are wrapped are put together again; what is said of a turn begins with its indent."""
    return [line.strip() for line in out.splitlines()]


def test_explain_says_who_is_charged_and_what_was_hidden(failing_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--explain", failing_log)
    lines = said(out)[: len(said(out)) // 2]
    assert "error site: test_failure, reported by the result at turn 4" in lines
    assert "outcome: test_failure, masked by its command, charged to turn 1" in lines
    assert "outcome: no_match, no turn is charged" in lines
    assert "assert 2 == 3 (6 lines)" in lines
    assert lines[-1] == "12 turns, 3 error sites, 2 with a hint, 2 outcomes, 1 charged, 1 masked"


def test_a_turn_says_its_model_when_it_changes_its_tokens_and_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        *turn("a"),
        answer("b", [{"type": "thinking", "thinking": "hm, so", "signature": "x"}]),
        answer("c", [{"type": "text", "text": "end"}]),
    ]
    for number, record in enumerate(records):
        record["timestamp"] = f"2026-03-01T10:0{number}:0{number}.500Z"
    records[-1]["timestamp"], records[-1]["message"]["model"] = "2026-03-01T12:00:00.000Z", "claude-y"
    _, out, _ = run(capsys, "--explain", write(tmp_path / "s1.jsonl", records))
    heads = [line.split(maxsplit=1)[1] for line in out.splitlines() if line[:4].strip().isdigit()]
    assert heads == [
        "user line 1",
        "assistant line 2 · claude-x · 15 tokens in (5 cached), 2 out · 1.0 min",
        "tool Bash line 3 · 1.0 min",
        "assistant line 4 · 15 tokens in (5 cached), 2 out · 1.0 min",
        "assistant line 5 · claude-y · 15 tokens in (5 cached), 2 out · 1.9 h",
    ]
    assert "thinking: hm, so" in said(out)


def test_a_result_says_how_much_of_it_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [*turn("a", result="x" * 300), *turn("b", result=""), *turn("c", result="one\ntwo"), *turn("d")]
    lines = said(run(capsys, "--explain", write(tmp_path / "s1.jsonl", records))[1])
    expected = [f"{'x' * 14}… (300 characters)", "(nothing)", "one (2 lines)", "done"]
    assert [line for line in lines if line.endswith(("characters)", "(nothing)", "lines)", "done"))] == expected


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--errors-only", "--around", "0"], "1 3 4 5 6 7 8 9 10"),
        (["--errors-only"], "0 1 2 3 4 5 6 7 8 9 10 11"),
        (["--kind", "edit_before_read"], "4 5 6 7"),
        (["--kind", "edit_before_read", "--kind", "no_match", "--around", "0"], "5 6 9 10"),
        (["--tool", "Grep", "--around", "2"], "7 8 9 10 11"),
        (["--tool", "Edit", "--around", "0"], "1 4 5 6"),
        (["--kind", "test_failure", "--tool", "Bash", "--around", "0"], "3 4"),
    ],
)
def test_explain_shows_errors_with_the_turns_around(
    failing_log: Path, capsys: pytest.CaptureFixture[str], options: list[str], shown: str
) -> None:
    indices = [int(index) for index in shown.split()]
    _, out, _ = run(capsys, "--explain", failing_log, "--json", *options)
    assert [turn["index"] for turn in json.loads(out)["traces"][1]["turns"]] == indices
    code, out, _ = run(capsys, "--explain", failing_log, *options)
    assert code == 0
    lines = out.splitlines()
    assert [int(line[:4]) for line in lines if line[:4].strip().isdigit()] == indices * 2
    gaps = [line.split()[1] for line in lines if line.strip().startswith("…")]
    assert sum(map(int, gaps)) == 2 * (12 - len(indices))


def test_traces_without_what_is_wanted_are_only_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 3
    log = write(tmp_path / "chat.jsonl", rows)
    _, out, _ = run(capsys, "--explain", log, "--errors-only")
    assert out == "3 traces without such a turn\n"


def test_hints_by_kind_with_what_went_without(
    failing: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, "--hints", failing)
    assert code == 0
    lines = said(out)
    expected = ["test_failure: 1 hint", "edit_before_read: 1 hint"]
    assert [line for line in lines if line.endswith(("1 hint", "hints"))] == expected
    start = lines.index("s1 turn 1 line 10, reported by the result at turn 4")
    expected = ['call: Edit {"file_path": "a.py", "new_string": "return 2"}', "error: assert 2 == 3"]
    assert lines[start + 1 : start + 3] == expected
    assert lines[start + 3].startswith("hint: ")
    assert lines[-1] == "2 hints, 1 error site without a hint, 1 outcome not charged"
    _, out, _ = run(capsys, "--hints", failing, "--tool", "Edit", "--kind", "edit_before_read", "--json")
    listed = json.loads(out)
    assert [hint["turn"] for hint in listed["hints"]] == [5]
    assert (listed["without_hint"], listed["outcomes_not_charged"], listed["failures"]) == (0, 0, {})


def test_stats_by_project_tool_and_model(failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--stats", failing)
    assert code == 0
    lines = out.splitlines()
    heads = [line.split() for line in lines if line.endswith("hints")]
    figures = ["calls", "failed", "share", "outcomes", "charged", "masked", "hints"]
    assert heads == [["project", *figures], ["tool", *figures], ["model", *figures]]
    bash = next(number for number, line in enumerate(lines) if line.startswith("Bash "))
    assert lines[bash].split() == ["Bash", "2", "2", "100.0%", "1", "1", "1", "0"]
    assert lines[bash + 1].strip() == "test_failure 1, user_rejected 1"
    write(tmp_path / "s1.jsonl", [*turn("a"), answer("b", [{**call("b"), "name": "Fetch"}])])
    assert "2 tools without a failure: 2 calls" in run(capsys, "--stats", tmp_path / "s1.jsonl")[1]
    _, out, _ = run(capsys, "--stats", failing, "--json")
    assert {(row["project"], row["tool"], row["model"]) for row in json.loads(out)["rows"]} == {
        ("shop", tool, "model-a") for tool in ("Edit", "Bash", "Grep")
    }


def test_long_rows_and_strange_names_in_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"[bold]{'long' * 10}"
    records = []
    for number, result in enumerate((REJECTED, *(f"<tool_use_error>{text}" for text in TOOL_ERRORS))):
        record = answer(str(number), [{**call(str(number)), "name": name, "input": {"file_path": str(number)}}])
        records += [record, result_of(str(number), result, failed=True)]
    lines = run(capsys, "--stats", write(tmp_path / "s1.jsonl", records))[1].splitlines()
    row = lines.index(name)
    assert lines[row + 1].split() == ["8", "8", "100.0%", "0", "0", "0", "7"]
    assert " ".join(" ".join(lines[row + 2 : row + 5]).split()).endswith(", 2 more kinds 2")


def test_what_is_listed_is_redacted_and_copies_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mail = "jane.roe@northwind.com"
    failed = turn("a", result=f"Exit code 127\nsh: {mail}: command not found", failed=True)
    for name in ("s1", "fork"):
        write(tmp_path / f"{name}.jsonl", [{**record, "cwd": "/home/janeroe"} for record in failed])
    _, out, _ = run(capsys, "--hints", tmp_path, "--json")
    assert mail not in out
    assert len(json.loads(out)["hints"]) == 1
    assert mail in run(capsys, "--hints", tmp_path, "--json", "--no-redact")[1]
    _, out, _ = run(capsys, "--stats", tmp_path, "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["calls"], row["project"] == "janeroe") == (1, False)
    (row,) = json.loads(run(capsys, "--stats", tmp_path, "--json", "--no-redact")[1])["rows"]
    assert row["project"] == "janeroe"


@pytest.mark.parametrize("mode", ["--stats", "--hints"])
def test_files_that_cannot_be_read_are_named_at_the_end(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def fail(log: LogFile) -> Any:
        if log.stem == "fork":
            raise RuntimeError("bad [bold]file")
        return find_format(log)

    monkeypatch.setattr("composer_replication.ingestion.pipeline.find_format", fail)
    code, out, _ = run(capsys, mode, logs)
    assert code == 1
    assert unbroken(out).endswith("fork.jsonl:RuntimeError:bad[bold]file")
    code, out, _ = run(capsys, mode, logs, "--json")
    assert (code, list(json.loads(out)["failures"])) == (1, [str(logs / "fork.jsonl")])
    assert run(capsys, mode, logs / "fork.jsonl")[::2] == (1, "")


def test_nothing_in_a_log_reaches_the_terminal_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jwiped [bold]x[/] :key: \x07\x9b31m\u202eright"
    strange = {**call("a"), "name": "\x1b]0;title"}
    log = write(
        tmp_path / "\x1b[31m.jsonl",
        [
            *turn("b", prompt=evil, result=f"Exit code 127\nsh: {evil}: command not found", failed=True),
            answer("a", [strange]),
            {"type": evil, "sessionId": "s"},
        ],
    )
    for arguments in (
        ["--explain", log],
        ["--audit", log],
        ["--stats", log],
        ["--hints", log],
        ["--hints", log, "--kind", evil],
        [log, "-o", tmp_path / "\x1b[32m"],
        ["--explain", tmp_path / evil],
    ):
        _, out, err = run(capsys, *arguments)
        assert not set(out + err) & set("\x1b\x07\x9b\u202e")
    for arguments in (["--explain", log], ["--hints", log], [log, "-o", tmp_path / "out"]):
        assert "wiped[bold]x[/]:key:" in unbroken(run(capsys, *arguments)[1])
    assert "wiped[bold]x[/]:key:" in unbroken(run(capsys, "--explain", tmp_path / evil)[2])


def test_audit_prints_both_counts_and_every_difference(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, "--audit", logs)
    assert code == 0
    assert [line.split()[3:] for line in out.splitlines() if "s1.jsonl" in line] == [
        ["2/2", "│", "2/2", "│", "equal", "│"]
    ]
    assert out.endswith("2 files, 4 states, 4 results (0 of them copies, 0 without a call): nothing lost\n")
    read = ClaudeCodeIngester.traces

    def lossy(self: ClaudeCodeIngester, path: Path) -> Any:
        for trace in read(self, path):
            trace.turns = [turn for turn in trace.turns if turn.id != "msg_b"]
            yield trace

    monkeypatch.setattr(ClaudeCodeIngester, "traces", lossy)
    # A shell makes several paths of a glob; all of them are meant.
    code, out, _ = run(capsys, "--audit", logs / "fork.jsonl", logs / "s1.jsonl")
    assert code == 1
    assert "state lost: msg_b" in " ".join(out.split())
    assert "differs" in out
    code, out, _ = run(capsys, "--audit", logs, "--json")
    figures = json.loads(out)
    assert (code, figures["holds"]) == (1, False)
    assert {Path(one["path"]).name: one["holds"] for one in figures["files"]} == {"fork.jsonl": True, "s1.jsonl": False}
    assert figures["files"][1]["differences"] == ["state lost: msg_b"]
