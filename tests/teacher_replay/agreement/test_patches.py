"""Patches as what they do to each file."""

from __future__ import annotations

from composer_replication.teacher_replay.agreement.edits import Edit
from composer_replication.teacher_replay.agreement.patches import is_patch, patch_effects

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
