"""Preference pairs as token ids: the prompt once, and two responses that start where the model would start."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError

from composer_replication._arguments import check_count
from composer_replication.rendering import check_chat_template, render_response
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay.preference import message_for_templates, preference_row
from composer_replication.traces import Message, without_thinking


class PreferenceRow(NamedTuple):
    """A pair: `prompt_ids` end with the generation prompt, both responses end with the end of the turn."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]


@dataclass
class PreferenceStats:
    """What became of the pairs.

    `pairs` were made into rows. `pairs_dropped` counts the others by reason: "empty side", "equal sides", "response
    too long", "not one assistant message", "a message without a role or a text", "refused by the chat template", "not
    behind its prompt". `prompts_truncated` lost their beginning, `prompt_tokens_truncated` tokens in all.
    """

    pairs: int = 0
    pairs_dropped: Counter[str] = field(default_factory=Counter)
    prompts_truncated: int = 0
    prompt_tokens_truncated: int = 0


def preference_rows(
    tokenizer: Any,
    pairs: Iterable[Mapping[str, Any] | NormalizedDPOPair],
    *,
    max_length: int,
    stats: PreferenceStats | None = None,
) -> list[PreferenceRow]:
    """Render pairs with the tokenizer's chat template, in order; those that cannot be used are left out and counted.

    A prompt that is too long loses its beginning. A response is never cut: without its end it would be another one.
    Thinking is left out on both sides.

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
    check_chat_template(tokenizer)
    counted = stats if stats is not None else PreferenceStats()
    rows = []
    tools_checked = False
    for number, pair in enumerate(pairs):
        conversation = conversational(pair, number)
        if not tools_checked and has_calls(conversation):
            # A template without tools would render both sides as nothing, or as the same.
            check_chat_template(tokenizer, tools=True)
            tools_checked = True
        row = _row(tokenizer, conversation, max_length, counted)
        if isinstance(row, str):
            counted.pairs_dropped[row] += 1
        else:
            counted.pairs += 1
            rows.append(row)
    return rows


def _row(
    tokenizer: Any, conversation: Mapping[str, Any], max_length: int, stats: PreferenceStats
) -> PreferenceRow | str:
    """The row, or the reason why there is none."""
    if not all(is_readable(message) for part in ("prompt", "chosen", "rejected") for message in conversation[part]):
        return "a message without a role or a text"
    prompt = [shown_message(message) for message in conversation["prompt"]]
    sides = [[shown_message(message) for message in conversation[side]] for side in ("chosen", "rejected")]
    if any(len(side) > 1 or (side and side[0]["role"] != "assistant") for side in sides):
        return "not one assistant message"
    if any(not side or not (side[0]["content"].strip() or side[0].get("tool_calls")) for side in sides):
        return "empty side"
    tools = conversation.get("tools") or None
    try:
        (prompt_ids, chosen_ids), (_, rejected_ids) = (
            render_response(tokenizer, prompt, side[0], tools=tools) for side in sides
        )
    except (TemplateError, TypeError):  # a template's own refusal, or a value that it did not expect
        return "refused by the chat template"
    except ValueError:
        return "not behind its prompt"
    if chosen_ids == rejected_ids:
        return "equal sides"
    room = max_length - max(len(chosen_ids), len(rejected_ids))
    if room < 1:
        return "response too long"
    if len(prompt_ids) > room:
        stats.prompts_truncated += 1
        stats.prompt_tokens_truncated += len(prompt_ids) - room
        prompt_ids = prompt_ids[-room:]
    return PreferenceRow(prompt_ids, chosen_ids, rejected_ids)


def conversational(pair: Mapping[str, Any] | NormalizedDPOPair, number: int) -> Mapping[str, Any]:
    """A pair of any form in TRL's: `prompt`, `chosen` and `rejected` as messages, and `tools` if it has them.

    Raises:
        ValueError: it has the keys of no form; `number` says which pair it is.
    """
    if isinstance(pair, NormalizedDPOPair):
        return {
            "prompt": pair.state_messages,
            "chosen": pair.chosen_messages,
            "rejected": pair.rejected_messages,
            "tools": pair.metadata.get("pair", {}).get("tools"),
        }
    if isinstance(pair, Mapping):
        if all(isinstance(pair.get(side), str) for side in ("chosen", "rejected")) and "state_messages" in pair:
            return preference_row(pair)  # type: ignore[arg-type]
        if all(_is_list(pair.get(part)) for part in ("prompt", "chosen", "rejected")):
            return {**pair, "tools": _definitions(pair.get("tools"), number)}
    found = ", ".join(map(str, pair)) if isinstance(pair, Mapping) else type(pair).__name__
    raise ValueError(
        f"pair {number} has {found}: expected state_messages with the actions chosen and rejected, or prompt, chosen "
        "and rejected as lists of messages"
    )


def _definitions(tools: Any, number: int) -> list[Any]:
    """Tools as templates take them: JSON is decoded, and the None that tables fill in for absent keys is removed."""
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


def has_calls(pair: Mapping[str, Any] | NormalizedDPOPair) -> bool:
    """Whether a pair holds a tool call or a result, which the chat template then has to render."""
    conversation = conversational(pair, 0)
    return any(
        isinstance(message, Mapping) and (message.get("tool_calls") or message.get("role") == "tool")
        for part in ("prompt", "chosen", "rejected")
        for message in conversation[part]
    )


def is_readable(message: Any) -> bool:
    """Whether a message has a role, and no content but text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return content is None or isinstance(content, str) or _text_of_blocks(content) is not None


def _text_of_blocks(content: Any) -> str | None:
    """Content in blocks as one text; None if it is more than text."""
    if not _is_list(content) or not all(
        isinstance(one, Mapping) and isinstance(one.get("text"), str) for one in content
    ):
        return None
    return "".join(one["text"] for one in content)


def shown_message(message: Message) -> Message:
    """A message as the template gets it: no empty fields, as tables fill them in, and no thinking."""
    shown = {
        key: value
        for key, value in message_for_templates(message).items()
        if value is not None and key not in ("thinking", "reasoning", "reasoning_content")
    }
    content = shown.get("content") or ""
    shown["content"] = content if isinstance(content, str) else _text_of_blocks(content)
    if shown["role"] == "assistant":
        shown["content"] = without_thinking(shown["content"])
    return shown
