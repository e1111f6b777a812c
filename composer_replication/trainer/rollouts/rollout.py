"""Rollouts as a trainer's tool loop leaves them, and where the assistant's turns stand in their token ids.

The loop samples a turn, puts the tool's answer and the next turn's header behind it as ids, and samples again; nothing
is tokenised twice. So the turns are the runs of sampled tokens, and what stands right before a run is its header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from jinja2.exceptions import TemplateError

from composer_replication.rendering import generation_header_ids
from composer_replication.traces import Message, dump_json

# Stands in for what was said: templates put the same words around a message, whatever is in it.
_ANYTHING = "?"


@dataclass(frozen=True)
class Rollout:
    """One completion: `messages` are its own (empty if only its ids are known), `generated` is 1 on the tokens of
    `completion_ids` that the model sampled and 0 on what tools or an environment said."""

    prompt: list[Message]
    messages: list[Message]
    prompt_ids: list[int]
    completion_ids: list[int]
    generated: list[int]
    tools: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if len(self.generated) != len(self.completion_ids):
            raise ValueError(
                f"generated has {len(self.generated)} flags for {len(self.completion_ids)} completion_ids: one each"
            )

    @property
    def ids(self) -> list[int]:
        """Prompt and completion; every position of a turn or a hint is an index into these."""
        return [*self.prompt_ids, *self.completion_ids]

    @property
    def spoken(self) -> list[int]:
        """The places of the assistant's messages among `messages`."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]


@dataclass(frozen=True)
class SampledTurn:
    """A turn in a rollout's `ids`: `[start, stop)` are its own tokens, `header` is where its header begins (None: what
    stands before it is not the template's header). `message` is its place among the messages, if there are any."""

    message: int | None
    header: int | None
    start: int
    stop: int


@dataclass(frozen=True)
class TemplatedTokenizer:
    """A tokenizer with the chat template and the template's arguments that a trainer renders prompts with."""

    tokenizer: Any
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def apply_chat_template(self, messages: Sequence[Message], **kwargs: Any) -> Any:
        """As the tokenizer's own, under this template."""
        bound: dict[str, Any] = dict(self.chat_template_kwargs)
        if self.chat_template is not None:
            bound["chat_template"] = self.chat_template
        return self.tokenizer.apply_chat_template(messages, **(bound | kwargs))

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        return self.tokenizer(text, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.tokenizer, name)


class GenerationHeaders:
    """The ids with which a template has the assistant speak: after the prompt, a tool's result or the user.

    `tokenizer` renders with the template of the rollouts' prompts; see `TemplatedTokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def behind(self, exchange: Sequence[Message]) -> list[int]:
        """The header behind a prompt and this exchange; empty if the template cannot tell."""
        key = dump_json(exchange)
        if key not in self._known:
            try:
                spoken = [{"role": "user", "content": _ANYTHING}, *exchange]
                self._known[key] = generation_header_ids(self._tokenizer, spoken)
            except (TemplateError, ValueError):
                self._known[key] = []
        return self._known[key]


def sampled_turns(rollout: Rollout, headers: GenerationHeaders) -> list[SampledTurn] | None:
    """The turns of a rollout in order; None if its messages tell of another number of turns than its ids."""
    places: Sequence[int | None] = rollout.spoken
    runs = _runs(rollout.generated)
    if not rollout.messages:
        places = [None] * len(runs)
    if len(places) != len(runs):
        return None
    ids, offset = rollout.ids, len(rollout.prompt_ids)
    turns = []
    for place, (start, stop) in zip(places, runs, strict=True):
        header = _header(ids[: offset + start], headers.behind(_exchange_before(rollout, place, start)))
        turns.append(SampledTurn(place, header, offset + start, offset + stop))
    return turns


def context_before(rollout: Rollout, turn: SampledTurn) -> list[Message]:
    """A conversation that a template renders around a hint as it would the one before this turn.

    It is the prompt, and behind it one exchange in place of all earlier turns: nothing that was said decides how the
    next message is framed, and templates refuse some of what models say (two calls in one turn, for one).
    """
    return [*rollout.prompt, *_exchange_before(rollout, turn.message, turn.start - len(rollout.prompt_ids))]


def tool_definitions(tools: Sequence[dict[str, Any] | Callable[..., Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as a trainer takes them (schemas, or functions with type hints and docstrings) as schemas."""
    if not tools:
        return None
    from transformers.utils.chat_template_utils import get_json_schema

    return [tool if isinstance(tool, dict) else get_json_schema(tool) for tool in tools]


def _runs(flags: Sequence[int]) -> list[tuple[int, int]]:
    """Where the stretches of set flags begin and end."""
    runs, position = [], 0
    for flag, group in groupby(flags, bool):
        length = sum(1 for _ in group)
        if flag:
            runs.append((position, position + length))
        position += length
    return runs


def _exchange_before(rollout: Rollout, place: int | None, start: int) -> list[Message]:
    """What came between the prompt and a turn, reduced to one exchange; empty for the first turn."""
    if start == 0:
        return []
    if place and rollout.messages[place - 1]["role"] == "tool":
        name = str(rollout.messages[place - 1].get("name") or _ANYTHING)
        call = {"type": "function", "function": {"name": name, "arguments": {}}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "content": _ANYTHING},
        ]
    return [{"role": "assistant", "content": _ANYTHING}, {"role": "user", "content": _ANYTHING}]


def _header(before: list[int], header_ids: list[int]) -> int | None:
    """Where the header begins at the end of these ids."""
    if not header_ids or before[-len(header_ids) :] != header_ids:
        return None
    return len(before) - len(header_ids)
