"""Names and argument keys of coding agents' tools: what a tool does by its name, and where its path or command stands.

Names are in lower case and without an MCP server's prefix: compare `plain_name(call.name)` with them. Keys are in the
order in which they are tried. The complete tools of known agents, by version, are in `agent_tool_sets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def word_set(text: str) -> frozenset[str]:
    """The words of a text: a table of names reads best as one."""
    return frozenset(text.split())


COMMAND_TOOLS = word_set(
    "bash shell execute_bash exec_command exec run_command run_shell_command run_terminal_cmd run_in_terminal "
    "local_shell local_shell_call terminal execute_command container.exec run bashtool powershell shell_command "
    "bash_command mswea_bash_command"
)
"""They run a command line."""
CODE_TOOLS = word_set("execute_ipython_cell ipython python jupyter run_python")
"""They run code, as a cell of a notebook."""
READ_TOOLS = word_set("read read_file readfile view view_file cat")
"""They show a file, or some of its lines."""
WRITE_TOOLS = word_set("write write_file writefile create_file create")
"""They write a whole file."""
EDIT_TOOLS = word_set(
    "edit multiedit notebookedit str_replace_editor str_replace_based_edit_tool insert str_replace edit_file replace "
    "search_replace delete_file update_file file_editor undo_edit append_file"
)
"""They change a file. Some are editors of many commands, which show files too (`"command": "view"`)."""
PATCH_TOOLS = word_set("apply_patch patch")
"""They change files by a patch."""
CHANGE_TOOLS = WRITE_TOOLS | EDIT_TOOLS | PATCH_TOOLS
"""They change files in any of these ways."""
TEXT_SEARCH_TOOLS = word_set("grep search_file_content")
"""They search the contents of files."""
FILE_SEARCH_TOOLS = word_set("glob find_file")
"""They search for files by name."""
LIST_TOOLS = word_set("ls list_directory list_dir")
"""They list a directory."""
WEB_SEARCH_TOOLS = word_set("websearch web_search tool_search toolsearch google_web_search search_web")
"""They search the web, or for tools."""
AGENT_TOOLS = word_set("task agent delegate dispatch_agent")
"""They start another agent, which works on the same files."""
PLAN_TOOLS = word_set("todowrite update_plan")
"""They write down what is to be done, and change nothing else."""

PATH_KEYS = (
    *("file_path", "path", "notebook_path", "filename", "file", "target_file", "filePath", "absolute_path"),
    *("file_name", "filepath", "relative_path"),
)
"""The file, or the directory, that a call is about."""
COMMAND_KEYS = ("command", "cmd", "script", "commands", "keystrokes")
"""The command line of a call that runs one, as a text or as a list of words."""
WORKING_DIRECTORY_KEYS = ("workdir", "cwd", "working_directory", "dir_path")
"""The directory in which a command runs."""
DIRECTORY_KEYS = ("dir", "dir_path", "directory", "folder")
"""The directory that is listed or searched."""
CONTENT_KEYS = ("file_text", "content", "contents")
"""The text of a whole file."""
CHANGE_KEYS = (("old_string", "new_string"), ("old_str", "new_str"), ("to_replace", "new_content"))
"""The text that an edit replaces, and the new one."""


@lru_cache(maxsize=1000)
def plain_name(tool_name: str) -> str:
    """A tool's name as the sets of this module have it: `mcp__box__Bash` → `bash`."""
    return tool_name.lower().rpartition("__")[2]


def text_of(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first text, maybe an empty one, that stands under one of the keys."""
    return next((value for key in keys if isinstance(value := arguments.get(key), str)), None)


def path_of(arguments: Mapping[str, Any]) -> str | None:
    """The file or directory that a call is about."""
    for key in PATH_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def command_of(arguments: Mapping[str, Any]) -> str | None:
    """The command line that a call runs."""
    for key in COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            # ["bash", "-lc", "the command"], as Codex runs it
            return str(value[2]) if len(value) == 3 and value[1] in ("-c", "-lc", "-ic") else " ".join(value)
    return None


def runs_commands(tool_name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call runs a command line. Editors have an argument named `command` too, and a path beside it."""
    if tool_name:
        return plain_name(tool_name) in COMMAND_TOOLS
    return command_of(arguments) is not None and path_of(arguments) is None
