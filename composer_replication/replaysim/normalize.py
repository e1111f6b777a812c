"""From a trace to normalised pairs in one call: replay it, keep what teachers agree on, run the recipe."""

from __future__ import annotations

import asyncio
from typing import Any

from composer_replication.replaysim.normalizer import DJNormalizer
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.records import TeacherCallResult
from composer_replication.traces import Step

__all__ = ["DJNormalizer", "NormalizedDPOPair", "replay_and_normalize_trace", "replay_and_normalize_trace_sync"]


async def replay_and_normalize_trace(
    *,
    states: Any,
    teachers: Any = None,
    agreement_threshold: int = 2,
    max_total_usd: float = 5.0,
    normalizer: DJNormalizer | None = None,
    **replay_kwargs: Any,
) -> tuple[list[TeacherCallResult], list[NormalizedDPOPair]]:
    """Replay a trace, extract pairs and normalise them.

    Args:
        states: the steps of one trace (`Sequence[TraceState]`).
        teachers: for `replay_trace`; its defaults if None.
        agreement_threshold: how many teachers must agree on a pair's chosen action.
        max_total_usd: the cap on what the teachers may cost.
        normalizer: `DJNormalizer()` if None; made before a teacher is asked, so that a wrong recipe costs nothing.
        replay_kwargs: for `replay_trace` (`api_key`, `ledger`, `gate`, `tools`, ...). What decides agreement
            (`agreement`, by default "action": teachers word things freely; `min_margin`) goes to `extract_dpo_pairs`
            as well.

    Returns:
        Every answer of the teachers, and the pairs that are left; `normalizer.report` says what was dropped and why.
    """
    from composer_replication.teacher_replay.pairs import extract_dpo_pairs
    from composer_replication.teacher_replay.schedule import replay_trace
    from composer_replication.teacher_replay.tool_schemas import complete_tools

    normalizer = DJNormalizer() if normalizer is None else normalizer
    if teachers is not None:
        replay_kwargs["teachers"] = teachers
    agreement = {
        "agreement": replay_kwargs.pop("agreement", "action"),
        "agreement_threshold": agreement_threshold,
        "min_margin": replay_kwargs.pop("min_margin", 0),
    }
    states = list(states)
    answers = await replay_trace(states, max_total_usd=max_total_usd, **agreement, **replay_kwargs)
    tools = complete_tools(replay_kwargs.get("tools", ()), [Step.of(state) for state in states])
    pairs = extract_dpo_pairs(states, answers, tools=tools, **agreement)
    # In a thread: an engine may take a minute, and the event loop may have others to serve.
    return answers, await asyncio.to_thread(normalizer.normalize, pairs)


def replay_and_normalize_trace_sync(
    *args: Any, **kwargs: Any
) -> tuple[list[TeacherCallResult], list[NormalizedDPOPair]]:
    """`replay_and_normalize_trace` for callers without an event loop.

    Raises:
        RuntimeError: there is one; await the other instead.
    """
    return asyncio.run(replay_and_normalize_trace(*args, **kwargs))
