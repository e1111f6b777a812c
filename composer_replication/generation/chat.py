"""Conversations of an episode as token ids, and back, exactly as TRL's tool loop has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer_replication._optional import require
from composer_replication.chat_templates import TemplatedTokenizer, configured_ends, tool_definitions
from composer_replication.traces import Message

ToolCalls = Mapping[str, Callable[..., Any]]
"""Tools by name."""


def tool_template(tokenizer: Any) -> str | None:
    """Return the template that TRL takes for rollouts with tools: one that never rewrites what was said."""
    templates = require("trl.chat_template_utils", "train")
    if templates.is_chat_template_prefix_preserving(tokenizer):
        template: str | None = tokenizer.chat_template
        return template
    return str(templates.get_training_chat_template(tokenizer))


def episode_tokenizer(tokenizer: Any, model: Any, *, has_tools: bool) -> TemplatedTokenizer:
    """Bind a tokenizer to the template, the parser and the ends of turns with which TRL generates. It is written to.

    Raises:
        ValueError: TRL cannot parse the calls of this chat template.
    """
    templates = require("trl.chat_template_utils", "train")
    if has_tools and not _parses(tokenizer):
        templates.add_response_schema(tokenizer)
    template = tool_template(tokenizer) if has_tools else tokenizer.chat_template
    return TemplatedTokenizer(tokenizer, template, end_ids=configured_ends(model))


def _parses(tokenizer: Any) -> bool:
    return any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))


class EpisodeChat:
    """The ids of prompts and of tools' results, and the message that ids say; what is the same is rendered once.

    Args:
        tokenizer: bound to its template, see `episode_tokenizer`.
    """

    def __init__(self, tokenizer: TemplatedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._parses = _parses(tokenizer)
        self._parse = require("trl.chat_template_utils", "train").parse_response
        self._definitions: dict[tuple[Any, ...], list[dict[str, Any]] | None] = {}
        self._rendered: dict[str, list[int]] = {}

    def definitions(self, tools: ToolCalls) -> list[dict[str, Any]] | None:
        """Return the definitions of tools, which are those of all objects of a class."""
        key = tuple(getattr(tool, "__func__", tool) for tool in tools.values())
        if key not in self._definitions:
            self._definitions[key] = tool_definitions(list(tools.values()))
        return self._definitions[key]

    def prompt_ids(self, prompt: Sequence[Message], tools: ToolCalls) -> list[int]:
        """Return the ids of a prompt, up to where the assistant begins."""
        return self._ids(list(prompt), tools=self.definitions(tools), add_generation_prompt=True)

    def message(self, ids: list[int], before: list[int], tools: ToolCalls) -> Message:
        """Return the assistant's message that was said in ids, after those before it."""
        if not self._parses:
            return {"role": "assistant", "content": self._tokenizer.decode(ids, skip_special_tokens=True)}
        message: Message = self._parse(self._tokenizer, ids, prefix=before, tools=self.definitions(tools))
        return message

    def result_ids(self, results: Sequence[Message]) -> list[int]:
        """Return the ids that follow the assistant's end of turn: tools' results, and where the assistant begins.

        Raises:
            ValueError: the template renders a call differently when its results follow.
        """
        call = {"type": "function", "function": {"name": results[0]["name"], "arguments": {}}}
        before: list[Message] = [
            {"role": "user", "content": "dummy"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        head = self._ids(before)
        whole = self._ids([*before, *results], add_generation_prompt=True)
        # Some templates have a line break after the end of a turn: the model says only the end.
        end = self._tokenizer.eos_token_id
        if end in head:
            head = head[: len(head) - head[::-1].index(end)]
        if whole[: len(head)] != head:
            raise ValueError(
                "the chat template renders a call differently when its results follow: rollouts cannot be continued "
                "with it; use another template"
            )
        return whole[len(head) :]

    def _ids(self, messages: list[Message], **options: Any) -> list[int]:
        key = repr((messages, options))
        if key not in self._rendered:
            self._rendered[key] = self._tokenizer.apply_chat_template(
                messages, tokenize=True, return_dict=False, **options
            )
        return list(self._rendered[key])
