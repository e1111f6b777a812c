"""The pairs of a replay on disk, one trace in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from composer_replication.teacher_replay.agreement.comparison import JudgedComparer
from composer_replication.teacher_replay.gate_settings import pair_rule
from composer_replication.teacher_replay.pair_report import PairReport
from composer_replication.teacher_replay.pairs import Agreement, comparer_for, extract_by_rule
from composer_replication.teacher_replay.records import DPOPair
from composer_replication.teacher_replay.replay_files import AnswerIndex, ReplayFolder, TraceToReplay, traces_to_replay
from composer_replication.teacher_replay.teachers import shared_family
from composer_replication.teacher_replay.tool_schemas import complete_tools
from composer_replication.traces import action_text


@dataclass
class Unfinished:
    """What a replay has not done. `states_not_asked` have no row; the rest is of its last run. `limit` is how many
    states that was to replay, None for all of them."""

    stopped: bool = False
    limit: int | None = None
    states_not_asked: int = 0
    not_asked_for_money: int = 0
    left_alone: dict[str, str] = field(default_factory=dict)

    def told(self, states: int) -> str | None:
        """It in one line, of so many states; None if nothing is missing."""
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
    """Iterate over it once: pairs come in the order of the traces, while `report`, `same_family` and `unfinished` fill.

    Args:
        traces: what was replayed, as `replay` took it.
        folder: what `replay` wrote.
        agreement, agreement_threshold, min_margin: see `extract_dpo_pairs`. None: as the replay was gated; "action", 2
            and 0 if it was not.
        exclude_same_family: rows of teachers that are of a trace's student family do not vote on it.
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
        self.unfinished = _left_by(folder.last_report(), folder.limit())

    def __iter__(self) -> Iterator[DPOPair]:
        for trace in traces_to_replay(self._traces, self._options):
            report = self._of_trace(trace)
            self.report.add(report, keep_pairs=False)
            yield from report.pairs

    def warnings(self) -> list[str]:
        """What should be known of the pairs, a line each."""
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
        states, results = [step.state() for step in trace.steps], [row.result() for row in rows]
        return extract_by_rule(states, results, self._rule, tools=complete_tools(trace.tools, trace.steps))


def _left_by(report: dict[str, Any], limit: int | None) -> Unfinished:
    teachers = report.get("teachers")
    reasons = {
        slug: use["left_alone"]
        for slug, use in (teachers.items() if isinstance(teachers, dict) else ())
        if isinstance(use, dict) and use.get("left_alone")
    }
    return Unfinished(
        stopped=bool(report.get("stopped")),
        limit=limit,
        not_asked_for_money=report.get("not_asked_for_money") or 0,
        left_alone=reasons,
    )
