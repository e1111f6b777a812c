"""Searches in one form, whichever way they are written."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.shell.effects import shell_effects
from composer_replication.teacher_replay.agreement.shell.searches import (
    extended_pattern,
    files_form,
    search_form,
    usual_globs,
    usual_pattern,
)


@pytest.mark.parametrize(
    ("pattern", "dialect", "expected"),
    [
        (r"a\|b", "basic", "a|b"),
        ("a|b", "basic", r"a\|b"),
        (r"\(a\)\+", "basic", "(a)+"),
        ("f(x)?", "basic", r"f\(x\)\?"),
        (r"a\.b\w", "basic", r"a\.b\w"),
        ("a|b", "extended", "a|b"),
        ("f(x).y*[z]", "fixed", r"f\(x\)\.y\*\[z\]"),
    ],
)
def test_dialects(pattern: str, dialect: str, expected: str) -> None:
    assert extended_pattern(pattern, dialect) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("b|a|b", "a|b"),
        ("(b|a)", "a|b"),
        ("(a)|(b)", "(a)|(b)"),
        (r"b\|c|a", r"b\|c|a"),
        ("[b|]c|a", "[b|]c|a"),
        (r"a\"b\/c", 'a"b/c'),
        ("a[.]b", r"a\.b"),
        ("[p]ython", "python"),
        (r"\<a\>", r"\ba\b"),
        ("[[:space:]][0-9]", r"\s\d"),
        ("struct{", r"struct\{"),
        ("a{2,3}", "a{2,3}"),
        ("[A-Za-z0-9_]", r"\w"),
    ],
)
def test_patterns(pattern: str, expected: str) -> None:
    assert usual_pattern(pattern) == expected


def test_what_stands_around_a_match() -> None:
    assert search_form(".*a.*", ["f"]) == search_form("a", ["f"])
    assert search_form(r"a\.*", ["f"]) != search_form("a", ["f"])
    for flag in ("-o", "-x", "-w"):
        assert search_form("a.*", ["f"], flags=[flag]) != search_form("a", ["f"], flags=[flag])
    assert search_form(".*", ["f"])[1] == ".*"


def test_words_and_cases() -> None:
    assert search_form(r"\ba\b", ["f"]) == search_form("a", ["f"], flags=["-w"])
    assert search_form("Ab", ["f"], flags=["-i"]) == search_form("aB", ["f"], flags=["-i"])
    assert search_form("Ab", ["f"]) != search_form("aB", ["f"])


def test_context_counts_where_lines_are_shown() -> None:
    assert search_form("a", ["f"], before=2) != search_form("a", ["f"])
    assert search_form("a", ["f"], before=2, mode="files") == search_form("a", ["f"], mode="files")
    (both,), (only_before,), (wider,) = map(shell_effects, ("grep -C 2 a f", "grep -B 2 a f", "grep -C 2 -A 5 a f"))
    assert (both.local[-2:], only_before.local[-2:], wider.local[-2:]) == ((2, 2), (2, 0), (2, 5))


def test_globs() -> None:
    assert usual_globs(["**/*.py", "./*.{ts,js}"]) == ("*.js", "*.py", "*.ts")
    assert usual_globs(["src/**/*.py", "!**/a"]) == ("!a", "src/**/*.py")
    assert usual_globs(["*.{a,{b,c}}"]) == ("*.a", "*.b", "*.c")


def test_files_by_name() -> None:
    assert files_form("**/*.py", "src") == files_form("src/**/*.py") == files_form("./src/**/*.py", ".")
    assert files_form("*.py", "a", directory="/r") == files_form("/r/a/*.py")
    assert files_form("/x/*.py", "a") == files_form("/x/*.py")
    assert files_form("*.py") != files_form("**/*.py")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("find . -name a -o -name b", r"find . \( -name b -o -name a \)"),
        ("find a b -name x", "find b a -name x"),
        ("find . -iname A", "find . -type f -iname A"),
        ("find . -type f -newer x", "find . -newer x -type f -print"),
        ("find . -not -name a", "find . ! -name a"),
        ("find . -name '*.py' -print0 | xargs -0 grep -l x", "find . -print0 -name '*.py' | xargs -0 grep -l x"),
        ("find . -name '*.py' | xargs grep -e x", "grep -r -e x --include='*.py' ."),
        (r"find a -name '*.py' -exec grep x {} \;", "grep -r x --include='*.py' a"),
    ],
)
def test_the_same_search(first: str, second: str) -> None:
    assert shell_effects(first)[0].local == shell_effects(second)[0].local


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("find . -name a -name b", "find . -name a -o -name b"),
        ("find . -name a", "find . -iname a"),
        ("find . -maxdepth 1 -name a", "find . -maxdepth 2 -name a"),
        ("find . -name a -delete", "find . -delete -name a"),
        ("find . -name '*.py' | xargs grep x", "find . -name '*.js' | xargs grep x"),
        ("find . -name '*.py' | xargs grep x y", "grep -r x --include='*.py' ."),
        ("find . -name '*.py' -exec cat {} +", "find . -name '*.py' -exec grep x {} +"),
        ("find . -iname '*.py' | xargs grep x", "grep -r x --include='*.py' ."),
        ("X=1 find . -name '*.py' | xargs grep x", "grep -r x --include='*.py' ."),
        ("ls -l *.py", "ls *.py"),
        ("rg --files", "rg --files -g '*.py'"),
        ("rg -S a", "rg -S A"),
        ("grep -m 1 a f", "grep a f"),
        ("rg a", "find . | rg a"),
        ("grep --exclude='*.py' -r a", "grep --include='*.py' -r a"),
    ],
)
def test_another_search(first: str, second: str) -> None:
    assert [one.local for one in shell_effects(first)] != [one.local for one in shell_effects(second)]


def test_smart_case() -> None:
    assert shell_effects("rg -S a") == shell_effects("rg -i a")
    assert shell_effects("rg -S A") == shell_effects("rg A")
