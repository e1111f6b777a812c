"""Conversations as token ids, rendered once by the tokenizer's own chat template.

Which tokens belong to which turn comes from that one rendering: the text up to a turn is a prefix of the whole text,
and the tokenizer's offsets say where it ends in tokens. Segments are never tokenised apart and glued, because that
does not give the ids that the model sees.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

Message = dict[str, Any]


@dataclass(frozen=True)
class AssistantTurn:
    """Where an assistant message stands: `[start, stop)` are its own tokens, from the first one it generates to its
    end-of-turn token; `header` is where its header begins, which is where a hint goes."""

    message: int
    header: int
    start: int
    stop: int


@dataclass(frozen=True)
class RenderedConversation:
    """The ids of a conversation, and its assistant turns in order."""

    ids: list[int]
    turns: list[AssistantTurn]

    def response_mask(self) -> list[int]:
        """1 on the tokens that an assistant turn generated, 0 elsewhere."""
        mask = [0] * len(self.ids)
        for turn in self.turns:
            mask[turn.start : turn.stop] = [1] * (turn.stop - turn.start)
        return mask


@dataclass(frozen=True)
class HintedContext:
    """A turn's ids with a hint spliced in before it; `shift` is how far the turn moved to the right."""

    ids: list[int]
    shift: int


def render_conversation(
    tokenizer: Any, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
) -> RenderedConversation:
    """Render and tokenise a conversation, and locate its assistant turns.

    Raises:
        ValueError: the template rewrites earlier turns as the conversation grows, or the tokenizer gives no offsets.
    """
    text = _template(tokenizer, messages, tools)
    ids, starts = _tokenise(tokenizer, text)
    borders = [*starts, len(text)]
    turns = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if index == 0:
            raise ValueError("the conversation begins with an assistant message: nothing prompts it")
        before = _prefix(tokenizer, messages[:index], tools, text, index)
        prompt = _prefix(tokenizer, messages[:index], tools, text, index, add_generation_prompt=True)
        through = _prefix(tokenizer, messages[: index + 1], tools, text, index)
        header, start, stop = (_token_at(borders, len(part), index) for part in (before, prompt, through))
        turns.append(AssistantTurn(index, header, start, _end_of_turn(tokenizer, ids, start, stop)))
    return RenderedConversation(ids, turns)


def splice_hint(
    tokenizer: Any,
    messages: Sequence[Message],
    rendered: RenderedConversation,
    turn: AssistantTurn,
    hint: str,
    *,
    role: str = "system",
    tools: Sequence[dict[str, Any]] | None = None,
) -> HintedContext:
    """The context in which a hinted model would have said `turn`: the same ids, with the hint's message before it.

    What follows the turn is left out; a causal model does not look at it.

    Raises:
        ValueError: the template puts the hint elsewhere than at the end of the conversation.
    """
    hint_ids = hint_message_ids(tokenizer, messages[: turn.message], hint, role=role, tools=tools)
    ids = [*rendered.ids[: turn.header], *hint_ids, *rendered.ids[turn.header : turn.stop]]
    return HintedContext(ids, len(hint_ids))


def hint_message_ids(
    tokenizer: Any,
    messages: Sequence[Message],
    hint: str,
    *,
    role: str = "system",
    tools: Sequence[dict[str, Any]] | None = None,
) -> list[int]:
    """The ids of a hint's message as it stands behind `messages`, before the header of the turn it is for.

    Raises:
        ValueError: the template puts the hint elsewhere than at the end of the conversation.
    """
    before = _template(tokenizer, messages, tools)
    hinted = _template(tokenizer, [*messages, {"role": role, "content": hint}], tools)
    if not hinted.startswith(before):
        raise ValueError(f"the chat template rewrites the conversation when a {role!r} message is added to it")
    return _tokenise(tokenizer, hinted[len(before) :])[0]


def accepted_hint_role(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    role: str = "system",
    tools: Sequence[dict[str, Any]] | None = None,
) -> str:
    """`role`, or "user" where the template does not show such a message behind `messages`.

    Some templates refuse a system message that is not the first, some drop it without a word, some move it to the top.
    """
    probe = "hint"
    before = _template(tokenizer, messages, tools)
    try:
        hinted = _template(tokenizer, [*messages, {"role": role, "content": probe}], tools)
    except TemplateError:
        return "user"
    return role if hinted.startswith(before) and probe in hinted[len(before) :] else "user"


def generation_header_ids(
    tokenizer: Any, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
) -> list[int]:
    """The ids that prompt the assistant to speak behind `messages`; a hint goes before them.

    Raises:
        ValueError: the generation prompt rewrites the conversation.
    """
    before = _template(tokenizer, messages, tools)
    prompt = _template(tokenizer, messages, tools, add_generation_prompt=True)
    if not prompt.startswith(before):
        raise ValueError("the chat template rewrites the conversation when the generation prompt is added to it")
    return _tokenise(tokenizer, prompt[len(before) :])[0]


def _template(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]] | None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    text: str = tokenizer.apply_chat_template(
        list(messages), tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    return text


def _prefix(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]] | None,
    whole: str,
    turn: int,
    *,
    add_generation_prompt: bool = False,
) -> str:
    text = _template(tokenizer, messages, tools, add_generation_prompt=add_generation_prompt)
    if not whole.startswith(text):
        raise ValueError(
            f"the chat template is not prefix-preserving: what it renders up to message {turn} is not how the whole "
            "conversation begins"
        )
    return text


def _tokenise(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Ids, and the character at which each token starts."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{type(tokenizer).__name__} gives no character offsets: use the fast tokenizer of the model")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]


def _token_at(borders: list[int], character: int, turn: int) -> int:
    token = bisect_left(borders, character)
    if borders[token] != character:
        raise ValueError(
            f"a token straddles the border of message {turn}: its tokens cannot be told from its neighbour's"
        )
    return token


def _end_of_turn(tokenizer: Any, ids: list[int], start: int, stop: int) -> int:
    """Cut what the template adds after the end-of-turn token (a line break, mostly): the model never generates it."""
    end = tokenizer.eos_token_id
    for index in range(stop - 1, start - 1, -1):
        if ids[index] == end:
            return index + 1
    return stop
