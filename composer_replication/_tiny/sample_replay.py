"""The preference pairs of the demo: the wrong calls of the sample traces, replayed with three local teachers.

The teachers are functions of the prompt, without a model. Each can be served on its own:
`composer-replication serve-teacher --callable composer_replication._tiny.sample_replay:careful`
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from composer_replication._optional import MissingExtraError
from composer_replication.batch import VARIANTS, SampleTrace, sample_trace
from composer_replication.replaysim.normalize import DJNormalizer
from composer_replication.teacher_replay.pairs import extract_dpo_pairs
from composer_replication.teacher_replay.records import DPOPair, TeacherCallResult
from composer_replication.teacher_replay.schedule import replay_trace
from composer_replication.teacher_replay.serving import LocalTeachers
from composer_replication.teacher_replay.teachers import TeacherSpec
from composer_replication.traces import Message, Source, ToolCall, Trace, TraceState, Turn, render_action

Tools = Sequence[Mapping[str, Any]]

_FILE = re.compile(r"[\w./-]+\.py\b")
_SEARCH = re.compile(r"find (?P<target>-?\d+) in (?P<items>\[[-\d, ]+\])")


class _Intent(NamedTuple):
    """The user's request: a file to read, or code to run."""

    effect: Literal["read a file", "run python"]
    value: str


def careful(messages: Sequence[Message], tools: Tools = ()) -> str:
    """Look up the tool and its argument in the definitions, and make the call without a comment."""
    intent = _intent(messages)
    return _call(*_defined(intent, tools), intent.value)


def thorough(messages: Sequence[Message], tools: Tools = ()) -> str:
    """Make the call of `careful`, with a comment and in another spelling."""
    intent = _intent(messages)
    if intent.effect == "read a file":
        return _call(*_defined(intent, tools), f"./{intent.value}", said="Let me look at the file before I answer.")
    return _call(*_defined(intent, tools), f"{intent.value}\n", said="I will let Python look that up.")


def hasty(messages: Sequence[Message]) -> str:
    """Ignore the definitions, and use the names that such tools have elsewhere."""
    intent = _intent(messages)
    return _call(*(("open_file", "path") if intent.effect == "read a file" else ("run_python", "script")), intent.value)


LOCAL_TEACHERS: dict[str, Callable[..., str]] = {"careful": careful, "thorough": thorough, "hasty": hasty}


def _intent(messages: Sequence[Message]) -> _Intent:
    request = next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
    if (file := _FILE.search(request)) is not None:
        return _Intent("read a file", file[0])
    if (search := _SEARCH.search(request)) is not None:
        return _Intent("run python", f"print({search['items']}.index({search['target']}))")
    # No answer at all: two teachers would agree on any default.
    raise ValueError(f"the request names neither a .py file nor a list to search: {request!r}")


def _defined(intent: _Intent, tools: Tools) -> tuple[str, str]:
    """Return the tool whose description fits, and its first required argument."""
    words = set(intent.effect.split())
    for tool in tools:
        function = tool["function"]
        if words <= set(re.findall(r"\w+", function["description"].lower())):
            return function["name"], function["parameters"]["required"][0]
    raise ValueError(f"no tool is described as one to {intent.effect}")


def _call(name: str, argument: str, value: str, *, said: str = "") -> str:
    return render_action(Turn("assistant", said, tool_calls=[ToolCall("", name, {argument: value})]))


@dataclass(frozen=True)
class SampleReplay:
    """The result of the replay.

    `pairs` are the pairs that were kept, by the variant of their trace. `by_meaning` and `by_text` count the pairs if
    actions are compared by their effect and by their text. `recipe` is the recipe that filtered them; None if
    data-juicer is not installed, and all of them are kept.
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
        """The cost of the calls."""
        return sum(row["cost_usd"] for row in self.answers)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
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

    Do not call it from a running event loop.

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
            # No retries: a function that fails would fail again.
            variant: asyncio.run(
                replay_trace(states[variant], specs, max_total_usd=0.0, tools=sample.tools, max_retries=0)
            )
            for variant, sample in samples.items()
        }
    pairs: dict[str, DPOPair] = {}
    by_text = 0
    for variant, rows in answers.items():
        # An answer with a call of an unknown tool has no vote, but it is not a failure.
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
    """Return the trace up to its wrong call: teachers must not see its result."""
    turns = [_turn(message) for message in sample.messages[: sample.erring_message + 1]]
    return Trace(variant, turns, Source("sample", "sample"), tools=sample.tools)


def _turn(message: Message) -> Turn:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [ToolCall(f"call_{place}", one["name"], one["arguments"]) for place, one in enumerate(functions)]
    return Turn(message["role"], message["content"], tool_calls=calls)


def _normalized(pairs: Mapping[str, DPOPair]) -> tuple[str | None, dict[str, DPOPair]]:
    """Return the name of the default recipe and the pairs it keeps; without data-juicer, None and all of them."""
    try:
        normalizer = DJNormalizer()
    except MissingExtraError:
        return None, dict(pairs)
    kept = {pair.state_id for pair in normalizer.normalize(pairs.values())}
    assert normalizer.report is not None
    return normalizer.report.recipe, {variant: pair for variant, pair in pairs.items() if pair["state_id"] in kept}
