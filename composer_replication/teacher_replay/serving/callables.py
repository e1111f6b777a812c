"""A Python function as a teacher, and finding one by its `module:function`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.teacher_replay.serving.answering import Answer, Answerer, Question
from composer_replication.teacher_replay.serving.worker_threads import in_thread
from composer_replication.traces import parse_action

_PARAMETERS = ("tools", "max_tokens", "temperature", "top_p", "stop", "seed", "model")


class CallableTeacher:
    """A teacher that calls `function(messages, tools=None, **parameters)`.

    The function gets what it can take of `tools`, `max_tokens`, `temperature`, `top_p`, `stop`, `seed` and `model`;
    what the client left open is left out, unless the function has no default for it. It returns a text (in the form of
    `render_action` its calls become tool calls), a dict (an assistant message in OpenAI's form) or an `Answer`.

    A coroutine function runs on the server's event loop, and is cancelled when the client goes away. Any other one
    runs in threads, `parallel` at once: give 1 for a function that is not thread-safe. It cannot be interrupted.

    Raises:
        ValueError: the function cannot be called like this, or `parallel` is less than 1.
    """

    def __init__(self, function: Callable[..., Any], *, parallel: int = 64) -> None:
        if parallel < 1:
            raise ValueError(f"parallel must be at least 1, got {parallel}")
        self._function = function
        self._parameters = _parameters_of(function)
        self._room = threading.BoundedSemaphore(parallel)
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - not whether it is callable, but how
        )

    async def answer(self, question: Question, /) -> Answer:
        """Call the function and make an answer of what it returns."""
        call = partial(self._function, question.messages, **self._arguments(question))
        try:
            returned = call() if self._is_async else await in_thread(partial(self._call_in_turn, call))
            if inspect.isawaitable(returned):
                returned = await returned
        except SystemExit as error:  # it is the function's failure, and not the end of the server
            raise RuntimeError(f"it called for the end of the process ({error})") from error
        return _as_answer(returned)

    def _call_in_turn(self, call: Callable[[], Any]) -> Any:
        with self._room:
            return call()

    def _arguments(self, question: Question) -> dict[str, Any]:
        given = {name: getattr(question, name) for name in _PARAMETERS}
        given["stop"] = list(question.stop) or None
        return {
            name: value
            for name, value in given.items()
            if name in self._parameters and (value is not None or self._parameters[name])
        }


def as_teacher(teacher: Answerer | Callable[..., Any]) -> Answerer:
    """A teacher as it is, or a function as a `CallableTeacher`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(teacher, Answerer) and not isinstance(teacher, type):
        return teacher
    if isinstance(teacher, type) or not callable(teacher):
        what = f"the class {teacher.__name__}" if isinstance(teacher, type) else f"{type(teacher).__name__} {teacher!r}"
        raise ValueError(f"a teacher is a function of messages, or an object that has a method `answer`, not {what}")
    return CallableTeacher(teacher)


def load_callable(reference: str) -> Answerer:
    """The teacher that `module:function` names; modules in the current directory are found too.

    Raises:
        ValueError: there is no such function, or it cannot be a teacher; the message says why, in one line.
    """
    module_name, separator, path = reference.partition(":")
    if not separator or not module_name or not path:
        raise ValueError(f"{reference!r} does not name a function: write MODULE:FUNCTION, like my_teachers:careful")
    if "/" in module_name or module_name.endswith(".py"):
        raise ValueError(
            f"{reference!r}: {module_name!r} is a file; write the module's name, and start where it can be imported"
        )
    value: Any = _module(module_name)
    passed = module_name
    for name in path.split("."):
        if not hasattr(value, name):
            raise ValueError(f"{reference!r}: {passed} has no {name!r}{_similar(name, value)}")
        value, passed = getattr(value, name), f"{passed}.{name}"
    try:
        return as_teacher(value)
    except ValueError as error:
        raise ValueError(f"{reference!r}: {error}") from None


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"there is no module {error.name!r}, neither in {here} nor installed") from None
        raise ValueError(f"the module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise ValueError(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _similar(name: str, value: Any) -> str:
    found = difflib.get_close_matches(name, dir(value), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _parameters_of(function: Callable[..., Any]) -> dict[str, bool]:
    """The parameters that a function takes besides the messages, and whether it must be given each."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}  # written in C, without a signature: it gets the messages
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    first = next(iter(signature.parameters), None)
    taken = {}
    for name in _PARAMETERS:
        parameter = signature.parameters.get(name)
        if parameter is not None and parameter.kind in by_name and name != first:
            taken[name] = parameter.default is inspect.Parameter.empty
        elif takes_any:
            taken[name] = False
    try:
        signature.bind([], **dict.fromkeys(taken))
    except TypeError as error:
        called = getattr(function, "__name__", type(function).__name__)
        raise ValueError(f"{called}{signature} cannot be called with (messages, tools=None): {error}") from None
    return taken


def _as_answer(returned: Any) -> Answer:
    if isinstance(returned, Answer):
        return returned
    if isinstance(returned, str):
        return Answer.from_turn(parse_action(returned))
    if isinstance(returned, Mapping):
        return Answer.from_message(returned)
    raise TypeError(f"it returned {type(returned).__name__}, and not a text, an assistant message or an Answer")
