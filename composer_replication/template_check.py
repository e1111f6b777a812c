"""Chat templates tried out before any data is rendered with them: those that cannot carry a channel are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from composer_replication.chat_templates import (
    TALK_BESIDE_CALLS,
    TALKS,
    TemplatedTokenizer,
    renders_all,
    renders_thinking,
    renders_tool_calls,
    template_text,
    tokenise,
    with_thinking,
)
from composer_replication.rendering import hint_message, render_conversation, render_response


@dataclass(frozen=True)
class TemplateNeeds:
    """What a chat template must do: `tools`: show calls and results; `growing`: keep earlier turns as they are;
    `responses`: show an answer after its prompt; `hints`: show a hint before a turn; `thinking`: show thinking."""

    tools: bool = False
    growing: bool = False
    responses: bool = False
    hints: bool = False
    thinking: bool = False

    def problem(self, tokenizer: Any, tasks: Literal[1, 2] = 2) -> str | None:
        """What the template cannot do in a conversation of one or two tasks, in words; None if it can do all."""
        talk = TALKS[self.tools][tasks - 1]
        if self.tools and not renders_tool_calls(tokenizer):
            return "the chat template leaves tool calls or their results out"
        if self.thinking:
            talk = with_thinking(talk)
            if not renders_thinking(tokenizer, talk):
                return "the chat template does not show the thinking of every turn"
        try:
            if not renders_all(tokenizer, talk):
                return "the chat template leaves out a message's text"
            if self.growing:
                render_conversation(tokenizer, talk)
            for place, message in enumerate(talk):
                if message["role"] == "assistant" and self.hints:
                    hint_message(tokenizer, talk[:place], "probe_hint")
                if message["role"] == "assistant" and self.responses:
                    render_response(tokenizer, talk[:place], message)
        except ValueError as error:
            return str(error)
        return None


def check_chat_template(
    tokenizer: Any,
    *,
    tools: bool = False,
    growing: bool = False,
    responses: bool = False,
    hints: bool = False,
    thinking: bool = False,
) -> None:
    """Try a tokenizer and its chat template before any data is rendered with them.

    Args:
        tokenizer: the tokenizer that has the template.
        tools: whether tool calls will be rendered.
        growing: whether conversations with several assistant turns will be rendered.
        responses: whether answers to prompts will be rendered.
        hints: whether hints will be put before turns.
        thinking: whether the assistant's thinking will be rendered.

    Raises:
        ValueError: the tokenizer gives no offsets or has no template, or the template cannot do what is needed; the
            message names trl's template for training, if there is one that can.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"{type(tokenizer).__name__} has no chat template: set tokenizer.chat_template, for instance to Qwen2.5's"
        )
    tokenise(tokenizer, "")
    needs = TemplateNeeds(tools, growing, responses, hints, thinking)
    problem = needs.problem(tokenizer)
    if problem is None:
        return
    name, template = _training_template(tokenizer)
    if template and needs.problem(TemplatedTokenizer(tokenizer, template)) is None:
        raise ValueError(
            f"{problem}; trl's template {name} does what is needed: make it tokenizer.chat_template, or "
            f"model.chat_template: {name} in a configuration"
        )
    # Some templates rewrite turns when another task follows, and there is no better one. Each trace is checked again.
    problem = needs.problem(tokenizer, tasks=1)
    if problem is not None and replace(needs, thinking=False).problem(tokenizer, tasks=1) is None:
        raise ValueError(f"{problem}: leave the thinking out (strip_thinking=True, data.thinking: drop)")
    if problem is not None:
        raise ValueError(
            f"{problem}; trl has no better template for this model: set tokenizer.chat_template to another, for "
            "instance Qwen2.5's, whose ChatML most tokenizers know"
        )


def keeps_text_beside_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows what a turn says beside a tool call as part of that turn.

    Llama 3.1's leaves it out, Gemma 4's moves it behind the call's result, gpt-oss's drops it later on.
    """
    try:
        render_conversation(tokenizer, TALK_BESIDE_CALLS)
    except ValueError:
        return False
    *before, turn = TALK_BESIDE_CALLS[:2]
    return turn["content"] in template_text(tokenizer, [*before, turn], None)


def _training_template(tokenizer: Any) -> tuple[str, str]:
    """The name and the text of trl's training template for a tokenizer's own; empty if there is none."""
    try:
        from trl import chat_template_utils as templates

        text = templates.get_training_chat_template(tokenizer) or ""
    except (ImportError, ValueError, TypeError):
        return "", ""
    folder = Path(str(templates.__file__)).parent / "chat_templates"
    return next((one.stem for one in folder.glob("*.jinja") if one.read_text(encoding="utf-8") == text), ""), text
