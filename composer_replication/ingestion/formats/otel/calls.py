"""The meaning of a span: a model call with its messages, a run of a tool, an agent, or none of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from composer_replication.ingestion.formats.otel.dialects import (
    BadJsonError,
    answer_messages,
    given_messages,
    system_instructions,
)
from composer_replication.ingestion.formats.otel.messages import (
    REDACTED,
    HiddenContentError,
    Message,
    as_openai,
    normalise,
    read_message,
    spelled,
    text_of,
)
from composer_replication.ingestion.formats.otel.spans import (
    OPENINFERENCE_KINDS,
    Attributes,
    Event,
    Span,
    items_at,
    look,
    number_at,
    text_at,
)
from composer_replication.ingestion.log_file import UNREADABLE
from composer_replication.ingestion.loose_json import decoded, items, python_literal, tool_definition
from composer_replication.traces import Usage

NO_CONTENT = "no message content recorded"
NO_ANSWER = "model call without an answer"
BAD_JSON = "messages are not valid JSON"

DETAILS_EVENT = "gen_ai.client.inference.operation.details"

Kind = Literal["model", "tool", "agent", "other"]

_OPERATIONS: dict[str, Kind] = {
    "chat": "model",
    "completion": "model",
    "text_completion": "model",
    "generate_content": "model",
    "responses": "model",
    "call_llm": "model",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "other",
    "invoke_workflow": "other",
    "embedding": "other",
    "embeddings": "other",
    "rerank": "other",
    "retrieval": "other",
}
_KINDS: dict[str, Kind] = {
    "llm": "model",
    "tool": "tool",
    "agent": "agent",
    "workflow": "other",
    "task": "other",
    **{kind.lower(): "other" for kind in OPENINFERENCE_KINDS if kind not in ("LLM", "TOOL", "AGENT")},
}


@dataclass
class ModelCall:
    """One call of a model: all it was given, and what it answered."""

    given: list[Message]
    answer: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    usage: Usage | None = None
    response_id: str | None = None
    further_choices: int = 0
    unnamed_tools: int = 0


@dataclass
class ToolRun:
    """One run of a tool. `arguments` is None if they were not recorded, `result` likewise."""

    call_id: str
    name: str
    arguments: str | None
    result: str | None
    failed: bool
    failure: str
    end: int | None = None


def kind_of(span: Span) -> Kind:
    """Return what a span is: by its operation or kind, otherwise by the attributes it has."""
    attributes = span.attributes
    for path, kinds in (
        ("gen_ai.operation.name", _OPERATIONS),
        ("openinference.span.kind", _KINDS),
        ("traceloop.span.kind", _KINDS),
        ("llm.request.type", _OPERATIONS),
    ):
        value = look(attributes, path)
        if isinstance(value, str) and value.lower() in kinds:
            return kinds[value.lower()]
    if text_at(attributes, "gen_ai.tool.name", "gen_ai.tool.call.id"):
        return "tool"
    marked = any(look(attributes, path) is not None for path in _MODEL_MARKS)
    return "model" if marked or any(name in _MODEL_EVENTS for name, _ in span.events) else "other"


_MODEL_EVENTS = (DETAILS_EVENT, "gen_ai.choice", "gen_ai.content.completion")
_MODEL_MARKS = ("gen_ai.request.model", "gen_ai.input.messages", "gen_ai.prompt.0", "llm.input_messages")


def read_call(attributes: Attributes, events: list[Event]) -> ModelCall | str:
    """The model call of a span, or the reason why there is none in it."""
    for name, details in events:
        if name == DETAILS_EVENT:
            attributes = _merged(details, attributes)
    try:
        system = system_instructions(attributes)
        prompt = map(as_openai, given_messages(attributes, events))
        given = [one for message in prompt for one in read_message(message, "user")]
        choice, further = answer_messages(attributes, events)
        answer = [one for message in choice for one in read_message(message, "assistant")]
    except HiddenContentError:
        return NO_CONTENT
    except BadJsonError:
        return BAD_JSON
    if not given:
        return NO_CONTENT
    if system is not None and given[0].key != system.key:
        given.insert(0, system)
    if not any(message.role == "assistant" and _says_something(message) for message in answer):
        return NO_ANSWER
    given = normalise(given)
    # An answer is not joined to an assistant message that the prompt ends with.
    between = [Message("user")] if given[-1].role == "assistant" else []
    whole = normalise([*given, *between, *answer])[len(given) + len(between) :]
    tools, unnamed = _tools(attributes)
    return ModelCall(
        given=given,
        answer=[message for message in whole if message.role in ("assistant", "tool")],
        tools=tools,
        model=text_at(attributes, *_MODEL),
        usage=_usage(attributes),
        response_id=text_at(attributes, "gen_ai.response.id"),
        further_choices=further,
        unnamed_tools=unnamed,
    )


_MODEL = (
    *("gen_ai.response.model", "llm.response.model_name"),
    *("gen_ai.request.model", "llm.model_name", "llm.request.model_name"),
)


def _says_something(message: Message) -> bool:
    return bool(message.content or message.calls or message.thinking)


def _merged(lower: Attributes, upper: Attributes) -> Attributes:
    """Two trees of attributes in one; the second one's values win."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = _merged(below, value) if both and isinstance(below, dict) else value
    return merged


def _tools(attributes: Attributes) -> tuple[list[dict[str, Any]], int]:
    """Tool definitions in OpenAI's form, and how many had no name."""
    given = items(decoded(look(attributes, "gen_ai.tool.definitions")))
    if not given:
        given = [_openinference_tool(one) for one in items_at(attributes, "llm.tools")]
    if not given:
        given = items_at(attributes, "llm.request.functions")
    tools = [tool for tool in map(tool_definition, given) if tool is not None]
    for tool in tools:
        tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    return tools, len(given) - len(tools)


def _openinference_tool(tool: Any) -> Any:
    schema = decoded(look(tool, "tool.json_schema"))
    named = {"name": look(tool, "tool.name"), "description": look(tool, "tool.description")}
    if not isinstance(schema, dict):
        return named
    if not _is_tool(schema) and named["name"]:
        return {**named, "parameters": schema}
    return schema


def _is_tool(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("function"), dict) or isinstance(schema.get("name"), str)


_USAGE = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
    "cached_tokens": (
        *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
        "llm.token_count.prompt_details.cache_read",
    ),
    "cache_write_tokens": (
        *("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
        "llm.token_count.prompt_details.cache_write",
    ),
}


def _usage(attributes: Attributes) -> Usage | None:
    usage = Usage(**{name: number_at(attributes, *paths) for name, paths in _USAGE.items()})
    cached = usage.cached_tokens + usage.cache_write_tokens
    if usage.input_tokens < cached:  # a provider that counts the cached part apart
        usage.input_tokens += cached
    return usage if usage != Usage() else None


def read_tool_run(span: Span) -> ToolRun:
    """The run of a tool that a span records."""
    attributes = span.attributes
    call_id = text_at(attributes, "gen_ai.tool.call.id", "tool_call.id", "tool.call_id") or ""
    name = text_at(
        attributes, "gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name"
    ) or span.name.removeprefix("execute_tool ")
    result = next(
        (
            value
            for path in ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output")
            if (value := look(attributes, path)) not in (None, REDACTED)
        ),
        None,
    )
    inner = decoded(result)
    if isinstance(inner, dict) and isinstance(inner.get("tool_call_id"), str) and "content" in inner:
        call_id = call_id or inner["tool_call_id"]
        result = inner["content"]
    failure, raised = _exception(span)
    failed = span.failed or raised or text_at(attributes, "error.type") is not None
    return ToolRun(
        call_id=call_id,
        name=name,
        arguments=_arguments(attributes),
        result=None if result is None else text_of(result),
        failed=failed,
        failure=failure or span.failure or text_at(attributes, "error.message", "error.type") or "",
        end=span.end,
    )


def _exception(span: Span) -> tuple[str, bool]:
    for name, attributes in span.events:
        if name == "exception":
            kind = text_at(attributes, "exception.type") or ""
            message = text_at(attributes, "exception.message") or ""
            return ": ".join(part for part in (kind, message) if part), True
    return "", False


def _arguments(attributes: Attributes) -> str | None:
    for path in ("gen_ai.tool.call.arguments", "input.value", "tool.parameters", "traceloop.entity.input"):
        given = look(attributes, path)
        if given in (None, "", REDACTED):
            continue
        inner = decoded(given)
        if inner is UNREADABLE:
            inner = python_literal(given)  # LangChain records a tool's input so
        if isinstance(inner, dict):
            for key in ("kwargs", "inputs", "tool_input"):
                wrapped = path == "traceloop.entity.input" or (not inner.get("args") and _SMOLAGENTS_FLAG in inner)
                if wrapped and isinstance(inner.get(key), dict):
                    inner = inner[key]
            return spelled(inner)
        return spelled(given)
    return None


_SMOLAGENTS_FLAG = "sanitize_inputs_outputs"
