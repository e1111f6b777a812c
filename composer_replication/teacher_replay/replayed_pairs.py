"""The pairs of a replay on disk, with one trace in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from composer_replication.teacher_replay.agreement.comparison import JudgedComparer
from composer_replication.teacher_replay.pairs import Agreement, PairReport, comparer_for, extract_by_rule, pair_rule
from composer_replication.teacher_replay.records import Pair
from composer_replication.teacher_replay.replay_files import AnswerIndex, ReplayFolder, TraceToReplay, traces_to_replay
from composer_replication.teacher_replay.teachers import shared_family
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import action_text


@dataclass
class Unfinished:
    """The part of a replay that is missing. `states_not_asked` have no row; the rest is from its last run. `limit` is
    the number of states that run was limited to, None for all of them."""

    stopped: bool = False
    limit: int | None = None
    states_not_asked: int = 0
    not_asked_for_money: int = 0
    left_alone: dict[str, str] = field(default_factory=dict)

    @classmethod
    def after(cls, report: dict[str, Any], limit: int | None) -> Unfinished:
        """Return what the report of the last run says is missing."""
        teachers = report.get("teachers")
        reasons = {
            slug: use["left_alone"]
            for slug, use in (teachers.items() if isinstance(teachers, dict) else ())
            if isinstance(use, dict) and use.get("left_alone")
        }
        return cls(
            stopped=bool(report.get("stopped")),
            limit=limit,
            not_asked_for_money=report.get("not_asked_for_money") or 0,
            left_alone=reasons,
        )

    def told(self, states: int) -> str | None:
        """Describe it in one line, for a total of `states`; None if nothing is missing."""
        parts = [
            (self.stopped, "it was stopped early"),
            (self.limit, f"it was limited to {self.limit} states"),
            (self.states_not_asked, f"{self.states_not_asked:,} of {states:,} states were not asked"),
            (self.not_asked_for_money, f"{self.not_asked_for_money:,} calls were not made for want of money"),
            *((True, f"{slug} was given up ({reason})") for slug, reason in self.left_alone.items()),
        ]
        found = "; ".join(part for is_so, part in parts if is_so)
        return f"the replay is unfinished: {found}" if found else None


class ReplayedPairs:
    """The pairs of all traces, in order. Iterate once: `report`, `same_family` and `unfinished` are filled on the way.

    Args:
        traces: what was replayed, as `replay` took it.
        folder: what `replay` wrote.
        agreement, agreement_threshold, min_margin: see `extract_dpo_pairs`. None: as the replay was gated; "action", 2
            and 0 if it was not.
        exclude_same_family: teachers of the student's own model family do not vote on its trace.
        judge: is asked about near misses, see `JudgedComparer`.
    """

    def __init__(
        self,
        traces: str | os.PathLike[str],
        folder: ReplayFolder,
        *,
        agreement: Agreement | None = None,
        agreement_threshold: int | None = None,
        min_margin: int | None = None,
        exclude_same_family: bool = False,
        judge: Callable[[str, str], bool | None] | None = None,
    ) -> None:
        self.report = PairReport()
        self.same_family: dict[str, str] = {}
        self.judged: JudgedComparer | None = None
        self._traces = traces
        self._options = folder.state_options()
        self._families = folder.teacher_families()
        self._answers = AnswerIndex(folder.answers)
        self._rule = pair_rule(
            self._answers.gates, agreement, agreement_threshold, min_margin, default_agreement="action"
        )
        if judge is not None:
            self.judged = JudgedComparer(comparer_for(self._rule.agreement), judge)
            self._rule = self._rule._replace(agreement=self.judged)
        self._exclude = exclude_same_family
        self.unfinished = Unfinished.after(folder.last_report(), folder.limit())

    def __iter__(self) -> Iterator[Pair]:
        for trace in traces_to_replay(self._traces, self._options):
            report = self._of_trace(trace)
            self.report.add(report, keep_pairs=False)
            yield from report.pairs

    def warnings(self) -> list[str]:
        """Return what a user should know about the pairs, one line each."""
        told = (self._rule.warning, self.unfinished.told(self.report.states))
        return [line for line in told if line is not None]

    def _of_trace(self, trace: TraceToReplay) -> PairReport:
        shared = {slug: shared_family(its, trace.student_models) for slug, its in self._families.items()}
        related = {slug: family for slug, family in shared.items() if family is not None}
        rows = list(self._answers.rows(step.state_id for step in trace.steps))
        present = {row.teacher_slug for row in rows}
        self.same_family.update({slug: family for slug, family in related.items() if slug in present})
        asked = {row.state_id for row in rows}
        # Nobody is asked where the student did nothing.
        self.unfinished.states_not_asked += sum(
            step.state_id not in asked and bool(action_text(step.turn).strip()) for step in trace.steps
        )
        if self._exclude:
            rows = [row for row in rows if row.teacher_slug not in related]
        return extract_by_rule(trace.steps, rows, self._rule, tools=complete_tools(trace.tools, trace.steps))
