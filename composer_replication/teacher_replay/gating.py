"""Gates: whether the next teacher is worth asking, given what the others did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from composer_replication.teacher_replay.agreement.comparison import Comparer
from composer_replication.teacher_replay.agreement.votes import Tally, decide
from composer_replication.teacher_replay.records import TeacherCallResult, TeacherRow
from composer_replication.traces import Step, TraceState, action_text


class Gate(Protocol):
    """A gate of the user's, called before every teacher, cheapest first: `answers` are the rows so far, `remaining` the
    slugs of the teachers that were not asked yet. False asks none of them."""

    def __call__(
        self, state: TraceState, answers: Sequence[TeacherCallResult], remaining: Sequence[str], /
    ) -> bool | Awaitable[bool]: ...


GateChoice: TypeAlias = Literal["none", "sequential"] | Gate
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
        answers = [(row.teacher_slug, row.turn) for row in rows if row.error is None and row.turn is not None]
        return self._is_open(Tally.of(step.turn, answers, self._same), len(remaining))

    def fewest_asked(self, teachers: int) -> int:
        """How many of so many teachers are asked at least, where the student did something."""
        # No answers decide sooner than those that are all the student's.
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
    given = choice
    return lambda step, rows, remaining: given(step.state(), [row.result() for row in rows], remaining)
