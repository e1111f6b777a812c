"""How often calls fail, and as what, by project, tool and model."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal, TypeAlias

from composer_replication.ingestion.error_sites import CallSite, call_sites
from composer_replication.traces import Trace

Side: TypeAlias = Literal["project", "tool", "model"]
SIDES: tuple[Side, ...] = ("project", "tool", "model")
FIGURES = ("calls", "failed", "outcomes", "charged", "masked", "hints")


class ErrorTable:
    """Counts of calls by project, tool and model.

    `failed` calls have an error as their result. Some of these are `outcomes` (right actions that report on earlier
    work; `charged` if their cause is known) or `masked` (the command hid its failure). `hints` are given for calls of
    the row. `kinds` counts the failed calls by kind.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]] = {}

    def add(self, trace: Trace) -> None:
        """Count a trace."""
        project = project_of(trace)
        for site in call_sites(trace):
            cell = (project, site.tool, site.turn.model or trace.model or "?")
            figures, kinds = self._cells.setdefault(cell, (Counter(), Counter()))
            figures.update(_figures(site))
            if site.failed_as is not None:
                kinds[site.failed_as] += 1

    def rows(self) -> list[dict[str, Any]]:
        """The whole cross-table."""
        return _rows(SIDES, self._cells)

    def by(self, side: Side) -> list[dict[str, Any]]:
        """One side of it, the others summed up."""
        summed: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]] = {}
        for cell, (figures, kinds) in self._cells.items():
            sums = summed.setdefault((cell[SIDES.index(side)],), (Counter(), Counter()))
            sums[0].update(figures)
            sums[1].update(kinds)
        return _rows((side,), summed)


def project_of(trace: Trace) -> str:
    """The name of the folder that the agent worked in; where the log does not say, of the folder that the log is in."""
    parts = [part for part in re.split(r"[/\\]", trace.cwd or trace.source.file) if part]
    return parts[-1 if trace.cwd else -2] if len(parts) > (not trace.cwd) else "?"


def _figures(site: CallSite) -> dict[str, int]:
    answer = site.answer
    return {
        "calls": int(site.call is not None),
        "failed": int(site.failed_as is not None),
        "outcomes": int(answer is not None and answer.outcome),
        "charged": int(answer is not None and bool(answer.charged_to)),
        "masked": int(answer is not None and answer.masked),
        "hints": int(site.hint is not None),
    }


def _rows(
    names: tuple[Side, ...], cells: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]]
) -> list[dict[str, Any]]:
    rows = [
        {
            **dict(zip(names, cell, strict=True)),
            **{name: figures[name] for name in FIGURES},
            "kinds": dict(kinds.most_common()),
        }
        for cell, (figures, kinds) in cells.items()
    ]
    return sorted(rows, key=lambda row: (-row["failed"], -row["calls"], *(row[name] for name in names)))
