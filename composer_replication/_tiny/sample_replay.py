"""The sample traces' wrong calls, replayed with local teachers over HTTP: the preference pairs of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication._optional import MissingExtraError
from composer_replication._tiny.local_teachers import LOCAL_TEACHERS
from composer_replication.batch import VARIANTS, SampleTrace, sample_trace
from composer_replication.replaysim.normalize import DJNormalizer
from composer_replication.teacher_replay.pairs import extract_dpo_pairs
from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult
from composer_replication.teacher_replay.replay import replay_trace
from composer_replication.teacher_replay.serving import LocalTeachers
from composer_replication.teacher_replay.teachers import TeacherSpec
from composer_replication.traces import Message, Source, ToolCall, Trace, TraceState, Turn


@dataclass(frozen=True)
class SampleReplay:
    """What the teachers made of the sample traces.

    `pairs` has what is left in the end, by the variant of its trace. `by_meaning` and `by_text` are how many pairs
    there are if actions are compared by what they do, and by their text. `recipe` is the recipe that they went
    through; None: data-juicer is not installed, and all of them are left.
    """

    base_url: str
    teachers: list[str]
    states: list[TraceState]
    answers: list[TeacherCallResult]
    by_meaning: int
    by_text: int
    recipe: str | None
    pairs: dict[str, DPOPair]

    @property
    def cost_usd(self) -> float:
        """What the calls cost."""
        return sum(row["cost_usd"] for row in self.answers)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "base_url": self.base_url,
            "teachers": self.teachers,
            "states": len(self.states),
            "calls": len(self.answers),
            "cost_usd": self.cost_usd,
            "pairs_by_meaning": self.by_meaning,
            "pairs_by_text": self.by_text,
            "recipe": self.recipe,
            "pairs": [
                {"trace": trace, **{key: pair[key] for key in ("chosen", "rejected", "teachers", "margin")}}
                for trace, pair in self.pairs.items()
            ],
        }


def replay_samples(seed: int = 0, teachers: Mapping[str, Callable[..., Any]] = LOCAL_TEACHERS) -> SampleReplay:
    """Serve teachers on 127.0.0.1, ask them what they would do where the sample traces go wrong, and make pairs.

    Not to be called where an event loop runs.

    Args:
        seed: of the traces, as in `build_batch`.
        teachers: functions (see `CallableTeacher`) by name.

    Raises:
        MissingExtraError: the extra "replay" is not installed.
        RuntimeError: a call failed.
    """
    samples = {variant: sample_trace(variant, seed) for variant in VARIANTS}
    states = {variant: list(_trace(variant, sample).states()) for variant, sample in samples.items()}
    with LocalTeachers(teachers) as server:
        specs: list[TeacherSpec] = [{"slug": name, "base_url": server.base_url} for name in server.models]
        answers = {
            # No second tries: a function that fails would fail again.
            variant: asyncio.run(
                replay_trace(states[variant], specs, max_total_usd=0.0, tools=sample.tools, max_retries=0)
            )
            for variant, sample in samples.items()
        }
    pairs: dict[str, DPOPair] = {}
    by_text = 0
    for variant, rows in answers.items():
        # An answer that makes a call which nobody offered has no vote; it was an answer all the same.
        if failed := [row for row in rows if row["error"] is not None and not row["completion_tokens"]]:
            first = f"{failed[0]['teacher_slug']}: {failed[0]['error']}"
            raise RuntimeError(f"{len(failed)} of {len(rows)} calls to local teachers failed on {variant}; {first}")
        by_text += len(extract_dpo_pairs(states[variant], rows))
        for pair in extract_dpo_pairs(states[variant], rows, agreement="action"):
            pairs[variant] = pair
    recipe, kept = _normalized(pairs)
    return SampleReplay(
        base_url=server.base_url,
        teachers=server.models,
        states=[state for its_states in states.values() for state in its_states],
        answers=[row for rows in answers.values() for row in rows],
        by_meaning=len(pairs),
        by_text=by_text,
        recipe=recipe,
        pairs=kept,
    )


def _trace(variant: str, sample: SampleTrace) -> Trace:
    """The trace up to its wrong call: what came of it is nothing that a teacher may see."""
    turns = [_turn(message) for message in sample.messages[: sample.erring_message + 1]]
    return Trace(variant, turns, Source("sample", "sample"), tools=sample.tools)


def _turn(message: Message) -> Turn:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [ToolCall(f"call_{place}", one["name"], one["arguments"]) for place, one in enumerate(functions)]
    return Turn(message["role"], message["content"], tool_calls=calls)


def _normalized(pairs: Mapping[str, DPOPair]) -> tuple[str | None, dict[str, DPOPair]]:
    """The name of the default recipe, and the pairs that it keeps; without data-juicer, None and all of them."""
    try:
        normalizer = DJNormalizer()
    except MissingExtraError:
        return None, dict(pairs)
    kept = {pair.state_id for pair in normalizer.normalize(pairs.values())}
    assert normalizer.report is not None
    return normalizer.report.recipe, {variant: pair for variant, pair in pairs.items() if pair["state_id"] in kept}
