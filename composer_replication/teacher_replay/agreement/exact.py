"""Actions are the same if they are the same text, whatever the white space."""

from __future__ import annotations

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.traces import Turn, action_text


class ExactComparer:
    """Equality of the texts with every run of white space taken for one space; thinking does not count."""

    def __call__(self, first: Turn, second: Turn, /) -> Comparison:
        same = action_text(first).split() == action_text(second).split()
        return Comparison(same, float(same))

    def __repr__(self) -> str:
        return "ExactComparer()"
