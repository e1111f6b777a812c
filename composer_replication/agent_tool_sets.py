"""The tools that known coding agents give their model, by version: one table, to be read and extended.

Logs of Claude Code and Codex do not hold the definitions of their tools. Names and arguments are taken from logs and
public documentation: Claude Code's tools reference, changelog, typed inputs and `init` events, Codex's source and pull
requests. Descriptions are our own. "About" marks a version that is inferred from dates, or from the first log that
shows it.

Left out is what depends on a plan, a platform, a setting or connected servers (LSP, PowerShell, ToolSearch, Monitor,
MCP resources, agent teams; Codex's sub-agents). Where a trace calls such a tool, its calls show it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
RECORD: Schema = {"type": "object"}


def one_of(*choices: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(choices)}


def list_of(items: Schema) -> Schema:
    """Any number of these."""
    return {"type": "array", "items": items}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    """An object with these fields."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


@dataclass(frozen=True)
class Tool:
    """A tool of an agent.

    Args:
        since: the first version that has it; None is the oldest.
        until: the first version that no longer has it; None is the newest.
        unless: not there in a session that calls one of these: they stand for it.
        main_only: not for sub-agents.
    """

    name: str
    description: str
    required: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)
    since: str | None = None
    until: str | None = None
    unless: tuple[str, ...] = ()
    main_only: bool = False

    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return record(self.required, self.optional)

    def is_in(self, version: str | None) -> bool:
        """Whether a version has it. Of an unknown version, only what every version has is certain."""
        number, since, until = map(_number, (version, self.since, self.until))
        if number is None:
            return since is None and until is None
        return (since is None or since <= number) and (until is None or number < until)


def known_tools(agent: str, version: str | None, called: Collection[str] = (), *, subagent: bool = False) -> list[Tool]:
    """The tools of a session of an agent (the format of its log); empty if nothing is known of it.

    `called` are the names that the session calls: they tell which of two variants it had, and a known tool that is
    called is there whatever the version.
    """
    rows = TOOLS.get(agent, ())
    found = {tool.name: tool for tool in rows if tool.name in called}  # of several definitions, the newest
    for tool in rows:
        is_replaced = (subagent and tool.main_only) or any(other in called for other in tool.unless)
        if tool.is_in(version) and (tool.name in called or not is_replaced):
            found[tool.name] = tool
    return list(found.values())


def _number(version: str | None) -> tuple[int, ...] | None:
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    number = tuple(map(int, found[0].split("."))) if found is not None else ()
    return number if any(number) else None  # 0.0.0 is a build from source, of any age


_FILE = {"file_path": TEXT}
_CHANGE = {"old_string": TEXT, "new_string": TEXT}
_STATUS = one_of("pending", "in_progress", "completed")
_SUB_AGENT = {"description": TEXT, "prompt": TEXT}
_TASK_TOOLS = ("TaskCreate", "TaskGet", "TaskList", "TaskUpdate")
_TASKS: dict[str, Any] = {"since": "2.1.16", "unless": ("TodoWrite",)}

CLAUDE_CODE = (
    Tool("Read", "Read a file, or some of its lines.", _FILE, {"offset": NUMBER, "limit": NUMBER, "pages": TEXT}),
    Tool("Write", "Create a file, or replace all of it.", {**_FILE, "content": TEXT}),
    Tool("Edit", "Replace a text that stands in a file.", {**_FILE, **_CHANGE}, {"replace_all": FLAG}),
    Tool(
        "MultiEdit",
        "Replace several texts in one file, one after another.",
        {**_FILE, "edits": list_of(record(_CHANGE, {"replace_all": FLAG}))},
        until="2.0.0",  # about: in a log of 1.0.108, missed by users of 2.0
    ),
    Tool(
        "NotebookEdit",
        "Replace, insert or delete a cell of a Jupyter notebook.",
        {"notebook_path": TEXT, "new_source": TEXT},
        {
            "cell_id": TEXT,
            "cell_type": one_of("code", "markdown"),
            "edit_mode": one_of("replace", "insert", "delete"),
        },
    ),
    Tool("NotebookRead", "Read the cells of a Jupyter notebook.", {"notebook_path": TEXT}, until="1.0.68"),
    Tool(
        "Bash",
        "Run a shell command.",
        {"command": TEXT},
        {"description": TEXT, "timeout": NUMBER, "run_in_background": FLAG},
    ),
    Tool(
        "BashOutput",
        "Get the new output of a command in the background.",
        {"bash_id": TEXT},
        {"filter": TEXT},
        since="1.0.71",
        until="2.0.64",
    ),
    Tool("KillBash", "Stop a command in the background.", {"shell_id": TEXT}, since="1.0.71", until="1.0.123"),  # about
    Tool(
        "KillShell", "Stop a command in the background.", {"shell_id": TEXT}, since="1.0.123", until="2.1.25"
    ),  # about
    Tool(
        "TaskOutput",
        "Get the output of a command or an agent in the background.",
        {"task_id": TEXT},
        {"block": FLAG, "timeout": NUMBER},
        since="2.0.64",
        until="2.1.277",
    ),
    Tool("TaskStop", "Stop what runs in the background.", {}, {"task_id": TEXT, "shell_id": TEXT}, since="2.1.25"),
    # From 2.1.117 on, only Windows and npm have these two: elsewhere Bash searches.
    Tool("Glob", "Find files by a pattern of their names.", {"pattern": TEXT}, {"path": TEXT}, until="2.1.117"),
    Tool(
        "Grep",
        "Search the contents of files with a regular expression (ripgrep).",
        {"pattern": TEXT},
        {
            "path": TEXT,
            "glob": TEXT,
            "type": TEXT,
            "output_mode": one_of("content", "files_with_matches", "count"),
            "-A": NUMBER,
            "-B": NUMBER,
            "-C": NUMBER,
            "-n": FLAG,
            "-i": FLAG,
            "multiline": FLAG,
            "head_limit": NUMBER,
            "offset": NUMBER,
        },
        until="2.1.117",
    ),
    Tool(
        "LS", "List a directory.", {"path": TEXT}, {"ignore": list_of(TEXT)}, until="1.0.98"
    ),  # about: gone in 1.0.100
    Tool(
        "Task",
        "Start a sub-agent for a task; its last message is the result.",
        _SUB_AGENT,
        {"subagent_type": TEXT, "model": TEXT, "resume": TEXT, "run_in_background": FLAG},
        until="2.1.63",
        main_only=True,
    ),
    Tool(
        "Agent",
        "Start a sub-agent for a task; its last message is the result.",
        _SUB_AGENT,
        {"subagent_type": TEXT, "model": TEXT, "run_in_background": FLAG, "name": TEXT, "isolation": TEXT},
        since="2.1.63",
        main_only=True,
    ),
    Tool(
        "TodoWrite",
        "Write the list of what is to be done.",
        {"todos": list_of(record({"content": TEXT, "status": _STATUS}, {"activeForm": TEXT}))},
        until="2.1.16",  # longer where nobody is at the terminal: its calls show that
        unless=_TASK_TOOLS,
    ),
    Tool(
        "TaskCreate",
        "Add a task to the list.",
        {"subject": TEXT, "description": TEXT},
        {"activeForm": TEXT, "metadata": RECORD},
        **_TASKS,
    ),
    Tool("TaskGet", "Show a task of the list.", {"taskId": TEXT}, **_TASKS),
    Tool("TaskList", "Show the list of tasks.", **_TASKS),
    Tool(
        "TaskUpdate",
        "Change a task of the list.",
        {"taskId": TEXT},
        {
            "status": one_of("pending", "in_progress", "completed", "deleted"),
            "subject": TEXT,
            "description": TEXT,
            "activeForm": TEXT,
            "owner": TEXT,
            "addBlocks": list_of(TEXT),
            "addBlockedBy": list_of(TEXT),
            "metadata": RECORD,
        },
        **_TASKS,
    ),
    Tool("WebFetch", "Fetch a page and answer a prompt about it.", {"url": TEXT, "prompt": TEXT}),
    Tool(
        "WebSearch",
        "Search the web.",
        {"query": TEXT},
        {"allowed_domains": list_of(TEXT), "blocked_domains": list_of(TEXT)},
    ),
    Tool("ExitPlanMode", "Put a plan before the user and ask to begin.", {}, {"plan": TEXT}, main_only=True),
    Tool("EnterPlanMode", "Plan before anything is changed.", since="2.0.59", main_only=True),  # about
    Tool(
        "AskUserQuestion",
        "Ask the user questions with a few answers to choose from.",
        {
            "questions": list_of(
                record(
                    {
                        "question": TEXT,
                        "header": TEXT,
                        "options": list_of(record({"label": TEXT, "description": TEXT})),
                        "multiSelect": FLAG,
                    }
                )
            )
        },
        since="2.0.21",
        main_only=True,
    ),
    Tool("SlashCommand", "Run a slash command.", {"command": TEXT}, since="1.0.123", until="2.1.3"),
    Tool("Skill", "Load a skill by its name.", {"skill": TEXT}, {"args": TEXT}, since="2.0.20"),
    Tool("EnterWorktree", "Work in a git worktree.", {}, {"name": TEXT, "path": TEXT}, since="2.1.49"),  # about
    Tool(
        "ExitWorktree",
        "Leave the worktree, and keep or remove it.",
        {"action": one_of("keep", "remove")},
        {"discard_changes": FLAG},
        since="2.1.72",
    ),
    Tool(
        "CronCreate",
        "Schedule a prompt.",
        {"cron": TEXT, "prompt": TEXT},
        {"recurring": FLAG, "durable": FLAG},
        since="2.1.71",
    ),
    Tool("CronDelete", "Cancel a scheduled prompt.", {"id": TEXT}, since="2.1.71"),
    Tool("CronList", "List the scheduled prompts.", since="2.1.71"),
)

# Which shell tool Codex gives depends on its model, too; these are the defaults. In code mode, `exec` runs code that
# calls the other tools: then the model sees none of them.
_CODE_MODE = "exec"
_ESCALATED = {"with_escalated_permissions": FLAG, "justification": TEXT}
_SANDBOX = {"sandbox_permissions": TEXT, "justification": TEXT}
_UNIFIED: dict[str, Any] = {"since": "0.98.0", "unless": ("shell", "shell_command", "local_shell", _CODE_MODE)}  # about
_YIELDS = {"yield_time_ms": NUMBER, "max_output_tokens": NUMBER}

CODEX = (
    Tool(
        "shell",
        'Run a program with its arguments; most commands begin with ["bash", "-lc"].',
        {"command": list_of(TEXT)},
        {"workdir": TEXT, "timeout_ms": NUMBER, **_ESCALATED},
        until="0.59.0",  # about
        unless=("shell_command", "exec_command", "local_shell", _CODE_MODE),
    ),
    Tool(
        "shell_command",
        "Run a command in the user's shell.",
        {"command": TEXT},
        {"workdir": TEXT, "timeout_ms": NUMBER, **_ESCALATED},
        since="0.59.0",
        until="0.73.0",  # about: with other names for permissions from here on
        unless=("shell", "exec_command", "local_shell", _CODE_MODE),
    ),
    Tool(
        "shell_command",
        "Run a command in the user's shell.",
        {"command": TEXT},
        {"workdir": TEXT, "timeout_ms": NUMBER, "login": FLAG, **_SANDBOX},
        since="0.73.0",
        until="0.98.0",
        unless=("shell", "exec_command", "local_shell", _CODE_MODE),
    ),
    Tool(
        "exec_command",
        "Run a command in a terminal; gives its output, or the id of a session that goes on.",
        {"cmd": TEXT},
        {"workdir": TEXT, "shell": TEXT, "login": FLAG, "tty": FLAG, **_YIELDS, **_SANDBOX},
        **_UNIFIED,
    ),
    Tool(
        "write_stdin",
        "Write to a session that goes on, and get its new output.",
        {"session_id": NUMBER},
        {"chars": TEXT, **_YIELDS},
        **_UNIFIED,
    ),
    Tool(
        "apply_patch",
        "Change files by a patch, from `*** Begin Patch` to `*** End Patch`.",
        {"input": TEXT},
        since="0.36.0",  # about: with the first model that was given it; before, a command of the shell
        unless=(_CODE_MODE,),
    ),
    Tool(
        "update_plan",
        "Write the steps of the plan, and how far each is.",
        {"plan": list_of(record({"step": TEXT, "status": _STATUS}))},
        {"explanation": TEXT},
        since="0.11.0",  # about
        unless=(_CODE_MODE,),
    ),
    Tool("view_image", "Look at an image file.", {"path": TEXT}, since="0.26.0", unless=(_CODE_MODE,)),  # about
    Tool(
        "web_search",
        "Search the web, open a page, or find a text in it.",
        {},
        {
            "type": one_of("search", "open_page", "find_in_page"),
            "query": TEXT,
            "queries": list_of(TEXT),
            "url": TEXT,
            "pattern": TEXT,
        },
        since="0.92.0",  # before, a flag turned it on
    ),
)

TOOLS: Mapping[str, tuple[Tool, ...]] = {"claude_code": CLAUDE_CODE, "codex": CODEX}
"""By the format of an agent's log."""
