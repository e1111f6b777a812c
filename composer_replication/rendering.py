"""Conversations as token ids, rendered once by the tokenizer's own chat template.

Which tokens belong to which turn comes from that one rendering: the text up to a turn is a prefix of the whole text,
and the tokenizer's offsets say where it ends in tokens. Messages are never tokenised apart and glued, because that does
not give the ids that the model sees. The one place where the model itself begins anew is behind a generation prompt: if
the first characters of an answer would melt into a token of that prompt, the text is cut there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    borders = _turn_borders(tokenizer, messages, tools, text)
    ids, starts = _tokenise(tokenizer, text)
    cuts = _melted_prompts(tokenizer, text, borders, ids, starts)
    if cuts:
        ids, starts = _tokenise_pieces(tokenizer, text, cuts)
    characters = [*starts, len(text)]
    turns = []
    for border in borders:
        header, start, stop = (
            _token_at(characters, character, border.message) for character in (border.header, border.start, border.stop)
        )
        turns.append(AssistantTurn(border.message, header, start, _end_of_turn(tokenizer, ids, start, stop)))
    return RenderedConversation(ids, turns)


def render_response(
    tokenizer: Any,
    prompt: Sequence[Message],
    response: Message,
    *,
    tools: Sequence[dict[str, Any]] | None = None,
) -> tuple[list[int], list[int]]:
    """The ids of a prompt, generation prompt included, and those that the model would have to generate to answer it
    with `response`, its end of turn included.

    Raises:
        ValueError: the template does not show the response behind the generation prompt.
    """
    prompt_text = _template(tokenizer, prompt, tools, add_generation_prompt=True)
    text = _template(tokenizer, [*prompt, response], tools)
    if not text.startswith(prompt_text):
        raise ValueError("the chat template is not prefix-preserving: the response is not what follows its prompt")
    prompt_ids = _tokenise(tokenizer, prompt_text)[0]
    ids = _tokenise(tokenizer, text)[0]
    if ids[: len(prompt_ids)] != prompt_ids:
        ids = _tokenise_pieces(tokenizer, text, [len(prompt_text)])[0]
    stop = _end_of_turn(tokenizer, ids, len(prompt_ids), len(ids))
    return prompt_ids, ids[len(prompt_ids) : stop]


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
    before = _template(tokenizer, messages, tools)
    try:
        hinted = _template(tokenizer, [*messages, {"role": role, "content": _PROBE}], tools)
    except TemplateError:
        return "user"
    return role if hinted.startswith(before) and _PROBE in hinted[len(before) :] else "user"


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


def renders_tool_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows tool calls and results; some drop them without a word, others refuse them."""
    try:
        text = _template(tokenizer, _PROBE_CALL, [_PROBE_TOOL])
    except TemplateError:
        return False
    return all(part in text for part in ("probe_tool", "probe_argument", "probe_result"))


def renders_text_beside_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows what a turn says beside the call it makes; Llama 3.1's shows the call alone."""
    asked, call, _ = _PROBE_CALL
    return _PROBE in _template(tokenizer, [asked, {**call, "content": _PROBE}], [_PROBE_TOOL])


def check_chat_template(tokenizer: Any, *, tools: bool = False, growing: bool = False) -> None:
    """Try a tokenizer and its chat template, before any data is rendered with them.

    Args:
        tokenizer: the tokenizer that has the template.
        tools: whether tool calls will be rendered.
        growing: whether conversations with several assistant turns will be.

    Raises:
        ValueError: the tokenizer gives no offsets or has no template, or the template leaves out tool calls or rewrites
            earlier turns.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"{type(tokenizer).__name__} has no chat template: set tokenizer.chat_template, for instance to Qwen2.5's"
        )
    _tokenise(tokenizer, "")
    if tools and not renders_tool_calls(tokenizer):
        raise ValueError(
            "the chat template leaves tool calls or their results out: set tokenizer.chat_template to one with tools, "
            "for instance Qwen2.5's, whose ChatML most tokenizers know"
        )
    if not growing:
        return
    try:
        render_conversation(tokenizer, _PROBE_TALK)
    except ValueError as error:
        raise ValueError(
            f"{error}; set tokenizer.chat_template to one that leaves the past as it is, for instance that of "
            "trl.chat_template_utils.get_training_chat_template(tokenizer)"
        ) from error


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
_PROBE_TALK: list[Message] = [
    {"role": "user", "content": "probe_question"},
    {"role": "assistant", "content": "probe_answer"},
    {"role": "user", "content": "probe_again"},
    {"role": "assistant", "content": "probe_end"},
]
_PROBE_CALL: list[Message] = [
    {"role": "user", "content": "probe_question"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "a1b2c3d4e",
                "type": "function",
                "function": {"name": "probe_tool", "arguments": {"probe_argument": "x"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "probe_tool", "content": "probe_result"},
]


class _Border(NamedTuple):
    """An assistant message in the whole text: the characters where its header, its words and the next message begin."""

    message: int
    header: int
    start: int
    stop: int


def _turn_borders(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, text: str
) -> list[_Border]:
    """Where the assistant messages stand in the rendering of all of them.

    What the template renders up to a message must be how the whole begins. To render all those beginnings takes time
    that grows with the square of the conversation, so all but the first and the last are looked at through a window:
    the conversation up to its first answer, and behind it the messages from one answer to the next. What that adds must
    stand in the whole text where the turn before has ended; if it does not, the beginning is rendered in full.
    """
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if spoken[:1] == [0]:
        raise ValueError("the conversation begins with an assistant message: nothing prompts it")
    borders: list[_Border] = []
    for previous, index in zip([-1, *spoken], spoken, strict=False):
        border = None
        if borders and index != spoken[-1]:
            lead = messages[: spoken[0] + 1]
            window = [*lead, *messages[previous + 1 : index + 1]]
            shown = _shown(tokenizer, window, tools, text, text[: borders[0].stop], borders[-1].stop)
            border = None if shown is None else _Border(index, *shown)
        if border is None:
            shown = _shown(tokenizer, messages[: index + 1], tools, text, "", 0)
            if shown is None:
                raise ValueError(
                    "the chat template is not prefix-preserving: what it renders up to message "
                    f"{index} is not how the whole conversation begins"
                )
            border = _Border(index, *shown)
        borders.append(border)
    return borders


def _shown(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]] | None,
    whole: str,
    lead: str,
    offset: int,
) -> tuple[int, int, int] | None:
    """Where the last of `messages` has its header, its words and its end in the whole text, if what they add behind
    `lead` stands in it at `offset`."""
    ends = []
    for part, prompting in ((messages[:-1], False), (messages[:-1], True), (messages, False)):
        text = _template(tokenizer, part, tools, add_generation_prompt=prompting)
        if not text.startswith(lead) or not whole.startswith(text[len(lead) :], offset):
            return None
        ends.append(offset + len(text) - len(lead))
    return ends[0], ends[1], ends[2]


def _melted_prompts(
    tokenizer: Any, text: str, borders: Sequence[_Border], ids: list[int], starts: list[int]
) -> list[int]:
    """The characters at which generation prompts end whose tokens are others than if nothing followed them."""
    characters = [*starts, len(text)]
    prompts: dict[str, list[int]] = {}
    cuts = []
    for border in borders:
        header = _token_at(characters, border.header, border.message)
        prompt = text[border.header : border.start]
        if prompt not in prompts:
            prompts[prompt] = _tokenise(tokenizer, prompt)[0]
        start = header + len(prompts[prompt])
        if ids[header:start] != prompts[prompt] or characters[start] != border.start:
            cuts.append(border.start)
    return cuts


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
    try:
        text.encode()
    except UnicodeEncodeError:  # halves of characters, which agent logs do hold and tokenizers refuse
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _tokenise(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Ids, and the character at which each token starts."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{type(tokenizer).__name__} gives no character offsets: use the fast tokenizer of the model")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts, reached = [], 0
    for start, end in encoded["offset_mapping"]:
        # Some tokenizers leave the white space that a token begins with out of its offsets.
        starts.append(min(start, reached))
        reached = end
    return list(encoded["input_ids"]), starts


def _tokenise_pieces(tokenizer: Any, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """As `_tokenise`, with no token across a cut."""
    ids: list[int] = []
    starts: list[int] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece_ids, piece_starts = _tokenise(tokenizer, text[begin:end])
        ids += piece_ids
        starts += [begin + start for start in piece_starts]
    return ids, starts


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
