"""The environment of Python tasks: its tools and their errors, what is rewarded, and what stays hidden."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transformers.utils import get_json_schema

from composer_replication.envs.contract import Task, call_tool, tools_of
from composer_replication.envs.python_tasks import PythonTasks, make_tasks
from composer_replication.envs.python_tasks.bank import find_function
from composer_replication.envs.python_tasks.grader import Call
from composer_replication.envs.registry import built_in
from composer_replication.hint_generator.classifier import classify


def task_of(name: str, kind: str) -> Task:
    return next(task for task in make_tasks("train", 500) if (task["function"], task["kind"]) == (name, kind))


WRITE = task_of("digit_sum", "write")
REPAIR = task_of("rotate_left", "repair")
RIGHT = find_function("digit_sum").source


def begun(task: Task, **options: Any) -> PythonTasks:
    environment = PythonTasks(**options)
    environment.reset(**task)
    return environment


def called(environment: PythonTasks, tool: str, **arguments: Any) -> str:
    result, failed = call_tool(tools_of(environment), tool, arguments)
    return str(result["error"] if failed else result)


def test_a_function_is_written() -> None:
    environment = begun(WRITE)
    assert environment.read_file("solution.py") == WRITE["solution"]
    tested = environment.run_tests()
    assert tested.count(", got NotImplementedError") == 2
    assert tested.count('File "solution.py"') == 1  # the same traceback is not shown again
    assert environment.get_reward() == 0.0
    assert environment.write_file("solution.py", RIGHT) == "Wrote solution.py."
    assert environment.run_tests() == "All 3 tests passed."
    assert environment.get_reward() == environment.get_reward() == 1.0
    assert environment._feedback() is None


def test_a_function_is_repaired_by_an_edit() -> None:
    environment = begun(REPAIR)
    assert environment.get_reward() == 0.0
    body = REPAIR["solution"].rpartition('"""\n')[2]
    assert environment.replace_text("solution.py", body, find_function("rotate_left").body) == "Wrote solution.py."
    assert environment.read_file("solution.py") == REPAIR["solution"].replace(body, find_function("rotate_left").body)
    assert environment.get_reward() == 1.0


def test_failing_tests_are_shown_and_hidden_ones_are_not() -> None:
    environment = begun(WRITE)
    source = "def digit_sum(number):\n    digits = [int(one) for one in str(number)]\n    return sum(digits)"
    environment.write_file("solution.py", source)
    found = find_function("digit_sum")
    wrong = [one for one in WRITE["examples"] if "-" in one]
    assert 0 < len(wrong) < 3  # the sign is forgotten
    first, *others = [f"FAILED {call.shown}: expected {call.expected}" for call in (Call(found, one) for one in wrong)]
    message = "ValueError: invalid literal for int() with base 10: '-'"
    expected = [
        f"{len(wrong)} of 3 tests failed.",
        f"{first}, got an error:",
        '  File "solution.py", line 2, in digit_sum',
        "    digits = [int(one) for one in str(number)]",
        '  File "solution.py", line 2, in <listcomp>',
        "    digits = [int(one) for one in str(number)]",
        message,
        *(f"{other}, got {message}" for other in others),
    ]
    assert [line for line in environment.run_tests().split("\n") if line not in expected] == []
    assert environment._feedback() == environment.run_tests()
    environment.write_file("solution.py", "def digit_sum(number): return abs(number) and 3")
    assert environment.run_tests().count(", got 3") == 3


def test_of_hidden_tests_only_their_failure_is_said() -> None:
    environment = begun(WRITE)
    known = {example: find_function("digit_sum").expected(example) for example in WRITE["examples"]}
    environment.write_file("solution.py", f"def digit_sum(number): return {known}.get(repr((number,)), 0)")
    assert environment.run_tests() == "All 3 tests passed."
    assert environment.get_reward() == 0.0
    assert environment._feedback() == (
        "The examples pass, but other inputs fail: do what the description says for every input."
    )


def test_what_a_test_run_leaves_behind_is_not_graded() -> None:
    environment = begun(WRITE)
    environment.write_file(
        "solution.py",
        f"try: from planted import digit_sum\nexcept ImportError: open('planted.py', 'w').write({RIGHT!r})",
    )
    assert "does not define digit_sum" in environment.run_tests()
    assert environment.read_file("planted.py") == RIGHT
    assert environment.run_tests() == "All 3 tests passed."
    assert environment.get_reward() == 0.0
    # What is graded is the file as it is now.
    environment.write_file("solution.py", "import os\nos.remove('solution.py')\n" + RIGHT)
    assert environment.get_reward() == 1.0
    environment.run_tests()
    assert environment.get_reward() == 0.0
    assert "there is no solution.py" in str(environment._feedback())
    environment.reset(**WRITE)
    assert environment._workspace.files() == ["solution.py"]


@pytest.mark.parametrize(
    ("tool", "arguments", "error", "kind"),
    [
        (
            "read_file",
            {"path": "main.py"},
            "File not found: main.py\nAvailable files: solution.py",
            "file_not_found",
        ),
        ("read_file", {"path": ["solution.py"]}, "File not found: ['solution.py']", "file_not_found"),
        (
            "write_file",
            {"path": "../solution.py", "text": ""},
            "Permission denied: ../solution.py. Only solution.py can be written.",
            "permission_denied",
        ),
        (
            "write_file",
            {"path": "solution.py", "text": 3},
            "Invalid `text` parameter: it must be a string, not int.",
            "type_error",
        ),
        (
            "replace_text",
            {"path": "solution.py", "old": "nowhere", "new": ""},
            "String to replace not found in solution.py: copy it exactly as read_file shows it.",
            "edit_no_match",
        ),
        ("replace_text", {"path": "solution.py", "old": "", "new": ""}, "String to replace not found", "edit_no_match"),
        (
            "replace_text",
            {"path": "solution.py", "old": "digit_sum", "new": ""},
            "Found 4 matches of the string to replace in solution.py: add lines around it.",
            "edit_multiple_matches",
        ),
        (
            "replace_text",
            {"path": "solution.py", "old": "raise", "new": None},
            "Invalid `new` parameter: it must be a string, not NoneType.",
            "type_error",
        ),
        ("replace_text", {"path": "main.py", "old": "a", "new": "b"}, "File not found: main.py", "file_not_found"),
        ("write_file", {"path": "solution.py", "text": "\ud800"}, "surrogates not allowed", "runtime_error"),
    ],
)
def test_a_call_that_fails_says_why_changes_nothing_and_costs(
    tool: str, arguments: dict[str, Any], error: str, kind: str
) -> None:
    environment = begun(WRITE, failure_cost=0.25)
    said = called(environment, tool, **arguments)
    assert error in said
    assert classify(said)[0] == kind
    assert environment.read_file("solution.py") == WRITE["solution"]
    called(environment, "write_file", path="solution.py", text=RIGHT)
    assert environment.get_reward() == 0.75
    for _ in range(4):
        called(environment, tool, **arguments)
    assert environment.get_reward() == 0.0


def test_calls_that_fail_cost_a_tenth_by_default_and_failing_tests_nothing() -> None:
    environment = begun(WRITE)
    environment.run_tests()
    called(environment, "write_file", path="solution.py", text=RIGHT)
    assert environment.get_reward() == 1.0
    called(environment, "read_file", path="tests.py")
    assert environment.get_reward() == 0.9
    environment.reset(**WRITE)
    called(environment, "write_file", path="solution.py", text=RIGHT)
    assert environment.get_reward() == 1.0


def test_equal_calls_have_equal_answers() -> None:
    """Sets of texts, addresses and the place of the workspace are the same or are not shown."""
    source = "def digit_sum(number): raise ValueError(object(), {'a', 'b', 'c', 'd'}, __import__('os').getcwd())"

    def episode() -> list[str]:
        environment = begun(WRITE)
        environment.write_file("solution.py", source)
        return [environment.run_tests(), str(environment._feedback()), str(environment.get_reward())]

    once = episode()
    assert once == episode()
    assert "<object object at 0x0>" in once[0]


def test_many_environments_at_once_share_nothing() -> None:
    tasks = make_tasks("train", 64)
    environments = [begun(task) for task in tasks]

    def play(number: int) -> tuple[str, str]:
        environment, function = environments[number], find_function(tasks[number]["function"])
        # Every other one is solved, and the others leave a file.
        written = function.source if number % 2 else "open('left_behind.py', 'w').write('')\n"
        environment.write_file("solution.py", f"# {number}\n{written}")
        said = str(environment.get_reward()) if number % 2 else environment.run_tests().split("\n")[0]
        return said, environment.read_file("solution.py").split("\n")[0]

    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(play, range(64)))
    for number, (said, first_line) in enumerate(played):
        assert first_line == f"# {number}"
        assert said == ("1.0" if number % 2 else "3 of 3 tests failed.")
        kept = ["solution.py"] if number % 2 else ["left_behind.py", "solution.py"]
        assert environments[number]._workspace.files() == kept
        environments[number]._close()


def test_the_weak_sandbox_is_had_by_its_name() -> None:
    environment = begun(WRITE, sandbox="process")
    environment.write_file("solution.py", RIGHT)
    assert environment.run_tests() == "All 3 tests passed."
    assert environment.get_reward() == 1.0
    # It must be the weak one that ran: a confined solution sees no file of this machine.
    look = f"import os\ndef digit_sum(number): return os.path.exists({__file__!r})"
    for kind, seen in (("process", "True"), ("auto", "False")):
        environment = begun(WRITE, sandbox=kind)
        environment.write_file("solution.py", look)
        assert environment.run_tests().count(f", got {seen}") == 3


def test_closed_and_begun_again() -> None:
    environment = begun(WRITE)
    environment._close()
    with pytest.raises(ValueError, match="closed"):
        environment.read_file("solution.py")
    environment.reset(**WRITE)
    assert environment.read_file("solution.py") == WRITE["solution"]


def test_before_the_first_task_there_is_nothing_to_earn() -> None:
    environment = PythonTasks()
    assert environment.get_reward() == 0.0
    assert "Available files" in called(environment, "read_file", path="solution.py")


def test_the_tools_have_schemas_and_the_environment_a_name() -> None:
    environment, make = built_in("python_tasks")
    assert (environment, make) == (PythonTasks, make_tasks)
    tools = tools_of(PythonTasks())
    assert list(tools) == ["read_file", "replace_text", "run_tests", "write_file"]
    for tool in tools.values():
        properties = get_json_schema(tool)["function"]["parameters"]["properties"]
        assert all(one["type"] == "string" and one["description"] for one in properties.values())


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="failure_cost must be a finite number >= 0, got -1"):
        PythonTasks(failure_cost=-1)
    with pytest.raises(ValueError, match="kind must be one of"):
        PythonTasks("none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 'no_such'"):
        PythonTasks().reset(function="no_such", solution="", examples=[])
