"""Ways to run a replay that tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from teacher_replay.loopback_teacher import LoopbackTeachers, states_of

from composer_replication.teacher_replay.ledger import Ledger
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.replay_report import ReplayReport
from composer_replication.teacher_replay.schedule import ReplayOptions, open_replay, replay_trace
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import TraceState

OPTIONS: dict[str, Any] = {"backoff": 0.0, "agreement": "exact"}
PRICES = {"input_per_mtok": 2, "output_per_mtok": 10}


def replayed(states: Iterable[TraceState], specs: Sequence[Any], **options: Any) -> list[TeacherCallResult]:
    return asyncio.run(replay_trace(states, specs, **{**OPTIONS, **options}))


def opened(specs: Sequence[Any], *, on_result: Any = None, stop: Any = None, **options: Any) -> Any:
    given = ReplayOptions(**{**OPTIONS, **options})
    return open_replay(resolve_teachers(specs), given, on_result=on_result, stop=stop)


def report_of(
    traces: Iterable[TraceToReplay], specs: Sequence[Any], on_result: Any = None, **options: Any
) -> ReplayReport:
    async def run() -> ReplayReport:
        async with opened(specs, on_result=on_result, **options) as replay:
            async for _ in replay.run(traces):
                pass
        return cast(ReplayReport, replay.report)

    return asyncio.run(run())


def dollars(server: LoopbackTeachers, **prices: float) -> list[dict[str, Any]]:
    """Teachers by name, each with one price for all tokens."""
    return [server.spec(name, input_per_mtok=price, output_per_mtok=price) for name, price in prices.items()]


def balance(ledger: Path) -> Any:
    with Ledger(ledger) as opened:
        return opened.balance("replay")


def numbered(count: int, **options: Any) -> list[TraceState]:
    return states_of(*(f"question {number}" for number in range(count)), **options)
