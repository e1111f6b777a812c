"""Turns that are charged with a failing test, checker or compiler."""

from __future__ import annotations

import pytest
from hint_generator.failing_checks import CART, CRASH, FAILING_TEST, MYPY, RUFF, Session

from composer_replication.traces import ToolCall, Turn


@pytest.mark.parametrize(
    ("command", "result", "kind", "hint"),
    [
        (
            "ruff check",
            RUFF,
            "type_or_lint_error",
            "Write this so that the checker accepts it: it would report shop/cart.py:5:38: F821 Undefined name `itms`.",
        ),
        (
            "mypy shop",
            MYPY,
            "type_or_lint_error",
            "Write this so that the checker accepts it: it would report "
            'shop/cart.py:5: error: Name "itms" is not defined [name-defined].',
        ),
        (
            "python run.py",
            CRASH,
            "traceback",
            "Write this so that it runs: it would stop with "
            "/app/shop/cart.py:5: NameError: name 'itms' is not defined.",
        ),
        (
            "pytest",
            FAILING_TEST,
            "test_failure",
            "Write this so that the tests pass: they would stop at "
            "shop/cart.py:5: NameError: name 'itms' is not defined.",
        ),
    ],
)
def test_the_turn_that_wrote_the_line_is_charged_with_the_failures_own_line(
    command: str, result: str, kind: str, hint: str
) -> None:
    session = Session()
    session.call("Bash", {"command": "ls"})
    writing = session.write()
    failing = session.run(command, result)
    assert session.hints() == {writing: hint}
    assert failing.error_kind == kind
    assert failing.outcome
    assert failing.charged_to == [writing]
    meta = session.trace.turns[writing].error_meta
    assert meta is not None
    assert (meta["path"], meta["tool_name"]) == ("/app/shop/cart.py", "Write")
    assert (meta["tool_call_id"], meta["reported_by"]) == (f"c{writing}", f"c{writing + 2}")


def test_nobody_is_charged_where_nobody_wrote_the_line() -> None:
    session = Session()
    session.write("print(1)\n", "/app/shop/other.py")
    session.read(CART)
    failing = session.run()
    assert session.hints() == {}
    assert failing.outcome
    assert failing.charged_to == []


def test_of_several_edits_the_one_that_wrote_the_line_is_charged() -> None:
    session = Session()
    session.read("import os\n\n\ndef total(items):\n    return 0\n")
    session.edit("import os", "import os\nimport re")
    guilty = session.edit("    return 0", "    return sum(item.price for item in itms)")
    session.edit("import re\n", "import re\nimport ast\n")
    session.run("mypy shop", MYPY.replace(":5:", ":7:"))
    assert list(session.hints()) == [guilty]


def test_a_line_that_an_edit_merely_had_around_it_is_not_its_own() -> None:
    session = Session()
    session.read("func f(a int) {\n\tswitch a {\n\tcase 1:\n\tcase 2:\n\t}\n}\n", "/app/cart/cart.go")
    session.edit("\tswitch a {\n\tcase 1:\n\tcase 2:\n", "\tswitch a {\n\tcase 1:\n", "/app/cart/cart.go")
    session.run("golangci-lint run", "Exit code 1\ncart/cart.go:2:2: missing cases in switch: 2 (exhaustive)\n")
    assert session.hints() == {}


def test_a_later_change_of_what_the_message_names_may_have_broken_it() -> None:
    complaint = 'Exit code 1\nshop/cart.py:5: error: Missing positional argument "tax" in call to "total"  [call-arg]'
    for old, new, charged in (("x", "def total(items, tax):", False), ("def total()", "x", False), ("x", "y", True)):
        session = Session()
        writing = session.write("import os\n\n\ndef show(items):\n    print(total(items))\n")
        session.edit(old, new, "/app/shop/prices.py")
        session.run("mypy shop", complaint)
        assert list(session.hints()) == ([writing] if charged else [])


def test_a_later_change_orphans_an_import() -> None:
    session = Session()
    session.write("from math import ceil\n\n\ndef total(items):\n    return ceil(sum(items))\n")
    session.edit("    return ceil(sum(items))", "    return sum(items)")
    session.run(
        "ruff check", "Exit code 1\nshop/cart.py:1:18: F401 [*] `math.ceil` imported but unused\nFound 1 error."
    )
    assert session.hints() == {}


def test_types_that_a_message_names_stand_everywhere() -> None:
    session = Session()
    writing = session.write("import os\n\n\ndef total(items) -> int:\n    return 0.5\n")
    session.edit("x", "def other() -> int: ...", "/app/shop/prices.py")
    session.run("mypy shop", 'Exit code 1\nshop/cart.py:5: error: Incompatible types (got "float", expected "int")')
    assert list(session.hints()) == [writing]


@pytest.mark.parametrize(
    ("error", "source"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "return sum(item.price for item in itms)"),
        ("ModuleNotFoundError: No module named 'shop'", "return sum(item.price for item in itms)"),
        ("IndexError: list index out of range", "limit = sys.argv[2]"),
        ("KeyError: 'HOME'", 'home = os.environ["HOME"]'),
    ],
)
def test_what_depends_on_how_a_program_runs_charges_nobody(error: str, source: str) -> None:
    session = Session()
    session.write(CART.replace("return sum(item.price for item in itms)", source))
    crash = CRASH.replace("NameError: name 'itms' is not defined", error)
    failing = session.run("python run.py", crash.replace("return sum(item.price for item in itms)", source))
    assert session.hints() == {}
    assert failing.outcome


def test_a_command_that_runs_what_it_wrote_errs_itself() -> None:
    session = Session()
    command = f"cat > shop/cart.py <<'EOF'\n{CART}EOF\npython shop/cart.py"
    failing = session.run(command, CRASH)
    assert list(session.hints()) == [0]
    assert not failing.outcome
    assert "reported_by" not in (session.trace.turns[0].error_meta or {})


def test_a_test_that_uses_a_name_it_does_not_import_is_charged() -> None:
    session = Session()
    writing = session.write("@pytest.mark.slow\ndef test_a(): ...\n", "/app/tests/test_cart.py")
    error = "tests/test_cart.py:1: in <module>\n    @pytest.mark.slow\nE   NameError: name 'pytest' is not defined"
    session.run("pytest", f"Exit code 2\n{error}\n1 error in 0.1s")
    assert list(session.hints()) == [writing]


def test_a_name_that_is_not_in_the_line_shows_that_it_is_another_one() -> None:
    session = Session()
    session.write("a = 1\nb = 2\nc = itms\n")
    session.run("mypy shop", MYPY.replace(":5:", ":2:"))
    assert session.hints() == {}


@pytest.mark.parametrize(
    ("line", "later", "complaint"),
    [
        ("f(1)", "def f(a, b): ...", "error TS2554: Expected 2 arguments, but got 1."),
        ("s.Foo()", "type S struct { Bar int; Foo int }", "s.Foo undefined (type S has no field or method Foo)"),
        ("x := f()", "func f() (int, error) {", "not enough arguments in call to f"),
        ("count := 1", "fmt.Println(count)", "count declared and not used"),
        ('import "path/filepath"', "filepath.Join(a)", '"path/filepath" imported and not used'),
    ],
)
def test_a_later_change_of_what_the_line_uses_may_have_broken_it(line: str, later: str, complaint: str) -> None:
    for changed, charged in ((later, False), ("something else", True)):
        session = Session()
        writing = session.write(f"{line}\n", "/app/shop/cart.go")
        session.edit("before", changed, "/app/shop/prices.go")
        session.run("go vet ./...", f"Exit code 1\nshop/cart.go:1:1: {complaint}")
        assert list(session.hints()) == ([writing] if charged else [])


@pytest.mark.parametrize(
    "complaint", ["SyntaxError: '[' was never closed", "error TS1005: '}' expected.", "error: Missing return statement"]
)
def test_what_a_later_edit_of_the_file_left_open_is_reported_elsewhere(complaint: str) -> None:
    session = Session()
    session.write("x = [\n    1,\n]\n")
    session.edit("]\n", "")
    session.run("mypy shop", f"Exit code 1\nshop/cart.py:1:5: {complaint}")
    assert session.hints() == {}


def test_code_that_another_turn_calls_wrongly_is_not_charged() -> None:
    for path, charged in (("/app/run.py", False), ("/app/other.py", True)):
        session = Session()
        writing = session.write("import os\n\n\ndef total(items):\n    return items['price'] + 1\n")
        session.write("import shop\n\ntotal([])\n", path)
        crash = CRASH.replace("return sum(item.price for item in itms)", "return items['price'] + 1")
        crash = crash.replace("NameError: name 'itms' is not defined", "TypeError: bad index")
        session.run("python run.py", crash.replace('"run.py"', '"/app/run.py"'))
        assert list(session.hints()) == ([writing] if charged else [])


@pytest.mark.parametrize("source", ["raise ValueError('key is missing')", "throw new Error(x)", "assert x"])
def test_a_line_that_reports_what_is_wrong_elsewhere_is_not_charged(source: str) -> None:
    session = Session()
    session.write(CART.replace("return sum(item.price for item in itms)", source))
    session.run("python run.py", CRASH.replace("return sum(item.price for item in itms)", source))
    assert session.hints() == {}


def test_stubs_that_are_not_installed_charge_nobody() -> None:
    session = Session()
    session.write("import requests\n")
    session.run("mypy .", 'Exit code 1\nshop/cart.py:1: error: Library stubs not installed for "requests"  [import]')
    assert session.hints() == {}


@pytest.mark.parametrize(
    "error", ['Traceback (most recent call last):\n  File "/tmp/x1.py", line 1\nNameError: x', "SyntaxError: invalid"]
)
def test_code_that_is_given_to_a_tool_is_the_turns_own(error: str) -> None:
    session = Session()
    running = session.call("run_python", {"code": "print(x)"}, f"Exit code 1\n{error}", is_error=True)
    assert list(session.hints()) == [running]


def test_a_bare_name_is_enough_only_if_the_line_fits() -> None:
    for text, charged in ((CART, True), (CART.replace("itms", "other"), False)):
        session = Session()
        writing = session.write(text)
        session.run("mypy shop", MYPY.replace("shop/", ""))
        assert list(session.hints()) == ([writing] if charged else [])
    session = Session()
    session.write()
    session.run("mypy shop", "Exit code 1\ncart.py:5: error: It is not clear what")
    assert session.hints() == {}


def test_a_failing_assertion_accuses_nobody_wherever_it_stands() -> None:
    session = Session()
    session.write("fn last() {\n    assert_eq!(1, 2);\n}\n", "/app/src/cart.rs")
    panic = "thread 'tests::last' panicked at src/cart.rs:2:5:\nassertion `left == right` failed"
    session.run("cargo test", f"Exit code 101\n{panic}\ntest result: FAILED. 0 passed; 1 failed")
    assert session.hints() == {}


def test_a_warning_charges_nobody() -> None:
    session = Session()
    session.write("console.log(1)\nlet x\n", "/app/src/cart.ts")
    listed = "/app/src/cart.ts\n  1:1  warning  Unexpected console  no-console"
    session.run("eslint --max-warnings 0 src", f"Exit code 1\n{listed}\n\n✖ 1 problem (0 errors, 1 warning)")
    assert session.hints() == {}


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (
            "pytest",
            "Exit code 1\n>       assert total([]) == 1\nE       assert 0 == 1\n\ntests/test_cart.py:2: AssertionError",
        ),
        ("pytest", "Exit code 1\n>       total([], tax=1)\nE       TypeError: bad\n\ntests/test_cart.py:2: TypeError"),
        ("go test ./...", "Exit code 1\n--- FAIL: TestA (0.00s)\n    cart_test.go:2: got 1, want 2\nFAIL\tshop\t0.1s"),
        (
            "mypy .",
            'Exit code 1\ntests/test_cart.py:2: error: Module has no attribute "total"\nFound 1 error in 1 file',
        ),
    ],
)
def test_a_test_may_come_before_what_it_tests(command: str, result: str) -> None:
    session = Session()
    session.write("from shop import total\nassert total([], tax=1) == 1\n", "/app/tests/test_cart.py")
    session.write("package shop\nfunc TestA() {}\n", "/app/cart_test.go")
    failing = session.run(command, result)
    assert session.hints() == {}
    assert failing.outcome


def test_a_mistake_in_a_test_file_itself_is_charged() -> None:
    session = Session()
    writing = session.write("import os\nimport re\n", "/app/tests/test_cart.py")
    session.run("ruff check", "Exit code 1\ntests/test_cart.py:1:8: F401 `os` imported but unused\nFound 1 error.")
    assert list(session.hints()) == [writing]


@pytest.mark.parametrize(
    ("command", "result", "kind"),
    [
        ("grep x a.py", "Exit code 1", "no_match"),
        ("pytest -q", "Exit code 1\n1 failed in 0.1s", "test_failure"),
        ("cargo build", "Exit code 101\nerror: could not compile `shop`", "compile_error"),
        ("python run.py", CRASH, "traceback"),
        ("./run.sh", "Exit code 2\n./run.sh: line 3: syntax error near unexpected token `fi'", "traceback"),
        ("python run.py", "Exit code 1\nTraceback (most recent call last):\nKeyError: 1", "traceback"),
    ],
)
def test_an_outcome_is_no_mistake_of_the_turn_that_asked(command: str, result: str, kind: str) -> None:
    session = Session()
    failing = session.run(command, result)
    session.run(command, result)
    assert session.hints() == {}
    assert (failing.error_kind, failing.outcome) == (kind, True)


@pytest.mark.parametrize("command", ["python -c 'print(x)'", "python - <<'E'\nprint(x)\nE"])
def test_code_in_the_command_is_the_turns_own(command: str) -> None:
    session = Session()
    for frame in ('  File "<string>", line 1, in <module>\n', ""):
        failing = session.run(command, f"Exit code 1\nTraceback (most recent call last):\n{frame}NameError: name 'x'")
        assert "NameError" in str(session.hints()[session.trace.turns.index(failing) - 1])
        assert not failing.outcome


def test_a_turns_own_mistake_comes_before_what_it_is_charged_with() -> None:
    session = Session()
    session.write()
    both = session.trace.turns[0]
    both.tool_calls.append(ToolCall("second", "Frob", {}))
    session.trace.turns.insert(2, Turn("tool", "No such tool available: Frob", tool_call_id="second", is_error=True))
    failing = session.run()
    session.hints()
    assert both.tool_error == "tool_not_found"
    assert failing.charged_to == [0]


def test_copies_of_turns_are_not_charged() -> None:
    session = Session()
    session.write()
    session.trace.turns[0].repeats = True
    failing = session.run()
    assert session.hints() == {}
    assert failing.charged_to == []


def test_a_turn_whose_two_calls_wrote_what_fails_is_charged_once() -> None:
    session = Session()
    session.write()
    both = session.trace.turns[0]
    both.tool_calls.append(ToolCall("second", "Write", {"file_path": "/app/shop/order.py", "content": "x = y\n"}))
    session.trace.turns.insert(2, Turn("tool", "done", tool_call_id="second"))
    failing = session.run("mypy shop", f'{MYPY}\nshop/order.py:1: error: Name "y" is not defined  [name-defined]')
    session.hints()
    assert failing.charged_to == [0]
    assert str((both.error_meta or {})["error_message"]).startswith("shop/cart.py:5: ")


def test_a_name_that_is_missing_is_not_the_callers_fault() -> None:
    session = Session()
    writing = session.write()
    session.write("import shop\n\ntotal([])\n", "/app/run.py")
    session.run("python run.py", CRASH)
    assert list(session.hints()) == [writing]
