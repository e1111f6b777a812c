"""Finds commands that failed although their log does not say so.

`pytest | tail`, `make || true` and `python a.py; echo done` have an exit code of 0. Their output shows the failure, but
the shape of a line is not enough: `cat`, `git log` and `gh run view` show the failures of others. A line counts if a
program of the command prints such lines and its exit code was lost; `errors.form` says who prints what.

A command may also print its own outcome: an exit code (`make; echo "exit: $?"`), a number of errors
(`cargo build | grep -c error`), a word for a failure (`make && echo ok || echo FAILED`).
"""

from __future__ import annotations

import re

from composer_replication.coding_tools import command_of, runs_commands
from composer_replication.hint_generator.classifier import looks_like_error
from composer_replication.hint_generator.envelope import clean, open_envelope
from composer_replication.hint_generator.errors import evidence, evidence_in
from composer_replication.hint_generator.errors.form import CRASH, CUT, ERROR, OWN, RUN, SHELL, SHORT
from composer_replication.hint_generator.findings import TRACEBACK, ends_in_a_traceback
from composer_replication.hint_generator.shell_steps import Step, is_inline, runs, steps
from composer_replication.traces import Trace, Turn, content_of

_STARTERS = frozenset(["sudo", "timeout", "env", "xargs", "nohup", "time", "npx"])

# Lines of these shapes that mean nothing: what was fixed or skipped, numbers, what a search passes over on its way,
# programs whose reader has gone.
_HARMLESS = re.compile(
    r"\b0 (?:remaining|errors?)\b|# (?:TODO|SKIP|todo|skip)\b|\AERROR: pip's "
    r"|\A\W*(?:[Ee]rror|ERROR|[Ff]atal|FATAL)\b[^:]*: (?:[Nn]one|[\d.,]+\W*\w{0,3})\Z"
    r"|[Bb]roken pipe|\bEPIPE\b|curl: \(23\)|\bwrite error|\A[\w./-]+: [Ww]arning: "
    r"|: File exists\Z|\btype: |: (?:Entering|Leaving) directory"
    r"|\Ago: (?:downloading|added|found|upgraded|finding) "
    r"|\A(?:grep|find|du|rg): .*(?:Permission denied|Is a directory)"
)
_PASSED = re.compile(
    r"\b[1-9]\d* (?:tests? )?pass(?:ed|ing)?\b|\b0 failures|\bFailures: 0, Errors: 0|^OK(?: \(|$)|\btest result: ok"
    r"|^ok +\t|^PASS$|^(?:#|ℹ) fail 0|\bBUILD SUCCESS|^ok \| |^Passed! |\[  PASSED  \]|\b100% tests passed",
    re.MULTILINE,
)
_WORKED = re.compile(r"\b(?:BUILD SUCCESS|[Ss]uccess(?:fully)?\b|[Ss]ucceeded\b|All checks passed)|✅|✓ built")
# A traceback below one of these was caught and logged.
_LOGGED = re.compile(r"\b(?:ERROR|WARN(?:ING)?|CRITICAL|DEBUG|INFO|Exception (?:ignored )?in|never retrieved)\b")
# A reader such as `head` that has gone is no failure, nor is Ctrl-C.
_ENDED_FROM_OUTSIDE = re.compile(r"^(?:BrokenPipeError|KeyboardInterrupt)\b|\bwrite EPIPE", re.MULTILINE)
_NEARBY_LINES = 25
_SHORT_LINES = 3
_SHORTEST_ECHO = 6

# It goes on after an error, and its exit code is that of the last statement.
_GOING_ON = "psql"

_WORDS = ("$?", "PIPESTATUS", "pipestatus", "|| echo")
_STATUS = r"\$\?|\$\{?(?:PIPESTATUS|pipestatus)\[\d\]\}?"
_SAVED_STATUS = re.compile(rf"\b(?P<name>\w+)=\"?(?:{_STATUS})")
# An exit code of 1 is their answer "no".
_ASKING = re.compile(r"(?:[efzp]?grep|rg|ag|diff|git diff|cmp|test|which|type|p?kill|nc|ping)\b|\[|-v")
# A server that `timeout` ends has not failed, nor has what the command itself ends.
_ENDED = frozenset(["124", "137", "143"])
_ENDING = re.compile(
    r"\bkill|\btimeout\b.*\b(?:start|dev|serve\w*|runserver|up|watch|preview|uvicorn|tail -f|listen)\b"
)

_NUMBER = re.compile(r"\s*[1-9]\d*\s*\Z")
_BAD = r"[^|;\n]*(?:error|fail|FAIL)[^|;\n]*"
_COUNTED = re.compile(
    r"\b(?:tsc|mypy|eslint|cargo|go|gcc|make|pytest|npm|npx|pnpm|yarn|ruff)\b.*"
    rf"\bgrep\s+(?:-\w+\s+)*(?:-\w*c\w*\s{_BAD}|{_BAD}\|\s*wc -l\s*)\Z"
    r"|\b(?:tsc|go vet|go build)\b[^|;\n]*\|\s*wc -l\s*\Z",
    re.DOTALL,
)
_VERDICT = re.compile(r"\|\|\s+echo\s+['\"]?([^'\"$;|&\n]*(?:[Ff]ail|FAIL|[Ee]rror|ERROR|[❌✗✘])[^'\"$;|&\n]*)")


def flag_failures(trace: Trace, *, flags_errors: bool) -> None:
    """Set `is_error` on results that failed without a flag, and `masked` where the log says that the command worked.

    Args:
        trace: changed in place.
        flags_errors: the log flags failures. Otherwise every result is judged by its text.
    """
    commands: dict[str | None, str] = {}
    for turn in trace.turns:
        if turn.role == "assistant":
            for call in turn.tool_calls:
                if runs_commands(call.name, call.arguments):
                    command = command_of(call.arguments)
                    if command is not None and (not flags_errors or _may_hide(command)):
                        commands[call.id] = command
        if turn.role != "tool" or turn.is_error:
            continue
        run = commands.get(turn.tool_call_id)
        if not flags_errors and looks_like_error(turn.content, run):
            turn.is_error = True
        elif run is not None:
            _flag(turn, run, flags_errors)


def _flag(turn: Turn, command: str, flags_errors: bool) -> None:
    content = content_of(turn)
    # Opening an envelope costs more than the look at a text, and only JSON hides the beginnings of lines.
    if content[:1] != "{" and not may_tell(content, command) and not evidence_in(clean(content)):
        return
    envelope = open_envelope(content)
    masked = flags_errors or envelope.exit_code is not None
    if shows_failure(envelope.body, command, masked_only=masked):
        turn.content, turn.is_error, turn.masked = content, True, masked


def shows_failure(text: str, command: str, *, masked_only: bool = True) -> bool:
    """Whether a command's output shows that it failed, though its log does not say so.

    Args:
        text: the output, without what a harness wraps around it.
        command: the command line.
        masked_only: the log flags failures, so that only a step whose exit code was lost can have failed.
    """
    if masked_only and not _may_hide(command):
        return False
    text = clean(text)
    held = evidence_in(text)
    if not held and not may_tell(text, command):
        return False
    run = steps(command)
    lost = run[: _last_lost(run)] if masked_only else run
    if lost and may_tell(text, command) and tells_failure(text, command, lost):
        return True
    reading = _Reading(text, command, lost, alone=not masked_only and len(run) == 1)
    return any(reading.counts(*evidence(number)) for number in held)


def _may_hide(command: str) -> bool:
    """A first look: without one of these, a command's exit code is that of its only step."""
    return (
        "|" in command or ";" in command or "\n" in command or "&" in command.replace("&&", "") or _GOING_ON in command
    )


def _last_lost(run: list[Step]) -> int:
    """Count the steps before the last operator that loses an exit code."""
    settings = " ".join(" ".join(step.words) for step in run if step.words[0] == "set")
    if run and run[-1].words[0] == _GOING_ON:
        return len(run)
    losing = {"||", *(() if re.search(r" -\w*e", settings) else ";"), *(() if "pipefail" in settings else "|")}
    return max((number for number, step in enumerate(run) if number and step.operator in losing), default=0)


class _Reading:
    """An output, with the steps whose exit codes were lost: whose lines it may hold."""

    def __init__(self, text: str, command: str, lost: list[Step], *, alone: bool) -> None:
        self._text = text
        self._command = command
        self._alone = alone
        self._words = {word.rpartition("/")[2] for word in re.findall(r"[\w.+/*?-]+", command)}
        self._programs = {word.rpartition("/")[2] for step in lost for word in step.words} | _STARTERS & self._words
        self._running = [step for step in lost if runs(step)]
        self._runners = [step for step in self._running if not is_inline(step)]
        self._foreseen = {step.words[0] for step in lost if step.foreseen}
        # Logs hold anything.
        self._names = {step.words[0] for step in lost if not step.foreseen and "logs" not in step.words[1:3]}
        # `git status` says the same, and has not failed.
        if "status" not in self._words and any("commit" in step.words for step in lost if step.words[0] == "git"):
            self._names.add("git-commit")

    def counts(self, who: str, pattern: re.Pattern[str]) -> bool:
        found = pattern.finditer(self._text)
        return any(
            _HARMLESS.search(match[0]) is None and not self._is_echoed(match[0]) and self._is_theirs(who, match)
            for match in found
        )

    def _is_echoed(self, line: str) -> bool:
        """Whether the command itself prints this: `echo "$tool: not found"`."""
        said = line.partition(":")[2].strip()
        return len(said) >= _SHORTEST_ECHO and said in self._command

    def _is_theirs(self, who: str, match: re.Match[str]) -> bool:
        if who == RUN:
            return bool(self._runners)
        if who == CRASH:
            # `python -c "import a" || echo missing`
            is_probe = all(step.foreseen and is_inline(step) for step in self._running)
            return not is_probe and not self._was_caught(match)
        if who == CUT:
            return (
                TRACEBACK not in self._text and not self._was_caught(match) and self._is_last_word(match, self._running)
            )
        if who == ERROR:
            named = match[0].partition(":")[0]
            return named not in self._foreseen and self._is_last_word(match, self._runners)
        if who == OWN:
            return self._is_own(match.groupdict().get("program"))
        if who == SHELL:
            return self._is_of_the_shell(match["said"])
        if who.startswith(SHORT):
            return (
                self._text.count("\n") < _SHORT_LINES
                and match[0].partition(":")[0] not in self._programs
                and not self._names.isdisjoint(who.split())
            )
        return not self._names.isdisjoint(who.split())

    def _is_of_the_shell(self, said: str) -> bool:
        words = {word.rpartition("/")[2] for word in re.split(r"[\s:]+", said)}
        return words.isdisjoint(self._foreseen) and bool(self._runners or words & self._words)

    def _was_caught(self, match: re.Match[str]) -> bool:
        if _PASSED.search(self._text, match.end()) is not None:
            return True
        # Where one program's output stands in its order, what follows a traceback tells that it was caught.
        if self._alone and match[0].startswith(TRACEBACK):
            return not ends_in_a_traceback(f"\n{self._text}")
        before = self._text[: match.start()].rstrip("\n").rpartition("\n")[2]
        return _LOGGED.search(before) is not None or _ENDED_FROM_OUTSIDE.search(self._text) is not None

    def _is_last_word(self, match: re.Match[str], said_by: list[Step]) -> bool:
        return (
            not all(step.foreseen for step in said_by)
            and self._text.count("\n", match.end()) <= _NEARBY_LINES
            and _PASSED.search(self._text, match.end()) is None
            and _WORKED.search(self._text, match.end()) is None
        )

    def _is_own(self, program: str | None) -> bool:
        if program is None:  # `cli.py: error: …` of argparse
            return bool(self._runners)
        return program in self._programs and (program in self._names or program not in self._foreseen)


def may_tell(text: str, command: str) -> bool:
    """A first look, at no cost: whether the command can print a verdict at all."""
    return any(word in command for word in _WORDS) or (len(text) < 20 and _NUMBER.match(text) is not None)


def tells_failure(text: str, command: str, lost: list[Step]) -> bool:
    """Whether the output has a verdict of the command's own, and it is a failure.

    `lost` are the steps whose exit codes the log does not have.
    """
    if _NUMBER.match(text) is not None and _COUNTED.search(command) is not None:
        return True
    lines = {line.strip() for line in text.splitlines()}
    # What a filter or a question did not find is no failure.
    checked = [step for step in lost if step.words[0] != "echo"][-1:]
    if checked and runs(checked[0]) and any(said.strip() in lines for said in _VERDICT.findall(command)):
        return True
    return _printed_status(text, command)


def _printed_status(text: str, command: str) -> bool:
    saved = {found["name"]: found.start() for found in _SAVED_STATUS.finditer(command)}
    status = "|".join([_STATUS, *(rf"\${name}\b|\$\{{{name}\}}" for name in saved)])
    echo = re.compile(rf"\b(?:echo|printf)[ \t]+(?:-\w+ )?['\"]?(?P<before>[^'\"$\n;|&]*)(?P<status>{status})")
    for found in echo.finditer(command):
        before = re.escape(found["before"].strip())
        # Without a word before it, it is told from other numbers by its place alone.
        printed = re.findall(rf"^\W*{before}\s*(\d+)\b" if before else r"^(\d+)\s*\Z", text, re.MULTILINE)
        asked = steps(command[: saved.get(found["status"].strip("${}"), found.start())])
        while len(asked) > 1 and asked[-1].operator == "|" and "[" in found["status"]:
            asked.pop()
        harmless = {"0"} | ({"1"} if asked and _ASKING.match(" ".join(asked[-1].words)) else set())
        harmless |= _ENDED if _ENDING.search(command) else set()
        if not harmless.issuperset(printed):
            return True
    return False
