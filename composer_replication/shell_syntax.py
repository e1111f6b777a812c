"""Shell commands as bash's own grammar (tree-sitter) reads them, in a small typed form.

`parse` gives a `Script`: pipelines of simple commands, groups, loops and conditions. A word is its text without quotes.
A character that the shell acts on (`$`, a glob, braces with choices, a leading `~`) is preceded by `ACTIVE`; the same
character in quotes is not. So `'$x'` is `$x`, and `"$x"` is `ACTIVE + "${x}"`. Comments are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

ACTIVE = "\0"

_MOST_WORDS = 100
_CHOICES = re.compile(rf"{ACTIVE}\{{([^{{}}]*)\}}")
# The grammar refuses some redirections between a here-document and what follows; in front of it, they say the same.
_DOCUMENT_FIRST = re.compile(
    r"(<<-?[ \t]*(['\"]?)\w+\2)((?:[ \t]*\d?>>?(?:&[ \t]*\d|[ \t]*[\w./-]+))+)(?=[ \t]*[|;&\n])"
)
_BLANK = b" \t\n"
_OPERATOR = re.compile(rb"[|&;()<>]")
# The grammar loses a lone `-` before a here-document or a descriptor, and an option without a blank before `<<`.
_AFTER_OPTION = re.compile(rb"[ \t]+(-[\w-]*)(?:[ \t]*<<-?|[ \t]+\d)")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\s*\+?=\s*")
_QUOTE_OR_LINE = re.compile(r"['\"\\\n]")
_VARIABLE = re.compile(r"\$(?:(\w+|[?!@#*$-])|\{(\w+)\})")
_SPECIAL = re.compile(r"\\(.?)|^~|[*?\[{ \t\n]|\$[{(]", re.DOTALL)
_IN_STRING = re.compile(r"\\([\"\\$`\n])")
_ANSI_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


_LITERALS = _types("word number brace_expression extglob_pattern regex test_operator $ subscript")
_EXPANSIONS = _types("simple_expansion expansion command_substitution arithmetic_expansion")
_WORDS = _LITERALS | _EXPANSIONS | _types("string raw_string ansi_c_string concatenation variable_name")
_WHOLE = _WORDS | _types("variable_assignment heredoc_body")
_REDIRECTS = _types("file_redirect heredoc_redirect herestring_redirect")
# They say nothing, or are read with the node around them.
_SILENT = _types("comment ; << <<- heredoc_start heredoc_body heredoc_end") | {"\n"}
_TEST_MARKS = _types("[ ] [[ ]] ! = == != =~ < > ( ) && || -a -o")
_SIMPLE = _types("command declaration_command unset_command variable_assignment variable_assignments")
_STATEMENTS = _SIMPLE | _types(
    "list pipeline redirected_statement test_command subshell compound_statement for_statement c_style_for_statement "
    "while_statement if_statement case_statement function_definition negated_command"
)


@dataclass(frozen=True)
class Redirect:
    """A redirection: the descriptor as written ("" if none, "&" for both outputs), the operator, the target.

    The target of `<<` is the text of the here-document; `is_literal` says that the shell expands nothing in it.
    """

    descriptor: str
    operator: str
    target: str
    is_literal: bool = False


@dataclass(frozen=True)
class Command:
    """A simple command. A test (`[ -f a ]`) is one too, its brackets are words."""

    words: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class Group:
    """Commands in parentheses (`is_subshell`) or braces."""

    body: Script
    is_subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True)
class Compound:
    """A loop, condition, function or negation; `parts` are its words, operators and keywords, as `flat` yields them.

    `loop` is set for `for variable in values; do body; done`: the variable, the values and the body. `condition` is set
    for an `if` without `else`: its condition and its body.
    """

    parts: tuple[str | Redirect, ...]
    loop: tuple[str, tuple[str, ...], Script] | None = None
    condition: tuple[Script, Script] | None = None
    redirects: tuple[Redirect, ...] = ()


Stage: TypeAlias = Command | Group | Compound
Pipeline: TypeAlias = tuple[Stage, ...]


@dataclass(frozen=True)
class Item:
    """Pipelines joined by `&&` and `||`: (operator before it, "" for the first; pipeline)."""

    pipelines: tuple[tuple[str, Pipeline], ...]
    in_background: bool = False


Script: TypeAlias = tuple[Item, ...]


def parse(command: str) -> Script | None:
    """Read a command; None if it is not valid, or uses what this form has no place for."""
    command = command.replace("\r\n", "\n").replace(ACTIVE, "")
    try:
        script = _Reader(command).script()
        if script is None and "<<" in command:
            script = _Reader(_DOCUMENT_FIRST.sub(r" \3 \1", command, count=1)).script()
        return script
    except (_UnknownError, RecursionError):
        return None


def flat(script: Script) -> Iterator[str | Redirect]:
    """Yield the words, operators and redirections that a script consists of; an operator is preceded by `ACTIVE`."""
    for place, item in enumerate(script):
        yield from (f"{ACTIVE};",) if place else ()
        for operator, pipeline in item.pipelines:
            yield from (ACTIVE + operator,) if operator else ()
            yield from flat_pipeline(pipeline)
        yield from (f"{ACTIVE}&",) if item.in_background else ()


def flat_pipeline(pipeline: Pipeline) -> Iterator[str | Redirect]:
    """Yield the same of one pipeline."""
    for place, stage in enumerate(pipeline):
        yield from (f"{ACTIVE}|",) if place else ()
        if isinstance(stage, Command):
            yield from stage.assignments
            yield from stage.words
        elif isinstance(stage, Compound):
            yield from stage.parts
        else:
            yield f"{ACTIVE}(" if stage.is_subshell else f"{ACTIVE}{{"
            yield from flat(stage.body)
            yield f"{ACTIVE})" if stage.is_subshell else f"{ACTIVE}}}"
        yield from stage.redirects


def spelled_out(word: str) -> list[str]:
    """The words that braces with choices stand for: `a/{b,c}` is `a/b a/c`."""
    found = [word]
    while len(found) < _MOST_WORDS:
        places = [(place, match) for place, one in enumerate(found) if (match := _CHOICES.search(one)) is not None]
        if not places:
            break
        place, match = places[0]
        before, after = found[place][: match.start()], found[place][match.end() :]
        found[place : place + 1] = [before + choice + after for choice in match[1].split(",")]
    return found


def globs_as_text(text: str) -> str:
    """A word in which globs are meant for the program (`find -name *.py`), whether or not they were quoted."""
    return re.sub(f"{ACTIVE}([*?\\[{{])", r"\1", text)


class _UnknownError(Exception):
    """The tree has something that is not modelled."""


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class _Reader:
    """Turns the tree of one command into a script."""

    def __init__(self, command: str) -> None:
        self._bytes = command.encode(errors="surrogatepass")
        # Where a character is a byte, the tree's places are places in the text.
        self._ascii = command if command.isascii() else None
        # Options that are in no node, by the end of the operator after them.
        self._lost: dict[int, str] = {}
        self._root = _parser().parse(self._bytes).root_node

    def script(self) -> Script | None:
        if self._root.has_error:
            return None
        self._check_tokens(self._root.children, 0, len(self._bytes))
        return self._items(self._root.children)

    def _check_tokens(self, nodes: Iterable[Node], place: int, end: int) -> None:
        """Refuse what the grammar passes over, or splits where the shell does not: all but blanks must be in a token,
        and two tokens need a blank between them, or one is an operator."""
        after_operator = True
        for token, is_word in (one for node in nodes for one in self._tokens(node)):
            text = self._bytes[token.start_byte : token.end_byte].lstrip(_BLANK)
            start = token.end_byte - len(text)
            gap = self._bytes[place:start].replace(b"\\\n", b"")
            is_separate = gap or after_operator or (not is_word and _OPERATOR.match(text))
            is_whole = token.is_named or text == token.type.encode()
            option = _AFTER_OPTION.fullmatch(self._bytes, place, token.end_byte)
            if option is not None and token.type in ("<<", "<<-", "file_descriptor"):
                self._lost[token.end_byte] = option[1].decode()
            elif gap.strip(_BLANK) or not is_separate or not is_whole:
                raise _UnknownError
            place = token.end_byte
            is_operator = not is_word and _OPERATOR.match(text[-1:]) is not None
            after_operator = is_operator or token.type in ("<<-", "heredoc_body")
        if self._bytes[place:end].replace(b"\\\n", b"").strip(_BLANK):
            raise _UnknownError

    def _tokens(self, node: Node, *, in_test: bool = False) -> Iterator[tuple[Node, bool]]:
        """Yield the tokens under a node, and whether each is a word."""
        is_word = node.type in _WHOLE or (node.type.endswith("_expression") and not in_test)
        if node.type == ";;" and (node.parent is None or node.parent.type != "case_item"):
            raise _UnknownError
        if not is_word and node.child_count:
            for child in node.children:
                yield from self._tokens(child, in_test=in_test or node.type == "test_command")
        elif self._bytes[node.start_byte : node.end_byte].strip(_BLANK):
            yield node, is_word or node.is_named

    def _text(self, start: int, end: int) -> str:
        if self._ascii is not None:
            return self._ascii[start:end]
        return self._bytes[start:end].decode(errors="surrogatepass")

    def _source(self, node: Node) -> str:
        return self._text(node.start_byte, node.end_byte)

    def _items(self, nodes: Iterable[Node]) -> Script:
        items: list[Item] = []
        for node in nodes:
            if node.type == "&":
                items[-1] = replace(items[-1], in_background=True)
            elif node.is_named and node.type != "comment":
                items.append(Item(tuple(self._joined(node))))
        return tuple(items)

    def _joined(self, node: Node) -> list[tuple[str, Pipeline]]:
        """The pipelines of a statement, each with the operator before it."""
        if node.type == "list":
            left, right = self._joined(node.children[0]), self._joined(node.children[-1])
            operator = next(child.type for child in node.children if child.type in ("&&", "||"))
            return [*left, (operator, right[0][1]), *right[1:]]
        if node.type == "pipeline":
            found: list[tuple[str, Pipeline]] = []
            for child in node.named_children:
                found = _piped(found, self._joined(child))
            return found
        if node.type == "redirected_statement":
            return self._redirected(node)
        return [("", (self._stage(node),))]

    def _redirected(self, node: Node) -> list[tuple[str, Pipeline]]:
        """A statement with redirections, which belong to its last command, and with what stands on its line after a
        here-document: the grammar puts that into the here-document's node."""
        body = node.child_by_field_name("body")
        found: list[tuple[str, Pipeline]] = [("", (Command(),))] if body is None else self._joined(body)
        redirects: list[Redirect] = []
        following: list[tuple[str, list[tuple[str, Pipeline]]]] = []
        words: list[str] = []
        for child in node.children:
            if child.type not in _REDIRECTS:
                continue
            redirects.append(self._redirect(child, words))
            if child.type != "heredoc_redirect":
                continue
            operator = ""
            for inner in child.children:
                if inner.type in _REDIRECTS:
                    redirects.append(self._redirect(inner, words))
                elif inner.type in ("&&", "||"):
                    operator = inner.type
                elif inner.type == "pipeline" and not operator:
                    following.append(("|", self._joined(inner)))
                elif operator and inner.is_named and not inner.type.startswith("heredoc"):
                    following.append((operator, self._joined(inner)))
                elif inner.type in _WORDS:
                    words.append(self._word(inner))
        operator, pipeline = found[-1]
        last = pipeline[-1]
        if words:
            if not isinstance(last, Command):
                raise _UnknownError
            last = replace(last, words=(*last.words, *words))
        found[-1] = operator, (*pipeline[:-1], replace(last, redirects=(*last.redirects, *redirects)))
        for operator, others in following:
            found = _piped(found, others) if operator == "|" else [*found, (operator, others[0][1]), *others[1:]]
        return found

    def _stage(self, node: Node) -> Stage:
        kind = node.type
        if kind in _SIMPLE:
            command = self._command(node)
            # An array is more than a value that can be put in where it is used.
            has_array = any(f"={ACTIVE}(" in one for one in command.assignments)
            return Compound(tuple(flat_pipeline((command,)))) if has_array else command
        if kind == "test_command":
            # Of a test, operators are words.
            marks = {f"{ACTIVE}{mark}": mark for mark in _TEST_MARKS}
            return Command(tuple(marks.get(part, part) for part in self._parts(node) if isinstance(part, str)))
        if kind in ("subshell", "compound_statement") and node.children[0].type in ("(", "{"):
            return Group(self._items(node.children), kind == "subshell")
        parts = tuple(self._parts(node))
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if kind == "for_statement" and parts[0] == f"{ACTIVE}for" and variable and body and body.type == "do_group":
            values = tuple(self._word(child) for child in node.children_by_field_name("value"))
            return Compound(parts, loop=(self._source(variable), values, self._items(body.children)))
        if kind == "if_statement" and not any(child.type in ("elif_clause", "else_clause") for child in node.children):
            then = next(place for place, child in enumerate(node.children) if child.type == "then")
            inside = self._items(node.children[:then]), self._items(node.children[then:])
            return Compound(parts, condition=inside)
        return Compound(parts)

    def _command(self, node: Node) -> Command:
        words: list[str] = []
        assignments: list[str] = []
        redirects: list[Redirect] = []
        for child in [node] if node.type == "variable_assignment" else node.children:
            if child.type == "variable_assignment":
                (words if node.type == "declaration_command" else assignments).append(self._assignment(child))
            elif child.type == "command_name":
                words += map(self._word, child.children)
            elif child.type in _REDIRECTS:
                redirects.append(self._redirect(child, words))
            elif child.type in _WORDS or not child.is_named:
                words.append(self._word(child))
            else:
                raise _UnknownError
        return Command(tuple(words), tuple(assignments), tuple(redirects))

    def _parts(self, node: Node) -> Iterator[str | Redirect]:
        after_statement = False
        for child in node.children:
            if child.type in _SILENT:
                continue
            if child.type in _REDIRECTS:
                words: list[str] = []
                yield self._redirect(child, words)
                yield from words
                if child.type == "heredoc_redirect":
                    yield from self._parts(child)
            elif child.type == "variable_assignment":
                yield self._assignment(child)
            elif child.type in _WORDS:
                yield self._word(child)
            elif not child.child_count:
                yield ACTIVE + self._source(child)
            else:
                is_statement = child.type in _STATEMENTS
                if is_statement and after_statement:
                    yield f"{ACTIVE};"
                yield from self._parts(child)
                after_statement = is_statement

    def _assignment(self, node: Node) -> str:
        value = node.child_by_field_name("value")
        name = self._text(node.start_byte, node.end_byte if value is None else value.start_byte)
        if not _ASSIGNED.fullmatch(name):
            raise _UnknownError
        if value is None:
            return name
        return name + (self._as_written(value) if value.type == "array" else self._word(value))

    def _redirect(self, node: Node, words: list[str]) -> Redirect:
        """A redirection. The grammar takes all words after it for its targets: those but the first join `words`."""
        words += [self._lost[child.end_byte] for child in node.children if child.end_byte in self._lost]
        if node.type == "heredoc_redirect":
            return self._here_document(node)
        descriptor = operator = ""
        targets: list[str] = []
        place = node.start_byte
        for child in node.children:
            if b"\n" in self._bytes[place : child.start_byte].replace(b"\\\n", b""):
                raise _UnknownError
            place = child.end_byte
            if child.type == "file_descriptor":
                descriptor = self._source(child)
            elif not operator and not child.is_named:
                operator = child.type
            else:
                targets.append(self._word(child))
        target, *others = targets or [""]
        words += others
        if operator.startswith("&"):
            descriptor, operator = "&", operator[1:]
        return Redirect(descriptor, operator, target)

    def _here_document(self, node: Node) -> Redirect:
        nodes = {child.type: child for child in node.children}
        if "heredoc_start" not in nodes or "heredoc_end" not in nodes:
            raise _UnknownError
        start, end = nodes["heredoc_start"], nodes["heredoc_end"]
        if self._bytes[end.end_byte : end.end_byte + 1] not in (b"", b"\n", b")"):
            raise _UnknownError
        # The node of the text leaves out the white space that it begins with.
        before = self._bytes[: nodes.get("heredoc_body", end).start_byte].rstrip()
        begin = self._bytes.index(b"\n", len(before)) + 1
        text = self._text(begin, end.start_byte)
        if "<<-" in nodes:
            text = re.sub(r"(?m)^\t+", "", text)
        # The grammar takes an indented end mark for the end.
        if text and not text.endswith("\n"):
            raise _UnknownError
        is_literal = any(mark in self._source(start) for mark in "'\"\\")
        descriptor = nodes.get("file_descriptor")
        number = "" if descriptor is None else self._source(descriptor)
        return Redirect(number, "<<", text, is_literal or not any(mark in text for mark in "$`\\"))

    def _word(self, node: Node) -> str:
        kind = node.type
        if kind == "word":
            return _unquoted(self._source(node))
        if kind == "concatenation":
            return self._concatenated(node)
        if kind == "raw_string":
            return self._text(node.start_byte + 1, node.end_byte - 1)
        if kind == "string":
            return self._string(node)
        if kind == "ansi_c_string":
            inside = self._text(node.start_byte + 2, node.end_byte - 1)
            return re.sub(r"\\(.)", lambda found: _ANSI_ESCAPES.get(found[1], found[0]), inside, flags=re.DOTALL)
        if kind in _EXPANSIONS:
            return self._expansion(node)
        return _unquoted(self._source(node))

    def _concatenated(self, node: Node) -> str:
        parts: list[str] = []
        place = node.start_byte
        whole = self._source(node)
        for child in node.children:
            if child.type not in _LITERALS:
                before = _unquoted(self._text(place, child.start_byte), whole, at_start=place == node.start_byte)
                parts += before, self._word(child)
                place = child.end_byte
        parts.append(_unquoted(self._text(place, node.end_byte), whole, at_start=place == node.start_byte))
        return "".join(parts)

    def _string(self, node: Node) -> str:
        """What stands in double quotes. Text is taken from between the expansions: the grammar's own pieces leave out
        white space."""
        parts: list[str] = []
        place = node.start_byte + 1
        for child in node.children:
            if child.type in _EXPANSIONS:
                # The node of an expansion may begin with blanks.
                start = child.end_byte - len(self._bytes[child.start_byte : child.end_byte].lstrip())
                parts += self._in_string(place, start), self._expansion(child)
                place = child.end_byte
            elif child.is_named and child.type != "string_content":
                raise _UnknownError
        return "".join((*parts, self._in_string(place, node.end_byte - 1)))

    def _in_string(self, start: int, end: int) -> str:
        return _IN_STRING.sub(lambda found: found[1].strip("\n"), self._text(start, end))

    def _expansion(self, node: Node) -> str:
        """A variable as `${name}`, a command substitution as `$(text)`, whichever way they were written."""
        text = self._source(node).strip()
        if (found := _VARIABLE.fullmatch(text)) is not None:
            return f"{ACTIVE}${{{found[1] or found[2]}}}"
        if node.type == "command_substitution":
            inner = text[1:-1] if text.startswith("`") else text[2:-1]
            if inner.strip() == "pwd":
                return f"{ACTIVE}${{PWD}}"
            if "<<" in inner and (document := self._document(node)) is not None:
                return document
            return f"{ACTIVE}$({_with_single_blanks(inner)})"
        return ACTIVE + (text if node.type == "expansion" else _with_single_blanks(text))

    def _document(self, node: Node) -> str | None:
        """The text of `$(cat <<END …)`, the usual way to pass a long text."""
        begin, *inner, end = node.children
        self._check_tokens(inner, begin.end_byte, end.start_byte)
        stages = [stage for item in self._items(inner) for _, pipeline in item.pipelines for stage in pipeline]
        if len(stages) != 1 or not isinstance(stages[0], Command) or stages[0].words != ("cat",):
            return None
        redirects = stages[0].redirects
        return redirects[0].target.removesuffix("\n") if len(redirects) == 1 and redirects[0].operator == "<<" else None

    def _as_written(self, node: Node) -> str:
        return ACTIVE + _with_single_blanks(self._source(node))


def _with_single_blanks(text: str) -> str:
    """Text in which it does not matter how many blanks there are, unless some may be quoted or end a command."""
    return text.strip() if _QUOTE_OR_LINE.search(text) else " ".join(text.split())


def _piped(before: list[tuple[str, Pipeline]], after: list[tuple[str, Pipeline]]) -> list[tuple[str, Pipeline]]:
    """What comes of a pipe from the last pipeline to the first."""
    if not before:
        return after
    return [*before[:-1], (before[-1][0], (*before[-1][1], *after[0][1])), *after[1:]]


def _unquoted(text: str, whole: str = "", *, at_start: bool = True) -> str:
    """Text outside of quotes; `whole` is the word that it is part of."""
    if not _SPECIAL.search(text):
        return text

    def replaced(found: re.Match[str]) -> str:
        mark = found[0]
        if mark.startswith("\\"):
            return found[1].strip("\n")
        # The grammar takes `{  ]` and `2#${x}` for plain words.
        if mark.isspace() or mark.startswith("$"):
            raise _UnknownError
        if mark == "~":
            return f"{ACTIVE}${{HOME}}" if at_start else mark
        if mark == "[" and text in ("[", "[["):
            return mark
        if mark == "{" and "," not in (whole or text)[(whole or text).find(text) + found.end() :].partition("}")[0]:
            return mark
        return ACTIVE + mark

    return _SPECIAL.sub(replaced, text)
