"""Actions are the same if they are the same text, whatever the white space."""

from __future__ import annotations

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.traces import without_thinking


class ExactComparer:
    """Equality of the texts with every run of white space taken for one space; thinking does not count."""

    def __call__(self, first: str, second: str, /) -> Comparison:
        same = first == second or _normalised(first) == _normalised(second)
        return Comparison(same, float(same))

    def __repr__(self) -> str:
        return "ExactComparer()"


def _normalised(action: str) -> list[str]:
    return without_thinking(action).split()
