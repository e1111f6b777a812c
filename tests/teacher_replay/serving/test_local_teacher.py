"""Functions as teachers: what they are given, what becomes of what they return, and how they are found by name."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_replication.teacher_replay.serving import CallableTeacher, Completion, Question
from composer_replication.teacher_replay.serving.local_teacher import as_teacher, load_callable
from composer_replication.traces import ToolCall

QUESTION = Question([{"role": "user", "content": "?"}])
FULL = Question(
    [{"role": "user", "content": "?"}],
    tools=[{"type": "function", "function": {"name": "f"}}],
    max_tokens=5,
    temperature=0.0,
    top_p=0.5,
    stop=("a", "b"),
    seed=0,
    model="m",
)


def ask(function: Callable[..., Any], question: Question = QUESTION) -> Completion:
    return asyncio.run(CallableTeacher(function).answer(question))


def test_a_function_gets_the_messages_and_what_the_client_set() -> None:
    seen: list[tuple[Any, Any, dict[str, Any]]] = []

    def teacher(messages: Any, tools: Any = None, **parameters: Any) -> str:
        seen.append((messages, tools, parameters))
        return "ok"

    ask(teacher)
    ask(teacher, FULL)
    assert seen[0] == (QUESTION.messages, None, {"model": ""})
    given = {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5, "stop": ["a", "b"], "seed": 0, "model": "m"}
    assert seen[1] == (FULL.messages, FULL.tools, given)


def test_a_function_gets_no_more_than_it_takes() -> None:
    assert ask(lambda messages: f"{len(messages)}", FULL).content == "1"
    assert ask(lambda messages, seed=7, temperature=0.3: f"{seed} {temperature}").content == "7 0.3"
    assert ask(lambda messages, seed=7, temperature=0.3: f"{seed} {temperature}", FULL).content == "0 0.0"
    # What it has no default for it is always given.
    assert ask(lambda messages, tools, seed: f"{tools} {seed}").content == "None None"
    # Its first parameter is the messages, whatever it is called.
    assert ask(lambda model: model[0]["content"], FULL).content == "?"


@pytest.mark.parametrize(
    "function", [lambda: "", lambda messages, key: "", lambda *, messages: "", lambda messages, /, tools, more: ""]
)
def test_a_function_that_cannot_be_called_so_is_refused_beforehand(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be called with \(messages, tools=None\): "):
        CallableTeacher(function)


def test_text_in_the_form_of_actions_becomes_calls() -> None:
    answer = ask(lambda messages: '[THINKING]\nHm.\n[/THINKING]\nSo.\n[TOOL_USE] name=read input={"path": "a b"}')
    assert (answer.content, answer.reasoning) == ("So.", "Hm.")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("read", {"path": "a b"})]
    assert ask(lambda messages: "words").tool_calls == []
    one, other = (ask(lambda messages: "[TOOL_USE] name=f input={}").tool_calls[0].id for _ in range(2))
    assert one != other


def test_messages_become_answers() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]}
    assert ask(lambda messages: message).tool_calls == [ToolCall("c1", "f", {"a": 1})]
    assert ask(lambda messages: {"content": "x", "reasoning_content": "y"}) == Completion("x", [], "y")
    nameless = {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    call = ask(lambda messages: nameless).tool_calls[0]
    assert call.arguments == {"a": 1}
    assert call.id.startswith("call_")
    kept = Completion("x", prompt_tokens=3)
    assert ask(lambda messages: kept) is kept


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, TypeError, "it returned NoneType"),
        (["x"], TypeError, "it returned list"),
        ({}, ValueError, "neither content nor tool_calls"),
        ({"text": "x"}, ValueError, r"neither content nor tool_calls, only \['text'\]"),
        ({"role": "user", "content": "x"}, ValueError, "role is 'user'"),
        ({"content": ["x"]}, ValueError, "content must be a text"),
        ({"tool_calls": "f"}, ValueError, "tool_calls must be a list"),
        ({"tool_calls": [{"name": "f"}]}, ValueError, "a tool call must look like"),
        ({"tool_calls": [{"function": {"name": ""}}]}, ValueError, "a tool call must look like"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(lambda messages: returned)


def test_functions_of_every_kind() -> None:
    async def waits(messages: Any) -> str:
        await asyncio.sleep(0)
        return "async"

    class Waits:
        async def __call__(self, messages: Any) -> str:
            return "async object"

    class Calls:
        def __call__(self, messages: Any) -> str:
            return "object"

        def method(self, messages: Any) -> str:
            return "method"

    functions = [waits, Waits(), Calls(), Calls().method, functools.partial(waits), lambda messages: waits(messages)]
    answers = ["async", "async object", "object", "method", "async", "async"]
    assert [ask(function).content for function in functions] == answers


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (KeyError("x"), KeyError, "^'x'$"),
        (SystemExit(3), RuntimeError, r"called for the end of the process \(3\)"),
        (StopIteration("over"), RuntimeError, "raised StopIteration"),
    ],
)
def test_whatever_a_function_raises_is_an_ordinary_error(
    error: BaseException, raised: type[Exception], message: str
) -> None:
    def fail(messages: Any) -> str:
        raise error

    async def fail_later(messages: Any) -> str:
        raise error

    for function in (fail, fail_later):
        with pytest.raises(raised, match=message):
            ask(function)


@pytest.mark.parametrize(("parallel", "meets"), [(1, False), (2, True)])
def test_only_so_many_at_once(parallel: int, meets: bool) -> None:
    met = threading.Barrier(2)
    alone: list[int] = []

    def teacher(messages: Any) -> str:
        try:
            met.wait(60 if meets else 0.1)  # two at once let each other pass
        except threading.BrokenBarrierError:
            met.reset()
            alone.append(1)
        return ""

    async def ask_at_once() -> None:
        teachers = CallableTeacher(teacher, parallel=parallel)
        await asyncio.gather(*(teachers.answer(QUESTION) for _ in range(2)))

    asyncio.run(ask_at_once())
    assert len(alone) == (0 if meets else 2)


def test_none_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="parallel must be at least 1, got 0"):
        CallableTeacher(lambda messages: "", parallel=0)


def test_what_is_no_teacher_is_refused() -> None:
    class Named:
        async def answer(self, question: Question, /) -> Completion:
            return Completion()

    teacher = Named()
    assert as_teacher(teacher) is teacher
    for wrong, shown in ((Named, "the class Named"), ("x", "str 'x'"), (None, "NoneType None")):
        with pytest.raises(ValueError, match=f"not {shown}"):
            as_teacher(wrong)  # type: ignore[arg-type]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module into the current directory and gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    written: list[str] = []

    def write(text: str) -> str:
        name = f"teachers_{tmp_path.name}_{len(written)}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_a_function_is_found_by_its_name(module: Callable[[str], str]) -> None:
    name = module(
        "def careful(messages):\n    return 'found'\nclass Box:\n    inner = staticmethod(careful)\nbox = Box()\n"
    )
    for path in ("careful", "Box.inner", "box.inner"):
        assert asyncio.run(load_callable(f"{name}:{path}").answer(QUESTION)).content == "found"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("careful", "does not name a function: write MODULE:FUNCTION"),
        ("json:", "does not name a function"),
        (":dumps", "does not name a function"),
        ("./my_teachers.py:careful", "'./my_teachers.py' is a file; write the module's name"),
        ("no_such_module_here:f", "there is no module 'no_such_module_here', neither in"),
        ("json.nothing:f", "there is no module 'json.nothing'"),
        ("no_such_package.inner:f", "there is no module 'no_such_package'"),
        ("json:dunps", "'json:dunps': json has no 'dunps'; did you mean 'dumps'?"),
        ("json:dumps.inner", "json.dumps has no 'inner'"),
        ("json:JSONEncoder", "not the class JSONEncoder"),
        ("json:__name__", "not str 'json'"),
        ("gc:disable", "cannot be called with (messages, tools=None)"),
    ],
)
def test_each_way_to_name_it_wrongly(reference: str, message: str, module: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        load_callable(reference)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_thing_at_all\n", "cannot be imported: No module named 'no_such_thing_at_all'"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("def f(:\n", "cannot be imported: SyntaxError"),
        ("raise SystemExit(4)\n", "cannot be imported: SystemExit: 4"),
    ],
)
def test_a_module_that_does_not_import(text: str, message: str, module: Callable[[str], str]) -> None:
    name = module(text)
    with pytest.raises(ValueError, match=message):
        load_callable(f"{name}:f")
