"""The tools of known agents by version: one table, whose definitions any endpoint takes."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from jsonschema import Draft202012Validator

from composer_replication.agent_tool_sets import TOOLS, Tool, known_tools


def names(agent: str, version: str | None, called: Collection[str] = (), *, subagent: bool = False) -> set[str]:
    return {tool.name for tool in known_tools(agent, version, called, subagent=subagent)}


@pytest.mark.parametrize("version", ["1.0.80", "1.0.108", "2.0.28", "2.1.39", "2.1.100", "2.1.280", "3.0.0"])
def test_every_claude_code_reads_writes_edits_and_runs(version: str) -> None:
    assert names("claude_code", version) >= {"Bash", "Read", "Write", "Edit", "NotebookEdit", "WebFetch", "WebSearch"}


@pytest.mark.parametrize(
    ("version", "there", "not_there"),
    [
        ("1.0.80", "LS MultiEdit Task TodoWrite BashOutput KillBash", "Agent Skill TaskCreate TaskOutput KillShell"),
        ("1.0.108", "MultiEdit Task TodoWrite", "LS Skill"),
        ("2.0.28", "Task TodoWrite BashOutput KillShell Skill SlashCommand AskUserQuestion", "LS MultiEdit TaskOutput"),
        ("2.0.76", "Task TodoWrite TaskOutput KillShell EnterPlanMode", "BashOutput TaskStop TaskCreate"),
        ("2.1.39", "Task TaskCreate TaskUpdate TaskList TaskGet TaskStop Glob Grep", "TodoWrite KillShell Agent"),
        ("2.1.100", "Agent Glob Grep EnterWorktree CronCreate", "Task"),
        ("2.1.280", "Agent TaskStop", "Task Glob Grep TaskOutput"),
    ],
)
def test_tools_of_claude_code_come_and_go_with_its_versions(version: str, there: str, not_there: str) -> None:
    found = names("claude_code", version)
    assert found >= set(there.split())
    assert not found & set(not_there.split())


@pytest.mark.parametrize(
    ("version", "there", "not_there"),
    [
        ("0.20.0", "shell update_plan", "shell_command exec_command apply_patch view_image"),
        ("0.47.0", "shell update_plan apply_patch view_image", "shell_command exec_command web_search"),
        ("0.66.0", "shell_command update_plan apply_patch view_image", "shell exec_command write_stdin"),
        ("0.73.0-alpha.2", "shell_command", "shell exec_command"),
        ("0.98.0", "exec_command write_stdin apply_patch web_search", "shell shell_command"),
    ],
)
def test_tools_of_codex_come_and_go_with_its_versions(version: str, there: str, not_there: str) -> None:
    found = names("codex", version)
    assert found >= set(there.split())
    assert not found & set(not_there.split())


def test_a_call_shows_which_of_two_variants_a_session_had() -> None:
    assert names("codex", "0.66.0", ["shell"]) == names("codex", "0.66.0") - {"shell_command"} | {"shell"}
    assert names("codex", "0.98.0", ["shell_command"]) >= {"shell_command", "apply_patch"}
    assert not names("codex", "0.98.0", ["shell_command"]) & {"exec_command", "write_stdin"}
    tasks = {"TaskCreate", "TaskGet", "TaskList", "TaskUpdate"}
    assert names("claude_code", "2.1.72", ["TodoWrite"]) == names("claude_code", "2.1.72") - tasks | {"TodoWrite"}
    # In code mode the other tools are called by the code.
    assert names("codex", "0.156.0", ["exec"]) == {"web_search"}


def test_both_variants_are_there_if_both_are_called() -> None:
    assert names("codex", "0.66.0", ["shell", "shell_command"]) >= {"shell", "shell_command"}


def test_a_known_tool_that_is_called_is_there_in_any_version() -> None:
    assert names("claude_code", "2.1.280", ["Grep"]) == names("claude_code", "2.1.280") | {"Grep"}


def test_two_definitions_of_one_name_are_told_apart_by_version() -> None:
    def parameters(version: str, called: Collection[str] = ()) -> set[str]:
        (tool,) = (one for one in known_tools("codex", version, called) if one.name == "shell_command")
        return {*tool.parameters()["properties"]}

    assert "with_escalated_permissions" in parameters("0.66.0")
    assert "with_escalated_permissions" in parameters("0.66.0", ["shell", "shell_command"])
    assert "sandbox_permissions" in parameters("0.80.0")
    # Outside its versions, the newest definition.
    assert "sandbox_permissions" in parameters("0.120.0", ["shell_command"])


@pytest.mark.parametrize("version", [None, "", "unknown", "0.0.0"])
def test_of_an_unknown_version_only_what_every_version_has_is_certain(version: str | None) -> None:
    assert names("claude_code", version) >= {"Bash", "Read", "Write", "Edit"}
    assert not names("claude_code", version) & {"LS", "MultiEdit", "Task", "Agent", "TodoWrite", "TaskCreate"}
    assert names("codex", version) == set()
    assert names("codex", version, ["shell"]) == {"shell"}


def test_a_sub_agent_has_not_what_is_for_the_main_conversation() -> None:
    own = {"Task", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode"}
    assert names("claude_code", "2.1.39", subagent=True) == names("claude_code", "2.1.39") - own
    assert names("claude_code", "2.1.39", ["Task"], subagent=True) & own == {"Task"}


def test_of_another_agent_nothing_is_known() -> None:
    assert known_tools("openhands", "1.0.0", ["Read"]) == []


ROWS = [pytest.param(tool, id=f"{agent} {tool.name}") for agent, tools in TOOLS.items() for tool in tools]


@pytest.mark.parametrize("tool", ROWS)
def test_any_endpoint_takes_a_definition(tool: Tool) -> None:
    parameters = tool.parameters()
    Draft202012Validator.check_schema(parameters)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in parameters["properties"])
    assert set(parameters.get("required", ())) <= set(parameters["properties"])
    assert tool.description.endswith(".")


@pytest.mark.parametrize("agent", TOOLS)
def test_no_version_has_two_definitions_of_a_name(agent: str) -> None:
    bounds = {bound for tool in TOOLS[agent] for bound in (tool.since, tool.until) if bound}
    for version in [*bounds, None, "0.0.1", "99.0.0"]:
        found = [tool.name for tool in TOOLS[agent] if tool.is_in(version)]
        assert len(found) == len(set(found))
