"""A shell command as words and operators, knowing which characters were quoted.

The standard library's shlex forgets that: it cannot tell `'|'` from `|`, or `'$x'` from `"$x"`. Here a character that
the shell acts on (`$`, a glob, a leading `~`) is preceded by `ACTIVE`; the same character in quotes is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ACTIVE = "\0"

_BLANKS = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_LITERAL = re.compile(r"[^\s'\"\\$`*?\[{~;&|()<>]+")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()]")
_REDIRECT = re.compile(r"(\d*)(<<<|<<-?|>>|>\||>&|<&|<>|>|<)|(&>>|&>)")
_VARIABLE = re.compile(r"\$(?:(\w+|[?!@#*$-])|\{(\w+)\})")
_IN_DOUBLE_QUOTES = re.compile(r"[^\"\\$`]+")
# A text handed over by way of `cat`, as for a commit message.
_QUOTED_DOCUMENT = re.compile(
    r"\$\(cat <<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)\n(?P<text>.*?)\n\s*(?P=end)\s*\)", re.DOTALL
)
_CHOICES = re.compile(rf"{ACTIVE}\{{([^{{}}]*)\}}")
_MOST_WORDS = 100
_ANSI_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "0": "\0"}


class ShellSyntaxError(ValueError):
    """A command that cannot be read: an open quote, a redirection to nowhere."""


@dataclass(frozen=True)
class Word:
    """One word, its quotes taken away."""

    text: str


@dataclass(frozen=True)
class Operator:
    """`&&`, `||`, `;`, `&`, `|`, parentheses; a newline is ";"."""

    text: str


@dataclass
class Redirect:
    """A redirection: the descriptor as written ("" if none), the operator, the target; a here-document's text is the
    target, and `is_literal` says that nothing in it is expanded."""

    descriptor: str
    operator: str
    target: str
    is_literal: bool = False


Token = Word | Operator | Redirect


@dataclass
class _Reader:
    text: str
    place: int = 0
    tokens: list[Token] = field(default_factory=list)
    # Here-documents whose text begins at the next newline: the redirection, its end word, whether tabs are stripped.
    pending: list[tuple[Redirect, str, bool]] = field(default_factory=list)

    def read(self) -> list[Token]:
        while self.place < len(self.text):
            self._skip_blanks()
            if self.place >= len(self.text):
                break
            character = self.text[self.place]
            if character == "\n":
                self.place += 1
                self._read_here_documents()
                self.tokens.append(Operator(";"))
            elif character == "#":
                end = self.text.find("\n", self.place)
                self.place = len(self.text) if end < 0 else end
            elif (found := _REDIRECT.match(self.text, self.place)) is not None:
                self._read_redirect(found)
            elif (found := _OPERATOR.match(self.text, self.place)) is not None:
                self.place = found.end()
                self.tokens.append(Operator(found[0]))
            else:
                self.tokens.append(Word(self._word()))
        if self.pending:
            raise ShellSyntaxError("a here-document has no text")
        return self.tokens

    def _skip_blanks(self) -> None:
        if (found := _BLANKS.match(self.text, self.place)) is not None:
            self.place = found.end()

    def _read_redirect(self, found: re.Match[str]) -> None:
        self.place = found.end()
        descriptor, operator = (found[1], found[2]) if found[2] else ("&", found[3][1:])
        self._skip_blanks()
        start = self.place
        if start >= len(self.text) or self.text[start] in "\n;&|()<>":
            raise ShellSyntaxError("a redirection has no target")
        redirect = Redirect(descriptor, operator, self._word())
        self.tokens.append(redirect)
        if operator in ("<<", "<<-"):
            redirect.is_literal = any(mark in self.text[start : self.place] for mark in "'\"\\")
            self.pending.append((redirect, redirect.target.replace(ACTIVE, ""), operator == "<<-"))

    def _read_here_documents(self) -> None:
        for redirect, end_word, strips_tabs in self.pending:
            lines = []
            while True:
                if self.place >= len(self.text):
                    raise ShellSyntaxError(f"a here-document has no end: {end_word!r}")
                stop = self.text.find("\n", self.place)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.place : stop]
                self.place = stop + 1
                line = line.lstrip("\t") if strips_tabs else line
                if line.rstrip("\r") == end_word:
                    break
                lines.append(line)
            redirect.operator, redirect.target = "<<", "".join(f"{line}\n" for line in lines)
            redirect.is_literal = redirect.is_literal or not any(mark in redirect.target for mark in "$`\\")
        self.pending = []

    def _word(self) -> str:
        parts: list[str] = []
        start = self.place
        while self.place < len(self.text):
            character = self.text[self.place]
            if character in " \t\r\n;&|()<>":
                break
            if (found := _LITERAL.match(self.text, self.place)) is not None:
                parts.append(found[0])
                self.place = found.end()
            elif character == "'":
                parts.append(self._until_quote())
            elif character == '"':
                self.place += 1
                parts.append(self._double_quoted())
            elif character == "\\":
                following = self.text[self.place + 1 : self.place + 2]
                parts.append("" if following == "\n" else following)
                self.place += 2
            elif character in "$`":
                parts.append(self._expansion())
            elif character == "~" and self.place == start:
                parts.append(f"{ACTIVE}${{HOME}}")
                self.place += 1
            elif self._is_active(character, at_start=self.place == start):
                parts.append(ACTIVE + character)
                self.place += 1
            else:
                parts.append(character)
                self.place += 1
        return "".join(parts)

    def _is_active(self, character: str, *, at_start: bool) -> bool:
        """Whether the shell makes something else of a character: globs, and braces with choices."""
        following = self.text[self.place + 1 : self.place + 200]
        if character == "[":
            # Alone, or doubled, it is a command.
            return not at_start or not re.match(r"\[?\s", following)
        if character == "{":
            return "," in following.partition("}")[0]
        return character in "*?"

    def _until_quote(self) -> str:
        end = self.text.find("'", self.place + 1)
        if end < 0:
            raise ShellSyntaxError("a single quote is open")
        quoted = self.text[self.place + 1 : end]
        self.place = end + 1
        return quoted

    def _double_quoted(self) -> str:
        parts: list[str] = []
        while self.place < len(self.text):
            character = self.text[self.place]
            if character == '"':
                self.place += 1
                return "".join(parts)
            if character == "\\":
                following = self.text[self.place + 1 : self.place + 2]
                parts.append(following if following in '"\\$`' else "" if following == "\n" else f"\\{following}")
                self.place += 2
            elif character in "$`":
                parts.append(self._expansion())
            elif (found := _IN_DOUBLE_QUOTES.match(self.text, self.place)) is not None:
                parts.append(found[0])
                self.place = found.end()
        raise ShellSyntaxError("a double quote is open")

    def _expansion(self) -> str:
        """A variable as `${name}`, a command substitution as `$(text)`, whichever way they were written."""
        if self.text[self.place] == "`":
            end = self.text.find("`", self.place + 1)
            if end < 0:
                raise ShellSyntaxError("a backquote is open")
            inner = self.text[self.place + 1 : end]
            self.place = end + 1
            return f"{ACTIVE}$({' '.join(inner.split())})"
        if (found := _VARIABLE.match(self.text, self.place)) is not None:
            self.place = found.end()
            return f"{ACTIVE}${{{found[1] or found[2]}}}"
        following = self.text[self.place + 1 : self.place + 2]
        if following == "'":
            self.place += 1
            return self._ansi_quoted()
        if (found := _QUOTED_DOCUMENT.match(self.text, self.place)) is not None:
            self.place = found.end()
            return found["text"]
        if following in ("(", "{"):
            closing = {"(": ")", "{": "}"}[following]
            inner = " ".join(self._balanced(following, closing).split())
            return f"{ACTIVE}${{PWD}}" if inner == "$(pwd)" else ACTIVE + inner
        self.place += 1
        return "$"

    def _balanced(self, opening: str, closing: str) -> str:
        """The text of `$(...)` or `${...}`, quotes inside respected."""
        start, depth = self.place, 0
        place = self.place + 1
        while place < len(self.text):
            character = self.text[place]
            if character == "\\":
                place += 1
            elif character in "'\"":
                end = self.text.find(character, place + 1)
                if end < 0:
                    break
                place = end
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    self.place = place + 1
                    return self.text[start : self.place]
            place += 1
        raise ShellSyntaxError(f"{opening!r} is open")

    def _ansi_quoted(self) -> str:
        parts: list[str] = []
        place = self.place + 1
        while place < len(self.text):
            character = self.text[place]
            if character == "'":
                self.place = place + 1
                return "".join(parts)
            if character == "\\":
                place += 1
                following = self.text[place : place + 1]
                parts.append(_ANSI_ESCAPES.get(following, f"\\{following}"))
            else:
                parts.append(character)
            place += 1
        raise ShellSyntaxError("a single quote is open")


def shell_tokens(command: str) -> list[Token]:
    """The words, operators and redirections of a command; comments are left out.

    Raises:
        ShellSyntaxError: it cannot be read.
    """
    return _Reader(command.replace("\r\n", "\n").replace(ACTIVE, "")).read()


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
