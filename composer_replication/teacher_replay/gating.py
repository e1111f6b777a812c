"""Gates: whether the next teacher is worth asking, given what the others did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from composer_replication.teacher_replay.agreement.comparison import Comparer
from composer_replication.teacher_replay.agreement.votes import Tally, decide
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.traces import TraceState, without_thinking


class Gate(Protocol):
    """Asked before every teacher, cheapest first: `answers` are the rows so far, `remaining` the slugs of the teachers
    that were not asked yet. False asks none of them."""

    def __call__(
        self, state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /
    ) -> bool | Awaitable[bool]: ...


GateChoice: TypeAlias = Literal["none", "sequential"] | Gate


class SequentialGate:
    """Stops when no answer that is still to come can change whether there is a pair, or which action wins it.

    So no pair is lost; it may be supported by fewer teachers than it would have with all of them asked.
    """

    def __init__(self, same: Comparer, *, threshold: int = 2, min_margin: int = 0) -> None:
        self._same = same
        self._threshold = threshold
        self._min_margin = min_margin

    def __call__(self, state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /) -> bool:
        given = [
            (row["teacher_slug"], without_thinking(row["response_text"]))
            for row in answers
            if row["error"] is None and row["response_text"]
        ]
        student = without_thinking(state["student_action"])
        if not student.strip():
            return False  # there is nothing to reject
        tally = Tally.of(student, given, self._same)
        return decide(tally, self._threshold, self._min_margin, remaining=len(remaining)).outcome == "open"


def gate_for(choice: GateChoice, comparer: Callable[[], Comparer], *, threshold: int, min_margin: int) -> Gate | None:
    """The gate that an argument means; None asks every teacher at once. The comparer is made only if it is needed.

    Raises:
        ValueError: neither a known name nor callable.
    """
    if choice == "none":
        return None
    if choice == "sequential":
        return SequentialGate(comparer(), threshold=threshold, min_margin=min_margin)
    if isinstance(choice, str) or not callable(choice):
        raise ValueError(f"gate must be 'none', 'sequential' or a callable, not {choice!r}")
    return choice
