"""Every row of the measured table of tool errors, the texts of other harnesses, and what is read out of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.hint_generator import OTHERS_KINDS, OUTCOME_KINDS, STUDENT_KINDS, classify, dispatch
from composer_replication.hint_generator.envelope import open_envelope


def bash(command: str) -> dict[str, Any]:
    return {"tool_name": "Bash", "arguments": {"command": command}}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_name": name, "arguments": arguments}


def wrapped(text: str) -> str:
    return f"<tool_use_error>{text}</tool_use_error>"


REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)
NOT_READ = "File has not been read yet. Read it first before writing to it."

CLAUDE_CODE = [
    ("user_rejected", REJECTED, tool("Edit", file_path="a.py")),
    ("user_rejected", REJECTED, bash("ls")),
    ("user_rejected", "The user doesn't want to take this action right now.", tool("ExitPlanMode")),
    (
        "user_rejected",
        "Claude requested permissions to write to /w/a.md, but you haven't granted it yet.",
        tool("Write"),
    ),
    ("user_rejected", "Permission to use Bash with command rm -rf x has been denied.", bash("rm -rf x")),
    ("parallel_cancelled", wrapped("Sibling tool call errored"), tool("Read")),
    ("parallel_cancelled", wrapped("Cancelled: parallel tool call Bash(ls /nowhere…) errored"), bash("pwd")),
    ("edit_before_read", wrapped(NOT_READ), tool("Edit", file_path="a.py")),
    ("edit_before_read", NOT_READ, tool("Write", file_path="a.py")),
    ("file_not_found", "File does not exist.", tool("Read", file_path="a.py")),
    ("file_not_found", wrapped("File does not exist. Did you mean b.py?"), tool("Read", file_path="a.py")),
    ("file_not_found", "ENOENT: no such file or directory, open '/w/a.py'", tool("Read")),
    ("edit_no_match", wrapped("String to replace not found in file.\nString: raise TypeError('x')"), tool("Edit")),
    (
        "edit_no_match",
        wrapped("String to replace not found in file.\nString: File has not been read yet"),
        tool("Edit"),
    ),
    ("path_not_found", wrapped("Path does not exist: /w/src"), tool("Grep", path="/w/src", pattern="x")),
    ("path_not_found", wrapped("Directory does not exist: /w/src"), tool("Glob", path="/w/src")),
    ("edit_multiple_matches", "Found 3 matches of the string to replace, but replace_all is false.", tool("Edit")),
    (
        "file_too_large",
        "File content (33320 tokens) exceeds maximum allowed tokens (25000). Use offset and limit parameters.",
        tool("Read", file_path="big.log"),
    ),
    ("file_too_large", "File content (1.2MB) exceeds maximum allowed size (256KB).", tool("Read")),
    (
        "file_too_large",
        "Error: result (71,204 characters) exceeds maximum allowed tokens. Saved to /t/x",
        tool("mcp__a__b"),
    ),
    ("harness_broken", "ENOENT: no such file or directory, posix_spawn '/bin/zsh'", bash("ls")),
    ("harness_broken", "Error: ENOENT: no such file or directory, posix_spawn 'rg'", tool("Grep")),
    ("harness_broken", "spawn /bin/zsh ENOENT", bash("ls")),
    ("mcp_error", "### Error\nRef e12 not there in the current page snapshot.", tool("mcp__browser__click")),
    ("mcp_error", "MCP error -32603: something broke inside", tool("mcp__db__query")),
    ("edit_stale", "File has been modified since read, either by the user or by a linter.", tool("Edit")),
    ("edit_stale", wrapped("File has been unexpectedly modified. Read it again."), tool("Write")),
    ("unknown_name", wrapped("Unknown skill: deploy"), tool("Skill", skill="deploy")),
    ("unknown_name", "Agent type 'coder' not found. Available agents: Explore, Plan", tool("Task")),
    ("unknown_name", "No task found with ID: b5db730", tool("TaskOutput")),
    ("hook_blocked", "PreToolUse:Bash hook error: [python gate.py]: not on this branch", bash("git push")),
    ("hook_blocked", "PreToolUse:Edit hook error: [./check.sh]: No stderr output", tool("Edit")),
    # the rest
    ("is_directory", "EISDIR: illegal operation on a directory, read", tool("Read", file_path="/w")),
    (
        "edit_no_change",
        wrapped("No changes to make: old_string and new_string are exactly the same."),
        tool("Edit", file_path="a.py"),
    ),
    (
        "type_error",
        wrapped(
            "InputValidationError: Task failed due to the following issue:\nThe required parameter `prompt` is missing"
        ),
        tool("Task"),
    ),
    ("http_error", "Request failed with status code 404", tool("WebFetch", url="https://x.org/a")),
    ("service_unavailable", "Request failed with status code 503", tool("WebFetch", url="https://x.org/a")),
    ("permission_denied", "EACCES: permission denied, open '/etc/shadow'", tool("Read", file_path="/etc/shadow")),
    ("interrupted", "[Request interrupted by user for tool use]", tool("Bash")),
    ("interrupted", "Exit code 137\n[Request interrupted by user for tool use]", bash("npm run dev")),
    ("interrupted", "<error>Command was aborted before completion</error>", bash("sleep 5")),
    ("tool_not_found", wrapped("Error: No such tool available: Search"), tool("Search")),
    ("tool_not_found", wrapped("Error: No such tool available: Bash"), bash("ls")),
    ("json_decode", wrapped("InputParseError: Unexpected end of JSON input"), tool("Write")),
    ("unsupported_file", "This tool cannot read binary files. The file is a .bin file.", tool("Read")),
    ("blocked_command", wrapped("Blocked: sleep 120. Use a background task to wait."), bash("sleep 120")),
    ("bad_pattern", "rg: regex parse error:\n    (\n    ^\nerror: unclosed group", tool("Grep", pattern="(")),
    ("service_unavailable", 'API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}', tool("Task")),
    ("service_unavailable", "API Error: 500 Internal server error", tool("Task")),
    ("service_unavailable", "API Error: Connection error.", tool("Task")),
    ("service_unavailable", "Connection error.", tool("WebFetch")),
    ("interrupted", "Request was aborted.", tool("Task")),
    ("interrupted", "API Error: Request was aborted.", tool("Task")),
    ("harness_broken", "Tool result missing due to internal error", tool("Read")),
    ("harness_broken", "[Tool result missing due to internal error]", bash("ls")),
    ("harness_broken", "ENOSPC: no space left on device, write", tool("Write", file_path="a.py")),
    ("harness_broken", "Error: ENOSPC: no space left on device, open '/w/a.py'", tool("Write", file_path="a.py")),
    ("harness_broken", "[Errno 28] No space left on device: '/w/a.py'", tool("write_file", path="a.py")),
    ("runtime_error", "Something went quite wrong here", tool("Frobnicate")),
    ("runtime_error", "", tool("Frobnicate")),
]

EXITS = [
    ("type_or_lint_error", 2, "src/a.ts(22,27): error TS2322: Type 'boolean' is not assignable.", "npx tsc"),
    (
        "type_or_lint_error",
        1,
        "/w/a.js\n  3:7  error  'x' is never used  no-unused-vars\n\n✖ 1 problem",
        "npm run check",
    ),
    (
        "type_or_lint_error",
        1,
        'a.py:3: error: Name "x" is not defined  [name-defined]\nFound 1 error in 1 file',
        "mypy .",
    ),
    (
        "type_or_lint_error",
        1,
        "F401 [*] `os` imported but unused\n --> a.py:1:8\n  |\nFound 1 error.",
        "uv run ruff check",
    ),
    (
        "type_or_lint_error",
        1,
        "[lint] $ golangci-lint run\na.go:8:3: error is not nil (nilerr)\n1 issues:",
        "mise run lint",
    ),
    ("type_or_lint_error", 1, "something the checker dislikes", "npm run lint"),
    (
        "test_failure",
        1,
        "ok  \tx/a\t0.1s\n--- FAIL: TestCut (0.00s)\n    a_test.go:8: got 1\nFAIL\nFAIL\tx/b\t0.5s",
        "go test ./...",
    ),
    ("test_failure", 1, "FAIL\tx/b\t0.5s\nFAIL", "mise run test"),
    ("compile_error", 1, "# x/b\n./b.go:3:2: undefined: y\nFAIL\tx/b [build failed]\nFAIL", "go test ./..."),
    (
        "test_failure",
        1,
        "=== FAILURES ===\nTraceback (most recent call last):\nE   assert 1 == 2\n"
        "FAILED tests/test_a.py::test_b - assert\n"
        "=== 1 failed, 3 passed in 0.1s ===",
        "python -m pytest -q",
    ),
    ("test_failure", 1, " FAIL  src/a.test.ts > adds\nTests:       1 failed, 2 passed", "npx jest"),
    ("test_failure", 101, "test a::b ... FAILED\n\ntest result: FAILED. 1 passed; 1 failed", "cargo test"),
    ("git_error", 128, "fatal: not a git repository (or any of the parent directories): .git", "git status"),
    ("git_error", 1, "error: pathspec 'x' did not match any file(s) known to git", "git checkout x"),
    ("git_error", 1, "On branch main\nnothing to commit, working tree clean", "git commit -m x"),
    ("merge_conflict", 1, "Auto-merging a.py\nCONFLICT (content): Merge conflict in a.py", "git merge b"),
    ("bad_option", 128, "fatal: unrecognized argument: --no-stat", "git show HEAD --no-stat"),
    ("traceback", 1, "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'", "python a.py"),
    ("traceback", 2, "panic: runtime error: index out of range\n\ngoroutine 1 [running]:", "./server"),
    ("traceback", 1, "node:internal/modules/cjs\nError: Cannot find module 'x'\n    at a (b.js:1:2)", "node a.js"),
    ("missing_file_in_command", 1, "cat: notes.txt: No such file or directory", "cat notes.txt"),
    ("missing_file_in_command", 2, "ls: cannot access 'src/x': No such file or directory", "ls src/x"),
    ("missing_file_in_command", 1, "(eval):cd:1: no such file or directory: webapp", "cd webapp && ls"),
    ("shell_syntax", 2, "/bin/bash: -c: line 3: unexpected EOF while looking for matching `''", "echo 'x"),
    ("shell_syntax", 1, "(eval):1: no matches found: src/[id]/*.ts", "ls src/[id]/*.ts"),
    ("shell_syntax", 2, "bash: line 1: syntax error near unexpected token `('", "echo (x)"),
    ("bad_option", 1, "error: unknown option '--fast'", "vite build --fast"),
    ("bad_option", 2, "usage: a.py [-h] x\na.py: error: the following arguments are required: x", "python a.py"),
    ("bad_option", 1, "grep: invalid option -- 'Q'", "grep -Q x a"),
    (
        "compile_error",
        101,
        "error[E0425]: cannot find value `x`\n --> src/main.rs:2:5\nerror: could not compile `a`",
        "cargo build",
    ),
    ("compile_error", 1, "a.c:3:5: error: use of undeclared identifier 'x'", "make"),
    ("compile_error", 1, "# x/cmd\n./main.go:3:2: undefined: y", "go build ./..."),
    ("command_not_found", 127, "/bin/bash: line 1: jq: command not found", "jq . a.json"),
    ("command_not_found", 127, "(eval):1: command not found: timeout", "timeout 5 ls"),
    ("command_not_found", 127, "", "./run"),
    ("command_not_found", 127, "/bin/bash: line 1: ./run.sh: No such file or directory", "./run.sh"),
    ("command_not_found", 127, "env: node: No such file or directory", "./run.js"),
    ("command_not_found", 1, "/usr/bin/python3: No module named pytest", "python3 -m pytest"),
    ("unknown_name", 1, 'npm error Missing script: "lnt"', "npm run lnt"),
    ("unknown_name", 2, "make: *** No rule to make target 'tst'.  Stop.", "make tst"),
    ("bad_option", 101, "error: no such command: `buidl`", "cargo buidl"),
    ("harness_broken", 1, "bwrap: Can't get type of source /x/a.json: No such file", "git status"),
    ("command_failed", 1, "", "./quiet"),
    # not the command's fault, nor the student's
    ("interrupted", 130, "^C", "npm start"),
    ("interrupted", 130, "", "npm start"),
    ("interrupted", 137, "", "./train"),
    ("interrupted", 137, "Killed", "./train"),
    ("interrupted", 137, "/bin/bash: line 1: 4711 Killed                  ./train --all", "./train --all"),
    ("interrupted", 143, "Terminated", "./serve"),
    ("interrupted", 143, "[1]+  Terminated: 15          ./serve", "./serve"),
    ("traceback", 137, "Traceback (most recent call last):\nKeyError: 'x'\nKilled", "./train"),
    ("command_failed", 137, "epoch 3: loss is nan", "./train"),
    ("harness_broken", 1, "cp: error writing 'b': No space left on device", "cp a b"),
    ("harness_broken", 1, "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device", "./a"),
    ("harness_broken", 228, "npm error code ENOSPC\nnpm error nospc ENOSPC: no space left on device, write", "npm i"),
    ("service_unavailable", 6, "curl: (6) Could not resolve host: x.org", "curl x.org"),
    (
        "service_unavailable",
        128,
        "fatal: unable to access 'https://x.org/a/': Could not resolve host: x.org",
        "git clone https://x.org/a",
    ),
    ("service_unavailable", 128, "ssh: Could not resolve hostname x.org: nodename unknown\nfatal: no", "git pull"),
    (
        "service_unavailable",
        1,
        "WARNING: Retrying after connection broken by NewConnectionError: "
        "[Errno -3] Temporary failure in name resolution",
        "pip install x",
    ),
    ("service_unavailable", 1, "connect: Network is unreachable", "ping x.org"),
    (
        "service_unavailable",
        1,
        "npm error code ETIMEDOUT\nnpm error network request to https://registry.npmjs.org/x failed",
        "npm i x",
    ),
    ("service_unavailable", 1, "FetchError: https://registry.yarnpkg.com/x: connect ETIMEDOUT 1.2.3.4:443", "yarn"),
    ("service_unavailable", 1, 'API Error: 529 {"type":"overloaded_error"}', "claude -p hi"),
    ("test_failure", 1, "FAILED a.py::b - Temporary failure in name resolution\n=== 1 failed in 1s ===", "pytest"),
    ("http_error", 1, "Error: connect ETIMEDOUT 10.0.0.1:5432", "./migrate"),
    # an exit of 1 that says no, or that two things differ
    ("failing_checks", 1, "build\tfail\t1m2s\thttps://ci.example/1", "gh pr checks 4"),
    ("no_match", 1, "", "grep x a.py"),
    ("no_match", 1, "", "cd a && ls | grep -i x 2>/dev/null"),
    ("no_match", 1, "a.py  b.py", "ls; rg x"),
    ("no_match", 1, "0", "grep -c x a.py"),
    ("no_match", 1, "1c1\n< error: a\n---\n> Traceback (most recent call last):", "diff a b"),
    ("no_match", 1, "--- a\n+++ b\n@@ -1 +1 @@\n-fatal: x\n+y", "diff -u a b"),
    ("no_match", 1, "Only in a: error", "diff -r a b"),
    ("no_match", 1, "a b differ: byte 1, line 1", "cmp a b"),
    ("no_match", 1, "", "test -f a.py"),
    ("no_match", 1, "", "[ -f a.py ]"),
    ("no_match", 1, "", "[ -f a.py ] && echo yes"),
    ("no_match", 1, "diff --git a/x b/x\n-error: a", "git diff --exit-code"),
    ("no_match", 1, "", "git -C a diff --quiet HEAD"),
    ("no_match", 1, "", "pgrep node"),
    ("no_match", 1, "", "which jq"),
    ("no_match", 1, "jq not found", "which jq"),
    ("no_match", 1, "which: no jq in (/usr/bin:/bin)", "which jq"),
    ("no_match", 1, "", "command -v jq"),
    ("missing_file_in_command", 1, "cat: a: No such file or directory", "cat a | grep x"),
    ("command_failed", 2, "", "grep x a.py"),
    ("command_failed", 1, "", "grep x a.py | ./count"),
    ("command_failed", 1, "the build failed", "./build && grep x a.py"),
    ("command_failed", 1, "", "git diff"),
    ("command_failed", 1, "3 things are odd", "./odd"),
    ("timeout", 143, "Command timed out after 2m 0.0s\nline", "npm start"),
    ("timeout", 124, "half a line", "timeout 5 npm start"),
    ("permission_denied", 126, "/bin/bash: ./run.sh: Permission denied", "./run.sh"),
    ("http_error", 22, "curl: (22) The requested URL returned error: 404", "curl -f http://x.org/a"),
    ("http_error", 1, "Request failed with status code 503", "node fetch.js"),
    ("http_error", 7, "curl: (7) Failed to connect to localhost port 3000: Connection refused", "curl localhost:3000"),
    # what a command prints may quote a harness
    ("command_failed", 1, "the log says: No such tool available, or so", "./odd"),
]

OTHER_HARNESSES = [
    (
        "test_failure",
        "Exit code: 1\nWall time: 0.1 seconds\nOutput:\n--- FAIL: TestA (0.00s)\n",
        tool("shell", command=["bash", "-lc", "go test"]),
    ),
    (
        "command_failed",
        "Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 3\nOutput:\nhm",
        tool("exec_command", cmd="./hm"),
    ),
    (
        "missing_file_in_command",
        json.dumps({"output": "cat: a: No such file or directory\n", "metadata": {"exit_code": 1}}),
        tool("shell", command=["cat", "a"]),
    ),
    ("permission_denied", "failed in sandbox: Operation not permitted", tool("apply_patch")),
    (
        "permission_denied",
        "patch rejected: writing outside of the project; rejected by user approval settings",
        tool("apply_patch"),
    ),
    ("user_rejected", "exec command rejected by user", tool("shell")),
    ("interrupted", "aborted by user after 2.3s", tool("shell")),
    (
        "edit_no_match",
        "apply_patch verification failed: Failed to find expected lines in /w/a.py:\n  x = 1",
        tool("apply_patch"),
    ),
    (
        "malformed_call",
        "apply_patch verification failed: invalid hunk at line 3, expected a header",
        tool("apply_patch"),
    ),
    ("tool_not_found", "unsupported call: search_web", tool("search_web")),
    ("type_error", "failed to parse function arguments: missing field `command` at line 1 column 2", tool("shell")),
    ("json_decode", "failed to parse function arguments: expected value at line 1 column 2", tool("shell")),
    (
        "edit_syntax_error",
        "Your proposed edit has introduced new syntax error(s). Please read this error message.\r\n\r\n"
        "ERRORS:\r\n- E999 IndentationError",
        tool("edit"),
    ),
    ("edit_syntax_error", "[Your proposed edit has introduced new syntax error(s).]\n/w/a.tsx:22", tool("run_ipython")),
    ("malformed_call", "Your output could not be parsed properly. You need to output one action.", tool("")),
    ("malformed_call", "Please always provide EXACTLY ONE action in triple backticks, found 0 actions.", tool("")),
    ("command_not_found", "bash: pyhton: command not found", tool("bash", command="pyhton a.py")),
    ("shell_syntax", "Your bash command contained syntax errors and was NOT executed.", tool("bash", command="(")),
    ("blocked_command", "Operation 'vim' is not supported by this environment.", tool("bash", command="vim a")),
    (
        "edit_no_match",
        "No replacement was performed, old_str `x = 1` did not appear verbatim in /w/a.py.",
        tool("str_replace_editor", command="str_replace", path="/w/a.py"),
    ),
    (
        "edit_multiple_matches",
        "No replacement was performed. Multiple occurrences of old_str `x` in lines [1, 2]",
        tool("str_replace_editor", command="str_replace", path="/w/a.py"),
    ),
    (
        "path_not_found",
        "ERROR:\nInvalid `path` parameter: /w/b.py. The path /w/b.py does not exist. Please provide a valid path.",
        tool("str_replace_editor", command="view", path="/w/b.py"),
    ),
    (
        "type_error",
        "Parameter `old_str` is required for command: str_replace.",
        tool("str_replace_editor", command="str_replace", path="/w/b.py"),
    ),
    (
        "file_exists",
        "File already exists at: /w/b.py. Cannot overwrite files using command `create`.",
        tool("str_replace_editor", command="create", path="/w/b.py"),
    ),
    (
        "test_failure",
        "FAILED tests/test_a.py::test_b\n[The command completed with exit code 1.]\n"
        "[Current working directory: /w]\n[Command finished with exit code 1]",
        tool("execute_bash", command="pytest"),
    ),
    ("command_failed", "<returncode>1</returncode>\n<output>\nhm\n</output>", tool("bash", command="./hm")),
    ("tool_not_found", "Unknown tool: search. Available tools: read_file, write_file", tool("search")),
    ("tool_not_found", "unknown tool; available: open_file(path), put_text(path, text)", tool("read")),
    ("tool_not_found", "search is not a valid tool, try one of [read_file, write_file].", tool("search")),
    ("tool_not_found", json.dumps({"jsonrpc": "2.0", "error": {"code": -32601, "message": "nope"}}), tool("x")),
    ("tool_not_found", "MCP error -32602: Tool frob not found", tool("mcp__a__frob")),
    ("type_error", json.dumps({"jsonrpc": "2.0", "error": {"code": -32602, "message": "bad"}}), tool("x")),
    ("mcp_error", json.dumps({"jsonrpc": "2.0", "error": {"code": -32603, "message": "bad"}}), tool("x")),
    ("type_error", "wrong arguments; signature put_text(path, text)", tool("put_text")),
    (
        "type_error",
        "1 validation error for ReadInput\npath\n  Field required [type=missing, input_value={}]",
        tool("read"),
    ),
    ("type_error", "'path' is a required property", tool("read")),
    ("type_error", "read() got an unexpected keyword argument 'file'", tool("read")),
    ("json_decode", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", tool("read")),
    ("json_decode", "Failed to parse tool arguments: Expecting ',' delimiter: line 1 column 9 (char 8)", tool("read")),
    ("traceback", "Traceback (most recent call last):\n  File 'a'\nValueError: bad", tool("run_cell")),
    (
        "traceback",
        "-" * 75 + "\nNameError    Traceback (most recent call last)\nNameError: name 'x'",
        tool("run_ipython"),
    ),
    ("http_error", "HTTP Error 403: Forbidden", tool("fetch")),
    ("http_error", "getaddrinfo ENOTFOUND x.org", tool("fetch")),
    ("timeout", "The command './a' was cancelled because it took more than 30 seconds.", tool("bash", command="./a")),
]


@pytest.mark.parametrize(("kind", "text", "call"), CLAUDE_CODE)
def test_texts_of_claude_code(kind: str, text: str, call: dict[str, Any]) -> None:
    assert classify(text, **call)[0] == kind


@pytest.mark.parametrize(("kind", "exit_code", "output", "command"), EXITS)
def test_exits_are_told_apart_by_their_output(kind: str, exit_code: int, output: str, command: str) -> None:
    found, details = classify(f"Exit code {exit_code}\n{output}", **bash(command))
    assert found == kind
    assert details["exit_code"] == exit_code
    assert details["command"] == command


@pytest.mark.parametrize(("kind", "text", "call"), OTHER_HARNESSES)
def test_texts_of_other_harnesses(kind: str, text: str, call: dict[str, Any]) -> None:
    assert classify(text, **call)[0] == kind


def test_every_kind_it_can_say_is_known() -> None:
    known = STUDENT_KINDS | OTHERS_KINDS | OUTCOME_KINDS
    said = {row[0] for rows in (CLAUDE_CODE, EXITS, OTHER_HARNESSES) for row in rows}
    assert said <= known
    # Repetitions are seen on the trace, not on a text. All else is said by some row above.
    assert known - said == {"repeated_failure"}


@pytest.mark.parametrize("row", [row for row in CLAUDE_CODE if row[1]], ids=lambda row: str(row[0]))
def test_a_reminder_behind_the_text_changes_nothing(row: Any) -> None:
    kind, text, call = row
    reminder = "\n\n<system-reminder>\nFile does not exist. Traceback (most recent call last):\n</system-reminder>"
    assert classify(text + reminder, **call)[0] == kind


@pytest.mark.parametrize(
    ("text", "call", "expected"),
    [
        (
            "Exit code 1\n[x] $ go vet\nok  \ta\n--- FAIL: TestCut (0.0s)\n    a_test.go:8: got 1",
            bash("go test"),
            {"error_line": "a_test.go:8: got 1", "test": "TestCut", "command_name": "go"},
        ),
        (
            "Exit code 1\n\nnpm warn x\n> a@1 b\nno luck: it failed",
            bash("cd a && ./b | tail"),
            {"error_line": "no luck: it failed", "command_name": "b"},
        ),
        (
            "Exit code 1\nTraceback (most recent call last):\n  File 'a'\nKeyError: 'x'\n\nDuring\n\nValueError: y",
            bash("python a"),
            {"error_line": "ValueError: y"},
        ),
        ("Exit code 2\nls: cannot access 'src/x': No such file or directory", bash("ls src/x"), {"path": "src/x"}),
        ("Exit code 127\nbash: line 1: jq: command not found", bash("jq"), {"name": "jq"}),
        (
            wrapped("File does not exist."),
            tool("Read", file_path="/w/a.py"),
            {"path": "/w/a.py", "error_line": "File does not exist."},
        ),
        (wrapped("Path does not exist: /w/src"), tool("Grep"), {"path": "/w/src"}),
        (
            "Your proposed edit has introduced new syntax error(s).\n\n- E999 Syntax\n[File: /w/a.py (9 lines)]",
            tool("edit"),
            {"path": "/w/a.py"},
        ),
        (
            "[Your proposed edit has introduced new syntax error(s).]\n/w/a.tsx:22\n[x]",
            tool("run_ipython"),
            {"path": "/w/a.tsx"},
        ),
        ("### Error\nRef e12 not there.", tool("mcp__b__click"), {"error_line": "Ref e12 not there."}),
        (wrapped("Blocked: sleep 120. Use a task to wait."), bash("sleep 120"), {"name": "sleep 120"}),
        ("Found 3 matches of the string to replace, but", tool("Edit", file_path="a"), {"matches": 3, "path": "a"}),
        (
            "File content (33320 tokens) exceeds maximum allowed tokens (25000).",
            tool("Read"),
            {"size": "33320 tokens", "limit": "25000"},
        ),
        (
            "Unknown tool: find. Available tools: read_file, `write_file`.",
            tool("find"),
            {"name": "find", "available_tools": ["read_file", "write_file"]},
        ),
        (
            "unknown tool; available: open(path), put(path, text)",
            tool("read"),
            {"available_tools": ["open", "put"], "signatures": ["open(path)", "put(path, text)"]},
        ),
        (
            "Agent type 'coder' not found. Available agents: Explore, Plan",
            tool("Task"),
            {"name": "coder", "available_names": ["Explore", "Plan"]},
        ),
        ("wrong arguments; signature put(path, text)", tool("put"), {"signature": "put(path, text)"}),
        (
            wrapped(
                "InputValidationError: T failed:\nThe required parameter `a` is missing\n"
                "An unexpected parameter `b` was provided\n"
                "The parameter `c` type is expected as `number` but provided as `string`"
            ),
            tool("T"),
            {"missing_parameters": ["a"], "unexpected_parameters": ["b"], "expected_types": {"c": "number"}},
        ),
        (
            "2 validation errors for X\na.b\n  Field required [type=missing]\nc\n  Input should be a valid integer",
            tool("X"),
            {"missing_parameters": ["a.b"], "expected_types": {"c": "integer"}},
        ),
        ("f() missing 2 required positional arguments: 'a' and 'b'", tool("f"), {"missing_parameters": ["a", "b"]}),
        (
            "Additional properties are not allowed ('x', 'y' were unexpected)",
            tool("f"),
            {"unexpected_parameters": ["x", "y"]},
        ),
        (
            '[{"code": "invalid_type", "expected": "string", "received": "undefined", "path": ["q"]}]',
            tool("f"),
            {"missing_parameters": ["q"]},
        ),
        (wrapped("Unknown skill: axi. Did you mean app?"), tool("Skill"), {"name": "axi", "suggestion": "app"}),
        (
            "File does not exist. Did you mean b.py?",
            tool("Read", file_path="a.py"),
            {"path": "a.py", "suggestion": "b.py"},
        ),
        (wrapped("Error: No such tool available: Raed"), tool("Raed"), {"name": "Raed", "available_tools": None}),
        ("Request failed with status code 404", tool("WebFetch"), {"status": 404}),
        (
            '{"output":"x","metadata":{"exit_code":2}}',
            tool("shell", command=["bash", "-lc", "./x"]),
            {"exit_code": 2, "command": "./x"},
        ),
    ],
)
def test_details_are_read_out_of_the_text(text: str, call: dict[str, Any], expected: dict[str, Any]) -> None:
    details = classify(text, **call)[1]
    assert {key: details.get(key) for key in expected} == expected


@pytest.mark.parametrize("unit", ["a", "(", "x.go:", "\n", "Error: at\n", "{", "<system-reminder>"])
def test_of_a_long_text_the_beginning_and_the_end_are_read(unit: str) -> None:
    middle = unit * 200_000
    assert len(open_envelope(f"Exit code 1\n{middle}").body) < 20_000
    assert classify(f"Exit code 1\n{middle}\nFAILED a.py::b\n", **bash("x"))[0] in ("test_failure", "command_failed")
    assert classify(f"Exit code 1\nFAILED a.py::b\n{middle}", **bash("x"))[0] == "test_failure"


@pytest.mark.parametrize(
    "text", ["\x00\ud800", "Exit code 99999999999999999999\n", "{" * 5000, "<tool_use_error>", "Exit code 1"]
)
def test_odd_texts_are_classified_too(text: str) -> None:
    kind, _ = classify(text, tool_name="Bash", arguments={"command": ["a", 1], "path": 3})
    assert kind in STUDENT_KINDS


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("File does not exist. Note: your current working directory is /w/app.", None),
        ("Path does not exist: /w/src. Note: your current working directory is /w/app.", "/w/src"),
        ("Directory does not exist: src. Note: your current working directory is /w/app. Did you mean lib?", "src"),
        ("File does not exist: a.py. Did you mean b.py?", "a.py"),
        ("File not found: my notes.md", "my notes.md"),
    ],
)
def test_a_note_is_no_part_of_a_path(text: str, path: str | None) -> None:
    _, details = classify(f"<tool_use_error>{text}</tool_use_error>", tool_name="Read", arguments={})
    assert details.get("path") == path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('No such tool available: Task" > <parameter name="prompt', "Task"),
        ("No such tool available: Bash</invoke>", "Bash"),
        ("No such tool available: Read<parameter", "Read"),
        ("Unknown tool: Bash command=ls", 'Bash command="ls"'),
        ("Unknown tool", "Read\n<parameter>"),
        ("unsupported call: shell{", "shell{"),
    ],
)
def test_a_name_with_more_than_the_name_is_a_malformed_call(text: str, name: str) -> None:
    kind, details = classify(f"<tool_use_error>Error: {text}</tool_use_error>", tool_name=name, arguments={})
    wanted = {"B": "Bash", "R": "Read", "T": "Task", "s": "shell"}[name[0]]
    assert (kind, details["name"]) == ("malformed_call", wanted)
    said = dispatch(kind, {"name": details["name"]})
    assert said == f"Write the tool's name alone, `{wanted}`, and everything else into its arguments."


@pytest.mark.parametrize(
    "text", ["No such tool available: 'Raed'", "Unknown tool: mcp__a__b.", "No such tool available: Raed"]
)
def test_a_tool_that_does_not_exist_is_still_one(text: str) -> None:
    assert classify(f"<tool_use_error>{text}</tool_use_error>", tool_name="Raed", arguments={})[0] == "tool_not_found"
