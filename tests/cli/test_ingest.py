"""`composer-replication ingest` as a user meets it: real processes, their exit codes, what is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingestion.sessions_on_disk import answer, call, session, turn, write

from composer_replication.cli import app as cli
from composer_replication.ingestion.claude_code import ClaudeCodeIngester
from composer_replication.ingestion.formats import find_format
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.store import load_traces

REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    write(tmp_path / "logs" / "fork.jsonl", session("a", "c"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    return tmp_path / "logs"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run(["ingest", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_summary(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        logs / "errors.jsonl",
        [*turn("e", result="Exit code 1\nerror: x", failed=True), *turn("r", result=REJECTED, failed=True)],
    )
    code, out, _ = run(capsys, logs, "-o", tmp_path / "out", "-p", "1")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    figures = dict(row for row in rows if len(row) == 2)
    assert figures["files that are logs"] == figures["claude_code"] == "3"
    assert figures["files that are none"] == "1"
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
    for arguments in ([logs, "-o", tmp_path / "out"], ["--audit", logs], ["--explain", logs / "errors.jsonl"]):
        _, out, _ = run(capsys, *arguments)
        assert max(map(len, out.splitlines())) <= 40
        assert "…" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of PATHS (with -o DIR), --explain FILE or --audit PATH"),
        (["LOGS"], "-o DIR is missing"),
        (["nowhere", "-o", "OUT"], "nowhere: there is no such file or folder"),
        (["no\nwhere", "-o", "OUT"], "there is no such file or folder"),
        (["LOGS", "-o", "FILE"], "is a file"),
        (["LOGS", "-o", "OUT", "-p", "0"], "'--processes'"),
        (["--explain", "nowhere"], "nowhere: there is no such file"),
        (["--explain", "LOGS"], "this is a folder; give one of its files"),
        (["--audit", "nowhere"], "nowhere: there is no such file or folder"),
        (["--explain", "FILE", "--audit", "FILE"], "not --explain and --audit"),
        (["LOGS", "--explain", "FILE"], "not PATHS and --explain"),
        (["--audit", "LOGS", "-o", "OUT"], "--audit writes nothing"),
        (["--explain", "FILE", "-o", "OUT"], "--explain writes nothing"),
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
        (["--explain", "NOTES"], "is no agent log of a known format (claude_code"),
        (["--audit", "NOTES"], "no Claude Code log behind"),
        (["EMPTY", "-o", "OUT"], "no log behind"),
        (["NOTES", "-o", "OUT"], "none of 1 files is of a known format (claude_code"),
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


def test_nothing_in_a_log_reaches_the_terminal_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jwiped [bold]x[/] :key: \x07\x9b31m\u202eright"
    strange = {**call("a"), "name": "\x1b]0;title"}
    log = write(
        tmp_path / "\x1b[31m.jsonl", [*turn("b", prompt=evil), answer("a", [strange]), {"type": evil, "sessionId": "s"}]
    )
    for arguments in (
        ["--explain", log],
        ["--audit", log],
        [log, "-o", tmp_path / "\x1b[32m"],
        ["--explain", tmp_path / evil],
    ):
        _, out, err = run(capsys, *arguments)
        assert not set(out + err) & set("\x1b\x07\x9b\u202e")
    for arguments in (["--explain", log], [log, "-o", tmp_path / "out"]):
        _, out, _ = run(capsys, *arguments)
        assert "wiped [bold]x[/] :key:" in " ".join(out.split())


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
