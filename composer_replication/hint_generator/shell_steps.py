"""The steps of a shell command: what they run, how they are joined, and which failures the command foresees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from composer_replication.coding_tools import word_set

_SEPARATOR = re.compile(r"&&|\|\||[;|\n]")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*\Z")
# Programs that only start another one, and the words of theirs that come before it.
_STARTERS = word_set("sudo time nohup env exec command npx bunx pnpx uvx xargs then do else if while ! ( {")
_FILE_NAME = re.compile(r"[^-+\d]")
_SHOWS_TEXT = re.compile(
    r"(?:cat|tac|zcat|bat|nl|head|tail|less|more|open|view|[ef]?grep|rg|sed|awk|cut|jq|find|xxd|strings|diff"
    r"|git|gh|curl|docker|podman|kubectl|journalctl)\Z"
)
_RUNNERS = {"uv": "run", "poetry": "run", "pipenv": "run", "bundle": "exec", "pnpm": "exec", "npm": "exec"}
_LONGEST = 50_000
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n(?:.*?\n)??[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
# Commands in a string: `bash -c '…'`, `ssh host "…"`.
_NESTED = re.compile(
    r"\b(?P<starter>(?:ba|z|da)?sh (?:-\w+ )*-\w*c|ssh [^'\"\n|;&]*|eval)[ \t]+(?P<quote>['\"])(?P<inner>.*?)"
    r"(?<!\\)(?P=quote)",
    re.DOTALL,
)
_OPAQUE = re.compile(r"\\\n|\\.|'[^']*'|\"(?P<inner>[^\"\\]*(?:\\.[^\"\\]*)*)\"|(?<![^\s;(])#[^\n]*", re.DOTALL)
_REDIRECTION = re.compile(r"[\d&]*>>?[ \t]*&?[\w./~$'-]+")
_SUBSHELL = re.compile(r"\$?\((?!\()|(?<!\))\)|`")
_OPERATOR = re.compile(r"(\|\||&&|\|&?|;+|\n|(?<![<>&])&(?![>&]))")
# What stands before the program that a step runs.
_PREFIXES = re.compile(r"-(?!v\Z)|\{\}\Z|\d+[smh]?\Z|(?:until|elif)\Z")
_ASKED = ("if", "elif", "!")
_TIDYING = re.compile(
    r"(?:rm|unlink|dropdb|docker(?: container| volume| network)? (?:rm|rmi|stop|kill)|git branch -D)\b"
)
_LOOPS = ("while", "until", "break")
# After `||`, these do not handle a failure.
_IGNORING = frozenset(["true", ":"])
_PASSING = _IGNORING | {"exit", "return", "false"}

# Programs that show text of others, and such that run nothing.
_SHOWING = re.compile(
    r"(?:cat|bat|less|more|man|head|tail|[efz]?grep|rg|ag|ack|sed|g?awk|cut|sort|uniq|tr|wc|tee|column|[jy]q|json\.tool"
    r"|xxd|hexdump|strings|diff|cmp|comm|paste|nl|tac|find|fd|ls|tree|stat|file|du|df|pwd|cd|pushd|popd|echo|printf|true"
    r"|false|:|test|\[\[?|sleep|wait|exit|return|set|unset|export|source|\.|read|local|declare|alias|which|type|-v|whoami"
    r"|id|date|env|printenv|uname|hostname|p?kill|killall|pgrep|ps|lsof|netstat|top|curl|wget|http|ssh|scp|rsync|mkdir"
    r"|rmdir|rm|cp|mv|touch|ln|chmod|chown|mktemp|basename|dirname|realpath|readlink|seq|history|journalctl|dmesg|tmux"
    r"|screen|open|code|claude|codex|gemini|llm|done|fi|esac|break|continue|for|case|in|function|\}|trap|shift|gh|glab"
    r"|psql|sqlite3|mysql|mariadb|redis-cli|mongosh|aws|gcloud|az|kubectl|helm|defaults|osascript|tar|unzip|zip|base64"
    r"|md5sum|sha256sum|shasum|brew|apt|apt-get|systemctl|launchctl)\Z"
)
_GIT_RUNS = re.compile(r"git(?: -[cC] \S+| -\S+)* (?:commit|push|merge|rebase|pull|cherry-pick|bisect|am|revert)\b")
_CONTAINERS = frozenset(["docker", "docker-compose", "podman"])
_CONTAINERS_SHOW = frozenset(["logs", "inspect", "ps", "images", "events"])
# With one of these words, any program only shows text.
_TELLING = frozenset(["logs", "log", "logcat", "help", "--help", "explain", "--explain", "doc", "rule", "history"])
# Scripts in the command itself, or from another program.
_INLINE = re.compile(
    r"(?:python[\d.]*(?: -\S+)*? -c|(?:node|perl|ruby|bun|deno)(?: -\S+)*? (?:-\w{0,2}[ep]|--eval|eval)|php -r)(?: |\Z)"
    r"|(?:python[\d.]*|node|perl|ruby|php|bun|deno)(?: -[a-zA-Z]\w?)*(?: -)?(?: <<.*)?\Z"
)

# The name of a route or of an extra in brackets, a query: no pattern at all.
_LITERAL = re.compile(r"\[(?:\.{3})?[A-Za-z]\w+\]|\?[\w.-]+=|://")
_TAKING_PATTERNS = frozenset(["git", "gh", "curl", "wget"])
_SEARCHING = frozenset(["grep", "egrep", "fgrep", "rg", "ag", "git-grep"])


class Step(NamedTuple):
    """A program's words, its name first; the operator before it; whether the command deals with its failure itself."""

    words: list[str]
    operator: str
    foreseen: bool = False


def steps(command: str) -> list[Step]:
    """The steps in order; those in subshells and in strings given to a shell too. Operators are | || && and ;."""
    plain = _HEREDOC.sub(r" << \3", command[:_LONGEST])
    plain = _NESTED.sub(lambda found: f"{found['starter']} ; {found['inner']} ;", plain)
    plain = _SUBSHELL.sub(" ; ", _REDIRECTION.sub(" ", _OPAQUE.sub(_opened, plain)))
    found: list[Step] = []
    chain = 0
    operator = ""
    retried = False
    for piece in _OPERATOR.split(plain):
        if _OPERATOR.match(piece):
            operator = piece if piece in ("||", "&&") else "|" if piece[0] == "|" else ";"
            continue
        first = piece.split(maxsplit=2)[:2]
        retried = retried or (first[:1] != [] and first[0] in _LOOPS and first[1:] != ["read"])
        words = _program(piece)
        if not words:
            continue
        # `rm a || true; make`: what follows is what matters. At the end, it only hides a failure.
        if (operator == "||" and words[0] not in _PASSING) or (found and found[-1].words[0] in _IGNORING):
            found[chain:] = [step._replace(foreseen=True) for step in found[chain:]]
        if operator == ";":
            chain = len(found)
        found.append(Step(words, operator if found else "", first[0] in _ASKED))
        operator = ";"
    return [
        step._replace(foreseen=step.foreseen or retried or (_tidies_up(step) and any(map(runs, found[number + 1 :]))))
        for number, step in enumerate(found)
    ]


def runs(step: Step) -> bool:
    """Whether a step runs something whose output it shows, and not text from elsewhere."""
    name, *words = step.words
    if name == "git":
        return _GIT_RUNS.match(" ".join(step.words)) is not None
    if name in _CONTAINERS:
        return _CONTAINERS_SHOW.isdisjoint(words)
    return _SHOWING.match(name) is None and _TELLING.isdisjoint(words[:4])


def is_inline(step: Step) -> bool:
    """Whether a step runs a script that is in the command: what it prints may be any text."""
    return _INLINE.match(" ".join(step.words)) is not None


def _tidies_up(step: Step) -> bool:
    """Whether a step removes what may not be there: before others, its failure does not matter."""
    return _TIDYING.match(" ".join(step.words)) is not None


def _opened(found: re.Match[str]) -> str:
    """A string without its content, unless that runs something."""
    text = found[0]
    if found["inner"] is not None:
        return found["inner"] if "$(" in found["inner"] else "''"
    return " " if text == "\\\n" or text[0] == "#" else "''"


def _program(piece: str) -> list[str]:
    words = next(iter(programs(piece)), [])
    while words and _PREFIXES.match(words[0]):
        words = words[1:]
        if words and not _PREFIXES.match(words[0]):
            words = next(iter(programs(" ".join(words))), [])
    return words


def programs(command: str) -> list[list[str]]:
    """The commands of a command line, each as its words: `cd a && uv run pytest -q | tail` → cd, pytest, tail."""
    found = []
    for part in _SEPARATOR.split(_QUOTED.sub("''", command[:4000])):
        words = part.split()
        while words:
            first = words[0]
            if first in _STARTERS or _ASSIGNMENT.match(first):
                words = words[1:]
            elif (
                first == "timeout"
                or (len(words) > 2 and _RUNNERS.get(first) == words[1])
                or (first.rpartition("/")[2].startswith("python") and len(words) > 2 and words[1] == "-m")
            ):
                words = words[2:]
            else:
                break
        if words:
            found.append([words[0].rpartition("/")[2], *words[1:]])
    return found


def shows_files(command: str) -> bool:
    """Whether what a command prints last is text that it was asked to show: a file, a log, a page."""
    parts = programs(command)
    # After a pipe they show what the program before them prints.
    while len(parts) > 1 and parts[-1][0] in ("head", "tail") and not any(map(_FILE_NAME.match, parts[-1][1:])):
        parts.pop()
    return bool(parts) and _SHOWS_TEXT.match(parts[-1][0]) is not None


def meant_for_the_program(pattern: str, parts: Sequence[list[str]]) -> bool:
    """Whether a program of the command line takes the pattern itself, so that it has to be quoted."""
    if pattern.startswith("-") or _LITERAL.search(pattern) is not None:
        return True
    for program, *words in parts:
        if pattern not in words:
            continue
        before = words[: words.index(pattern)]
        if program == "find":
            return any(word.startswith("-") for word in before)
        if program in _SEARCHING:
            # What is searched for, or which files are searched: `-g *.py`.
            return all(word.startswith("-") for word in before) or before[-1].startswith("-")
        return program in _TAKING_PATTERNS
    return False
