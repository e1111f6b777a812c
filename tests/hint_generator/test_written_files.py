"""Authors of the lines of a file, and when they are no longer known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hint_generator.failing_checks import CART, MYPY, RUFF, Session
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.hint_generator.written_files import Author, Change, WrittenFile, changes, shown_lines
from composer_replication.traces import ToolCall, Turn

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


def test_results_that_a_reader_left_encoded_are_read_too() -> None:
    session = Session()
    session.read("import os\n\n\ndef total(items):\n    return 0\n")
    session.call("Bash", {"command": "ls"})
    guilty = session.edit("    return 0", "    return sum(item.price for item in itms)")
    session.run("mypy shop", MYPY)
    for turn in session.trace.turns:
        if turn.role == "tool" and not turn.is_error:
            turn.content = msgspec.Raw(msgspec.json.encode(turn.content))  # type: ignore[assignment]
    assert list(session.hints()) == [guilty]


def test_an_edit_that_was_refused_wrote_nothing() -> None:
    session = Session()
    session.read("import os\n\n\ndef total(items):\n    return 0\n")
    refused = session.edit(
        "    return 0",
        "    return sum(item.price for item in itms)",
        result="<tool_use_error>File has not been read yet.</tool_use_error>",
        is_error=True,
    )
    failing = session.run()
    assert session.hints() == {refused: "Read `/app/shop/cart.py` before you edit or overwrite it."}
    assert failing.charged_to == []


MOVING = ["gofmt -w .", "npm run format", "ruff check --fix", "sed -i s/a/b/ shop/cart.py"]
REPLACING = ["git checkout .", "git stash", "git pull --rebase"]
EDITING = [
    "npm run lint:fix",
    "cargo fix",
    "for f in shop/*.py; do sed -i s/a/b/ $f; done",
    "python fix_imports.py shop/cart.py",
    "cat > notes.md <<'EOF'\nx\nEOF\nsed -i 1d shop/cart.py",
    "cat > change.py <<'EOF'\nopen('shop/cart.py', 'w')\nEOF\npython change.py",
    "gh pr checkout 12",
    "git -C /app checkout main",
]


@pytest.mark.parametrize(
    "call",
    [
        *(("Bash", {"command": command}) for command in MOVING + EDITING),
        ("str_replace_editor", {"command": "undo_edit", "path": "/app/shop/cart.py"}),
        ("edit_file", {"path": "/app/shop/cart.py", "code_edit": "..."}),
        ("Task", {"prompt": "do the rest"}),
        ("Bash", {"command": "git commit -m x"}, "trim....Failed\n- files were modified by this hook"),
        ("Bash", {"command": "ls"}, "a\n<system-reminder>\nNote: a was modified, either by the user or a linter"),
    ],
)
def test_numbers_are_not_trusted_after_what_may_have_changed_the_file(call: Any) -> None:
    session = Session()
    writing = session.write()
    session.call(*call)
    session.run("mypy shop", MYPY)
    assert session.hints() == {}
    if call[1].get("command") in MOVING:
        session.run("ruff check", RUFF)  # it quotes the line
        assert list(session.hints()) == [writing]


@pytest.mark.parametrize("command", REPLACING)
def test_nothing_is_known_of_files_that_git_has_replaced(command: str) -> None:
    session = Session()
    session.write()
    session.call("Bash", {"command": command})
    session.run()
    assert session.hints() == {}


@pytest.mark.parametrize(
    "checker", ["ruff check --output-format concise", "mypy --format-style x", "git commit -m x; mypy"]
)
def test_an_option_or_a_commit_moves_no_lines(checker: str) -> None:
    session = Session()
    writing = session.write()
    session.run(checker, MYPY)
    assert list(session.hints()) == [writing]


def test_a_line_that_is_quoted_counts_more_than_its_number() -> None:
    session = Session()
    writing = session.write()
    other = session.edit("def total(items):", "def total(items):\n    pass\n    pass")
    session.run("ruff check", RUFF)
    assert list(session.hints()) == [writing]
    assert session.trace.turns[other].tool_error is None


ADDED = "\n".join(f"+{line}" for line in CART.splitlines())


@pytest.mark.parametrize(
    "command",
    [
        f"cd nowhere && cat > shop/cart.py <<'EOF'\n{CART}EOF",
        f"apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: shop/cart.py\n{ADDED}\n*** End Patch\nEOF",
    ],
)
def test_what_a_failed_command_may_not_have_written_is_nobodys(command: str) -> None:
    session = Session()
    session.run(command, "Exit code 1\nbash: cd: nowhere: No such file or directory")
    failing = session.run("mypy shop", MYPY)
    session.hints()
    assert failing.charged_to == []


def test_an_editor_that_is_given_every_argument_writes_what_its_command_says() -> None:
    session = Session()
    given = {"path": "/app/shop/cart.py", "content": "", "file_text": CART, "command": "create"}
    writing = session.call("str_replace_editor", given)
    session.call("str_replace_editor", {"path": "/app/shop/cart.py", "content": "", "command": "view"})
    session.run("mypy shop", MYPY)
    assert list(session.hints()) == [writing]


@pytest.mark.parametrize(
    ("written", "command", "reported", "charged"),
    [
        # the folder that the command goes to tells files of one name apart
        (["/app/server/shop/cart.py", "/app/web/shop/cart.py"], "cd web && mypy .", "shop/cart.py", True),
        (["/app/packages/a/shop/cart.py"], "cd packages/b && mypy .", "shop/cart.py", False),
        (["/app/packages/a/shop/cart.py"], "cd /app/packages/b; mypy .", "shop/cart.py", False),
        # an absolute path does not depend on it
        (["/app/shop/cart.py"], "cd web && mypy /app/shop", "/app/shop/cart.py", True),
        # paths may be relative to different folders
        (["app/workshop/cart.py", "app/shop/cart.py"], "mypy .", "shop/cart.py", True),
        (["app/workshop/cart.py", "app/shop/cart.py"], "mypy .", "app/shop/cart.py", True),
        (["app/workshop/cart.py", "app/shop/cart.py"], "mypy .", "/w/app/shop/cart.py", True),
        (["app/workshop/cart.py", "app/shop/cart.py"], "mypy .", "my_shop/cart.py", False),
        # two files fit
        (["/app/a/shop/cart.py", "/app/b/shop/cart.py"], "mypy .", "shop/cart.py", False),
    ],
)
def test_the_last_file_is_charged_if_it_alone_fits_the_path(
    written: list[str], command: str, reported: str, charged: bool
) -> None:
    session = Session()
    last = [session.write(path=path) for path in written][-1]
    session.run(command, MYPY.replace("shop/cart.py", reported))
    assert list(session.hints()) == ([last] if charged else [])


def test_a_rewind_makes_files_unknown() -> None:
    session = Session()
    session.call("Bash", {"command": "ls"})
    session.write()
    session.trace.turns.append(Turn("user", "again", follows=0))
    session.run()
    assert session.hints() == {}
