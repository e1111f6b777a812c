"""Classifies a failed tool call by its result.

Structure comes first (exit code, error tags, the tool's name), then the texts of the table of errors. For a command
that says nothing, its programs decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.coding_tools import command_of, path_of, runs_commands, word_set
from composer_replication.hint_generator.details import available_names, details_in, suggested_name, wrong_parameters
from composer_replication.hint_generator.envelope import Envelope, clean, open_envelope
from composer_replication.hint_generator.errors import (
    OTHERS_ANSWERS,
    OUTPUT,
    REFUSALS,
    TOOL_ANSWERS,
    begins_like_an_error,
    is_refusal,
)
from composer_replication.hint_generator.errors.commands import refusal_in
from composer_replication.hint_generator.findings import (
    TRACEBACK,
    ends_in_a_traceback,
    located_error,
    own_frame,
    plain_output,
)
from composer_replication.hint_generator.shell_steps import meant_for_the_program, programs, shows_files
from composer_replication.pattern_set import FirstMatch

_RPC_KINDS = {-32700: "json_decode", -32601: "tool_not_found", -32602: "type_error"}
_HEAD = 1500
# The file of an edit that was refused: SWE-agent's, OpenHands'.
_EDITED = re.compile(r"^(?:\[File: (?P<path>\S+) \(|(?P<named>/\S+):\d+$)", re.MULTILINE)
# What a harness says after a path.
_REMARK = re.compile(r"\.? (?:Note: your current|Did you mean)")
# More than a tool's name where the name should stand alone: the call was not written in the harness's format.
_NAME_AND_MORE = re.compile(r"""\b(?:tool(?: available)?|call): (?P<name>[\w.-]+)(?:["'<>{(=]|\s+\w+=)""")
_CALLED_WITH_MORE = re.compile(r"""["'<\s]*(?P<name>[\w.-]+)["'<>{}()=\s]""")
# Words before the message itself.
_PREFIXES = ("Error executing tool", "Error calling tool", "Error:", "ERROR:", "error:")

# If the output says nothing: what the programs are for.
_TESTERS = word_set("pytest jest vitest mocha rspec unittest tox nox ctest phpunit ava playwright")
_CHECKERS = word_set(
    "tsc eslint mypy ruff golangci-lint pyright biome prettier shellcheck flake8 pylint stylelint black isort gofmt "
    "rubocop credo vet clippy typecheck type-check lint tsgo oxlint svelte-check vue-tsc markdownlint actionlint "
    "analyze bandit codespell"
)
_COMPILERS = word_set("gcc g++ clang clang++ cc rustc javac swiftc cmake make ninja gradle gradlew mvn xcodebuild")

_CRASH = re.compile(
    r"^(?:Uncaught )?(?:[a-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|Warning|Failure)\b[^\n]*$"
    r"|^panic: [^\n]*$",
    re.MULTILINE,
)
# Of failing tests, if no place is named.
_TEST_LINES = (
    re.compile(r"^E   +(?P<line>\S[^\n]*)", re.MULTILINE),
    re.compile(r"^(?P<line>FAILED \S+::[^\n]*)", re.MULTILINE),
    re.compile(r"^\s*(?P<line>--- FAIL: \S+)", re.MULTILINE),
    re.compile(r"^\s*(?P<line>(?:FAIL|×|✕) +\S[^\n]*)", re.MULTILINE),
    re.compile(r"^\s*(?P<line>(?:Assertion\w*|\w*Error): [^\n]+)", re.MULTILINE),
)
# Lines with which task runners and package managers announce what they run.
_NOISE = re.compile(
    r"^(?:\s*$|> |\$ |\+ |### Error$|npm (?:error|ERR!)(?:$| (?:code|errno|syscall|path) )"
    r"|\[\w[\w:-]*\] \$ |=+$|-+$|npm (?:warn|notice)|yarn run|info |warning:|WARN|Warning:"
    r"|make(?:\[\d+\])?: Entering"
    r"|\s*%? ?Total +%|\s+Dload|exit status \d|Exit code|\?\s+\S+\s+\[no test files\]|ok\s+\S+)"
)
_WORD = re.compile(r"\w")
# Exit codes of a process that was ended from outside, also as Python gives them.
_SIGNALS = frozenset([130, 137, 143, -2, -9, -15])
# What a shell prints of such a process.
_LONGEST_NOTICE = 400
_ENDED = re.compile(
    r"(?:\s*(?:\S*sh: (?:line \d+: )?)?(?:\[\d+\]\S*\s+|\s*\d+ )?"
    r"(?:\^C|Killed|Terminated)(?::? ?\d+)?(?:  [^\n]*)?(?:\n|\Z))*\Z"
)
# What `gh` says of checks that failed, still run, or do not exist.
_RED = re.compile(r"^(?:[^\t\n]+\tfail\t|X +\S)[^\n]*", re.MULTILINE)
_CHECKS = re.compile(
    r"^(?:[^\t\n]+\t(?:fail|pending)\t|X +\S|\* +\S|Some checks |(?P<none>no checks reported))[^\n]*", re.MULTILINE
)
# Programs that answer "no" or "different" with an exit code of 1; `-v` is `command -v`.
_ASKING = word_set("grep egrep fgrep zgrep rg ag diff cmp test [ [[ pgrep which lsof pidof -v")
# `[ -f a ] && ls a`
_CONDITION = re.compile(r"(?:^|[;&|(])\s*(?:\[\[?|test|[ef]?grep|rg|which|diff|cmp)\s[^|;&\n]*&&")
# They move about or cut output.
_PASSING = word_set("cd echo head tail cat export source set tee sleep true done fi")
_NEVER_FAILING = frozenset(["echo", "printf", "true"])
# Their answers, which may quote anything.
_ANSWER = re.compile(
    r"\d+(?:,\d+)?[acd]\d+|--- \S|\*\*\* \S|diff |Only in |Files [^\n]* differ$|Binary files |[^\n]* differ: "
    r"|which: no |\S+ not found$",
    re.MULTILINE,
)
# Of a program that got a wrong path.
_MISSING = re.compile(r"FileNotFoundError: \[Errno 2\] [^\n]*: '(?P<path>[^'\n]+)'")
# Rust's programs tell the cause below what they were doing.
_CAUSE = re.compile(r"^Caused by:\n +(?:0: )?(?P<line>[^\n]+)", re.MULTILINE)
_TELLING = re.compile(r"\b(?:error|failed|cannot|can't|invalid|not found|denied|missing|unable)\b", re.IGNORECASE)


def classify(
    text: str, *, tool_name: str = "", arguments: Mapping[str, Any] | None = None, is_error: bool = True
) -> tuple[str, dict[str, Any]]:
    """Return the kind of an error and its details.

    Details, those that are known: `error_line` (the line that says what failed), `exit_code`, `path`, `command`,
    `command_name`, `name` (of a tool, skill, agent … that does not exist), `available_tools`, `available_names`,
    `suggestion`, `signatures`, `signature`, `missing_parameters`, `unexpected_parameters`, `expected_types`, `matches`,
    `status`, `test`.

    Args:
        text: the result as the model saw it.
        tool_name: the tool that was called; without it, a call with a command and no path counts as a command.
        arguments: the call's arguments, as far as they could be parsed.
        is_error: what the log says. If it says nothing (False), a text that does not look like an error is of kind "".
    """
    given = arguments or {}
    command = command_of(given)
    if not is_error and not looks_like_error(text, command):
        return "", {}
    envelope = open_envelope(text)
    kind, found = _kind(envelope, tool_name, given, command)
    details: dict[str, Any] = {key: value for key, value in found.items() if value not in (None, "")}
    if envelope.exit_code is not None:
        details["exit_code"] = envelope.exit_code
    if command is not None and runs_commands(tool_name, given):
        details["command"] = command
    path = path_of(given)
    if path is not None:
        details.setdefault("path", path)
    return kind, details


def looks_like_error(text: str, command: str | None = None) -> bool:
    """Whether a result reads as a failed call, for logs without a flag. A text about errors is none.

    `command` is the command line that was run, if it was one: a traceback may be what a program died of, or a file's.
    """
    if not text:
        return False
    envelope = open_envelope(text)
    if envelope.failed is not None:
        return envelope.failed
    if command is not None and TRACEBACK in envelope.body:
        if shows_files(command):
            return False
        if ends_in_a_traceback(envelope.body):
            return True
    return begins_like_an_error(envelope.body)


def _kind(
    envelope: Envelope, tool_name: str, arguments: Mapping[str, Any], command: str | None
) -> tuple[str, dict[str, Any]]:
    body = _without_prefix(envelope.body)
    others = OTHERS_ANSWERS.find(body)
    # Codex takes a patch as a command too.
    is_patch = command is not None and "*** Begin Patch" in command
    is_command = not is_patch and (envelope.exit_code is not None or runs_commands(tool_name, arguments))
    # A command's own output may tell of a server's answer; it is then the command that failed.
    if others is not None and not (
        is_command and others[0] == "service_unavailable" and "api" not in others[1].re.groupindex
    ):
        return others[0], {"error_line": telling_line(body), **_status(others[1])}
    refused = envelope.refused or (envelope.exit_code is None and is_refusal(body))
    if is_command and not refused:
        return classify_output(envelope.body, command, envelope.exit_code)
    found = _by_text(body, REFUSALS if is_command else TOOL_ANSWERS)
    if found is None and envelope.code in _RPC_KINDS:
        found = _RPC_KINDS[envelope.code], {}
    if found is None:
        found = _last_resort(body, command, tool_name, envelope)
    kind, details = found
    if kind == "tool_not_found":
        malformed = _NAME_AND_MORE.search(body) or _CALLED_WITH_MORE.match(tool_name)
        if malformed is not None:
            return "malformed_call", {"name": malformed["name"], "error_line": telling_line(body)}
    return kind, {**details, **_named_in(kind, body), "error_line": details.get("error_line") or telling_line(body)}


def _by_text(body: str, answers: FirstMatch) -> tuple[str, dict[str, Any]] | None:
    # The first line is the message; what follows often quotes the call, and may contain anything.
    first_line = body.partition("\n")[0][:_HEAD]
    found = answers.find(first_line) or answers.find(body[:_HEAD])
    if found is None:
        return None
    kind, match = found
    details = details_in(match)
    if "path" in details:
        details["path"] = _REMARK.split(details["path"])[0].strip().rstrip(".")
    return kind, details


def _last_resort(body: str, command: str | None, tool_name: str, envelope: Envelope) -> tuple[str, dict[str, Any]]:
    kind, details = classify_output(body, command, envelope.exit_code)
    if kind not in ("command_failed", "git_error"):
        return kind, details
    if tool_name.startswith("mcp__") or envelope.code is not None:
        return "mcp_error", {}
    return "runtime_error", {}


def _named_in(kind: str, body: str) -> dict[str, Any]:
    """Return what the text says about the right call."""
    if kind in ("type_error", "json_decode", "mcp_error", "runtime_error"):
        return wrong_parameters(body)
    if kind == "edit_syntax_error" and (edited := _EDITED.search(body)) is not None:
        return {"path": edited["path"] or edited["named"]}
    if kind in ("file_not_found", "path_not_found"):
        return suggested_name(body)
    if kind in ("tool_not_found", "unknown_name"):
        offered = available_names(body) | suggested_name(body)
        if "available" in offered:
            key = "available_tools" if kind == "tool_not_found" else "available_names"
            offered[key] = offered.pop("available")
        return offered
    return {}


def _status(match: re.Match[str]) -> dict[str, Any]:
    return {key: value for key, value in details_in(match).items() if key == "status"}


def _without_prefix(body: str) -> str:
    text = clean(body).lstrip()
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            rest = text[len(prefix) :]
            # "Error executing tool read_file: the message"
            return rest.partition(":")[2].strip() or rest.strip() if prefix.endswith("tool") else rest.strip()
    return text


def classify_output(output: str, command: str | None, exit_code: int | None) -> tuple[str, dict[str, object]]:
    """Return the kind of a failed command and what its output names: `error_line`, `path`, `test`, `name`, `status`."""
    parts = programs(command) if command else []
    output = plain_output(output)
    details: dict[str, object] = {}
    if parts:
        details["command_name"] = _named(parts, output)
    if exit_code == 124 and "imed out" not in output:
        return "timeout", details
    if exit_code in _SIGNALS and len(output) < _LONGEST_NOTICE and _ENDED.match(output) is not None:
        return "interrupted", details
    if exit_code == 1 and _asked(parts, output):
        return "no_match", details
    if not output.strip():
        if exit_code == 1 and command and _CONDITION.search(command) is not None:
            return "no_match", details
        # 127 without a word is still a program that is not there.
        return ("command_not_found" if exit_code == 127 else "command_failed"), details
    if any(map(_asks_for_checks, parts)) and (checks := _CHECKS.search(output)) is not None:
        red = _RED.search(output) or checks
        return ("no_match" if checks["none"] else "failing_checks"), {**details, "error_line": red[0].strip()}
    found = OUTPUT.find(output)
    is_vague = found is None or found[0] in ("missing_file_in_command", "traceback", "git_error")
    if exit_code == 127 and is_vague and own_frame(output) is None:
        if found is not None:
            details["name"] = found[1].groupdict().get("path")
        return "command_not_found", {**details, "error_line": telling_line(output)}
    if found is None:
        kind = _by_command(parts)
        return kind, {**details, "error_line": _line_of(kind, output, None)}
    kind, match = found
    if kind == "traceback" and command and (missing := _MISSING.search(output)) and missing["path"] in command:
        return "missing_file_in_command", {**details, "path": missing["path"], "error_line": missing[0]}
    if kind == "git_error" and any(part[0] == "pre-commit" for part in parts):
        kind = "type_or_lint_error"
    details.update(details_in(match))
    if "pattern" in details:
        pattern = str(details.pop("pattern"))
        if not meant_for_the_program(pattern, parts):
            return "no_match", {**details, "error_line": match[0].strip()}
        details["name"] = pattern
    if kind in ("bad_option", "unknown_name"):
        details |= suggested_name(output)
        if offered := available_names(output).get("available"):
            details["available_names"] = offered
    details["error_line"] = _line_of(kind, output, match)
    return kind, details


def telling_line(text: str) -> str:
    """The first line that says what failed: one that names an error, else the first that is no announcement."""
    cause = _CAUSE.search(text)
    if cause is not None:
        return cause["line"].strip()
    for line in text.splitlines():
        if not _NOISE.match(line) and _TELLING.search(line) is not None:
            return line.strip()
    return first_line(text)


def first_line(text: str) -> str:
    """The first line that has a word in it and is no announcement, else the first of all."""
    said = (line.strip() for line in text.splitlines() if not _NOISE.match(line) and _WORD.search(line) is not None)
    return next(said, text.strip().partition("\n")[0])


def _asked(parts: Sequence[list[str]], output: str) -> bool:
    """Whether the last program asks something, and the output is at most its answer."""
    # After a program that always works, a failure is of the one before: `[ -f a ] && echo yes`.
    last = next((part for part in reversed(parts) if part[0] not in _NEVER_FAILING), None)
    if last is None:
        return False
    if last[0] == "git":
        asking = {"grep", "check-ignore", "merge-base", "show-ref"} & set(last[1:4])
        compares = "diff" in last and {"--exit-code", "--quiet", "--no-index"} & set(last)
        if not asking and not compares:
            return False
    elif last[0] not in _ASKING:
        return False
    if not output or _ANSWER.match(output) is not None:
        return True
    return _TELLING.search(output) is None and OUTPUT.find(output) is None


def _line_of(kind: str, output: str, match: re.Match[str] | None) -> str:
    line = refusal_in(output) if kind == "git_error" else located_error(kind, output)
    if line is not None:
        return line
    if match is None:
        return telling_line(output)
    if kind == "test_failure":
        for pattern in _TEST_LINES:
            telling = pattern.search(output)
            if telling is not None:
                return telling["line"].strip()
    if kind == "traceback":
        crashes = _CRASH.findall(output, match.start())
        if crashes:
            # Python ends with what was raised; Node begins with it.
            return str(crashes[-1] if "Traceback" in match[0] else crashes[0]).strip()
    start = output.rfind("\n", 0, match.end()) + 1 if "\n" not in match[0] else match.start()
    # Rich draws a box around a message.
    line = output[start:].partition("\n")[0].strip().strip("│ ")
    return line or telling_line(output[start:])


def _asks_for_checks(part: list[str]) -> bool:
    """Whether a command asks how the checks of a change went, and fails if they did."""
    if part[0] != "gh":
        return False
    return "checks" in part[1:4] or (part[1:2] == ["run"] and "--exit-status" in part)


def _named(parts: Sequence[list[str]], output: str) -> str | None:
    """The program that failed: the only one that does not just move about or cut output, or the one that says so."""
    names = list(dict.fromkeys(part[0] for part in parts if part[0] not in _PASSING)) or [parts[0][0]]
    if len(names) == 1:
        return names[0]
    return next((name for name in names if f"\n{name}: " in f"\n{output}"), None)


def _by_command(parts: Sequence[list[str]]) -> str:
    for part in parts:
        words = set(part[:3])
        if words & _TESTERS or (
            part[0] in ("go", "cargo", "npm", "pnpm", "yarn", "bun", "mix", "swift", "bazel", "nx", "flutter", "deno")
            and "test" in words
        ):
            return "test_failure"
        if words & _CHECKERS or any(word.startswith(("lint", "typecheck")) for word in words):
            return "type_or_lint_error"
        if part[0] in _COMPILERS or (
            part[0] in ("go", "cargo", "npm", "pnpm", "yarn", "bun", "swift") and "build" in words
        ):
            return "compile_error"
    if any(part[0] == "git" for part in parts) and all(part[0] in _PASSING | {"git"} for part in parts):
        return "git_error"
    return "command_failed"
