"""Local teachers: the interface of one, and Python functions as teachers. Nothing here knows about HTTP."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from composer_replication.traces import Message, ToolCall, Turn, parse_action, parse_arguments

Result = TypeVar("Result")

# The fields of a `Question` that a function may take besides the messages.
_PARAMETERS = ("tools", "max_tokens", "temperature", "top_p", "stop", "seed", "model")


@dataclass(frozen=True)
class Question:
    """One request to a teacher, in OpenAI's terms.

    The `content` of each message is text, never a list of parts. None means that the client did not set a parameter.
    `model` is the name that the teacher is served under.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    model: str = ""


class QuestionError(ValueError):
    """A question that this teacher cannot answer as it is. The client gets the message, and `code` for machines."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Completion:
    """A teacher's answer: its text, its tool calls and its reasoning.

    Token counts that are None are estimated from the text. `finish_reason` None means "tool_calls" if there are any,
    else "stop".
    """

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None

    def __add__(self, later: Completion) -> Completion:
        """Join two pieces of one completion; counts and the finish reason are the later ones, if it has them."""
        return Completion(
            self.content + later.content,
            [*self.tool_calls, *later.tool_calls],
            self.reasoning + later.reasoning,
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.completion_tokens if later.completion_tokens is None else later.completion_tokens,
            later.finish_reason or self.finish_reason,
        )

    @classmethod
    def from_turn(cls, turn: Turn) -> Completion:
        """Make a completion of an assistant turn; its calls get ids that no other completion has."""
        calls = [ToolCall(_new_id(), call.name, call.arguments, call.raw_arguments) for call in turn.tool_calls]
        return cls(turn.content, calls, turn.thinking)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Completion:
        """Make a completion of an assistant message in OpenAI's form.

        Raises:
            ValueError: it is not an assistant message; the text says what is wrong with it.
        """
        if message.get("role", "assistant") != "assistant":
            raise ValueError(f"the message's role is {message['role']!r}, not 'assistant'")
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f"the message has neither content nor tool_calls, only {sorted(map(str, message))}")
        content, calls = message.get("content") or "", message.get("tool_calls") or []
        reasoning = message.get("reasoning_content") or ""
        if not isinstance(content, str) or not isinstance(reasoning, str):
            raise ValueError("the message's content must be a text")
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise ValueError(f"the message's tool_calls must be a list, not {type(calls).__name__}")
        return cls(content, [_call(call) for call in calls], reasoning)


@runtime_checkable
class Answerer(Protocol):
    """A teacher. `answer` is cancelled when the client disconnects."""

    async def answer(self, question: Question, /) -> Completion: ...


@runtime_checkable
class StreamingAnswerer(Answerer, Protocol):
    """A teacher that can stream: the pieces of `stream`, at least one, add up to the completion."""

    def stream(self, question: Question, /) -> AsyncIterator[Completion]: ...


class CallableTeacher:
    """A teacher that calls `function(messages, tools=None, **parameters)`.

    The function gets those of `tools`, `max_tokens`, `temperature`, `top_p`, `stop`, `seed` and `model` that it takes.
    What the client did not set is left out, unless the function has no default for it. It returns a text (calls in the
    form of `render_action` become tool calls), a dict (an assistant message in OpenAI's form) or a `Completion`.

    A coroutine function runs on the server's event loop and is cancelled when the client disconnects. Any other
    function runs in threads and cannot be interrupted; `parallel` is the number of calls at once: use 1 for a function
    that is not thread-safe.

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

    async def answer(self, question: Question, /) -> Completion:
        """Call the function and make a completion of what it returns."""
        given = {name: getattr(question, name) for name in _PARAMETERS} | {"stop": list(question.stop) or None}
        arguments = {
            name: given[name] for name, needed in self._parameters.items() if needed or given[name] is not None
        }
        call = partial(self._function, question.messages, **arguments)
        try:
            returned = call() if self._is_async else await _in_thread(partial(self._call_in_turn, call))
            if inspect.isawaitable(returned):
                returned = await returned
        except SystemExit as error:  # the function failed; the server goes on
            raise RuntimeError(f"it called for the end of the process ({error})") from error
        if isinstance(returned, Completion):
            return returned
        if isinstance(returned, str):
            return Completion.from_turn(parse_action(returned))
        if isinstance(returned, Mapping):
            return Completion.from_message(returned)
        raise TypeError(f"it returned {type(returned).__name__}, and not a text, an assistant message or a Completion")

    def _call_in_turn(self, call: Callable[[], Any]) -> Any:
        with self._room:
            return call()


def as_teacher(teacher: Answerer | Callable[..., Any]) -> Answerer:
    """Return a teacher as it is, or a function as a `CallableTeacher`.

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
    """Load the teacher that `module:function` names; modules in the current directory are found too.

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
            similar = difflib.get_close_matches(name, dir(value), n=1)
            advice = f"; did you mean {similar[0]!r}?" if similar else ""
            raise ValueError(f"{reference!r}: {passed} has no {name!r}{advice}")
        value, passed = getattr(value, name), f"{passed}.{name}"
    try:
        return as_teacher(value)
    except ValueError as error:
        raise ValueError(f"{reference!r}: {error}") from None


def _call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ValueError('a tool call must look like {"function": {"name": ..., "arguments": ...}}')
    identity = call.get("id")
    arguments, raw = parse_arguments(function.get("arguments"))
    return ToolCall(identity if isinstance(identity, str) and identity else _new_id(), name, arguments, raw)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


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


def _parameters_of(function: Callable[..., Any]) -> dict[str, bool]:
    """The parameters that a function takes besides the messages, and whether each is required."""
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


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Await the result of `work` in a thread of its own, which does not keep the process alive.

    Not the loop's own pool: that has a handful of threads on a small machine, and the interpreter waits for all of them
    when it ends. If the await is cancelled, the work goes on and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            errors.append(error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True, name="local-teacher").start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
