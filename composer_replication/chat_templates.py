"""A tokenizer's chat template: messages as text, text as tokens, and probes of what the template shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2.exceptions import TemplateError

from composer_replication.traces import Message

Tools = Sequence[dict[str, Any]] | None
"""Definitions of tools as templates take them; None: there are none."""

# Words that no template has by itself.
_PROBE = "probe_text"
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_argument": {"type": "string"}}},
    },
}
_PROBE_ID = "a1b2c3d4e"
_ASKED: Message = {"role": "user", "content": "probe_question"}
_CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": _PROBE_ID, "type": "function", "function": {"name": "probe_tool", "arguments": {"probe_argument": "x"}}}
    ],
}
_RETURNED: Message = {"role": "tool", "tool_call_id": _PROBE_ID, "name": "probe_tool", "content": "probe_result"}


@dataclass(frozen=True)
class TemplatedTokenizer:
    """A tokenizer bound to the chat template and the template arguments with which a trainer renders prompts."""

    tokenizer: Any
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def apply_chat_template(self, messages: Sequence[Message], **kwargs: Any) -> Any:
        """Call the tokenizer's own method with this template."""
        bound: dict[str, Any] = dict(self.chat_template_kwargs)
        if self.chat_template is not None:
            bound["chat_template"] = self.chat_template
        return self.tokenizer.apply_chat_template(messages, **(bound | kwargs))

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        return self.tokenizer(text, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not set yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.tokenizer, name)


def tool_definitions(tools: Sequence[dict[str, Any] | Callable[..., Any]] | None) -> list[dict[str, Any]] | None:
    """Convert tools as a trainer takes them (schemas, or functions with type hints and docstrings) to schemas."""
    if not tools:
        return None
    from transformers.utils.chat_template_utils import get_json_schema

    return [tool if isinstance(tool, dict) else get_json_schema(tool) for tool in tools]


def template_text(
    tokenizer: Any, messages: Sequence[Message], tools: Tools, *, add_generation_prompt: bool = False
) -> str:
    """Render messages by the chat template, without tokenising."""
    text: str = tokenizer.apply_chat_template(
        list(messages), tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates occur in agent logs, and tokenizers refuse them
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def tokenise(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Return the ids of a text, and the character at which each token starts."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{type(tokenizer).__name__} gives no character offsets: use the fast tokenizer of the model")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts, reached = [], 0
    for start, end in encoded["offset_mapping"]:
        # Some tokenizers leave the white space that a token begins with out of its offsets.
        starts.append(min(start, reached))
        reached = end
    return list(encoded["input_ids"]), starts


def renders_tool_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows tool calls and results; some drop them silently, others refuse them."""
    try:
        text = template_text(tokenizer, [_ASKED, _CALLED, _RETURNED], [_PROBE_TOOL])
    except TemplateError:
        return False
    return all(part in text for part in ("probe_tool", "probe_argument", "probe_result"))


def renders_text_beside_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows a turn's text beside its tool call; Llama 3.1's shows the call alone."""
    return _PROBE in template_text(tokenizer, [_ASKED, {**_CALLED, "content": _PROBE}], [_PROBE_TOOL])


def accepted_hint_role(
    tokenizer: Any, messages: Sequence[Message], *, role: str = "system", tools: Tools = None
) -> str:
    """Return `role`, or "user" where the template does not show a message of that role after `messages`.

    Some templates refuse a system message that is not the first, some drop it silently, some move it to the top.
    """
    before = template_text(tokenizer, messages, tools)
    try:
        hinted = template_text(tokenizer, [*messages, {"role": role, "content": _PROBE}], tools)
    except TemplateError:
        return "user"
    return role if hinted.startswith(before) and _PROBE in hinted[len(before) :] else "user"
