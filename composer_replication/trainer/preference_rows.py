"""Preference pairs as token ids: the prompt once, and two responses that start where the model would start.

A preference that is trained in a context which the policy never acts in has no effect on how it acts: the loss goes to
zero while the reward falls. `check_shown_context` compares what pairs and rollouts show: tool definitions and system
prompt.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence

from composer_replication._arguments import check_count
from composer_replication.chat_templates import (
    TemplateRefusedError,
    drops_parallel_calls,
    has_parallel_calls,
    tool_definitions,
    with_result_names,
    without_text_beside_calls,
)
from composer_replication.rendering import render_response
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.pair_files import message_for_templates, preference_row
from composer_replication.teacher_replay.records import Pair
from composer_replication.template_check import check_chat_template, keeps_text_beside_calls
from composer_replication.traces import Message, without_thinking
from composer_replication.trainer.shortened import LongConversation

logger = logging.getLogger(__name__)

PairInput: TypeAlias = Pair | NormalizedDPOPair | Mapping[str, Any]

_SIDES = ("chosen", "rejected")
_PARTS = ("prompt", *_SIDES)
_LONGEST_QUOTE = 60
# Enough rollouts to see every system prompt and environment of a data set.
_ROWS_COMPARED = 1000


class PreferenceRow(NamedTuple):
    """A pair: `prompt_ids` end with the generation prompt, both responses end with the end of the turn."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]

    @property
    def longest_response(self) -> int:
        """The tokens of the longer response."""
        return max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass
class PreferenceStats:
    """What became of the pairs.

    `pairs` were made into rows. `pairs_dropped` counts the others by reason: "empty side", "equal sides", "response
    too long", "prompt too long" (with system prompt, tools and task alone), "not one assistant message", "a message
    without a role or a text", "refused by the chat template", "not after its prompt". `prompts_truncated` were
    shortened, by `prompt_messages_left_out` messages and `prompt_tokens_truncated` tokens in all.
    """

    pairs: int = 0
    pairs_dropped: Counter[str] = field(default_factory=Counter)
    prompts_truncated: int = 0
    prompt_tokens_truncated: int = 0
    prompt_messages_left_out: int = 0

    def dropped(self) -> str:
        """Return the reasons why pairs are left out, with their counts."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.pairs_dropped.most_common())
        too_long = self.pairs_dropped["prompt too long"] + self.pairs_dropped["response too long"]
        return f"{reasons} (the limit is replay_max_length, channels.replay.max_length)" if too_long else reasons


def preference_rows(
    tokenizer: Any,
    pairs: Iterable[PairInput],
    *,
    max_length: int,
    stats: PreferenceStats | None = None,
) -> list[PreferenceRow]:
    """Render pairs with the tokenizer's chat template, in order; those that cannot be used are left out and counted.

    A prompt that is too long keeps system prompt, tools, task and the latest whole messages that fit. A response is
    never cut: without its end it would be another one. Thinking is left out on both sides.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        pairs: `DPOPair`, `NormalizedDPOPair`, or rows in TRL's conversational form: `prompt`, `chosen` and `rejected`
            as lists of messages, and `tools` if there are any.
        max_length: of prompt and response together, in tokens.
        stats: where to count.

    Raises:
        ValueError: a pair without the keys of any form, or a template that has no place for tool calls.
    """
    check_count("max_length", max_length)
    check_chat_template(tokenizer, responses=True)
    counted = stats if stats is not None else PreferenceStats()
    rows = []
    shows: _Shows | None = None
    for number, pair in enumerate(pairs):
        conversation = conversational(pair, number)
        if shows is None and has_calls(conversation):
            # A template without tools would render both sides as nothing, or as the same.
            check_chat_template(tokenizer, tools=True, responses=True)
            shows = _Shows(keeps_text_beside_calls(tokenizer), not drops_parallel_calls(tokenizer))
        row = _row(tokenizer, conversation, shows or _Shows(), max_length, counted)
        if isinstance(row, str):
            counted.pairs_dropped[row] += 1
        else:
            counted.pairs += 1
            rows.append(row)
    return rows


class _Shows(NamedTuple):
    """Whether a chat template shows text beside calls, and several calls of one turn."""

    text_beside_calls: bool = True
    parallel_calls: bool = True


def _row(
    tokenizer: Any, conversation: Mapping[str, Any], shows: _Shows, max_length: int, stats: PreferenceStats
) -> PreferenceRow | str:
    """Return the row, or the reason why there is none."""
    if not all(is_readable(message) for part in _PARTS for message in conversation[part]):
        return "a message without a role or a text"
    prompt = with_result_names([shown_message(message) for message in conversation["prompt"]])
    sides = [[shown_message(message) for message in conversation[side]] for side in _SIDES]
    if any(len(side) > 1 or (side and side[0]["role"] != "assistant") for side in sides):
        return "not one assistant message"
    if any(not side or not (side[0]["content"].strip() or side[0].get("tool_calls")) for side in sides):
        return "empty side"
    if not shows.text_beside_calls:
        prompt, *sides = (without_text_beside_calls(messages) for messages in (prompt, *sides))
    if not shows.parallel_calls and any(has_parallel_calls(messages) for messages in (prompt, *sides)):
        return "refused by the chat template"
    tools = conversation.get("tools") or None

    def row_after(messages: Sequence[Message]) -> PreferenceRow:
        (prompt_ids, chosen_ids), (same_ids, rejected_ids) = (
            render_response(tokenizer, messages, side[0], tools=tools) for side in sides
        )
        if prompt_ids != same_ids:
            raise ValueError("the two responses follow different prompts")
        return PreferenceRow(prompt_ids, chosen_ids, rejected_ids)

    try:
        row = row_after(prompt)
        if row.chosen_ids == row.rejected_ids:
            return "equal sides"
        tokens, room = len(row.prompt_ids), max_length - row.longest_response
        if room < 1:
            return "response too long"
        if tokens <= room:
            return row
        for shown in LongConversation.of_prompt(tokenizer, prompt, tokens, tools).windows(len(prompt), room):
            with suppress(ValueError):  # a template may refuse what one window shows, and take the next
                row = row_after(shown.messages)
            if len(row.prompt_ids) + row.longest_response <= max_length:
                stats.prompts_truncated += 1
                stats.prompt_tokens_truncated += tokens - len(row.prompt_ids)
                stats.prompt_messages_left_out += shown.left_out
                return row
        return "prompt too long"
    except TemplateRefusedError:
        return "refused by the chat template"
    except ValueError:
        return "not after its prompt"


def parsed(pair: PairInput, number: int) -> PairInput:
    """Return a `DPOPair` as a `Pair`, and any other form as it is."""
    if isinstance(pair, Mapping) and "state_messages" in pair and all(isinstance(pair.get(one), str) for one in _SIDES):
        # Training reads neither of these two, and tables fill them with values of their own.
        return Pair.of({**pair, "state_id": "", "n_teachers_agreeing": 0}, f"pair {number}")
    return pair


def conversational(pair: PairInput, number: int) -> Mapping[str, Any]:
    """Return a pair of any form in TRL's: `prompt`, `chosen` and `rejected` as messages, and `tools` if it has any.

    Raises:
        ValueError: it has the keys of no form; `number` says which pair it is.
    """
    pair = parsed(pair, number)
    if isinstance(pair, Pair):
        return preference_row(pair)
    if isinstance(pair, NormalizedDPOPair):
        messages = (pair.state_messages, pair.chosen_messages, pair.rejected_messages)
        return {**dict(zip(_PARTS, messages, strict=True)), "tools": pair.metadata.get("pair", {}).get("tools")}
    if isinstance(pair, Mapping) and all(_is_list(pair.get(part)) for part in _PARTS):
        return {**pair, "tools": _definitions(pair.get("tools"), number)}
    found = ", ".join(map(str, pair)) if isinstance(pair, Mapping) else type(pair).__name__
    raise ValueError(
        f"pair {number} has {found}: expected state_messages with the actions chosen and rejected, or prompt, chosen "
        "and rejected as lists of messages"
    )


def _definitions(tools: Any, number: int) -> list[Any]:
    """Return tools as templates take them: JSON is decoded, and the None that tables put for absent keys is removed."""
    try:
        given = json.loads(tools) if isinstance(tools, str) else tools or []
        definitions = [_without_none(json.loads(tool) if isinstance(tool, str) else tool) for tool in given]
    except ValueError:
        raise ValueError(f"pair {number}: `tools` holds a text that is not JSON") from None
    for tool in definitions:
        if not isinstance(tool, Mapping) and not callable(tool):
            raise ValueError(f"pair {number}: a tool is a definition or a function, not {tool!r}")
    return definitions


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def has_calls(pair: PairInput) -> bool:
    """Whether a pair holds a tool call or a result, which the chat template then has to render."""
    conversation = conversational(pair, 0)
    return any(
        isinstance(message, Mapping) and (message.get("tool_calls") or message.get("role") == "tool")
        for part in _PARTS
        for message in conversation[part]
    )


def is_readable(message: Any) -> bool:
    """Whether a message has a role, and no content but text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return content is None or isinstance(content, str) or _text_of_blocks(content) is not None


def _text_of_blocks(content: Any) -> str | None:
    """Return content in blocks as one text; None if it is more than text."""
    if not _is_list(content) or not all(
        isinstance(one, Mapping) and isinstance(one.get("text"), str) for one in content
    ):
        return None
    return "".join(one["text"] for one in content)


def shown_message(message: Message) -> Message:
    """Return a message as the template gets it: without empty fields, as tables fill them in, and without thinking."""
    shown = {
        key: value
        for key, value in message_for_templates(message).items()
        if value is not None and key not in ("thinking", "reasoning", "reasoning_content")
    }
    content = shown.get("content") or ""
    shown["content"] = content if isinstance(content, str) else _text_of_blocks(content)
    if shown["role"] == "assistant":
        shown["content"] = without_thinking(shown["content"])
        if "</think>" in shown["content"]:
            shown["reasoning_content"] = ""  # or templates would take what is before it for thinking
    return shown


def preference_batch(rows: Sequence[PreferenceRow], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return rows as `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}`, padded on the right."""
    batch: dict[str, torch.Tensor] = {}
    for side in _SIDES:
        responses = [row.chosen_ids if side == "chosen" else row.rejected_ids for row in rows]
        ids = [torch.tensor([*row.prompt_ids, *response]) for row, response in zip(rows, responses, strict=True)]
        batch[f"dpo_{side}_input_ids"] = pad_sequence(ids, batch_first=True, padding_value=pad_token_id)
        attention_BT = pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
        prompts_B1 = torch.tensor([len(row.prompt_ids) for row in rows])[:, None]
        batch[f"dpo_{side}_attention_mask"] = attention_BT
        batch[f"dpo_{side}_response_mask"] = attention_BT * (torch.arange(attention_BT.shape[1]) >= prompts_B1)
    return batch


def check_rows(rows: Sequence[PreferenceRow]) -> None:
    """Raise a ValueError if there is no pair, or one that lacks a prompt or a response."""
    if not rows:
        raise ValueError("rows is empty: channel 3 needs at least one preference pair")
    for number, row in enumerate(rows):
        for name, ids in row._asdict().items():
            if not ids:
                raise ValueError(f"rows[{number}].{name} is empty: a pair has a prompt and two responses")


def rows_digest(rows: Sequence[PreferenceRow]) -> str:
    """Return a hash of all token ids and of their places in the pairs."""
    digest = hashlib.sha256()
    for row in rows:
        for ids in row:
            digest.update(len(ids).to_bytes(8, "little"))
            digest.update(array("q", ids).tobytes())
    return digest.hexdigest()


class ShownContext(NamedTuple):
    """The system prompt (None: there is none), and the tools' definitions by name."""

    system: str | None
    tools: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, prompt: Sequence[Message], tools: Sequence[Any] | None) -> ShownContext:
        """Return what a conversation shows before the first user message."""
        first: Message = prompt[0] if prompt else {}
        has_system = is_readable(first) and first["role"] == "system"
        system = shown_message(first)["content"] if has_system else None
        functions = [tool.get("function") or tool for tool in tool_definitions(tools) or ()]
        return cls(system, frozenset((str(one.get("name")), json.dumps(one, sort_keys=True)) for one in functions))


def check_shown_context(pairs: Sequence[Any], rollouts: Iterable[ShownContext], source: str = "replay_dataset") -> None:
    """Compare the pairs' contexts with those of the rollouts, and warn about differences. `source` names the pairs.

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
