"""A command read as a shell reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.agreement.shell.words import (
    ACTIVE,
    Operator,
    Redirect,
    ShellSyntaxError,
    Word,
    globs_as_text,
    shell_tokens,
    spelled_out,
)


def words(command: str) -> list[str]:
    return [token.text for token in shell_tokens(command) if isinstance(token, Word)]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a'b'\"c\"d", ["abcd"]),
        ("echo '$x' '*' \"*\" \\$x", ["echo", "$x", "*", "*", "$x"]),
        ("echo $x \"${x}\" '`'", ["echo", f"{ACTIVE}${{x}}", f"{ACTIVE}${{x}}", "`"]),
        ("ls *.py a?", ["ls", f"{ACTIVE}*.py", f"a{ACTIVE}?"]),
        ("echo $(a  b) `a b`", ["echo", f"{ACTIVE}$(a b)", f"{ACTIVE}$(a b)"]),
        ('echo "$(echo ")")"', ["echo", f'{ACTIVE}$(echo ")")']),
        ("cd ~/x a~b", ["cd", f"{ACTIVE}${{HOME}}/x", "a~b"]),
        ("a \\\n b # c d", ["a", "b"]),
        ("a#b", ["a#b"]),
        (r"""grep "a\.b\"c" 'x\y'""", ["grep", r'a\.b"c', r"x\y"]),
        ("printf $'a\\tb'", ["printf", "a\tb"]),
        ("echo {a,b} {a} a{", ["echo", f"{ACTIVE}{{a,b}}", "{a}", "a{"]),
        ("[ -f a[1] ]", ["[", "-f", f"a{ACTIVE}[1]", "]"]),
        ("echo $5 $? $(pwd)", ["echo", f"{ACTIVE}${{5}}", f"{ACTIVE}${{?}}", f"{ACTIVE}${{PWD}}"]),
        ('git commit -m "$(cat <<\'EOF\'\nDon\'t "stop"\nEOF\n)"', ["git", "commit", "-m", 'Don\'t "stop"']),
        ("echo 50$ $", ["echo", "50$", "$"]),
    ],
)
def test_words(command: str, expected: list[str]) -> None:
    assert words(command) == expected


def test_operators() -> None:
    tokens = shell_tokens("a && b || c; d & e | f |& g\n(h)")
    assert [token.text for token in tokens if isinstance(token, Operator)] == [
        "&&", "||", ";", "&", "|", "|&", ";", "(", ")",
    ]  # fmt: skip
    assert words("a '&&' b") == ["a", "&&", "b"]


def test_redirections() -> None:
    tokens = shell_tokens("a >b 2>&1 &>c <d >> 'e f' 2>/dev/null")
    assert [token for token in tokens if isinstance(token, Redirect)] == [
        Redirect("", ">", "b"),
        Redirect("2", ">&", "1"),
        Redirect("&", ">", "c"),
        Redirect("", "<", "d"),
        Redirect("", ">>", "e f"),
        Redirect("2", ">", "/dev/null"),
    ]
    assert words("a2>b") == ["a2"]


@pytest.mark.parametrize(
    ("command", "text", "is_literal"),
    [
        ("cat <<'EOF'\n$x\nEOF", "$x\n", True),
        ("cat <<EOF\n$x\nEOF\n", "$x\n", False),
        ("cat <<EOF\nx\nEOF", "x\n", True),
        ("cat <<-EOF\n\tx\n\tEOF", "x\n", True),
        ('cat <<"E" > f\nEOF\nE', "EOF\n", True),
    ],
)
def test_here_documents(command: str, text: str, is_literal: bool) -> None:
    (found,) = [token for token in shell_tokens(command) if isinstance(token, Redirect) and token.operator == "<<"]
    assert (found.target, found.is_literal) == (text, is_literal)


def test_what_follows_a_here_document_is_read() -> None:
    assert words("cat <<A; b <<B\n1\nA\n2\nB\nc") == ["cat", "b", "c"]


@pytest.mark.parametrize(
    "command", ["'a", '"a', "`a", "$(a", "${a", "a >", "a > ;", "cat <<EOF", "cat <<EOF\nx", "echo $'a", '"$(a"']
)
def test_what_a_shell_would_refuse(command: str) -> None:
    with pytest.raises(ShellSyntaxError):
        shell_tokens(command)


def test_braces_with_choices() -> None:
    (word,) = words("a/{b,c}/{d,e}")
    assert spelled_out(word) == ["a/b/d", "a/b/e", "a/c/d", "a/c/e"]
    assert spelled_out("a{b,c}") == ["a{b,c}"]
    assert len(spelled_out(words("{a,b}" * 30)[0])) <= 200


def test_globs_meant_for_the_program() -> None:
    assert globs_as_text(words("*.py")[0]) == "*.py"
    assert ACTIVE in globs_as_text(words("$x*")[0])


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), min_size=1), min_size=1))
def test_quoted_words_come_back(parts: list[str]) -> None:
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in parts)
    assert words(quoted) == parts
