"""Whether pairs are shown in the context of the rollouts: the same tool definitions and the same system prompt.

A preference that is trained in a context which the policy never acts in has no effect on how it acts: the loss goes to
zero while the reward falls.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from composer_replication.chat_templates import tool_definitions
from composer_replication.traces import Message
from composer_replication.trainer.replay.preference_rows import conversational, has_calls, is_readable, shown_message

logger = logging.getLogger(__name__)

_LONGEST_QUOTE = 60
# Enough rollouts to see every system prompt and environment of a data set.
_ROWS_COMPARED = 1000


class ShownContext(NamedTuple):
    """The system prompt (None: there is none), and the tools' definitions by name."""

    system: str | None
    tools: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, prompt: Sequence[Message], tools: Sequence[Any] | None) -> ShownContext:
        """What a conversation shows before the first user message."""
        first: Message = prompt[0] if prompt else {}
        has_system = is_readable(first) and first["role"] == "system"
        system = shown_message(first)["content"] if has_system else None
        functions = [tool.get("function") or tool for tool in tool_definitions(tools) or ()]
        return cls(system, frozenset((str(one.get("name")), json.dumps(one, sort_keys=True)) for one in functions))


def check_shown_context(pairs: Sequence[Any], rollouts: Iterable[ShownContext], source: str = "replay_dataset") -> None:
    """Compare the pairs' contexts with those of the rollouts, and warn of what differs. `source` names the pairs.

    Raises:
        ValueError: pairs call tools without showing any, and the rollouts show some.
    """
    shown = set(islice(rollouts, _ROWS_COMPARED))
    if not shown:
        return
    rollout_tools, rollout_systems = {one.tools for one in shown}, {one.system for one in shown}
    unshown, tools, systems = 0, Counter[frozenset[tuple[str, str]]](), Counter[str | None]()
    for number, pair in enumerate(pairs):
        conversation = conversational(pair, number)
        context = ShownContext.of(conversation["prompt"], conversation.get("tools"))
        if context.tools not in rollout_tools:
            tools[context.tools] += 1
            unshown += not context.tools and has_calls(conversation)
        if context.system not in rollout_systems:
            systems[context.system] += 1
    wanted = max(rollout_tools, key=len)
    if unshown:
        raise ValueError(
            f"{source}: {unshown} of {len(pairs)} pairs call tools without showing any definitions, and rollouts "
            f"show {_names(wanted)}: put the same definitions into each pair's `tools`"
        )
    differences = []
    if tools:
        (most, _), *_ = tools.most_common(1)
        differences.append((tools.total(), "show other tools than", _difference(most, wanted)))
    if systems:
        (system, _), *_ = systems.most_common(1)
        both = f"pairs: {_quoted(system)}; rollouts: {_quoted(next(iter(rollout_systems)))}"
        differences.append((systems.total(), "have another system prompt than", both))
    for count, what, difference in differences:
        logger.warning(
            "%s: %d of %d pairs %s the rollouts (%s): channel 3 trains a context in which the policy never acts",
            *(source, count, len(pairs), what, difference),
        )


def _difference(pair: frozenset[tuple[str, str]], rollout: frozenset[tuple[str, str]]) -> str:
    if _names(pair) != _names(rollout):
        return f"pairs: {_names(pair)}; rollouts: {_names(rollout)}"
    return f"the definitions of {_names(pair - rollout)} differ"


def _names(tools: frozenset[tuple[str, str]]) -> str:
    return ", ".join(sorted(name for name, _ in tools)) or "none"


def _quoted(system: str | None) -> str:
    if system is None:
        return "none"
    return repr(system if len(system) <= _LONGEST_QUOTE else system[:_LONGEST_QUOTE] + "…")
