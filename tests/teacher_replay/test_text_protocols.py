"""Agents without tool calls: teachers see and answer the protocol of the prompt, and their commands compare with the
student's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from teacher_replay.loopback_teacher import Asked, LoopbackTeachers
from teacher_replay.metered_replays import MeteredServer, Teacher, spec_of

from composer_replication.ingestion.pipeline import read_traces
from composer_replication.teacher_replay.pair_files import preference_row
from composer_replication.teacher_replay.pairs import extract_pairs_with_report
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay_files import StateOptions, TraceToReplay, trace_to_replay
from composer_replication.teacher_replay.replay_report import ReplayReport
from composer_replication.teacher_replay.schedule import ReplayOptions, open_replay, replay_trace
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.teacher_replay.tool_schemas import complete_tools

Block = Callable[[str], str]


def mini_swe_agent(folder: Path, block: Block) -> Path:
    def say(role: str, content: str) -> dict[str, Any]:
        return {"role": role, "content": content}

    messages = [
        say("system", f"Answer with a thought and one block:\n{block('your command')}"),
        say("user", "Fix a.py"),
        say("assistant", f"Look first.\n\n{block('ls -l')}"),
        say("user", "<returncode>0</returncode>\n<output>\na.py\n</output>"),
        say("assistant", f"Read it.\n\n{block('cat a.py')}"),
        say("user", "<returncode>0</returncode>\n<output>\nx = 1\n</output>"),
    ]
    path = folder / "run.traj.json"
    path.write_text(json.dumps({"info": {"mini_version": "1.9"}, "messages": messages}))
    return path


def swe_agent(folder: Path, block: Block) -> Path:
    def say(role: str, content: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": content, "agent": "main", **more}

    history = [
        say("system", f"Answer with a discussion and one command:\n{block('your command')}"),
        say("user", "Fix a.py"),
        say("assistant", f"Look first.\n{block('ls -l')}", thought="Look first.", action="ls -l\n"),
        say("user", "a.py\nbash-$"),
        say("assistant", f"Read it.\n{block('cat a.py')}", thought="Read it.", action="cat a.py\n"),
        say("user", "x = 1\nbash-$"),
    ]
    path = folder / "run.traj"
    path.write_text(json.dumps({"trajectory": [], "history": history, "info": {}}))
    return path


def fenced(word: str) -> Block:
    return lambda command: f"```{word}\n{command}\n```"


def tagged(command: str) -> str:
    return f"<command>\n{command}\n</command>"


AGENTS: dict[str, tuple[Callable[[Path, Block], Path], Block]] = {
    "mswea_bash_command": (mini_swe_agent, fenced("mswea_bash_command")),
    "single_bash_code_block": (mini_swe_agent, fenced("bash")),
    "thought_action": (swe_agent, fenced("")),
    "xml_thought_action": (swe_agent, tagged),
}


def read(protocol: str, folder: Path) -> tuple[TraceToReplay, Block, list[dict[str, Any]]]:
    """The trace of a constructed log, how its agent writes commands, and the log's own messages."""
    write, block = AGENTS[protocol]
    path = write(folder, block)
    (trace,) = read_traces(path)
    document = json.loads(path.read_text())
    logged = document.get("messages") or document["history"]
    return trace_to_replay(trace, StateOptions()), block, logged


def replayed(trace: TraceToReplay, specs: list[Any], **options: Any) -> tuple[list[TeacherCallResult], ReplayReport]:
    async def run() -> tuple[list[TeacherCallResult], ReplayReport]:
        async with open_replay(resolve_teachers(specs), ReplayOptions(backoff=0.0, **options)) as replay:
            rows = [row.result() async for rows in replay.run([trace]) for row in rows]
        return rows, replay.report

    return asyncio.run(run())


@pytest.mark.parametrize("protocol", AGENTS)
def test_teachers_see_what_the_student_saw(protocol: str, tmp_path: Path) -> None:
    trace, block, logged = read(protocol, tmp_path)
    assert trace.protocol == protocol
    with LoopbackTeachers(lambda _: block("ls")) as server:
        replayed(trace, [server.spec("a")], redact=False)
    first, last = (asked.body for asked in server.asked)
    seen = [{"role": one["role"], "content": one["content"]} for one in logged]
    assert (first["messages"], last["messages"]) == (seen[:2], seen[:4])
    assert "tools" not in first
    assert "tools" not in last


@pytest.mark.parametrize("protocol", AGENTS)
def test_a_block_and_the_students_call_are_compared_as_commands(protocol: str, tmp_path: Path) -> None:
    trace, block, _ = read(protocol, tmp_path)
    prices = {name: Teacher(input_per_mtok=1, output_per_mtok=2) for name in ("one", "two", "words")}
    commands = {"Fix a.py": "ls --color=never -l", "": "head -100 a.py"}

    def answer(question: Any) -> dict[str, Any]:
        said = question.message(len(question.raw_messages) - 1)["content"]
        if question.model == "words":
            return {"role": "assistant", "content": "I would look at the file."}
        return {"role": "assistant", "content": f"I am {question.model}.\n{block(commands.get(said, commands['']))}"}

    with MeteredServer(prices, answer=answer) as server:
        specs = [spec_of(server, name, teacher) for name, teacher in prices.items()]
        ledger = tmp_path / "ledger.sqlite"
        rows, report = replayed(trace, specs, ledger=ledger, max_total_usd=1.0)
        again, stored = replayed(trace, specs, ledger=ledger, max_total_usd=1.0)
    assert [row["response_text"] for row in again] == [row["response_text"] for row in rows]
    assert (stored.teachers["one"].stored, stored.teachers["words"].unusable) == (2, 2)
    call = '[TOOL_USE] name=bash input={"command": "head -100 a.py"}'
    assert rows[3]["response_text"] == f"I am one.\n{block('head -100 a.py')}\n{call}"
    assert [row["error"] for row in rows if row["teacher_slug"] == "words"] == [
        "the answer has no command in the form that the prompt asks for"
    ] * 2
    use = report.teachers["words"]
    assert (use.unusable, use.answered, use.unusable_cost > 0) == (2, 0, True)

    tools = complete_tools(trace.tools, trace.steps)
    found = extract_pairs_with_report([step.state() for step in trace.steps], rows, agreement="action", tools=tools)
    # The first is what the student did, in another spelling.
    assert (found.student_supported, found.pair_count, found.failed_rows) == (1, 1, 2)
    (pair,) = found.pairs
    # The history and both sides as training has them: the text as it was written, and the call in it.
    assert pair.messages is trace.steps[1].messages
    row = preference_row(pair)
    for side, command in ((row["prompt"][2], "ls -l"), (row["rejected"][0], "cat a.py"), (row["chosen"][0], "head")):
        assert block(command).rstrip("`\n").split("</")[0].rstrip() in side["content"]
        assert side["tool_calls"][0]["function"]["name"] == "bash"


@pytest.mark.parametrize(
    ("protocol", "answer", "command"),
    [
        ("mswea_bash_command", "```mswea_bash_command\nls\n```\n```mswea_bash_command\npwd\n```", None),
        ("mswea_bash_command", "```bash\nls\n```", None),
        ("single_bash_code_block", "```bash\nls\n```\nor\n```bash\npwd\n```", None),
        ("single_bash_code_block", "```python\nprint()\n```\n```bash\nls\n```", "ls"),
        ("thought_action", "```python\nx\n```\nso\n```\nls\n```", "ls"),
        ("thought_action", "```bash\nls\n```", "ls"),
        ("thought_action", "```\nnever closed", None),
        ("thought_action", "```\n\n```", None),
        ("thought_action", "```\n```python\nx\n```", None),
        ("xml_thought_action", "no tags at all, but words enough", None),
        ("xml_thought_action", "never opened: ls</command>", None),
        ("xml_thought_action", "<command>a</command> or <command>\nls\n</command>", "ls"),
        ("xml_thought_action", "</command>ls<command>", None),
    ],
)
def test_an_answer_is_read_as_the_agent_would_read_it(
    protocol: str, answer: str, command: str | None, tmp_path: Path
) -> None:
    trace, _, _ = read(protocol, tmp_path)
    with LoopbackTeachers(lambda _: answer) as server:
        rows, _ = replayed(trace, [server.spec("a")])
    for row in rows:
        if command is None:
            assert row["response_text"] is None
            assert (row["error"] or "").startswith("the answer has ")
            assert "\n" not in (row["error"] or "")
        else:
            assert row["response_text"] == f'{answer}\n[TOOL_USE] name=bash input={{"command": "{command}"}}'


def test_several_commands_are_counted_in_the_reason(tmp_path: Path) -> None:
    trace, block, _ = read("mswea_bash_command", tmp_path)
    with LoopbackTeachers(lambda _: f"{block('ls')}\n{block('pwd')}") as server:
        (row, _), _ = replayed(trace, [server.spec("a")])
    assert row["error"] == "the answer has 2 commands where the prompt asks for one"


def test_a_real_call_of_the_shell_is_fine_and_of_another_tool_is_not(tmp_path: Path) -> None:
    trace, block, _ = read("thought_action", tmp_path)

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"content": "So.", "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    said = {"right": call("bash", command="ls"), "other": call("python", code="x"), "wrong": call("bash", code="x")}
    with LoopbackTeachers(lambda asked: said[asked.model]) as server:
        rows, _ = replayed(trace, [server.spec(name) for name in said])
    right, other, wrong = rows[:3]
    # In the form of the student's, so that the two sides of a pair do not differ by it.
    assert right["response_text"] == f'So.\n\n{block("ls")}\n[TOOL_USE] name=bash input={{"command": "ls"}}'
    assert other["error"] == "the answer calls python, which is none of the tools that were offered"
    assert wrong["error"] == "the answer's call of bash does not fit the tool: 'command' is a required property"


def test_a_command_that_the_text_lacks_is_put_back(tmp_path: Path) -> None:
    """A log may keep the thought alone, and the command beside it."""
    _, block, logged = read("thought_action", tmp_path)
    logged[2]["content"] = "Look first."
    (tmp_path / "run.traj").write_text(json.dumps({"trajectory": [], "history": logged, "info": {}}))
    (again,) = read_traces(tmp_path / "run.traj")
    thinned = trace_to_replay(again, StateOptions())
    assert thinned.protocol == "thought_action"
    with LoopbackTeachers(lambda _: block("ls")) as server:
        replayed(thinned, [server.spec("a")], redact=False)
    assert server.asked[1].body["messages"][2] == {"role": "assistant", "content": f"Look first.\n\n{block('ls -l')}"}


def test_what_is_sent_is_redacted_in_this_form_too(tmp_path: Path) -> None:
    _, block, logged = read("mswea_bash_command", tmp_path)
    secret = "ghp_" + "a1B2c3D4" * 5
    logged[2]["content"] = f"Look.\n{block('echo ' + secret)}"
    (tmp_path / "run.traj.json").write_text(json.dumps({"info": {"mini_version": "1"}, "messages": logged}))
    (again,) = read_traces(tmp_path / "run.traj.json")
    with LoopbackTeachers(lambda _: block("ls")) as server:
        replayed(trace_to_replay(again, StateOptions()), [server.spec("a")])
    assert secret.encode() not in server.asked[1].raw
    assert "```mswea_bash_command\necho <GITHUB_TOKEN_1>" in server.asked[1].body["messages"][2]["content"]


def test_states_alone_need_to_be_told_the_protocol(tmp_path: Path) -> None:
    trace, block, _ = read("single_bash_code_block", tmp_path)
    states = [step.state() for step in trace.steps]

    def asked(_: Asked) -> str:
        return block("ls")

    with LoopbackTeachers(asked) as server:
        (row, _) = asyncio.run(replay_trace(states, [server.spec("a")], protocol="single_bash_code_block"))
        (text, _) = asyncio.run(replay_trace(states, [server.spec("a")]))
    assert row["response_text"] == f'{block("ls")}\n[TOOL_USE] name=bash input={{"command": "ls"}}'
    assert text["response_text"] == block("ls")
    with pytest.raises(ValueError, match=r"protocol must be one of .*'thought_action'.*, not 'morse'"):
        asyncio.run(replay_trace(states, [server.spec("a")], protocol="morse"))
