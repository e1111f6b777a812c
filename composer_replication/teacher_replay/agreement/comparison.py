"""The interface of comparers, and the two that need no rules: equality of texts, and a judge for what looks alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple, Protocol

from composer_replication.traces import Turn, action_text


class Comparison(NamedTuple):
    """Whether two actions are the same in meaning, and how alike they are (0 to 1)."""

    same: bool
    similarity: float


class Comparer(Protocol):
    """Compares what two turns of an assistant do."""

    def __call__(self, first: Turn, second: Turn, /) -> Comparison: ...


class ExactComparer:
    """Equality of the texts with every run of white space taken for one space; thinking does not count."""

    def __call__(self, first: Turn, second: Turn, /) -> Comparison:
        same = action_text(first).split() == action_text(second).split()
        return Comparison(same, float(same))

    def __repr__(self) -> str:
        return "ExactComparer()"


class JudgedComparer:
    """A comparer that puts its doubts to a judge.

    Asked are pairs that `comparer` says are not the same, that are at least `low` alike, and that call the same tools
    (or none on either side). Each pair is asked once, in whichever order it comes; a judge that has no answer (None)
    leaves them different, and is asked again next time.

    `asked` counts the questions, `said_same` the answers that made two actions one.

    Args:
        comparer: says what is the same beyond doubt.
        ask: gets two actions without their thinking, says whether they do the same; None if it cannot tell.
        low: from which similarity on it is asked.

    Raises:
        ValueError: `low` is not between 0 and 1.
    """

    def __init__(self, comparer: Comparer, ask: Callable[[str, str], bool | None], *, low: float = 0.5) -> None:
        if not 0 <= low <= 1:
            raise ValueError(f"low must be in [0, 1], got {low!r}")
        self.comparer = comparer
        self.low = low
        self.asked = 0
        self.said_same = 0
        self._ask = ask
        self._answers: dict[tuple[str, str], bool] = {}
        self._lock = Lock()

    def __call__(self, first: Turn, second: Turn, /) -> Comparison:
        found = self.comparer(first, second)
        if found.same or found.similarity < self.low:
            return found
        if _tools(first) != _tools(second):
            return found
        one, other = sorted((action_text(first), action_text(second)))
        return Comparison(self._judged(one, other), found.similarity)

    def _judged(self, one: str, other: str) -> bool:
        with self._lock:
            known = self._answers.get((one, other))
        if known is not None:
            return known
        answer = self._ask(one, other)
        with self._lock:
            self.asked += 1
            if answer is not None:
                self.said_same += answer
                self._answers[one, other] = answer
        return bool(answer)


def _tools(turn: Turn) -> Counter[str]:
    return Counter(call.name for call in turn.tool_calls)
