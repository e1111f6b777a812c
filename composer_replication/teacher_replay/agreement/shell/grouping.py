"""What belongs together in a row of tokens: groups, loops and conditions, and what separators part outside of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from composer_replication.teacher_replay.agreement.shell.words import ACTIVE, Operator, Token, Word

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
OPENS = ("for", "while", "until", "if", "case", "select")
BETWEEN = ("do", "then", "else", "elif", "in", "function")
_CLOSES = ("done", "fi", "esac")
_MOST_ROUNDS = 20


def levels(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Each token, with how many groups, loops and conditions it stands in."""
    level, begins = 0, True
    for token in tokens:
        if isinstance(token, Operator):
            level += (token.text == "(") - (token.text == ")")
            begins = True
            yield token, level
            continue
        if isinstance(token, Word):
            if begins and token.text in (*OPENS, "{"):
                level += 1
            yield token, level
            if begins and token.text in (*_CLOSES, "}"):
                level -= 1
            begins = begins and (token.text in (*OPENS, *BETWEEN, "{", "!") or bool(ASSIGNMENT.match(token.text)))
        else:
            yield token, level
        level = max(level, 0)


def items(tokens: Sequence[Token]) -> Iterator[tuple[list[Token], bool]]:
    """What stands between `;`, newlines and `&`, outside of groups and loops; and whether an `&` ends it."""
    item: list[Token] = []
    for token, level in levels(tokens):
        if level == 0 and isinstance(token, Operator) and token.text in (";", "&"):
            if item:
                yield item, token.text == "&"
            item = []
        else:
            item.append(token)
    if item:
        yield item, False


def split(tokens: Sequence[Token], operator: str) -> list[list[Token]]:
    """The parts between an operator, outside of groups and loops."""
    parts: list[list[Token]] = [[]]
    for token, level in levels(tokens):
        if level == 0 and isinstance(token, Operator) and token.text == operator:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def inside_parentheses(tokens: Sequence[Token]) -> Sequence[Token] | None:
    """What one pair of parentheses encloses; None if they do not enclose all of it."""
    if tokens[0] != Operator("(") or tokens[-1] != Operator(")"):
        return None
    return tokens[1:-1] if all(level > 0 for _, level in list(levels(tokens))[:-1]) else None


def straightened(tokens: Sequence[Token]) -> Sequence[Token] | None:
    """The commands that a plain condition or loop comes to; None for any other.

    `if a; then b; fi` is `a && b`, and a loop over given words is its body for each of them.
    """
    words = [token.text if isinstance(token, Word) else "" for token in tokens]
    if words[0] == "if" and words[-1] == "fi" and words.count("then") == 1 and words.count("fi") == 1:
        if "else" in words or "elif" in words:
            return None
        place = words.index("then")
        return [*_without_end(tokens[1:place]), Operator("&&"), *_without_end(tokens[place + 1 : -1])]
    if words[:1] == ["for"] and words[2:3] == ["in"] and words[-1] == "done" and words.count("do") == 1:
        place = words.index("do")
        rounds = [token for token in tokens[3:place] if isinstance(token, Word)]
        if not rounds or len(rounds) > _MOST_ROUNDS or any(ACTIVE in word.text for word in rounds):
            return None
        variable, body = f"{ACTIVE}${{{words[1]}}}", _without_end(tokens[place + 1 : -1])
        return [part for word in rounds for part in (*_filled_in(body, variable, word.text), Operator(";"))]
    return None


def _without_end(tokens: Sequence[Token]) -> Sequence[Token]:
    kept = list(tokens)
    while kept and kept[-1] == Operator(";"):
        kept.pop()
    while kept and kept[0] == Operator(";"):
        kept.pop(0)
    return kept


def _filled_in(tokens: Sequence[Token], variable: str, value: str) -> Iterator[Token]:
    for token in tokens:
        if isinstance(token, Word):
            yield Word(token.text.replace(variable, value))
        elif isinstance(token, Operator):
            yield token
        else:
            yield replace(token, target=token.target.replace(variable, value))
