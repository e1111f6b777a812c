"""Which sessions are held out: a share of them by a hash of their id, the same in training and in evaluation.

A session is never divided: the sub-agents that it started belong to it, and so do the pairs of all its turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from composer_replication.teacher_replay.records import Pair
from composer_replication.traces import Trace


def is_held_out(session: str, share: float) -> bool:
    """Whether a session is among those held out. A larger share holds out more, and the same ones too."""
    return int(hashlib.sha256(session.encode()).hexdigest()[:8], 16) < share * 16**8


class Sessions:
    """The session that each trace belongs to: that of the trace which started it, by the log's id or the trace's own.

    A trace that is not among the given ones is a session of its own.
    """

    def __init__(self, traces: Iterable[Trace] = ()) -> None:
        self._known: dict[str, tuple[str | None, str | None]] = {}
        self._by_log_id: dict[str, str] = {}
        for trace in traces:
            self._known[trace.trace_id] = trace.session_id, trace.parent
            if trace.session_id is not None and trace.parent is None:
                self._by_log_id[trace.session_id] = trace.trace_id

    def of(self, trace_id: str) -> str:
        """Return the id of the session that a trace belongs to."""
        seen = {trace_id}
        while True:
            log_id, parent = self._known.get(trace_id, (None, None))
            # Some logs name the parent's file, others its session; ids begin with the key of a source.
            above = parent if parent in self._known else self._by_log_id.get((parent or "").partition(":")[2])
            if above is None or above in seen:
                return log_id or trace_id
            seen.add(above)
            trace_id = above

    def of_pair(self, pair: Any) -> str | None:
        """Return the session that a pair comes from; None if the pair does not say (as in TRL's format)."""
        return self.of(pair.state_id.rpartition("::")[0]) if isinstance(pair, Pair) else None
