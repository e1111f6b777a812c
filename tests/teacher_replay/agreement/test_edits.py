"""Edits and patches as what they do to each file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.teacher_replay.agreement.edits import (
    Edit,
    are_independent,
    is_patch,
    same_edit,
)
from composer_replication.teacher_replay.agreement.effects import patch_effects

SAME = {
    "more before": (Edit("x = 1", "x = 2"), Edit("def f():\n    x = 1", "def f():\n    x = 2")),
    "more behind": (Edit("x = 1", "x = 2"), Edit("x = 1\nreturn x", "x = 2\nreturn x")),
    "above and below": (Edit("a\nx = 1\n", "a\nx = 2\n"), Edit("x = 1\nb", "x = 2\nb")),
    "part of a line": (Edit("f(a)", "f(b)"), Edit("y = f(a) + 1", "y = f(b) + 1")),
    "a closing newline": (Edit("x\n", "y\n"), Edit("x", "y")),
    "a newline on one side": (Edit("x", "y\n"), Edit("x", "y")),
    "a line put in": (Edit("a\nb", "a\nX\nb"), Edit("a", "a\nX")),
    "a line put in before": (Edit("a\nb", "a\nX\nb"), Edit("b", "X\nb")),
    "a line taken out": (Edit("a\nX\nb", "a\nb"), Edit("X\n", "")),
    "the header as a line": (Edit("    y", "    z", header="def f():"), Edit("def f():\n    y", "def f():\n    z")),
    "one header": (Edit("y", "z", header="def f():"), Edit("y", "z")),
    "quotes": (Edit("a = 'x'", "a = 'y'"), Edit('a = "x"', 'a = "y"')),
    "a comment in other words": (
        Edit("sleep(2)", "sleep(2)  # the server closes idle links"),
        Edit("    sleep(2)\n", "    sleep(2)  # idle links are closed by the server\n"),
    ),
    "a docstring in other words": (
        Edit("def f():\n", 'def f():\n    """Return the total price."""\n'),
        Edit("def f():", 'def f():\n    """The total price is returned."""'),
    ),
    "blanks at the end of a line": (Edit("a\nb", "a  \nc"), Edit("a\nb", "a\nc")),
    "a line put in, with more above or more below": (Edit("x\na\nb", "x\na\nX\nb"), Edit("a\nb\ny", "a\nX\nb\ny")),
    "a comment becomes code": (Edit("# close the idle links", "f()"), Edit("# close idle links", "f()")),
    "every line, or one": (Edit("gcc", "clang", in_each_line=True), Edit("CC = gcc", "CC = clang")),
}
DIFFERENT = {
    "swapped": (Edit("x = 1", "x = 2"), Edit("x = 2", "x = 1")),
    "another number": (Edit("x = 1", "x = 2"), Edit("x = 1", "x = 3")),
    "another place": (Edit("f()\nx = 1", "f()\nx = 2"), Edit("g()\nx = 1", "g()\nx = 2")),
    "another place below": (Edit("x = 1\nf()", "x = 2\nf()"), Edit("x = 1\ng()", "x = 2\ng()")),
    "the end of another name": (Edit("x = 1", "x = 2"), Edit("max = 1", "max = 2")),
    "one letter more": (Edit("x = 1", "x = 2"), Edit("ax = 1", "ax = 2")),
    "the beginning of another name": (Edit("a.x", "b.x"), Edit("a.xs", "b.xs")),
    "another header": (Edit("y", "z", header="def f():"), Edit("y", "z", header="def g():")),
    "everywhere": (Edit("x", "y"), Edit("x", "y", all_places=True)),
    "everywhere, with more around it": (Edit("x", "y", all_places=True), Edit("f(x)", "f(y)", all_places=True)),
    "in each line, with more around it": (
        Edit("colour", "color", in_each_line=True),
        Edit("my colour", "my color", in_each_line=True),
    ),
    "another indent": (Edit("x", "  x"), Edit("x", "    x")),
    "a comment or none": (Edit("x", "x  # note"), Edit("x", "x ")),
    "replaced or added": (Edit("@a\ndef f", "@b\ndef f"), Edit("@a\ndef f", "@a\n@b\ndef f")),
    "put in before and after a line": (
        Edit("def f():\n", "x = 1\ndef f():\n"),
        Edit("def f():\n", "def f():\nx = 1\n"),
    ),
    "put in after one line and before another": (Edit("a\n", "a\nX\n"), Edit("b\n", "X\nb\n")),
    "put in beside blank lines": (Edit("a\n\n", "a\n\nX\n"), Edit("\n\nb", "\n\nX\nb")),
    "put in anywhere": (Edit("", "X\n"), Edit("b\n", "X\nb\n")),
    "taken out after one line and before another": (Edit("a\n}\n", "a\n"), Edit("}\nb\n", "b\n")),
    "parts of a line that may be two": (Edit("a = 2", "a = 3"), Edit("2)", "3)")),
    "the end of a line, and a line": (Edit("a = 2", "a = 3"), Edit("2\nb", "3\nb")),
    "a line, and the beginning of one": (Edit("x\na", "x\nb"), Edit("a)", "b)")),
    "another comment": (Edit("x", "x  # 3 tries"), Edit("x", "x  # 5 tries")),
}


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "", "c()", "    d", "}"]), max_size=5)
PATCH = """*** Begin Patch
*** Update File: ./a.py
@@ def f():
 x
-y
+z
@@
+first
 p
*** Update File: b.py
*** Move to: c.py
@@
-q
+r
*** Add File: d.py
+one
+
+two
*** Delete File: e.py
*** End Patch
"""
DIFF = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,3 +1,3 @@ def f():
 x
-y
+z
--- a/b.py
+++ b/b.py
@@ -5 +5,2 @@
 p
+q
"""


@pytest.mark.parametrize("case", SAME)
def test_same(case: str) -> None:
    first, second = SAME[case]
    assert same_edit(first, second, "a.py")
    assert same_edit(second, first, "a.py")


@pytest.mark.parametrize("case", DIFFERENT)
def test_different(case: str) -> None:
    first, second = DIFFERENT[case]
    assert not same_edit(first, second, "a.py")
    assert not same_edit(second, first, "a.py")


def test_the_language_says_what_a_comment_is() -> None:
    first, second = Edit("x", "x // closes idle links"), Edit("x", "x // idle links are closed")
    assert same_edit(first, second, "a.js")
    assert not same_edit(first, second, "a.py")
    assert not same_edit(first, second, "a.md")
    assert same_edit(Edit("'a'", "'b'"), Edit('"a"', '"b"'), "a.ts")
    assert not same_edit(Edit("'a'", "'b'"), Edit('"a"', '"b"'), "a.c")


def test_edits_that_may_change_places() -> None:
    assert are_independent(Edit("delay=1", "delay=5"), Edit("retries=0", "retries=3"))
    assert not are_independent(Edit("a", "b"), Edit("b", "c"))
    assert not are_independent(Edit("b", "c"), Edit("a", "b"))
    assert not are_independent(Edit("ab", "x"), Edit("a", "y"))
    assert not are_independent(Edit("", "x"), Edit("a", "y"))


@given(LINES, LINES, LINES, LINES)
def test_context_does_not_make_another_edit(
    before: list[str], old: list[str], new: list[str], behind: list[str]
) -> None:
    small = Edit("\n".join(["<old>", *old]), "\n".join(["<new>", *new]))
    large = Edit("\n".join([*before, small.old, *behind]), "\n".join([*before, small.new, *behind]))
    assert same_edit(small, large)
    assert same_edit(large, small)


@given(LINES, LINES, LINES, LINES)
def test_the_same_edit_of_a_file_gives_the_same_file(a: list[str], b: list[str], c: list[str], d: list[str]) -> None:
    first, second = Edit("\n".join(a), "\n".join(b)), Edit("\n".join(c), "\n".join(d))
    if not first.old.strip() or not second.old.strip() or not same_edit(first, second, "a.txt"):
        return
    # A file in which each finds its text once, and both in one place.
    longest = max((first.old, second.old), key=len)
    file = f"<begin>\n{longest}\n<end>\n"
    if file.count(first.old) == 1 and file.count(second.old) == 1:
        results = {
            "\n".join(line.rstrip() for line in file.replace(one.old, one.new).split("\n")) for one in (first, second)
        }
        assert len({result.replace("\n", "") for result in results}) == 1


def test_an_envelope() -> None:
    assert is_patch(PATCH)
    found = patch_effects(PATCH)
    assert [one.local for one in found] == [
        ("edit", "a.py"),
        ("edit", "a.py"),
        ("edit", "b.py"),
        ("move", "b.py", "c.py"),
        ("write", "d.py"),
        ("delete", "e.py"),
    ]
    assert [one.edit for one in found[:3]] == [
        Edit("x\ny", "x\nz", header="def f():"),
        Edit("p", "first\np"),
        Edit("q", "r"),
    ]
    assert found[4].code == ("one\n\ntwo",)


def test_headers_one_inside_the_other() -> None:
    lines = ["*** Begin Patch", "*** Update File: a.py", "@@ class A:", "@@ def f():", "-x", "+y", "@@", "@@ def g():"]
    found = patch_effects("\n".join([*lines, "-p", "+q", "*** End Patch"]))
    assert [one.edit for one in found] == [
        Edit("x", "y", header="class A:\ndef f():"),
        Edit("p", "q", header="def g():"),
    ]


def test_where_it_is_applied() -> None:
    first, *_ = patch_effects(PATCH, "/r")
    assert (first.local, first.resolved) == (("edit", "a.py"), ("edit", "/r/a.py"))
    assert first.touches == frozenset({"/r/a.py"})


def test_a_unified_diff() -> None:
    assert is_patch(DIFF)
    found = patch_effects(DIFF)
    assert [one.local for one in found] == [("edit", "a.py"), ("edit", "b.py")]
    assert [one.edit for one in found] == [Edit("x\ny", "x\nz", header="def f():"), Edit("p", "p\nq")]


def test_what_is_no_patch() -> None:
    for text in ("", "--- a\nb", "*** Begin Patch\n*** Add File: a", "+++ a", "diff --git a b"):
        assert not is_patch(text)
