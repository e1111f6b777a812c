"""Pieces of code, by what they do."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.code import python_call, python_form, same_code, without_comments


@pytest.mark.parametrize(
    ("path", "text", "code", "comments"),
    [
        ("a.py", "x = 1  # one\n# two\ny = '#'", "x = 1\ny = '#'", ("one", "two")),
        ("a.py", "f('a', \"b\", 'it\\'s')", 'f("a", "b", \'it\\\'s\')', ()),
        ("a.py", 'def f():\n    """Say a."""\n    x = """b"""', 'def f():\n    x = """b"""', ("Say a.",)),
        ("a.js", "f() // one\n/* two\n three */\ng()", "f()\ng()", ("one", "two\n three")),
        ("a.rs", "fn f<'a>(x: &'a str) { g('\"') } // b's", "fn f<'a>(x: &'a str) { g('\"') }", ("b's",)),
        ("a.css", "a { b: c } /* d */", "a { b: c }", ("d",)),
        ("a.html", "<b>x</b> <!-- note -->", "<b>x</b>", ("note",)),
        ("a.sql", "select 1 -- one", "select 1", ("one",)),
        ("Makefile", "a: b # c", "a: b", ("c",)),
        ("a.md", "# heading  \nit's", "# heading\nit's", ()),
        ("", "x # y  ", "x # y", ()),
        ("a.py", '# c\n\n"""Say a."""\nx', "\nx", ("c", "Say a.")),
        ("a.py", 'def f(\n    x,\n) -> int:\n    """Say a."""', "def f(\n    x,\n) -> int:", ("Say a.",)),
        ("a.py", 'f(\n    """a"""\n)', 'f(\n    """a"""\n)', ()),
        ("a.py", 'x = {"a":\n"""b"""}', 'x = {"a":\n"""b"""}', ()),
        ("a.py", '"""a""" % f()', '"""a""" % f()', ()),
        ("a.sh", "echo ${x#y} a#b # c", "echo ${x#y} a#b", ("c",)),
        ("a.ini", "# c\npassword = a #b", "password = a #b", ("c",)),
        ("a.tsx", "// c\n<p>see //docs /* x */</p>{/* d */}", "<p>see //docs /* x */</p>{}", ("c", "d")),
        ("a.js", "return <p>see //docs</p>", "return <p>see //docs</p>", ()),
        ("a.ts", "f(a) // c", "f(a)", ("c",)),
        ("a.go", "//go:build linux\n// export the names", "//go:build linux", ("export the names",)),
        ("a.html", "<!--[if IE]> a <![endif]--> <!-- b -->", "<!--[if IE]> a <![endif]-->", ("b",)),
    ],
)
def test_comments_and_quotes(path: str, text: str, code: str, comments: tuple[str, ...]) -> None:
    assert without_comments(text, path) == (code, comments)


def test_a_piece_of_a_file_may_begin_anywhere() -> None:
    text = '"""Say a."""'
    assert without_comments(text, "a.py") == ("", ("Say a.",))
    assert without_comments(text, "a.py", is_part=True) == (text, ())


@pytest.mark.parametrize(
    "comment",
    ["#!/bin/sh", "# type: int", "# noqa: E501", "# pragma: no cover", "# pylint: disable=x", "# fmt: off"],
)
def test_comments_that_a_tool_obeys_are_code(comment: str) -> None:
    assert without_comments(f"{comment}\nx  {comment}", "a.py") == (f"{comment}\nx  {comment}", ())


def test_same_code() -> None:
    assert same_code("x = 'a'\n", 'x = "a"', "a.py")
    assert not same_code("x = 'a'\n", 'x = "a"', "a.go")
    assert not same_code("  x", "x", "a.py")
    assert same_code("x  # closes idle links", "x  # idle links are closed", "a.py")
    assert not same_code("x  # closes idle links", "x", "a.py")


def test_huge_files_are_compared_as_they_are() -> None:
    huge = "x = 'a'\n" * 50_000
    assert same_code(huge, huge + "\n", "a.py")
    assert not same_code(huge, huge.replace("'", '"'), "a.py")


def test_python_by_its_tree() -> None:
    assert python_form("f(a=1, b='x')  # note") == python_form('f(\n b="x",\n a=1)')
    assert python_form("f(1)") != python_form("f(2)")
    assert python_form("f(*a, b=1)") != python_form("f(b=1)")
    assert python_form("!ls") is None
    assert python_form("(" * 5_000) is None


def test_functions_of_a_notebook() -> None:
    assert python_form("search_dir('x', './src/')") == python_form("search_dir(dir_path='src', search_term='x')")
    assert python_form("open_file('a', 1)") == python_form("open_file('a')")
    assert python_form("open_file('a', 2)") != python_form("open_file('a')")
    # Only of functions whose arguments are known.
    assert python_form("other('./a')") != python_form("other('a')")
    assert python_form("search_dir('./x')") != python_form("search_dir('x')")


def test_one_call_with_plain_values() -> None:
    assert python_call("append_file('a', content='x')") == ("append_file", {"file_name": "a", "content": "x"})
    for code in ("append_file('a', x)", "f(1)", "f()\ng()", "x = f()", "a.f()", "1", "f(", ""):
        assert python_call(code) is None
    assert python_call("f()") == ("f", {})
