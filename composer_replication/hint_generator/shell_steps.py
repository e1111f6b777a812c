"""The steps of a shell command: the programs it runs, how they are joined, and which failures it foresees."""

from __future__ import annotations

import re
from typing import NamedTuple

from composer_replication.hint_generator.arguments import programs

_LONGEST = 50_000
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n(?:.*?\n)??[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
# Commands in a string: `bash -c '…'`, `ssh host "…"`.
_NESTED = re.compile(
    r"\b(?P<starter>(?:ba|z|da)?sh (?:-\w+ )*-\w*c|ssh [^'\"\n|;&]*|eval)[ \t]+(?P<quote>['\"])(?P<inner>.*?)"
    r"(?<!\\)(?P=quote)",
    re.DOTALL,
)
_OPAQUE = re.compile(r"\\\n|\\.|'[^']*'|\"(?P<inner>[^\"\\]*(?:\\.[^\"\\]*)*)\"|(?<![^\s;(])#[^\n]*", re.DOTALL)
_SUBSHELL = re.compile(r"\$?\((?!\()|(?<!\))\)|`")
_OPERATOR = re.compile(r"(\|\||&&|\|&?|;+|\n|(?<![<>&])&(?![>&]))")
# What stands before the program that a step runs.
_PREFIXES = re.compile(r"-(?!v\Z)|\{\}\Z|\d+[smh]?\Z|[\d&]*[<>]|(?:until|elif)\Z")
_ASKED = ("if", "elif", "!")
_LOOPS = ("while", "until", "break")
# Behind `||`, these only hide a failure. Anything else deals with it.
_HIDING = frozenset(["true", ":", "exit", "return", "false"])


class Step(NamedTuple):
    """A program's words, its name first; the operator before it; whether the command deals with its failure itself."""

    words: list[str]
    operator: str
    foreseen: bool = False


def steps(command: str) -> list[Step]:
    """The steps in order; those in subshells and in strings given to a shell too. Operators are | || && and ;."""
    plain = _HEREDOC.sub(r" << \3", command[:_LONGEST])
    plain = _NESTED.sub(lambda found: f"{found['starter']} ; {found['inner']} ;", plain)
    plain = _SUBSHELL.sub(" ; ", _OPAQUE.sub(_opened, plain))
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
        if operator == ";":
            chain = len(found)
        elif operator == "||" and words[0] not in _HIDING:
            found[chain:] = [step._replace(foreseen=True) for step in found[chain:]]
        found.append(Step(words, operator if found else "", first[0] in _ASKED))
        operator = ";"
    return [step._replace(foreseen=True) for step in found] if retried else found


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
