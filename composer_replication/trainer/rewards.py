"""The price of effort, as a reward function: what a rollout cost in tokens, calls and turns, with a bend.

`C(x) = ((1 + k·x)^(1−q) − 1) / (k·(1−q))`: close to `x` where the effort is small, ever flatter beyond about `1/k`, so
that hard tasks may take their time while idle effort on easy ones shows. `q = 0` is a straight line, `q = 1` a
logarithm.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from composer_replication._arguments import check_non_negative, check_positive

# A thought that was cut off before its end is a thought all the same.
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_CHARACTERS_PER_TOKEN = 4


def effort_cost(x: float, k: float, q: float) -> float:
    """C(x) of an effort `x >= 0`, with `k > 0` and `q >= 0`.

    Raises:
        ValueError: an argument outside its range.
    """
    check_non_negative("x", x)
    check_positive("k", k)
    check_non_negative("q", q)
    logarithm = math.log1p(k * x)
    if q == 1:
        return logarithm / k
    # Written with expm1 because the powers cancel where q is close to 1.
    return math.expm1((1 - q) * logarithm) / (k * (1 - q))


class Effort(NamedTuple):
    """The effort of a rollout, or the weight of each part of it."""

    thinking_tokens: float = 1.0
    tool_call_tokens: float = 1.0
    tool_output_tokens: float = 1.0
    answer_tokens: float = 1.0
    calls: float = 1.0
    turns: float = 1.0


def measure_effort(
    completion: str | Sequence[Mapping[str, Any]],
    completion_ids: Sequence[int] | None = None,
    *,
    tokenizer: Any = None,
) -> Effort:
    """The effort of one rollout, given as messages or as plain text.

    The kinds of tokens are told apart by their text, measured with the tokenizer, or else as a token per four
    characters. With `completion_ids` the total is exactly their number, the chat template's own tokens included, and
    the texts only say how it divides.
    """
    messages: Sequence[Mapping[str, Any]] = (
        [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    )
    tokens = dict.fromkeys(("thinking", "tool_call", "tool_output", "answer"), 0.0)
    size = _size_by(tokenizer)
    calls = turns = 0
    for message in messages:
        text = _text(message.get("content"))
        if message.get("role") == "tool":
            tokens["tool_output"] += size(text)
            continue
        if message.get("role") != "assistant":
            continue
        turns += 1
        thoughts = [*_THOUGHT.findall(text), *(_text(message.get(name)) for name in _THINKING_FIELDS)]
        tokens["thinking"] += sum(map(size, thoughts))
        tokens["answer"] += size(_THOUGHT.sub("", text))
        for call in message.get("tool_calls") or ():
            calls += 1
            tokens["tool_call"] += size(json.dumps(call.get("function", call), ensure_ascii=False, default=str))
    measured = sum(tokens.values())
    if completion_ids is not None and measured:
        tokens = {name: count * len(completion_ids) / measured for name, count in tokens.items()}
    elif completion_ids is not None:
        tokens["answer"] = float(len(completion_ids))
    return Effort(tokens["thinking"], tokens["tool_call"], tokens["tool_output"], tokens["answer"], calls, turns)


class EffortPenalty:
    """A reward function for TRL's trainers: `−weight · C(effort)`.

    `GRPOTrainer(reward_funcs=[solved, EffortPenalty(0.0005)], …)`; the mean effort of each batch is logged as `effort`.

    Args:
        weight: of the penalty; against a reward of 1 for a solved task, choose it so that no effort is worth failing.
        k: how soon the price bends: at about `1/k` units of effort.
        q: how much it bends.
        counts: what each token, call and turn counts for.
        tokenizer: to tell the kinds of tokens apart exactly.

    Raises:
        ValueError: a negative weight or count, or k or q outside its range.
    """

    def __init__(
        self, weight: float, *, k: float = 1e-3, q: float = 0.5, counts: Effort | None = None, tokenizer: Any = None
    ) -> None:
        check_non_negative("weight", weight)
        check_positive("k", k)
        check_non_negative("q", q)
        self.counts = counts if counts is not None else Effort()
        for name, count in self.counts._asdict().items():
            check_non_negative(f"counts.{name}", count)
        self.weight, self.k, self.q, self.tokenizer = weight, k, q, tokenizer
        # TRL names the reward's metrics after it.
        self.__name__ = "effort_penalty"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[str | Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """One reward, at most 0, for each completion. What else TRL hands to reward functions does not matter here."""
        each_ids = completion_ids if completion_ids is not None else [None] * len(completions)
        efforts = [
            self._weighed(measure_effort(completion, ids, tokenizer=self.tokenizer))
            for completion, ids in zip(completions, each_ids, strict=True)
        ]
        if log_metric is not None and efforts:
            log_metric("effort", sum(efforts) / len(efforts))
        return [-self.weight * effort_cost(effort, self.k, self.q) for effort in efforts]

    def _weighed(self, effort: Effort) -> float:
        return sum(count * amount for count, amount in zip(self.counts, effort, strict=True))


def _size_by(tokenizer: Any) -> Callable[[str], float]:
    if tokenizer is None:
        return lambda text: len(text) / _CHARACTERS_PER_TOKEN
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else 0


def _text(content: Any) -> str:
    """A message's text: a string, or the text blocks of a list."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, (list, tuple)) else ()
    return "".join(str(block.get("text", "")) for block in blocks if isinstance(block, Mapping))
