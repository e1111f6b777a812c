"""Which turns of a rollout went wrong, whoever says so, and the hint for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.channels.hint_distillation import HintGenerator
from composer_replication.hint_generator import is_students_mistake
from composer_replication.trainer.rollouts.errors import is_cut_off, looks_like_call, tool_failures
from composer_replication.trainer.rollouts.feedback import Remark, remarks
from composer_replication.trainer.rollouts.hint_sites import HintOrigin
from composer_replication.trainer.rollouts.rollout import Rollout, SampledTurn


@dataclass(frozen=True)
class FailedTurn:
    """A turn, by its number in the rollout, and what would have helped it.

    `shown_later`: the turn after it did not see yet what was wrong with it, so it is no recovery.
    """

    turn: int
    kind: str
    source: HintOrigin
    hint: str
    shown_later: bool = False


def failed_turns(
    rollout: Rollout,
    turns: Sequence[SampledTurn],
    *,
    tokenizer: Any,
    hint_generator: HintGenerator,
    feedback: Any = None,
    reward_text: Any = None,
    counts: Counter[str],
) -> list[FailedTurn]:
    """The turns that went wrong and have a hint, in order; why others have none is counted.

    Where several say something about a turn, the environment comes first, which knows its state, then the reward
    function, then the tool's error; the first that has a hint counts.
    """
    by_turn: dict[int, list[tuple[HintOrigin, Remark]]] = {}
    for source, remark in _remarks(rollout, turns, tokenizer, feedback, reward_text):
        if remark.turn is None:
            counts["no_such_turn"] += 1
        else:
            by_turn.setdefault(remark.turn, []).append((source, remark))
    if not by_turn:
        counts["truncated" if _is_cut_call(rollout, turns[-1], tokenizer) else "no_error"] += 1
    found = []
    for number, said in sorted(by_turn.items()):
        hints = [(source, remark, _hint(remark, hint_generator)) for source, remark in said]
        best = next(((source, remark, hint) for source, remark, hint in hints if hint), None)
        if best is not None:
            source, remark, hint = best
            shown_later = bool((remark.meta or {}).get("reported_by"))
            found.append(FailedTurn(number, remark.kind, source, str(hint), shown_later))
        else:
            students = any(_is_students(remark) for _, remark in said)
            is_outcome = any((remark.meta or {}).get("outcome") for _, remark in said)
            counts["no_hint" if students else "outcome" if is_outcome else "not_the_students_mistake"] += 1
    return found


def _remarks(
    rollout: Rollout, turns: Sequence[SampledTurn], tokenizer: Any, feedback: Any, reward_text: Any
) -> Iterator[tuple[HintOrigin, Remark]]:
    for remark in remarks(feedback, len(turns), "an environment's feedback"):
        yield "environment", remark
    for remark in remarks(reward_text, len(turns), "a reward function's hint"):
        yield "reward", remark
    for failure in tool_failures(rollout, turns, tokenizer):
        yield "tool", Remark(failure.turn, kind=failure.kind, meta=failure.meta)


def _hint(remark: Remark, hint_generator: HintGenerator) -> str | None:
    if remark.text is not None:
        return remark.text
    return hint_generator(remark.kind, remark.meta) if _is_students(remark) else None


def _is_students(remark: Remark) -> bool:
    return is_students_mistake(remark.kind) and (remark.meta or {}).get("students_mistake") is not False


def _is_cut_call(rollout: Rollout, last: SampledTurn, tokenizer: Any) -> bool:
    """Whether the length limit cut a call off: that says nothing about how to write one."""
    return is_cut_off(rollout, last, tokenizer) and looks_like_call(
        rollout, tokenizer.decode(rollout.ids[last.start : last.stop])
    )
