"""Which call wrote which line of a file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.hint_generator.written_files import Author, Change, WrittenFile, changes, shown_lines
from composer_replication.traces import ToolCall

FIRST, SECOND = (1, 0), (5, 0)
PATCH = """\
*** Begin Patch
*** Update File: shop/cart.py
@@ def total():
 price = 1
-old
+new
@@
-gone
*** Add File: shop/new.py
+import os
+
*** End Patch"""


def authors(file: WrittenFile, count: int) -> list[Author | None]:
    return [line.author if (line := file.line(number)) is not None else None for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Write", {"file_path": "a.py", "content": "x\n"}, [Change("a.py", None, "x\n")]),
        ("str_replace_editor", {"command": "create", "path": "a", "file_text": "x"}, [Change("a", None, "x")]),
        ("Edit", {"file_path": "a", "old_string": "x", "new_string": "y"}, [Change("a", "x", "y")]),
        (
            "Edit",
            {"file_path": "a", "old_string": "x", "new_string": "", "replace_all": True},
            [Change("a", "x", "", True)],
        ),
        ("str_replace_editor", {"path": "a", "old_str": "x", "new_str": "y"}, [Change("a", "x", "y")]),
        (
            "MultiEdit",
            {
                "file_path": "a",
                "edits": [{"old_string": "x", "new_string": "y"}, {"old_string": "p", "new_string": "q"}],
            },
            [Change("a", "x", "y"), Change("a", "p", "q")],
        ),
        (
            "Bash",
            {"command": "cat > a.py <<'EOF'\nimport os\nx = 1\nEOF\npython a.py"},
            [Change("a.py", None, "import os\nx = 1\n")],
        ),
        ("Bash", {"command": "cat >> a.py <<'EOF'\nx = 1\nEOF"}, [Change("a.py", "", "x = 1\n")]),
        ("Bash", {"command": "tee -a a.py <<'EOF'\nx = 1\nEOF"}, [Change("a.py", "", "x = 1\n")]),
        ("Bash", {"command": "cat <<EOF > a.py\nx = 1\nEOF"}, [Change("a.py", None, "x = 1\n")]),
        (
            "apply_patch",
            {"input": PATCH},
            [
                Change("shop/cart.py", "price = 1\nold", "price = 1\nnew"),
                Change("shop/cart.py", "gone", ""),
                Change("shop/new.py", None, "import os\n\n"),
            ],
        ),
        (
            "str_replace_editor",
            {"command": "insert", "path": "a", "insert_line": 3, "new_str": "x\n"},
            [Change("a", "", "x\n", after=3)],
        ),
        ("Read", {"file_path": "a.py"}, []),
        ("Edit", {"file_path": "a.py", "edits": "no list"}, []),
        ("Edit", {"file_path": "a.py", "old_string": 3, "new_string": None}, []),
        ("Bash", {"command": "cat a.py << broken"}, []),
        ("apply_patch", {"input": "*** Begin Patch\nno end"}, []),
    ],
)
def test_what_a_call_writes(name: str, arguments: dict[str, Any], expected: list[Change]) -> None:
    assert list(changes(ToolCall("c", name, arguments))) == expected


def test_a_patch_may_be_the_whole_input() -> None:
    assert len(list(changes(ToolCall("c", "apply_patch", {}, PATCH)))) == 3


def test_numbered_lines_are_read() -> None:
    assert shown_lines("     9→a\n    10→\n11\tb\n12:c\nnothing\n") == {9: "a", 10: "", 11: "b", 12: "c"}


def test_a_whole_file_has_one_author_until_lines_are_edited() -> None:
    file = WrittenFile()
    file.apply(Change("a", None, "one\ntwo\nthree\nfour"), FIRST)
    file.apply(Change("a", "two\nthree", "two\nnew 1\nnew 2\nthree"), SECOND)
    assert authors(file, 6) == [FIRST, FIRST, SECOND, SECOND, FIRST, FIRST]
    assert [file.line(number).text for number in range(1, 7)] == ["one", "two", "new 1", "new 2", "three", "four"]  # type: ignore[union-attr]


def test_lines_that_were_only_shown_have_no_author_and_move_with_an_edit_before_them() -> None:
    file = WrittenFile()
    file.show({10: "alpha = 1", 11: "beta = 2", 12: "gamma = 3"})
    file.apply(Change("a", "alpha = 1", "alpha = 1\ninserted = 5"), FIRST)
    assert file.line(11).author == FIRST  # type: ignore[union-attr]
    assert file.line(13).text == "gamma = 3"  # type: ignore[union-attr]
    assert file.line(13).author is None  # type: ignore[union-attr]


def test_an_edit_with_line_ends_at_the_end_of_what_is_known() -> None:
    file = WrittenFile()
    file.show({1: "alpha", 2: "beta"})
    file.apply(Change("a", "beta\n", "beta\ngamma\n"), FIRST)
    assert authors(file, 3) == [None, None, FIRST]
    file.apply(Change("a", "gamma\n", ""), SECOND)
    assert file.line(3) is None
    assert file.line(2) is not None
    file.apply(Change("a", "beta\n", "delta"), SECOND)  # the line that follows is not known
    assert file.line(2) is None


def test_text_that_is_added_at_the_end_moves_nothing() -> None:
    file = WrittenFile()
    file.show({1: "alpha"})
    file.apply(Change("a", "", "omega = 1\n"), FIRST)
    assert file.line(1) is not None
    assert file.author_of("omega = 1") == FIRST


def test_lines_that_are_put_in_move_those_after_them() -> None:
    file = WrittenFile()
    file.show({1: "alpha", 2: "beta"})
    file.apply(Change("a", "", "one\ntwo\n", after=1), FIRST)
    assert authors(file, 4) == [None, FIRST, FIRST, None]
    assert file.line(4).text == "beta"  # type: ignore[union-attr]


def test_a_file_that_is_written_again_keeps_the_authors_of_its_old_lines() -> None:
    file = WrittenFile()
    file.show({1: "import os", 2: "old line"})
    file.apply(Change("a", None, "import os\nimport re\nold line\n"), FIRST)
    assert authors(file, 3) == [None, FIRST, None]


def test_an_edit_of_a_part_of_a_line_makes_the_whole_line_its_own() -> None:
    file = WrittenFile()
    file.show({3: "call(alpha, beta)"})
    file.apply(Change("a", "beta", "gamma"), FIRST)
    assert file.line(3) == ("call(alpha, gamma)", FIRST)
    assert file.author_of("  call(alpha, gamma)") == FIRST


def test_an_edit_changes_one_place_alone() -> None:
    file = WrittenFile()
    file.show({1: "beta = 1", 7: "beta = 1"})
    file.apply(Change("a", "beta", "gamma"), FIRST)
    assert authors(file, 7) == [FIRST, *[None] * 6]


def test_a_line_that_is_shown_as_it_was_keeps_its_author() -> None:
    file = WrittenFile()
    file.apply(Change("a", None, "{\n}"), FIRST)
    file.show({2: "}"})
    assert file.line(2).author == FIRST  # type: ignore[union-attr]


def test_an_edit_everywhere_edits_every_line() -> None:
    file = WrittenFile()
    file.show({1: "beta = 1", 2: "other", 3: "x = beta + beta", 7: "beta"})
    file.apply(Change("a", "beta", "gamma", everywhere=True), FIRST)
    assert authors(file, 7) == [FIRST, None, FIRST, None, None, None, FIRST]
    assert file.line(3).text == "x = gamma + gamma"  # type: ignore[union-attr]


def test_an_edit_everywhere_that_may_move_lines_makes_numbers_unknown() -> None:
    file = WrittenFile()
    file.show({1: "beta = 1"})
    file.apply(Change("a", "beta", "gamma\ndelta = 1", everywhere=True), FIRST)
    assert file.line(1) is None
    assert file.author_of("delta = 1") == FIRST


def test_an_edit_at_an_unknown_place_makes_numbers_unknown_and_keeps_texts() -> None:
    file = WrittenFile()
    file.show({1: "alpha"})
    file.apply(Change("a", "elsewhere", "elsewhere\nfresh line"), FIRST)
    assert file.line(1) is None
    assert file.author_of("fresh line") == FIRST
    assert file.author_of("elsewhere") is None
    file.show({40: "    fresh line"})
    assert file.line(40).author == FIRST  # type: ignore[union-attr]


def test_a_text_that_two_calls_wrote_or_that_says_little_is_no_evidence() -> None:
    file = WrittenFile()
    file.apply(Change("a", "x", "y\nreturn total\n}"), FIRST)
    file.apply(Change("a", "p", "q\nreturn total"), SECOND)
    assert file.author_of("return total") is None
    assert file.author_of("}") is None


def test_a_line_that_was_taken_out_has_no_author() -> None:
    file = WrittenFile()
    file.apply(Change("a", "x", "y\nreturn total"), FIRST)
    file.apply(Change("a", "return total", "return None"), SECOND)
    assert file.author_of("return total") is None
    assert file.author_of("return None") == SECOND


PIECES = st.lists(st.sampled_from(["a", "b", "ab", " ", "}", "x = 1"]), max_size=6).map("\n".join)


@settings(max_examples=300)
@given(st.data())
def test_what_is_known_of_a_file_is_true(data: st.DataObject) -> None:
    text = data.draw(PIECES)
    file = WrittenFile()
    for turn in range(data.draw(st.integers(1, 6))):
        lines = text.split("\n")
        kind = data.draw(st.sampled_from(["write", "edit", "edit everywhere", "show"]))
        if kind == "write":
            text = data.draw(PIECES)
            file.apply(Change("f", None, text), (turn, 0))
        elif kind == "show":
            first = data.draw(st.integers(1, len(lines)))
            last = data.draw(st.integers(first, len(lines)))
            file.show({number: lines[number - 1] for number in range(first, last + 1)})
        else:
            start = data.draw(st.integers(0, len(text)))
            old, new = text[start : data.draw(st.integers(start, len(text)))], data.draw(PIECES)
            everywhere = kind == "edit everywhere"
            # An editor refuses what is empty, and what stands there more than once.
            if not old or (text.count(old) != 1 and not everywhere):
                continue
            text = text.replace(old, new)
            file.apply(Change("f", old, new, everywhere), (turn, 0))
        lines = text.split("\n")
        for number in range(1, len(lines) + 5):
            known = file.line(number)
            assert known is None or known.text == lines[number - 1]
