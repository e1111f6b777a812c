"""SWE-agent's .traj files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged_logs import FIXTURES, read_path, read_value, survives_damage

from composer_replication.histories import CLEARED_RESULT
from composer_replication.ingestion.formats import Head, swe_agent
from composer_replication.ingestion.pipeline import read_traces
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace

FILE = FIXTURES / "swe_agent" / "run.traj"


def entry(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", **more}


def read_history(
    folder: Path, *history: Any, trajectory: list[Any] | None = None, **root: Any
) -> tuple[Trace, IngestionStats]:
    document = {"trajectory": trajectory or [], "history": list(history), "info": {}, **root}
    (trace,), stats = read_value(swe_agent, folder, document)
    return trace, stats


def contents(trace: Trace) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in trace.turns]


def test_a_run() -> None:
    (trace,), stats = read_path(swe_agent, FILE)
    assert trace.trace_id == "run"
    assert contents(trace) == [
        ("system", "You fix bugs."),
        ("user", "demonstration"),
        ("user", "Fix a.py"),
        ("assistant", "Look first."),
        ("tool", "x = 1\nbash-$"),
        ("assistant", "Run it."),
        ("tool", "no output\nbash-$"),
        ("assistant", "Submit."),
        ("tool", "diff"),
    ]
    assert [turn.origin for turn in trace.turns[1:3]] == ["demo", "prompt"]
    assert trace.turns[3].thinking == "What is in it?"
    assert [(one.id, one.name, one.arguments) for one in trace.turns[3].tool_calls] == [
        ("t1", "bash", {"command": "cat a.py"})
    ]
    assert [turn.tool_call_id for turn in trace.turns if turn.role == "tool"] == ["t1", "t2", "call_7_0"]
    assert trace.turns[7].tool_calls[0].arguments == {"command": "submit"}
    assert (trace.model, trace.source.version, trace.final_reward) == ("model-a", "1.1.0", 1.0)
    assert trace.meta == {
        "instance_id": "repo__a-1",
        "exit_status": "submitted",
        "submission": "diff",
        "model_stats": {"instance_cost": 0.1, "tokens_sent": 10, "tokens_received": 2, "api_calls": 4},
        "environment": "main",
    }
    assert stats.skipped == {"reply that the agent asked for again": 1}


def test_results_that_were_elided_are_cleared_from_there_on() -> None:
    (trace,), _ = read_path(swe_agent, FILE)
    assert [turn.clears for turn in trace.turns if turn.role == "assistant"] == [[], [], ["t1"]]
    last = list(trace.states())[-1]
    shown = [message["content"] for message in last["messages"] if message["role"] == "tool"]
    assert shown == [CLEARED_RESULT, "no output\nbash-$"]


def test_a_result_is_cleared_once_and_only_if_the_messages_are_the_same_ones(tmp_path: Path) -> None:
    def asked(*texts: str) -> dict[str, Any]:
        return {"query": [{"role": "user", "content": text} for text in texts]}

    old = "Old environment output: (2 lines omitted)"
    steps = [
        {"response": "a", "action": "a", **asked("go")},
        {"response": "b", "action": "b", **asked("go", old)},
        {"response": "c", "action": "c", **asked("go", old, "of b")},
        {"response": "d", "action": "d", **asked("go", old, old)},
        {"response": "e", "action": "e", "messages": asked("go", old, old, "of c", "of d")["query"]},
        {"response": "f", "action": "f", "messages": asked("go", old, old, old, "of d", "of e")["query"]},
    ]
    history: list[dict[str, Any]] = [entry("user", "go")]
    for one in steps:
        history += [entry("assistant", one["response"], action=one["action"]), entry("user", f"of {one['action']}")]
    trace, stats = read_history(tmp_path, *history, trajectory=steps)
    calls = [turn.tool_calls[0].id for turn in trace.turns if turn.role == "assistant"]
    assert [turn.clears for turn in trace.turns if turn.role == "assistant"] == [
        [], [calls[0]], [], [], [calls[1]], [calls[2]],
    ]  # fmt: skip
    assert stats.skipped == {}


def test_other_agents_of_a_file_are_its_sub_agents() -> None:
    _, stats = read_path(swe_agent, FILE)
    assert stats.skipped_subagent == 1
    traces, stats = read_path(swe_agent, FILE, subagents=True)
    assert [(trace.trace_id, trace.parent, trace.final_reward) for trace in traces] == [
        ("run", None, 1.0),
        ("run#critic", "run", None),
    ]
    assert contents(traces[1]) == [("user", "Look at it."), ("assistant", "Fine.")]
    assert stats.skipped_subagent == 0


def test_text_actions_become_calls_with_the_next_message_as_result(tmp_path: Path) -> None:
    trace, _ = read_history(
        tmp_path,
        entry("system", "s"),
        entry("user", "go"),
        entry("assistant", "Look.\n```\nls\n```", thought="Look.", action="ls\n"),
        entry("user", "a.py"),
        entry("assistant", "hm", action=""),
        entry("user", "Give a command."),
        entry("assistant", "again", action=None),
    )
    reply = trace.turns[2]
    assert reply.content == "Look.\n```\nls\n```"
    assert (reply.tool_calls[0].name, reply.tool_calls[0].arguments) == ("bash", {"command": "ls"})
    assert (trace.turns[3].role, trace.turns[3].tool_call_id) == ("tool", reply.tool_calls[0].id)
    assert [(turn.role, turn.origin) for turn in trace.turns[4:]] == [
        ("assistant", None), ("user", "format_error"), ("assistant", None),
    ]  # fmt: skip


def test_the_protocol_of_text_actions(tmp_path: Path) -> None:
    def protocol(*replies: tuple[str, str], parser: str | None = None) -> str | None:
        config = json.dumps({"agent": {"tools": {"parse_function": {"type": parser}}}})
        history = [entry("assistant", text, action=action) for text, action in replies]
        return read_history(tmp_path, *history, replay_config=config)[0].meta.get("text_protocol")

    assert protocol(("a\n```\nls\n```", "ls\n")) == "thought_action"
    assert protocol(("a\n```bash\nls\n```", "ls")) == "thought_action"
    assert protocol(("a\n```bash\nls\n```", "ls"), parser="single_bash_code_block") == "single_bash_code_block"
    assert protocol(("a\n<command>\nls\n</command>", "ls")) == "xml_thought_action"
    assert protocol(("ls", "ls"), parser="action_only") is None
    (trace,), _ = read_path(swe_agent, FILE)
    assert "text_protocol" not in trace.meta


def test_demonstrations_are_context_and_no_states(tmp_path: Path) -> None:
    trace, _ = read_history(
        tmp_path,
        entry("user", "an example", is_demo=True),
        entry("assistant", "shown", action="ls", is_demo=True),
        entry("user", "files", is_demo=True),
        entry("user", "go"),
        entry("assistant", "done", action="submit"),
    )
    assert [(turn.role, turn.origin, turn.repeats) for turn in trace.turns] == [
        ("user", "demo", False),
        ("assistant", "demo", True),
        ("tool", "demo", False),
        ("user", "prompt", False),
        ("assistant", None, False),
    ]
    (state,) = trace.states()
    assert len(state["messages"]) == 4


def test_a_demonstration_under_another_name_is_in_nobodys_context(tmp_path: Path) -> None:
    trace, stats = read_history(
        tmp_path,
        {"role": "user", "content": "an example", "is_demo": True, "agent": "demo"},
        entry("user", "go"),
        entry("assistant", "done"),
    )
    assert contents(trace) == [("user", "go"), ("assistant", "done")]
    assert stats.skipped == {"demonstration of another agent": 1}


@pytest.mark.parametrize("action", ["", "exit_cost"])
def test_the_agents_own_exit_message_is_no_reply_of_the_model(tmp_path: Path, action: str) -> None:
    trace, stats = read_history(
        tmp_path,
        entry("user", "go"),
        entry("assistant", "ls", action="ls"),
        entry("user", "a.py"),
        entry("assistant", "Exit due to cost limit", action=action),
        entry("user", "autosubmitted"),
    )
    assert [turn.role for turn in trace.turns] == ["user", "assistant", "tool"]
    assert stats.skipped == {"exit message": 2}


def test_a_reply_that_begins_like_an_exit_message_but_acts_stays(tmp_path: Path) -> None:
    trace, _ = read_history(tmp_path, entry("assistant", "Exit due to cost limit is odd.", action="ls"))
    assert len(trace.turns) == 1


def test_tool_results_without_the_list_of_ids(tmp_path: Path) -> None:
    trace, _ = read_history(
        tmp_path,
        entry("assistant", "x", tool_calls=[{"id": "a", "function": {"name": "bash", "arguments": {}}}]),
        entry("tool", "by id", tool_call_id="a"),
        entry("tool", "lost", tool_call_ids=None),
    )
    assert [turn.tool_call_id for turn in trace.turns[1:]] == ["a", None]


def test_steps_that_no_message_belongs_to_are_counted(tmp_path: Path) -> None:
    steps = [{"response": text, "action": text, "observation": ""} for text in ("discarded", "kept", "edited", "left")]
    trace, stats = read_history(
        tmp_path,
        entry("assistant", "kept", action="kept"),
        entry("assistant", "edited by hand", action="edited"),
        trajectory=[*steps, 5],
    )
    assert len(trace.turns) == 2
    assert stats.skipped == {
        "step that is not an object": 1,
        "reply that the agent asked for again": 1,
        "step that is not in the history": 1,
    }


def test_without_a_history_the_steps_are_read(tmp_path: Path) -> None:
    state = json.dumps({"working_dir": "/repo"})
    steps = [
        {"action": "ls", "observation": "a.py", "response": "Look.", "state": state, "query": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "go"}, {"role": "tool"}, 5]},
        {"action": "", "observation": "Give a command.", "response": "", "thought": "hm"},
        {"action": "", "observation": "", "response": ""},
        {"action": "submit", "observation": None, "response": "Submit."},
        {"action": "exit_cost", "observation": "x", "response": "Exit due to cost limit"},
    ]  # fmt: skip
    (trace,), stats = read_value(swe_agent, tmp_path, {"trajectory": steps, "info": {"exit_status": "exit_cost"}})
    assert contents(trace) == [
        ("system", "s"),
        ("user", "go"),
        ("assistant", "Look."),
        ("tool", "a.py"),
        ("assistant", "hm"),
        ("user", "Give a command."),
        ("assistant", "Submit."),
        ("tool", ""),
    ]
    assert trace.turns[2].tool_calls[0].arguments == {"command": "ls"}
    assert trace.cwd == "/repo"
    assert stats.skipped == {"step without a reply": 1, "exit message": 1}


def test_attempts_are_traces_of_their_own(tmp_path: Path) -> None:
    def attempt(text: str, resolved: bool) -> dict[str, Any]:
        return {"trajectory": [], "history": [entry("assistant", text)], "info": {"resolved": resolved}}

    document = {"attempts": [attempt("one", False), attempt("two", True), 5], **attempt("two", True)}
    traces, stats = read_value(swe_agent, tmp_path, document)
    assert [(trace.trace_id, trace.final_reward, contents(trace)) for trace in traces] == [
        ("log#0", 0.0, [("assistant", "one")]),
        ("log#1", 1.0, [("assistant", "two")]),
    ]
    assert stats.skipped == {"run without steps": 1}


def test_unknown_roles_and_broken_entries_are_counted(tmp_path: Path) -> None:
    trace, stats = read_history(tmp_path, entry("assistant", "x"), entry("oracle", "?"), 5)
    assert len(trace.turns) == 1
    assert stats.skipped == {"role oracle": 1, "history entry that is not an object": 1}


@pytest.mark.parametrize("document", [{}, [], 5, {"history": [], "trajectory": []}])
def test_a_document_without_a_run_is_counted(tmp_path: Path, document: Any) -> None:
    traces, stats = read_value(swe_agent, tmp_path, document)
    assert traces == []
    assert stats.skipped == {"run without steps": 1}


def test_a_cut_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cut.traj").write_text('{"history": [')
    traces, stats = read_path(swe_agent, tmp_path / "cut.traj")
    assert traces == []
    assert stats.skipped == {"not valid JSON": 1}


STEP = {"action": "ls", "observation": "a"}


@pytest.mark.parametrize(
    ("document", "ours"),
    [
        ({"trajectory": [STEP], "history": []}, True),
        ({"trajectory": [STEP], "info": {}}, True),
        ({"trajectory": [], "history": [entry("user", "x")]}, True),
        ({"attempts": [{"trajectory": [STEP], "history": []}]}, True),
        ({"trajectory": [STEP]}, False),
        ({"trajectory": [{"role": "user"}], "history": [{"role": "user", "content": "x"}]}, False),
        ({"history": [{"action": "run"}]}, False),
        ({"trajectory": "x", "history": []}, False),
        (None, False),
    ],
)
def test_only_its_own_shape_is_claimed(document: Any, ours: bool) -> None:
    assert swe_agent.sniff(Head(document=document)) is ours


def test_damage(tmp_path: Path) -> None:
    document = json.loads(FILE.read_text())
    survives_damage(swe_agent, tmp_path, document)
    survives_damage(swe_agent, tmp_path, {"trajectory": document["trajectory"], "info": {}})


DIED = """Traceback (most recent call last):
  File "/repo/reproduce.py", line 4, in <module>
    print(total([1, None]))
          ^^^^^^^^^^^^^^^^
  File "/repo/a.py", line 2, in total
    return sum(given)
TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'
"""


def is_error(folder: Path, action: str, observation: str) -> bool:
    history = [entry("user", "go"), entry("assistant", "Run it.", action=action), entry("user", observation)]
    path = folder / "a.traj"
    path.write_text(json.dumps({"trajectory": [], "history": history, "info": {}}))
    (trace,) = read_traces(path)
    return trace.turns[-1].is_error


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("python reproduce.py", f"total of [1, 2]: 3\n{DIED}"),
        ("python reproduce.py", f"total of [1, 2]: 3\n{DIED}(Open file: n/a)\n(Current directory: /repo)\nbash-$"),
        ("cd /repo && PYTHONPATH=. python3 -m app.main", f"starting\r\n{DIED}".replace("\n", "\r\n")),
        ("cat reproduce.py && python reproduce.py 2>&1 | tail -30", f"import a\nprint(1)\n{DIED}"),
        ("./manage.py migrate", f"Applying 1\n{DIED}\nDuring handling, another one:\n\n{DIED}"),
        ("python - <<'EOF'\nimport a\na.run()\nEOF", f"1\n{DIED}"),
        ("python a.py", '1\nTraceback (most recent call last):\n  File "a.py", line 1, in <module>\nKeyboardInterrupt'),
        ("python a.py", DIED),
        ("python a.py > app.log 2>&1; cat app.log", f"started\n{DIED}"),
    ],
)
def test_a_traceback_at_the_end_of_what_a_program_prints(tmp_path: Path, action: str, observation: str) -> None:
    assert is_error(tmp_path, action, observation)


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("cat app.log", f"started\n{DIED}"),
        ("cat app.log", DIED),
        ("tail -n 50 app.log", f"started\n{DIED}"),
        ("grep -A9 Trace app.log", DIED),
        ("docker logs web", f"started\n{DIED}"),
        ("git show HEAD:app.log", f"started\n{DIED}"),
        ("open app.log", "".join(f"{n}: {line}\n" for n, line in enumerate(DIED.splitlines()))),
        ("python a.py", f"1\n{DIED}caught it, going on\nall is well"),
        ("python a.py", "Traceback (most recent call last) is what Python prints\nall is well"),
        ("python a.py", "1\nTraceback (most recent call last):\nValueError"),
    ],
)
def test_a_traceback_in_a_file_or_in_the_middle(tmp_path: Path, action: str, observation: str) -> None:
    assert not is_error(tmp_path, action, observation)
