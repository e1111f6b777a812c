"""A conversation in OpenAI's form, as the prompt that a model's own chat template makes of it.

Templates differ in what they accept: several calls in one message, ids of any length, system messages anywhere, two
messages of one role in a row. What a template silently drops is found out once, by probes; what it refuses is rewritten
step by step until it is accepted. A template without tools gets them as text, in the form of Hermes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from jinja2.exceptions import TemplateError

from composer_replication.teacher_replay.serving.local_teacher import QuestionError
from composer_replication.traces import Message, parse_arguments

_Tools = list[dict[str, Any]] | None
_Step = Callable[[list[Message], _Tools], tuple[list[Message], _Tools]]

_TOOLS_AS_TEXT = """\
You may call these functions:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-as-json-object>}}
</tool_call>"""
_EARLIER = "[The conversation began earlier.]"
# Templates raise errors of their own, and fail on values that they do not expect.
_REFUSALS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)


class ChatTemplate:
    """The chat template of a tokenizer.

    Raises:
        ValueError: the tokenizer has none.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the tokenizer has no chat template: choose a model that was trained to chat")
        self._tokenizer = tokenizer
        self._always: list[_Step] = [] if self._shows([_ASKED, *_probe_calls(1)]) else [_tools_as_text]
        if not self._always and not self._shows([_ASKED, *_probe_calls(2)]):
            self._always.append(_one_call_a_message)
        if not self._shows([{"role": "system", "content": "probe_first"}, _ASKED, *_PROBE_TURNS]):
            self._always.append(_system_only_first)

    def prompt(self, messages: Sequence[Message], tools: _Tools = None) -> str:
        """Return the text that the model is to continue.

        Raises:
            QuestionError: the template refuses the conversation in every form.
        """
        rewritten = [_for_templates(message) for message in messages]
        for step in self._always:
            rewritten, tools = step(rewritten, tools)
        refusal: Exception | None = None
        for further in (None, *(step for step in _STEPS if step not in self._always)):
            if further is not None:
                rewritten, tools = further(rewritten, tools)
            try:
                return _sound(self._render(rewritten, tools))
            except _REFUSALS as error:
                refusal = refusal or error
        raise QuestionError(
            f"the model's chat template refuses the messages: {' '.join(str(refusal).split())}", "template_refused"
        )

    def _render(self, messages: list[Message], tools: _Tools) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False
        )
        return text

    def _shows(self, messages: list[Message]) -> bool:
        """Whether the template accepts a conversation and shows every `probe_…` in it."""
        tools = [_PROBE_TOOL] if any(message["role"] == "tool" for message in messages) else None
        try:
            text = self._render(messages, tools)
        except _REFUSALS:
            return False
        return all(word in text for word in _PROBE_WORD.findall(json.dumps([messages, tools])))


# Probes for templates. Their ids have the one form that all templates accept.
_PROBE_WORD = re.compile(r"probe_\w+")
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_definition",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_ASKED: Message = {"role": "user", "content": "probe_question"}
_PROBE_TURNS: list[Message] = [
    {"role": "assistant", "content": "probe_answer"},
    {"role": "system", "content": "probe_middle"},
    {"role": "user", "content": "probe_again"},
]


def _probe_calls(count: int) -> list[Message]:
    calls, results = [], []
    for number in range(count):
        identity, function = f"a1b2c3d4{number}", {"name": "probe_tool", "arguments": {"key": f"probe_value_{number}"}}
        calls.append({"id": identity, "type": "function", "function": function})
        result = {"tool_call_id": identity, "name": "probe_tool", "content": f"probe_result_{number}"}
        results.append({"role": "tool", **result})
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _for_templates(message: Message) -> Message:
    """Return a message with roles that templates know, and arguments as objects, which most of them need."""
    rewritten = {**message, "role": "system"} if message["role"] == "developer" else dict(message)
    if "tool_calls" in rewritten:
        rewritten["tool_calls"] = [_call_for_templates(call) for call in rewritten["tool_calls"]]
    return rewritten


def _call_for_templates(call: dict[str, Any]) -> dict[str, Any]:
    arguments, raw = parse_arguments(call["function"].get("arguments"))
    # Templates iterate over the arguments: those that are not a JSON object become the one value of one.
    shown = arguments if raw is None else {"arguments": raw}
    return {"type": "function", **call, "function": {**call["function"], "arguments": shown}}


def _one_call_a_message(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Give each call a message of its own, followed by its result."""
    parted: list[Message] = []
    placed: set[int] = set()
    for index, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            if index not in placed:
                parted.append(message)
            continue
        # Ids may be reused later: only the results right after the calls are theirs.
        results = list(takewhile(lambda place: messages[place]["role"] == "tool", range(index + 1, len(messages))))
        for number, call in enumerate(calls):
            parted.append({**message, "content": "" if number else message["content"], "tool_calls": [call]})
            for place in results:
                if place not in placed and messages[place].get("tool_call_id") == call.get("id"):
                    placed.add(place)
                    parted.append(messages[place])
                    break
    return parted, tools


def _short_ids(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Shorten ids to nine characters, as Mistral's templates need them."""
    shortened = []
    for message in messages:
        rewritten = dict(message)
        if "tool_call_id" in message:
            rewritten["tool_call_id"] = _nine_letters(message["tool_call_id"])
        if "tool_calls" in message:
            rewritten["tool_calls"] = [{**call, "id": _nine_letters(call.get("id"))} for call in message["tool_calls"]]
        shortened.append(rewritten)
    return shortened, tools


def _tools_as_text(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Write definitions into the system message, calls into the assistant's text, results as the user's."""
    plain: list[Message] = []
    for message in messages:
        parts = [message["content"]] if message["content"] else []
        if message["role"] == "tool":
            plain.append({"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"})
            continue
        for call in message.get("tool_calls", ()):
            function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            parts.append(f"<tool_call>\n{json.dumps(function)}\n</tool_call>")
        plain.append({"role": message["role"], "content": "\n".join(parts)})
    if tools:
        shown = _TOOLS_AS_TEXT.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if plain[0]["role"] == "system":
            plain[0] = {"role": "system", "content": f"{plain[0]['content']}\n\n{shown}"}
        else:
            plain.insert(0, {"role": "system", "content": shown})
    return plain, None


def _system_only_first(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Make system messages the user's, except the first message."""
    return [*messages[:1], *_system_as_user(messages[1:])], tools


def _in_alternation(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Make user and assistant alternate, beginning with the user; a leading system message stays."""
    lead = [message for message in messages[:1] if message["role"] == "system"]
    alternating: list[Message] = []
    for message in messages[len(lead) :]:
        if not alternating and message["role"] == "assistant":
            alternating.append({"role": "user", "content": _EARLIER})
        if alternating and alternating[-1]["role"] == message["role"]:
            joined = f"{alternating[-1]['content']}\n\n{message['content']}"
            alternating[-1] = {"role": message["role"], "content": joined}
        else:
            alternating.append(message)
    return [*lead, *alternating], tools


def _without_system(messages: list[Message], tools: _Tools) -> tuple[list[Message], _Tools]:
    """Make system messages the user's, too."""
    return _in_alternation(_system_as_user(messages), tools)


def _system_as_user(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "role": "user"} if message["role"] == "system" else message for message in messages]


_STEPS: tuple[_Step, ...] = (
    _one_call_a_message,
    _short_ids,
    _system_only_first,
    _tools_as_text,
    _in_alternation,
    _without_system,
)


def _nine_letters(identity: Any) -> str:
    return hashlib.sha256(str(identity).encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _sound(text: str) -> str:
    """Replace halves of surrogate pairs, which agent logs can contain and tokenizers refuse."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
