"""Definitions of tools, from the forms in which requests carry them to the chat API's."""

from __future__ import annotations

from typing import Any

from composer_replication.ingestion.loose_json import decoded, fields, first_of, text_at


def tool_definition(given: Any) -> dict[str, Any] | None:
    """`{"type": "function", "function": {...}}` for one tool, or None if it has no name.

    Takes that form, flat ones (the Responses API's, Anthropic's, MCP's), and the JSON text of either. `parameters` is
    left out where the log has no schema. A freeform tool takes its text as `input`, as its calls are read.
    """
    tool = fields(decoded(given))
    inside = next((tool[key] for key in ("function", "custom") if isinstance(tool.get(key), dict)), tool)
    name = text_at(inside, "name") or text_at(inside, "title")
    if name is None:
        return None
    function: dict[str, Any] = {"name": name}
    function |= {key: inside[key] for key in ("description", "strict") if inside.get(key) is not None}
    schema = decoded(first_of(inside, "parameters", "input_schema", "inputSchema"))
    if isinstance(schema, dict):
        function["parameters"] = schema
    elif tool.get("type") == "custom":
        function["parameters"] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"type": "function", "function": function}
