"""The pairs of a replay on disk, one trace in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

from composer_replication.teacher_replay.families import shared_family
from composer_replication.teacher_replay.pair_report import PairReport
from composer_replication.teacher_replay.pairs import Agreement, extract_pairs_with_report
from composer_replication.teacher_replay.records import DPOPair
from composer_replication.teacher_replay.replay import TraceToReplay
from composer_replication.teacher_replay.replay_folder import AnswerIndex, ReplayFolder
from composer_replication.teacher_replay.sources import traces_to_replay
from composer_replication.teacher_replay.tool_schemas import complete_tools


class ReplayedPairs:
    """Iterate over it once: pairs come in the order of the traces, while `report` and `same_family` fill.

    Args:
        traces: what was replayed, as `replay` took it.
        folder: what `replay` wrote.
        exclude_same_family: rows of teachers that are of a trace's student family do not vote on it.
    """

    def __init__(
        self,
        traces: str | os.PathLike[str],
        folder: ReplayFolder,
        *,
        agreement: Agreement = "action",
        agreement_threshold: int = 2,
        min_margin: int = 0,
        exclude_same_family: bool = False,
    ) -> None:
        self.report = PairReport()
        self.same_family: dict[str, str] = {}
        self._traces = traces
        self._options = folder.state_options()
        self._families = folder.teacher_families()
        self._answers = AnswerIndex(folder.answers)
        self._agreement = agreement
        self._threshold = agreement_threshold
        self._min_margin = min_margin
        self._exclude = exclude_same_family

    def __iter__(self) -> Iterator[DPOPair]:
        for trace in traces_to_replay(self._traces, self._options):
            report = self._of_trace(trace)
            self.report.add(report, keep_pairs=False)
            yield from report.pairs

    def _of_trace(self, trace: TraceToReplay) -> PairReport:
        shared = {slug: shared_family(its, trace.student_models) for slug, its in self._families.items()}
        related = {slug: family for slug, family in shared.items() if family is not None}
        rows = list(self._answers.rows(state["state_id"] for state in trace.states))
        present = {row["teacher_slug"] for row in rows}
        self.same_family.update({slug: family for slug, family in related.items() if slug in present})
        if self._exclude:
            rows = [row for row in rows if row["teacher_slug"] not in related]
        return extract_pairs_with_report(
            trace.states,
            rows,
            self._threshold,
            agreement=self._agreement,
            min_margin=self._min_margin,
            tools=complete_tools(trace.tools, trace.states),
        )
