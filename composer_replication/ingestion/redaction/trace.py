"""Redaction of a whole trace, in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from composer_replication.ingestion.redaction.redactor import Redactor
from composer_replication.traces import Trace

# Says that what follows is a branch, whose name may begin with a login.
_BRANCH = "refs/heads/"


def redact_trace(trace: Trace) -> Counter[str]:
    """Replace secrets and personal data in everything the trace says; the result counts replacements by kind.

    Ids, time stamps and names of tools, models and formats stay as they are.
    """
    redactor = Redactor()
    _visit(trace, redactor.text, redactor.value)
    if redactor.spreads:
        # A secret or a login may stand somewhere before the place that gave it away.
        _visit(trace, redactor.again, redactor.value_again)
    return redactor.counts


def _visit(trace: Trace, text: Callable[[str], str], value: Callable[[Any], Any]) -> None:
    # The working directory comes first: from it the redactor learns the user's name as it is really spelled.
    if trace.cwd:
        trace.cwd = text(trace.cwd)
    trace.source.file = text(trace.source.file)
    if trace.git_branch:
        trace.git_branch = text(f"{_BRANCH}{trace.git_branch}").removeprefix(_BRANCH)
    for turn in trace.turns:
        turn.content = text(turn.content)
        if turn.thinking:
            turn.thinking = text(turn.thinking)
        if turn.tool_error:
            turn.tool_error = text(turn.tool_error)
        if turn.error_meta:
            turn.error_meta = value(turn.error_meta)
        for call in turn.tool_calls:
            call.arguments = value(call.arguments)
            if call.raw_arguments:
                call.raw_arguments = text(call.raw_arguments)
    if trace.tools:
        trace.tools = value(trace.tools)
    if trace.meta:
        trace.meta = value(trace.meta)
