"""A tool call's arguments in a form to compare, for tools of any name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from composer_replication.coding_tools import (
    CONTENT_KEYS,
    DIRECTORY_KEYS,
    PATH_KEYS,
    PLAN_TOOLS,
    WEB_SEARCH_TOOLS,
    WORKING_DIRECTORY_KEYS,
    word_set,
)
from composer_replication.teacher_replay.agreement.paths import normal_path, normal_url
from composer_replication.teacher_replay.agreement.shell.lines import Form
from composer_replication.teacher_replay.agreement.shell.meanings import json_form, sql_form

# Said to whoever watches; nothing is done otherwise because of them.
FOR_THE_READER = word_set(
    "description explanation justification thought thoughts reasoning security_risk activeForm "
    "active_form timeout timeout_ms timeout_s yield_time_ms max_output_tokens toolSummary"
)
_PATHS = frozenset((*PATH_KEYS, *DIRECTORY_KEYS, *WORKING_DIRECTORY_KEYS, "paths"))
_PROSE = word_set("prompt message question instructions summary body comment reason task plan")
STATEMENT = re.compile(
    r"\s*(?:select|explain|pragma|with\s+\w+\s+as|insert\s+into|update\s+\S+\s+set|delete\s+from|alter\s+table"
    r"|(?:create|drop)\s+(?:unique\s+)?(?:table|index|view|database|schema))\s",
    re.IGNORECASE,
)
_TIMED = re.compile(r"wait|sleep|timer|alarm|schedule|config|set_|update|create|monitor", re.IGNORECASE)
# Whatever they run ends by itself, and the time it is given is a precaution.
_RUNS = ("command", "cmd", "code", "url")
# Texts of files, whose closing newline is put in or left out as it happens.
_CONTENTS = frozenset((*CONTENT_KEYS, "new_string", "new_str", "new_source", "code"))
_URL = re.compile(r"https?://\S+")
# What goes without saying, by tool (in lower case).
_DEFAULTS: dict[str, dict[str, str]] = {
    "edit": {"replace_all": "false"},
    "taskoutput": {"block": "true"},
    "notebookedit": {"edit_mode": "replace", "cell_type": "code"},
    "task": {"subagent_type": "general-purpose"},
    "list_files": {"path": "."},
    "search_dir": {"dir": ".", "dir_path": "."},
    "find_file": {"dir": ".", "dir_path": "."},
}


def argument_forms(tool: str, arguments: Mapping[str, Any]) -> tuple[Form, tuple[str, ...]]:
    """The arguments that count, sorted by name, and the texts among them that may be worded otherwise."""
    form: list[tuple[str, object]] = []
    prose: list[str] = []
    name = tool.lower()
    for key, value in sorted(arguments.items()):
        if value is None or value in ({}, []) or _is_for_the_reader(key, name, arguments):
            continue
        if isinstance(value, str) and _is_prose(key, value, name):
            form.append((key, "prose"))
            prose.append(value)
        elif name in PLAN_TOOLS and isinstance(value, list):
            form.append((key, tuple(_tasks(value, prose))))
        else:
            found = _value(value, "content" if key == "text" and _PATHS & arguments.keys() else key)
            if _DEFAULTS.get(name, {}).get(key) != found:
                form.append((key, found))
    return tuple(form), tuple(prose)


def _is_for_the_reader(key: str, tool: str, arguments: Mapping[str, Any]) -> bool:
    if key not in FOR_THE_READER:
        return False
    if key == "description":
        # Of a ticket it is the content; beside a command or a prompt it is a label.
        return any(other in arguments for other in ("command", "cmd", "prompt", "code"))
    if key.startswith("timeout"):
        return any(other in arguments for other in _RUNS) and not _TIMED.search(tool)
    return True


def _is_prose(key: str, value: str, tool: str) -> bool:
    if key == "query":
        return tool in WEB_SEARCH_TOOLS
    return key in _PROSE or key == "description"


def _tasks(tasks: list[Any], prose: list[str]) -> Iterator[object]:
    """A list of tasks: what each says, and how far it is."""
    for task in tasks:
        if not isinstance(task, dict):
            yield scalar(task)
            continue
        text = next((task[key] for key in ("content", "step", "task", "title") if isinstance(task.get(key), str)), "")
        prose.append(text)
        yield tuple((key, scalar(task[key])) for key in ("status", "priority") if key in task)


def _value(value: Any, key: str) -> object:
    if isinstance(value, dict):
        inner = {name: one for name, one in value.items() if one is not None}
        return tuple((name, _value(one, name)) for name, one in sorted(inner.items()))
    if isinstance(value, list):
        return ("list", *(_value(one, key) for one in value))
    if not isinstance(value, str):
        return scalar(value)
    if key in _PATHS:
        return normal_path(value)
    if key == "url" or _URL.fullmatch(value):
        return normal_url(value)
    if STATEMENT.match(value):
        return sql_form(value)
    # White space and the order of keys say nothing in JSON, but in a file they are its text.
    return scalar(value.rstrip()) if key in _CONTENTS else json_form(scalar(value))


def scalar(value: Any) -> str:
    """A number or a truth value as the text that spells it."""
    if isinstance(value, bool) or (isinstance(value, str) and value in ("True", "False")):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
