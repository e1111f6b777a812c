"""Every hint that training would give, with the turn it is for, to be read before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from composer_replication.ingestion.error_sites import CallSite
from composer_replication.ingestion.explanation import call_in_words, failing_line
from composer_replication.traces import Trace


class ListedHint(TypedDict):
    """A hint, where it belongs, and what it was made of. `reported_by` is the turn whose result showed the error, if
    it is not the call's own."""

    trace: str
    file: str
    turn: int
    line: int | None
    kind: str
    tool: str
    call: str
    error: str
    reported_by: int | None
    hint: str


class HintList:
    """The hints of many traces, and how much went without one."""

    def __init__(self) -> None:
        self.hints: list[ListedHint] = []
        self.without_hint = 0
        self.outcomes_not_charged = 0

    def add(self, trace: Trace, sites: Iterable[CallSite]) -> None:
        """Take in the sites of a trace."""
        for site in sites:
            if site.answer is not None and site.answer.outcome and not site.answer.charged_to:
                self.outcomes_not_charged += 1
            if site.charged_as is None:
                continue
            if (hint := site.hint) is None:
                self.without_hint += 1
                continue
            self.hints.append(
                ListedHint(
                    trace=trace.trace_id,
                    file=trace.source.file,
                    turn=site.index,
                    line=site.turn.line,
                    kind=site.charged_as,
                    tool=site.tool,
                    call=call_in_words(site.call) if site.call is not None else "",
                    error=failing_line(site.turn),
                    reported_by=site.reported_by,
                    hint=hint,
                )
            )
