"""Answers of teachers at a step: which can be used, and whether another teacher has to be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from composer_replication._optional import require
from composer_replication.ingestion.shell_commands import SHELL_TOOL, commands_in, shell_call, with_command
from composer_replication.teacher_replay.agreement.comparison import Comparer
from composer_replication.teacher_replay.agreement.votes import Tally, decide
from composer_replication.teacher_replay.ledger import Answer
from composer_replication.teacher_replay.records import TeacherCallResult, TeacherRow, bare_action
from composer_replication.teacher_replay.tool_schemas import complete_tools, is_inferred
from composer_replication.traces import Step, ToolCall, TraceState, Turn, action_text, render_action

# Finish reasons as providers spell them, in lower case: of whole answers, of calls, and of truncated answers.
_STOPPED = {"", "stop", "end_turn", "eos", "eos_token", "stop_sequence"}
_CALLED = {"tool_calls", "tool_call", "tool_use", "function_call"}
_CUT = {"length", "max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"}
_WINDOW_FULL = "model_context_window_exceeded"


@dataclass(frozen=True)
class Reading:
    """A usable answer's turn, or the `problem` with the answer; `is_cut`: it ended at the token limit."""

    turn: Turn | None = None
    problem: str | None = None
    is_cut: bool = False


class AnswerReader:
    """Reads the answers to the questions of one trace.

    Args:
        tools: the definitions that the teachers were offered.
        protocol: how an agent without tool calls writes its commands (`shell_commands.PROTOCOLS`). A command that is
            written so becomes the call that the log's reader made of the student's.
    """

    def __init__(self, tools: Sequence[dict[str, Any]], protocol: str | None = None) -> None:
        self._protocol = protocol
        self._checks = CallChecks([SHELL_TOOL] if protocol is not None else tools)

    def read(self, answer: Answer, max_output_tokens: int) -> Reading:
        """Return the answer's turn, or why it cannot be used. Unusable answers stay stored: they are not paid for
        again."""
        finish = answer.finish.lower()
        if finish in _CUT or finish == _WINDOW_FULL or (not finish and answer.tokens.completion >= max_output_tokens):
            return Reading(
                problem=f"the answer was cut at {max_output_tokens} tokens: raise max_output_tokens", is_cut=True
            )
        if finish not in _STOPPED | _CALLED:
            return Reading(problem=f"the endpoint broke the answer off, or kept it back ({finish[:40]})")
        if not render_action(answer.turn).strip():
            return Reading(problem="the answer is empty")
        if (problem := self._checks.problem(answer.turn)) is not None:
            return Reading(problem=problem)
        return Reading(answer.turn) if self._protocol is None else _as_call(answer.turn, self._protocol)


def _as_call(turn: Turn, protocol: str) -> Reading:
    """Return a turn with its command both as text and as a call, whichever of them it has."""
    commands = [call.arguments["command"] for call in turn.tool_calls] or commands_in(turn.content, protocol)
    if len(commands) != 1:
        found = f"{len(commands)} commands where the prompt asks for one"
        return Reading(
            problem=f"the answer has {found if commands else 'no command in the form that the prompt asks for'}"
        )
    content = with_command(turn.content, commands[0], protocol)
    return Reading(msgspec.structs.replace(turn, content=content, tool_calls=[shell_call(commands[0], "call_0")]))


class CallChecks:
    """Checks calls: their arguments are a JSON object, their tools were offered, and they fit the schemas.

    An inferred definition is checked for its name alone. Without tools, nothing is known about names.

    Raises:
        MissingExtraError: there are schemas, and the extra "replay" is not installed.
    """

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        self._validators: dict[str, Any] = {}
        for tool in complete_tools(tools, ()):
            function = tool["function"]
            self._validators[function["name"]] = None if is_inferred(tool) else _validator(function["parameters"])

    def problem(self, turn: Turn) -> str | None:
        """Return what is wrong with the first invalid call of a turn; None if all are valid."""
        return next((problem for call in turn.tool_calls if (problem := self._of_call(call)) is not None), None)

    def _of_call(self, call: ToolCall) -> str | None:
        if call.raw_arguments is not None:
            return f"the answer's call of {call.name} has arguments that are no JSON object"
        if self._validators and call.name not in self._validators:
            return f"the answer calls {call.name}, which is none of the tools that were offered"
        validator = self._validators.get(call.name)
        # None for an optional argument counts as absent.
        given = {name: value for name, value in call.arguments.items() if value is not None}
        misfit = None if validator is None else _misfit(validator, given)
        return None if misfit is None else f"the answer's call of {call.name} does not fit the tool: {misfit}"


def _validator(schema: dict[str, Any]) -> Any:
    jsonschema = require("jsonschema", "replay")
    referencing = require("referencing", "replay")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # An empty registry: without one, a schema behind a URL would be fetched.
    return kind(schema, registry=referencing.Registry())


def _misfit(validator: Any, arguments: dict[str, Any]) -> str | None:
    """Return where arguments break a schema, without their values; None if they fit, or if the schema is invalid."""
    try:
        error = next(validator.iter_errors(arguments), None)
    except Exception:  # noqa: BLE001 - an invalid schema fails in as many ways as there are keywords
        return None
    if error is None:
        return None
    place = ".".join(str(key) for key in error.absolute_path)
    if error.validator == "required":
        return f"{place}: {error.message}" if place else str(error.message)
    return f"{place or 'its arguments'} ({error.validator})"


class Gate(Protocol):
    """A gate of the user's, called before every teacher, cheapest first: `answers` are the rows so far, `remaining` the
    slugs of the teachers that were not asked yet. False asks none of them."""

    def __call__(
        self, state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /
    ) -> bool | Awaitable[bool]: ...


GateChoice: TypeAlias = "Literal['none', 'sequential'] | Gate | SequentialGate"
StepGate: TypeAlias = Callable[[Step, Sequence[TeacherRow], Sequence[str]], bool | Awaitable[bool]]
"""A gate as the scheduler calls it."""


class SequentialGate:
    """Stops when no answer that is still to come can change whether there is a pair, or which action wins it.

    So no pair is lost; it may be supported by fewer teachers than it would have with all of them asked.
    """

    def __init__(self, same: Comparer, *, threshold: int = 2, min_margin: int = 0) -> None:
        self._same = same
        self._threshold = threshold
        self._min_margin = min_margin

    def __call__(self, step: Step, rows: Sequence[TeacherRow], remaining: Sequence[str], /) -> bool:
        if not action_text(step.turn).strip():
            return False  # there is nothing to reject
        usable = [(row.teacher_slug, row.turn) for row in rows if row.error is None and row.turn is not None]
        answers = [(teacher, bare_action(turn)) for teacher, turn in usable]
        return self._is_open(Tally.of(bare_action(step.turn), answers, self._same), len(remaining))

    def fewest_asked(self, teachers: int) -> int:
        """Return the least number of teachers that are asked where the student did something."""
        # It is decided soonest if all teachers did what the student did.
        decided = (asked for asked in range(teachers) if not self._is_open(Tally((), ("",) * asked), teachers - asked))
        return next(decided, teachers)

    def _is_open(self, tally: Tally, remaining: int) -> bool:
        verdict = decide(tally, self._threshold, self._min_margin, remaining)
        if verdict.outcome == "pair":
            # Of actions that are equally supported, the one of the teacher that stands first wins, and teachers are
            # asked in another order than they stand in: a tie has to be ruled out.
            others = [len(rival.teachers) for index, rival in enumerate(tally.rivals) if index != verdict.leader]
            return max(others, default=0) + remaining >= verdict.support
        return verdict.outcome == "open"


def gate_for(
    choice: GateChoice, comparer: Callable[[], Comparer], *, threshold: int, min_margin: int
) -> StepGate | None:
    """Return the gate that an argument names; None asks every teacher at once. The comparer is made only if needed.

    Raises:
        ValueError: neither a known name nor callable.
    """
    if choice == "none":
        return None
    if choice == "sequential":
        return SequentialGate(comparer(), threshold=threshold, min_margin=min_margin)
    if isinstance(choice, SequentialGate):
        return choice
    if isinstance(choice, str) or not callable(choice):
        raise ValueError(f"gate must be 'none', 'sequential' or a callable, not {choice!r}")
    given = choice
    return lambda step, rows, remaining: given(step.state(), [row.result() for row in rows], remaining)
