"""What became of the states and rows that pairs were looked for in."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from composer_replication.teacher_replay.agreement.votes import Tally, Verdict
from composer_replication.teacher_replay.records import DPOPair


@dataclass
class TeacherVotes:
    """One teacher's answers: how many there are, how many did what the student did, how many are behind a pair."""

    answers: int = 0
    with_student: int = 0
    in_pairs: int = 0


@dataclass
class PairReport:
    """The pairs, and counts of what they were made from.

    Every state with an answer is a pair or in one of `below_threshold` (no rival action had enough teachers),
    `below_margin` (the next best action, or the student's own, had too many) and `no_student_action` (the student's
    turn holds thinking at most: there is nothing to reject).

    `histogram` counts the states with answers by the teachers behind their leading rival; `ties` are states where
    several rivals have that many, and enough of them; `student_supported`, states where teachers did what the student
    did and no rival had more. Rows: `unknown_rows` are of states that were not given, `failed_rows` have an error, no
    action or a call that cannot be made, `repeated_rows` replace an earlier answer of the same teacher.
    """

    pairs: list[DPOPair] = field(default_factory=list)
    states: int = 0
    states_with_answers: int = 0
    below_threshold: int = 0
    below_margin: int = 0
    no_student_action: int = 0
    ties: int = 0
    student_supported: int = 0
    unknown_rows: int = 0
    failed_rows: int = 0
    repeated_rows: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    by_teacher: dict[str, TeacherVotes] = field(default_factory=dict)
    pair_count: int = 0

    def count(self, tally: Tally, verdict: Verdict, threshold: int, *, has_student_action: bool) -> bool:
        """Count a state that has answers; returns whether it makes a pair."""
        self.states_with_answers += 1
        self.histogram[verdict.support] += 1
        enough = verdict.support >= threshold
        is_pair = verdict.outcome == "pair" and has_student_action
        self.ties += enough and verdict.tie
        self.student_supported += bool(tally.with_student) and len(tally.with_student) >= verdict.support
        self.no_student_action += not has_student_action
        self.below_threshold += has_student_action and not enough
        self.below_margin += has_student_action and enough and not is_pair
        self.pair_count += is_pair
        for teacher in tally.with_student:
            self._votes(teacher).with_student += 1
        for place, rival in enumerate(tally.rivals):
            for teacher in rival.teachers:
                self._votes(teacher).in_pairs += is_pair and place == verdict.leader
        for teacher in (*tally.with_student, *(teacher for rival in tally.rivals for teacher in rival.teachers)):
            self._votes(teacher).answers += 1
        return is_pair

    def add(self, other: PairReport, *, keep_pairs: bool = True) -> None:
        """Add another report's counts to this one, and its pairs unless they are written elsewhere."""
        if keep_pairs:
            self.pairs.extend(other.pairs)
        for one in fields(self):
            if one.name not in ("pairs", "histogram", "by_teacher"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.histogram.update(other.histogram)
        for teacher, votes in other.by_teacher.items():
            mine = self._votes(teacher)
            mine.answers += votes.answers
            mine.with_student += votes.with_student
            mine.in_pairs += votes.in_pairs

    def as_dict(self) -> dict[str, Any]:
        """The counts, for JSON; "pairs" is how many there are."""
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("pairs", "pair_count")}
        counts["histogram"] = {str(support): count for support, count in sorted(self.histogram.items())}
        counts["by_teacher"] = {teacher: asdict(votes) for teacher, votes in sorted(self.by_teacher.items())}
        return {"pairs": self.pair_count, **counts}

    def _votes(self, teacher: str) -> TeacherVotes:
        return self.by_teacher.setdefault(teacher, TeacherVotes())
