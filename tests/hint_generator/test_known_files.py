"""What is known of files when a check fails: whose lines they are, and when nobody can tell any more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hint_generator.failing_checks import CART, MYPY, RUFF, Session

from composer_replication.traces import Turn


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


@pytest.mark.parametrize("between", ["gofmt -w .", "npm run format", "ruff check --fix", "sed -i s/a/b/ shop/cart.py"])
def test_numbers_are_not_trusted_after_a_command_that_moves_lines(between: str) -> None:
    session = Session()
    writing = session.write()
    session.call("Bash", {"command": between})
    session.run("mypy shop", MYPY)
    assert session.hints() == {}
    session.run("ruff check", RUFF)  # it quotes the line
    assert list(session.hints()) == [writing]


@pytest.mark.parametrize(
    "checker", ["ruff check --output-format concise", "mypy --format-style x", "git commit -m x; mypy"]
)
def test_an_option_or_a_commit_moves_no_lines(checker: str) -> None:
    session = Session()
    writing = session.write()
    session.run(checker, MYPY)
    assert list(session.hints()) == [writing]


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("Task", {"prompt": "do the rest"}, "done"),
        ("Bash", {"command": "git commit -m x"}, "trim....Failed\n- files were modified by this hook"),
    ],
)
def test_numbers_are_not_trusted_after_others_worked_on_the_files(
    name: str, arguments: dict[str, Any], result: str
) -> None:
    session = Session()
    session.write()
    session.call(name, arguments, result)
    session.run("mypy shop", MYPY)
    assert session.hints() == {}


def test_the_folder_that_the_command_goes_to_tells_files_of_one_name_apart() -> None:
    session = Session()
    session.write(path="/app/server/shop/cart.py")
    writing = session.write(path="/app/web/shop/cart.py")
    session.run("cd web && mypy .", MYPY)
    assert list(session.hints()) == [writing]


def test_an_absolute_path_does_not_depend_on_the_folder() -> None:
    session = Session()
    writing = session.write()
    session.run("cd web && mypy /app/shop", MYPY.replace("shop/cart.py", "/app/shop/cart.py"))
    assert list(session.hints()) == [writing]


def test_a_line_that_is_quoted_counts_more_than_its_number() -> None:
    session = Session()
    writing = session.write()
    other = session.edit("def total(items):", "def total(items):\n    pass\n    pass")
    session.run("ruff check", RUFF)
    assert list(session.hints()) == [writing]
    assert session.trace.turns[other].tool_error is None


@pytest.mark.parametrize("command", ["git checkout .", "git stash", "git pull --rebase"])
def test_nothing_is_known_of_files_that_git_has_replaced(command: str) -> None:
    session = Session()
    session.write()
    session.call("Bash", {"command": command})
    session.run()
    assert session.hints() == {}


@pytest.mark.parametrize(
    "call",
    [
        ("str_replace_editor", {"command": "undo_edit", "path": "/app/shop/cart.py"}),
        ("edit_file", {"path": "/app/shop/cart.py", "code_edit": "..."}),
        ("Bash", {"command": "npm run lint:fix"}),
        ("Bash", {"command": "cargo fix"}),
        ("Bash", {"command": "for f in shop/*.py; do sed -i s/a/b/ $f; done"}),
        ("Bash", {"command": "python fix_imports.py shop/cart.py"}),
        ("Bash", {"command": "cat > notes.md <<'EOF'\nx\nEOF\nsed -i 1d shop/cart.py"}),
        ("Bash", {"command": "cat > change.py <<'EOF'\nopen('shop/cart.py', 'w')\nEOF\npython change.py"}),
        ("Bash", {"command": "gh pr checkout 12"}),
        ("Bash", {"command": "git -C /app checkout main"}),
    ],
)
def test_numbers_are_not_trusted_after_what_may_have_changed_the_file(call: tuple[str, dict[str, Any]]) -> None:
    session = Session()
    session.write()
    session.call(*call)
    session.run("mypy shop", MYPY)
    assert session.hints() == {}


def test_numbers_are_not_trusted_after_a_word_that_the_file_was_modified() -> None:
    session = Session()
    session.write()
    session.call(
        "Bash", {"command": "ls"}, "a\n<system-reminder>\nNote: a was modified, either by the user or a linter"
    )
    session.run("mypy shop", MYPY)
    assert session.hints() == {}


def test_a_file_of_the_same_path_in_another_package_is_another_file() -> None:
    for command in ("cd packages/b && mypy .", "cd /app/packages/b; mypy ."):
        session = Session()
        session.write(path="/app/packages/a/shop/cart.py")
        session.run(command, MYPY)
        assert session.hints() == {}


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
    ("path", "charged"),
    [("shop/cart.py", True), ("app/shop/cart.py", True), ("/w/app/shop/cart.py", True), ("my_shop/cart.py", False)],
)
def test_paths_may_be_relative_to_different_folders(path: str, charged: bool) -> None:
    session = Session()
    session.write(path="app/workshop/cart.py")
    writing = session.write(path="app/shop/cart.py")
    session.run("mypy .", MYPY.replace("shop/cart.py", path))
    assert list(session.hints()) == ([writing] if charged else [])


def test_two_files_that_fit_a_path_charge_nobody() -> None:
    session = Session()
    session.write(path="/app/a/shop/cart.py")
    session.write(path="/app/b/shop/cart.py")
    session.run()
    assert session.hints() == {}


def test_a_rewind_makes_files_unknown() -> None:
    session = Session()
    session.call("Bash", {"command": "ls"})
    session.write()
    session.trace.turns.append(Turn("user", "again", follows=0))
    session.run()
    assert session.hints() == {}
