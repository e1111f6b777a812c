"""A tokenizer's chat template: messages as text, text as tokens, and probes of what the template shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jinja2.exceptions import TemplateError

from composer_replication.traces import Message

Tools = Sequence[dict[str, Any]] | None
"""Definitions of tools as templates take them; None: there are none."""

Ending = Literal["task", "question", "result"]

END_OF_TURN = (
    *("<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|end|>", "<|eot|>", "<end_of_utterance>"),
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3
    *("<end_of_turn>", "<turn|>", "<|tool_response>"),  # Gemma; the last one ends a call of Gemma 4
    *("<|return|>", "<|call|>"),  # gpt-oss
    *("<|user|>", "<|observation|>"),  # GLM ends a turn with the next speaker's token
    *("<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>"),  # DeepSeek, Cohere
)
"""Tokens with which models end a turn, for where a model's generation config is not at hand."""

# Words that no template has by itself.
_TEXT, _THOUGHT, _VALUE = "probe_text", "probe_thought", "probe_value"
_LAST = "probe_last_message"
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"probe_argument": {"type": "string", "description": "A probe."}},
        },
    },
}
_PROBE_ID = "a1b2c3d4e"
_ASKED: Message = {"role": "user", "content": "probe_question"}


def _calling(*values: str) -> Message:
    calls = [{"name": "probe_tool", "arguments": {"probe_argument": value}} for value in values]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": _PROBE_ID, "type": "function", "function": call} for call in calls],
    }


_CALLED = _calling(_VALUE)
_RETURNED: Message = {"role": "tool", "tool_call_id": _PROBE_ID, "name": "probe_tool", "content": _LAST}
_ANSWERED: Message = {"role": "assistant", "content": _TEXT}

_AGAIN: list[Message] = [{"role": "user", "content": _LAST}, {"role": "assistant", "content": "probe_end"}]
TALK_BESIDE_CALLS: list[Message] = [_ASKED, {**_CALLED, "content": _TEXT}, _RETURNED, _AGAIN[1]]
"""A conversation in which a turn says something and calls a tool."""
TALKS: dict[bool, tuple[list[Message], list[Message]]] = {
    has_tools: (talk, [*talk, *_AGAIN])
    for has_tools, talk in (
        (False, [_ASKED, _ANSWERED]),
        (True, [_ASKED, _CALLED, _RETURNED, _CALLED, _RETURNED, _ANSWERED]),
    )
}
"""Conversations of one and of two tasks, without and with tool calls."""

# Conversations that end in each way; the text of their last message is `_LAST`.
_NEUTRAL: dict[Ending, list[Message]] = {
    "task": [{"role": "user", "content": _LAST}],
    "question": [_ASKED, _ANSWERED, _AGAIN[0]],
    "result": [_ASKED, _CALLED, _RETURNED],
}


class TemplateRefusedError(ValueError):
    """A chat template does not take some messages, or cannot do what a channel needs."""


@dataclass(frozen=True)
class TemplatedTokenizer:
    """A tokenizer bound to the chat template and the template arguments with which a trainer renders prompts.

    `end_ids` are the ids that end a turn by the model's generation config (`configured_ends`).
    """

    tokenizer: Any
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    end_ids: tuple[int, ...] = ()

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
    """Render messages by the chat template, without tokenising.

    Raises:
        TemplateRefusedError: the template raises an error, its own or one of types that it did not expect.
    """
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except (TemplateError, TypeError) as error:
        raise TemplateRefusedError(
            f"the chat template refuses the conversation: {' '.join(str(error).split())}"
        ) from error
    return encodable(text)


def encodable(text: str) -> str:
    """Return a text without the lone surrogates that occur in agent logs: tokenizers refuse them."""
    try:
        text.encode()
    except UnicodeEncodeError:
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


def configured_ends(model: Any) -> tuple[int, ...]:
    """Return the ids that end a turn by a model's generation config; there may be none."""
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)


def end_of_turn_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a turn: the tokenizer's own, those of `END_OF_TURN` that it knows, and `end_ids`."""
    known = {tokenizer.eos_token_id, *getattr(tokenizer, "end_ids", ())}
    if hasattr(tokenizer, "convert_tokens_to_ids"):
        for token, number in zip(END_OF_TURN, tokenizer.convert_tokens_to_ids(list(END_OF_TURN)), strict=True):
            # A token that the tokenizer does not know gets the id of the unknown one.
            if number is not None and tokenizer.convert_ids_to_tokens(number) == token:
                known.add(number)
    return frozenset(known - {None})


def with_result_names(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which tools' results have the name of the tool, which some templates show."""
    names: dict[Any, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call.get("id")] = call["function"]["name"]
        if message["role"] == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message = {**message, "name": names[message["tool_call_id"]]}
        named.append(message)
    return named


def renders_tool_calls(tokenizer: Any) -> bool:
    """Whether the chat template shows tool calls and results; some drop them silently, others refuse them."""
    try:
        text = template_text(tokenizer, [_ASKED, _CALLED, _RETURNED], [_PROBE_TOOL])
    except TemplateRefusedError:
        return False
    # The value of the argument is in the call alone; the names are in the definition too.
    return _VALUE in text and _LAST in text


def drops_parallel_calls(tokenizer: Any) -> bool:
    """Whether the chat template silently shows the first of a turn's calls alone; others refuse several calls."""
    other = f"{_VALUE}_2"
    talk = [_ASKED, _calling(_VALUE, other), _RETURNED, _RETURNED]
    try:
        return other not in template_text(tokenizer, talk, [_PROBE_TOOL])
    except TemplateRefusedError:
        return False


def has_parallel_calls(messages: Sequence[Message]) -> bool:
    """Whether a message makes several calls."""
    return any(len(message.get("tool_calls") or ()) > 1 for message in messages)


def without_text_beside_calls(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which turns that call tools say nothing else."""
    return [{**message, "content": ""} if message.get("tool_calls") else message for message in messages]


def renders_all(tokenizer: Any, talk: Sequence[Message]) -> bool:
    """Whether the chat template shows every message's text."""
    text = template_text(tokenizer, talk, None)
    return all(message["content"] in text for message in talk)


def with_thinking(talk: Sequence[Message]) -> list[Message]:
    """Return a conversation in which the assistant thinks before each turn."""
    return [
        {**message, "reasoning_content": f"{_THOUGHT}_{place}"} if message["role"] == "assistant" else message
        for place, message in enumerate(talk)
    ]


def renders_thinking(tokenizer: Any, talk: Sequence[Message]) -> bool:
    """Whether the chat template shows all thinking (`reasoning_content`) in a conversation."""
    try:
        text = template_text(tokenizer, talk, None)
    except TemplateRefusedError:
        return False
    return all(message.get("reasoning_content", "") in text for message in talk)


def opening_without_thinking(tokenizer: Any) -> str:
    """Return what the template puts before an answer without thinking, if an empty block of thinking is part of it.

    That block is the template's: a model that learnt it would learn not to think. Empty: there is no such block.
    """
    try:
        before = template_text(tokenizer, [_ASKED], None)
        plain, thinking = (
            template_text(tokenizer, [_ASKED, {**_ANSWERED, **thought}], None).removeprefix(before).partition(_TEXT)[0]
            for thought in ({}, {"reasoning_content": _THOUGHT})
        )
        prompt = template_text(tokenizer, [_ASKED], None, add_generation_prompt=True).removeprefix(before)
    except TemplateRefusedError:
        return ""
    emptied = "".join(thinking.replace(_THOUGHT, "").split())
    is_block = _THOUGHT in thinking and emptied == "".join(plain.split()) and plain != prompt
    return plain if is_block else ""


class TurnBorder(NamedTuple):
    """What a template writes between a context and the assistant's next turn: the header that prompts the turn and,
    where there is one, the message of a hint before that header."""

    header: str
    hint: str = ""


def turn_border(
    tokenizer: Any,
    context: Sequence[Message],
    *,
    tools: Tools = None,
    hint: Message | None = None,
) -> TurnBorder:
    """Return how the assistant's turn after `context` begins, and the text of a hint's message before it.

    The words of a conversation do not decide how the next message is framed, but adding a message changes how some
    templates render earlier ones: they drop old thinking, for instance. So the text is taken from a neutral
    conversation that ends as `context` does, and only what follows its last message is looked at.

    Raises:
        TemplateRefusedError: the template does not take the hint, or does not show it between the context and the turn.
    """
    neutral = _NEUTRAL[ending(context)]
    closing, prompt = (
        _after_last(template_text(tokenizer, neutral, tools, add_generation_prompt=prompting))
        for prompting in (False, True)
    )
    if not prompt.startswith(closing):
        raise TemplateRefusedError(
            "the chat template rewrites the conversation when the generation prompt is added to it"
        )
    header = prompt[len(closing) :]
    if hint is None:
        return TurnBorder(header)
    hinted = _after_last(template_text(tokenizer, [*neutral, hint], tools, add_generation_prompt=True))
    middle = hinted[len(closing) : len(hinted) - len(header)]
    if hinted != closing + middle + header or hint["content"].strip() not in middle:
        raise TemplateRefusedError(
            f"the chat template does not show a {hint['role']!r} message before the assistant's turn"
        )
    return TurnBorder(header, middle)


def after_turn(tokenizer: Any, *, calls: bool) -> str:
    """Return the text that follows an assistant's turn, with or without calls, when the next message is there.

    Raises:
        TemplateRefusedError: the template does not take such a turn, or rewrites its end.
    """
    turn, follows = (_calling(_LAST), _RETURNED) if calls else ({**_ANSWERED, "content": _LAST}, _ASKED)
    alone, followed = (
        _after_last(template_text(tokenizer, talk, None)) for talk in ([_ASKED, turn], [_ASKED, turn, follows])
    )
    if not followed.startswith(alone):
        raise TemplateRefusedError("the chat template rewrites the end of a turn when another message follows")
    return followed[len(alone) :]


def ending(context: Sequence[Message]) -> Ending:
    """What the assistant's next turn follows: a tool's result, a user's message, or the user's first one."""
    if context and context[-1]["role"] == "tool":
        return "result"
    return "question" if any(message["role"] == "assistant" for message in context) else "task"


def _after_last(text: str) -> str:
    _, found, after = text.partition(_LAST)
    if not found:
        raise TemplateRefusedError("the chat template leaves out a message")
    return after
