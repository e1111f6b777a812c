"""Which call a result answers, in logs that leave ids out or use them again."""

from __future__ import annotations

from collections.abc import Container

from composer_replication.traces import ToolCall, Turn


def distinct_id(wanted: str, taken: Container[str]) -> str:
    """The id, or where it is taken `id#2`, `id#3`, …"""
    call_id, number = wanted, 2
    while call_id in taken:
        call_id = f"{wanted}#{number}"
        number += 1
    return call_id


class OpenCalls:
    """Calls that wait for a result. An id that a log uses again is made different, so that results stay with theirs."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._logged: dict[str, str] = {}
        self._latest: dict[str, str] = {}

    def made(self, turn: Turn) -> None:
        """Take in the calls of a new turn; calls of earlier turns wait no longer for results that have no id."""
        self.waiting = []
        for call in turn.tool_calls:
            self.add(call)

    def add(self, call: ToolCall) -> None:
        """Take in one more call of the latest turn."""
        logged = call.id
        call.id = distinct_id(logged, self._logged)
        self._logged[call.id] = logged
        self._latest[logged] = call.id
        self.waiting.append(call.id)

    def answered(self, call_id: str | None) -> str | None:
        """The id in the trace of the call that a result with this id in the log answers."""
        open_ones = [one for one in self.waiting if call_id in (one, self._logged[one])]
        if not open_ones:
            return self._latest.get(call_id, call_id) if call_id is not None else None
        self.waiting.remove(open_ones[0])
        return open_ones[0]
