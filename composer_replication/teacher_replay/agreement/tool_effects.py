"""Tool calls as effects: what the known tools of coding agents do, and any other call by its name and arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from composer_replication.coding_tools import (
    CHANGE_KEYS,
    CODE_TOOLS,
    COMMAND_TOOLS,
    CONTENT_KEYS,
    DIRECTORY_KEYS,
    LIST_TOOLS,
    PATH_KEYS,
    PLAN_TOOLS,
    READ_TOOLS,
    TEXT_SEARCH_TOOLS,
    WEB_SEARCH_TOOLS,
    WORKING_DIRECTORY_KEYS,
    WRITE_TOOLS,
    text_of,
    word_set,
)
from composer_replication.teacher_replay.agreement.code import python_call, python_form
from composer_replication.teacher_replay.agreement.edits import Edit, is_patch
from composer_replication.teacher_replay.agreement.effects import NOTES, Effect, effect, on_path, patch_effects
from composer_replication.teacher_replay.agreement.shell.effects import line_edit, shell_effects
from composer_replication.teacher_replay.agreement.shell.files import Lines
from composer_replication.teacher_replay.agreement.shell.lines import Form, normal_path
from composer_replication.teacher_replay.agreement.shell.meanings import json_form, sql_form
from composer_replication.teacher_replay.agreement.shell.searches import (
    FILE_TYPES,
    extended_pattern,
    files_form,
    search_form,
)
from composer_replication.traces import ToolCall

# PowerShell's commands are not a shell's.
_SHELL_TOOLS = COMMAND_TOOLS - {"powershell"}
_NOT_PERMISSIONS = ("command", "cmd", "action", "type", "shell", "login", *WORKING_DIRECTORY_KEYS)
# White space beside JSON's marks says nothing, in a string it is text, elsewhere it parts words.
_JSON_BLANKS = re.compile(r'(?P<string>"(?:\\.|[^"\\])*"?)|\s*(?P<mark>[{}\[\],:])\s*|\s+', re.DOTALL)
_BLANKS = re.compile(r'(?P<string>"(?:\\.|[^"\\])*"?)|(?P<mark>(?!))|[^\S\n]+', re.DOTALL)
_READS = re.compile(r"^(?:get|list|read|view|search|find|fetch|web_?search|web_?fetch|show|ls)", re.IGNORECASE)
# Said to whoever watches; nothing is done otherwise because of them.
_FOR_THE_READER = word_set(
    "description explanation justification thought thoughts reasoning security_risk activeForm "
    "active_form timeout timeout_ms timeout_s yield_time_ms max_output_tokens toolSummary"
)
_PATHS = frozenset((*PATH_KEYS, *DIRECTORY_KEYS, *WORKING_DIRECTORY_KEYS, "paths"))
_PROSE = word_set("prompt message question instructions summary body comment reason task plan")
_STATEMENT = re.compile(
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


def call_effects(call: ToolCall) -> list[Effect]:
    """Return the effects of a call. Arguments that are not JSON are compared as text, unless they are a patch."""
    if call.raw_arguments is not None:
        return _raw_effects(call.name, call.raw_arguments)
    name = call.name.lower()
    arguments = {key: value for key, value in call.arguments.items() if value is not None}
    for reader in (_shell, _edit, _read, _write, _search, _files, _notebook, _patch, _line_edit):
        found = reader(name, arguments)
        if found is not None:
            return found
    return [_any_call(name, arguments)]


def _any_call(name: str, arguments: Mapping[str, Any]) -> Effect:
    name = "task" if name == "agent" else name
    code = (source,) if isinstance(source := arguments.get("new_source"), str) else ()
    others = {key: value for key, value in arguments.items() if not code or key != "new_source"}
    form, prose = _argument_forms(name, others)
    touches = NOTES if name in PLAN_TOOLS else None
    path = text_of(arguments, ("notebook_path",)) or ""
    # Sub-agents that are started together run side by side.
    reads = bool(_READS.match(name)) or name == "task"
    return effect(
        "call",
        name,
        form,
        prose=prose,
        is_query=name in WEB_SEARCH_TOOLS,
        code=code,
        path=path,
        reads=reads,
        touches=touches,
    )


def _raw_effects(name: str, text: str) -> list[Effect]:
    if is_patch(text):
        return patch_effects(text)
    if _STATEMENT.match(text):
        return [effect("call", name.lower(), "raw", sql_form(text))]
    blanks = _JSON_BLANKS if text.lstrip().startswith(("{", "[")) else _BLANKS
    shown = blanks.sub(lambda found: found["string"] or found["mark"] or " ", text.strip())
    return [effect("call", name.lower(), "raw", shown)]


def _only(arguments: Mapping[str, Any], *keys: str) -> bool:
    return all(key in keys or key in _FOR_THE_READER for key in arguments)


def _number(value: Any) -> int | None:
    text = _scalar(value)
    return int(text) if re.fullmatch(r"-?\d{1,12}", text) else None


def _shell(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    if isinstance(action := arguments.get("action"), dict):
        arguments = {**arguments, **action}
    command = arguments.get("command", arguments.get("cmd"))
    if name not in _SHELL_TOOLS or not isinstance(command, str | list):
        return None
    directory = text_of(arguments, WORKING_DIRECTORY_KEYS)
    others = {
        key: value
        for key, value in arguments.items()
        if key not in _NOT_PERMISSIONS and key not in _FOR_THE_READER and _scalar(value) not in ("false", "[]", "{}")
    }
    in_background = _scalar(others.pop("run_in_background", False)) == "true"
    form, _ = _argument_forms(name, others)
    if isinstance(command, list):
        command = _joined([str(word) for word in command])
    where = None if directory is None else normal_path(directory)
    found = shell_effects(command, where, in_background=in_background)
    # Permissions, input for a running process: whatever else is said makes it another call.
    return [replace(one, local=(*one.local, form), resolved=(*one.resolved, form)) for one in found] if form else found


def _joined(words: list[str]) -> str:
    """A list of words as a command line; each is quoted, for no shell has looked at it."""
    if len(words) == 1:
        return words[0]
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _edit(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    path = text_of(arguments, PATH_KEYS)
    if path is None:
        return None
    command = arguments.get("command")
    if isinstance(command, str) and command not in ("str_replace", "edit", "replace"):
        return None
    edits = arguments.get("edits")
    if isinstance(edits, list) and edits and _only(arguments, *PATH_KEYS, "edits", "command"):
        changes = [change for one in edits if isinstance(one, dict) and (change := _change(one)) is not None]
        return [on_path("edit", path, edit=change) for change in changes] if len(changes) == len(edits) else None
    change = _change(arguments)
    return None if change is None else [on_path("edit", path, edit=change)]


def _change(arguments: Mapping[str, Any]) -> Edit | None:
    for old_key, new_key in CHANGE_KEYS:
        old, new = arguments.get(old_key), arguments.get(new_key, "")
        if not isinstance(old, str) or not isinstance(new, str):
            continue
        if not _only(arguments, *PATH_KEYS, old_key, new_key, "replace_all", "command", "expected_replacements"):
            return None
        return Edit(old, new, all_places=_scalar(arguments.get("replace_all", False)) == "true")
    return None


def _read(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    path = text_of(arguments, PATH_KEYS)
    is_view = name in READ_TOOLS or arguments.get("command") == "view"
    ranges = ("offset", "limit", "view_range", "start_line", "end_line")
    if path is None or not is_view or not _only(arguments, *PATH_KEYS, *ranges, "command"):
        return None
    shown = _shown_lines(arguments)
    return None if shown is None else [on_path("view", path, shown, reads=True)]


def _shown_lines(arguments: Mapping[str, Any]) -> Lines | None:
    start, stop = 1, None
    view_range = arguments.get("view_range")
    if isinstance(view_range, list) and view_range:
        numbers = [_number(value) for value in view_range]
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return None
        start, stop = numbers[0], None if numbers[1] == -1 else numbers[1]
    if "start_line" in arguments or "end_line" in arguments:
        first, last = _number(arguments.get("start_line", 1)), _number(arguments.get("end_line", -1))
        if first is None or last is None:
            return None
        start, stop = first, None if last == -1 else last
    if "offset" in arguments or "limit" in arguments:
        offset, limit = _number(arguments.get("offset", 1)), _number(arguments.get("limit", 2000))
        if offset is None or limit is None:
            return None
        start = max(offset, 1)
        # As many lines as are shown anyway.
        stop = None if limit == 2000 else start + limit - 1
    return max(start, 1), stop


def _write(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    path, content = text_of(arguments, PATH_KEYS), text_of(arguments, (*CONTENT_KEYS, "text"))
    is_write = name in WRITE_TOOLS or arguments.get("command") == "create"
    keys = (*PATH_KEYS, *CONTENT_KEYS, "text", "command")
    if path is None or content is None or not is_write or not _only(arguments, *keys):
        return None
    return [on_path("write", path, code=(content,))]


def _search(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    pattern = text_of(arguments, ("pattern",))
    keys = ("pattern", "path", "glob", "type", "output_mode", "-A", "-B", "-C", "-n", "-i", "multiline", "head_limit")
    if name not in TEXT_SEARCH_TOOLS or pattern is None or not _only(arguments, *keys, "offset", "context"):
        return None
    around = _number(arguments.get("-C", arguments.get("context", 0))) or 0
    globs = [arguments["glob"]] if isinstance(arguments.get("glob"), str) else []
    if isinstance(kind := arguments.get("type"), str):
        globs.append(FILE_TYPES.get(kind, f"type:{kind}"))
    modes = {"files_with_matches": "files", "content": "content", "count": "count"}
    flags = [flag for flag, key in (("-i", "-i"), ("-U", "multiline")) if _scalar(arguments.get(key, False)) == "true"]
    path = normal_path(text_of(arguments, ("path",)) or ".")
    form = search_form(
        pattern,
        [path],
        globs=globs,
        mode=modes.get(_scalar(arguments.get("output_mode", "files_with_matches")), "another"),
        flags=flags,
        before=_number(arguments.get("-B", around)) or 0,
        after=_number(arguments.get("-A", around)) or 0,
    )
    if (skipped := _scalar(arguments.get("offset", 0))) != "0":
        form = (*form, ("offset", skipped))
    return _looks(form, path)


def _files(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    """Searches for files by name, searches in one file, listings."""
    folder = normal_path(text_of(arguments, ("path", *DIRECTORY_KEYS)) or ".")
    pattern, file_name = text_of(arguments, ("pattern",)), text_of(arguments, ("file_name",))
    text, file = text_of(arguments, ("search_term",)), text_of(arguments, ("file", "file_path"))
    if name == "glob" and pattern is not None and _only(arguments, "pattern", "path"):
        return _looks(files_form(pattern, folder), folder)
    if name == "find_file" and file_name is not None and _only(arguments, "file_name", "dir", "dir_path"):
        return _looks(files_form(f"**/{file_name}", folder), folder)
    if name == "search_file" and text is not None and file is not None:
        if _only(arguments, "search_term", "file", "file_path"):
            path = normal_path(file)
            return _looks(search_form(extended_pattern(text, "fixed"), [path]), path)
    elif name in LIST_TOOLS and _only(arguments, "path", "dir_path"):
        return _looks(("ls", (), (folder,), (), (), None, None), folder)
    return None


def _looks(form: Form, path: str) -> list[Effect]:
    return [effect(*form, reads=True, touches=frozenset({path}))]


def _notebook(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    code = text_of(arguments, ("code",))
    if name not in CODE_TOOLS or code is None or not _only(arguments, "code"):
        return None
    lines = [line.strip() for line in code.strip().splitlines() if line.strip()]
    if lines and lines[0] in ("%%bash", "%%sh", "%%shell"):
        return shell_effects(code.strip().partition("\n")[2])
    if lines and all(line.startswith(("!", "%pip ", "%cd ")) for line in lines):
        return shell_effects("\n".join(line[1:] for line in lines))
    called = python_call(code)
    if called is not None and called[0] == "edit_file_by_replace":
        change = _change(called[1])
        if change is not None and isinstance(path := called[1].get("file_name"), str):
            return [on_path("edit", path, edit=change)]
    if called is not None and called[0] == "append_file":
        path, content = called[1].get("file_name"), called[1].get("content")
        if isinstance(path, str) and isinstance(content, str) and len(called[1]) == 2:
            return [on_path("append", path, code=(content,))]
    return [effect("notebook", python_form(code) or code.strip())]


def _patch(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    text = text_of(arguments, ("input", "patch", "diff"))
    if text is None or not _only(arguments, "input", "patch", "diff") or not is_patch(text):
        return None
    return patch_effects(text)


def _line_edit(name: str, arguments: Mapping[str, Any]) -> list[Effect] | None:
    text = text_of(arguments, ("replacement_text",))
    start, stop = _number(arguments.get("start_line")), _number(arguments.get("end_line"))
    if text is None or start is None or stop is None:
        return None
    is_whole = _only(arguments, "replacement_text", "start_line", "end_line")
    return [line_edit(start, stop, text)] if is_whole else None


def _argument_forms(tool: str, arguments: Mapping[str, Any]) -> tuple[Form, tuple[str, ...]]:
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
    if key not in _FOR_THE_READER:
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
            yield _scalar(task)
            continue
        text = next((task[key] for key in ("content", "step", "task", "title") if isinstance(task.get(key), str)), "")
        prose.append(text)
        yield tuple((key, _scalar(task[key])) for key in ("status", "priority") if key in task)


def _value(value: Any, key: str) -> object:
    if isinstance(value, dict):
        inner = {name: one for name, one in value.items() if one is not None}
        return tuple((name, _value(one, name)) for name, one in sorted(inner.items()))
    if isinstance(value, list):
        return ("list", *(_value(one, key) for one in value))
    if not isinstance(value, str):
        return _scalar(value)
    if key in _PATHS:
        return normal_path(value)
    if key == "url" or _URL.fullmatch(value):
        return _usual_url(value)
    if _STATEMENT.match(value):
        return sql_form(value)
    # White space and the order of keys say nothing in JSON, but in a file they are its text.
    return _scalar(value.rstrip()) if key in _CONTENTS else json_form(_scalar(value))


def _scalar(value: Any) -> str:
    """A number or a truth value as the text that spells it."""
    if isinstance(value, bool) or (isinstance(value, str) and value in ("True", "False")):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _usual_url(url: str) -> str:
    """A URL without a trailing slash, scheme and host in lower case, what it asks in one order.

    A fragment is a place on the page and does not count, but one that is an application's own path does.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        return url.strip()
    rest, hash_mark, fragment = rest.partition("#")
    route = hash_mark + fragment if fragment.startswith(("/", "!")) else ""
    host, _, path = rest.partition("/")
    path, question, query = path.partition("?")
    host = host.lower().removesuffix({"http": ":80", "https": ":443"}.get(scheme.lower(), ""))
    asked = "&".join(sorted(query.split("&")))
    return f"{scheme.lower()}://{host}/{path}".rstrip("/") + question + asked + route
