"""Reading traces without writing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claude_sessions import Session
from ingestion.sessions_on_disk import session, write

from composer_replication.ingestion import IngestionStats, ReadOptions, read_traces
from composer_replication.ingestion.formats import find_format
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.pipeline import EveryTrace, ingest_logs
from composer_replication.ingestion.source import IngestOptions
from composer_replication.traces import Trace, Turn


def student_turns(traces: list[Trace]) -> list[str | None]:
    return [turn.id for trace in traces for turn in trace.turns if turn.role == "assistant" and not turn.repeats]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "fork.jsonl", session("a", "c"))
    write(tmp_path / "logs" / "s1.jsonl", session("a", "b"))
    (tmp_path / "logs" / "notes.txt").write_text("no log")
    return tmp_path / "logs"


def test_a_turn_that_two_files_hold_comes_once(logs: Path) -> None:
    every = EveryTrace([logs])
    assert student_turns(list(every)) == ["msg_a", "msg_c", "msg_b"]
    assert (every.logs, every.failures) == (2, {})


def test_every_file_is_counted_while_it_is_read(logs: Path) -> None:
    every, read = EveryTrace([logs]), []
    every.on_file = lambda: read.append(1)
    list(every)
    assert len(read) == every.sources == 3


def test_a_folder_of_traces_is_read_as_one(logs: Path, tmp_path: Path) -> None:
    ingest_logs([logs], tmp_path / "out", processes=1)
    every = EveryTrace([tmp_path / "out"])
    assert sorted(map(str, student_turns(list(every)))) == ["msg_a", "msg_b", "msg_c"]
    assert (every.logs, every.files) == (1, [])


def test_sub_agents_are_read_if_they_are_wanted(tmp_path: Path) -> None:
    agent = [{**record, "isSidechain": True, "agentId": "k1"} for record in session("agent")]
    log = write(tmp_path / "s1.jsonl", [*session("a"), *agent])
    assert len(list(EveryTrace([log]))) == 1
    assert len(list(EveryTrace([log], IngestOptions(subagents=True)))) == 2


def test_a_file_that_fails_is_named_and_the_rest_is_read(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: LogFile) -> object:
        if log.stem == "fork":
            raise RuntimeError("bad file")
        return find_format(log)

    monkeypatch.setattr("composer_replication.ingestion.pipeline.find_format", fail)
    every = EveryTrace([logs])
    assert student_turns(list(every)) == ["msg_a", "msg_b"]
    assert every.failures == {str(logs / "fork.jsonl"): "RuntimeError: bad file"}


COMMAND = "cat nothere.py 2>&1 | head"
MISSING = "cat: nothere.py: No such file or directory"


def results(path: Path, **options: bool) -> list[Turn]:
    (trace,) = read_traces(path, ReadOptions(**options))
    return [turn for turn in trace.turns if turn.role == "tool"]


def written(folder: Path, value: Any) -> Path:
    path = folder / "log.json"
    path.write_text(json.dumps(value))
    return path


def logged(command: str, text: Any, *, tool: str = "Bash") -> Session:
    made = Session()
    made.then.prompt("go").calls("m1", "c1", tool, command=command).result("c1", text, is_error=False)
    return made


@pytest.mark.parametrize("verbatim", [False, True])
@pytest.mark.parametrize("text", [MISSING, f"\x1b[31mé\x1b[0m\n{MISSING}", [{"type": "text", "text": MISSING}]])
def test_claude_code_hides_a_failure(tmp_path: Path, text: Any, verbatim: bool) -> None:
    path = logged(COMMAND, text).write(tmp_path)
    stats = IngestionStats()
    (trace,) = read_traces(path, ReadOptions(verbatim_results=verbatim), stats)
    acting, result = trace.turns[1:3]
    assert (result.is_error, result.masked, result.error_kind) == (True, True, "missing_file_in_command")
    assert result.content == (text if isinstance(text, str) else MISSING)
    assert acting.tool_error == "missing_file_in_command"
    assert acting.error_meta is not None
    assert acting.error_meta["masked"] is True
    assert stats.masked_failures == 1
    stats.recount([])
    assert stats.masked_failures == 0


@pytest.mark.parametrize(
    ("command", "text", "tool"),
    [("cat nothere.py", MISSING, "Bash"), (COMMAND, "x = 1", "Bash"), (COMMAND, MISSING, "Ask"), (COMMAND, "", "Bash")],
)
def test_claude_code_did_not_flag_it_and_is_right(tmp_path: Path, command: str, text: str, tool: str) -> None:
    (result,) = results(logged(command, text, tool=tool).write(tmp_path))
    assert (result.is_error, result.masked, result.error_kind) == (False, False, None)


def test_claude_code_prints_an_exit_code(tmp_path: Path) -> None:
    (result,) = results(logged('./check.sh > log; echo "exit: $?"', "exit: 2").write(tmp_path))
    assert result.masked


def test_what_is_flagged_is_not_masked(tmp_path: Path) -> None:
    made = logged(COMMAND, MISSING)
    made.records[-1]["message"]["content"][0]["is_error"] = True
    (result,) = results(made.write(tmp_path))
    assert (result.is_error, result.masked) == (True, False)


def test_a_result_that_worked_stays_verbatim(tmp_path: Path) -> None:
    (result,) = results(logged(COMMAND, "x = 1").write(tmp_path), verbatim_results=True)
    assert not isinstance(result.content, str)


def test_codex_gives_exit_codes(tmp_path: Path) -> None:
    def record(kind: str, **payload: Any) -> str:
        item = {"timestamp": "2026-01-02T10:00:00Z", "type": "response_item", "payload": {"type": kind, **payload}}
        return json.dumps(item)

    outputs = [
        f"Exit code: 0\nWall time: 0.1 seconds\nOutput:\n{MISSING}\n",
        json.dumps({"output": f"{MISSING}\n", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}),
        "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nx = 1\n",
    ]
    lines = [record("message", role="user", content=[{"type": "input_text", "text": "go"}])]
    for number, output in enumerate(outputs):
        arguments = json.dumps({"command": ["bash", "-lc", COMMAND]})
        lines.append(record("function_call", name="shell", arguments=arguments, call_id=f"c{number}"))
        lines.append(record("function_call_output", call_id=f"c{number}", output=output))
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join(lines))
    assert [one.masked for one in results(path)] == [True, True, False]


@pytest.mark.parametrize(("command", "masked"), [(COMMAND, True), ("cat nothere.py", False)])
def test_mini_swe_agent_gives_exit_codes(tmp_path: Path, command: str, masked: bool) -> None:
    text = f"<returncode>0</returncode>\n<output>\n{MISSING}\n</output>"
    messages = [
        {"role": "system", "content": "Do it."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": f"```mswea_bash_command\n{command}\n```"},
        {"role": "user", "content": text, "extra": {"returncode": 0}},
    ]
    (result,) = results(written(tmp_path, messages))
    assert (result.is_error, result.masked) == (masked, masked)


def test_swe_agent_flags_nothing(tmp_path: Path) -> None:
    traceback = 'Traceback (most recent call last):\n  File "/r/a.py", line 3, in <module>\n    f()\nValueError: bad\n'
    said = [("python a.py", f"step 1\nstep 2\n{traceback}"), ("cat nothere.py", f"{MISSING}\n"), ("cat a.py", "f()\n")]
    history: list[dict[str, Any]] = [{"role": "user", "content": "Fix a.py", "agent": "main"}]
    for number, (command, text) in enumerate(said):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"t{number}", "type": "function", "function": function}
        history.append({"role": "assistant", "content": "", "action": command, "agent": "main", "tool_calls": [call]})
        history.append({"role": "tool", "content": f"{text}bash-$", "agent": "main", "tool_call_ids": [f"t{number}"]})
    path = written(tmp_path, {"trajectory": [], "history": history, "info": {}})
    expected = [("traceback", False), ("missing_file_in_command", False), (None, False)]
    assert [(one.error_kind, one.masked) for one in results(path)] == expected
