"""Tool definitions in the forms of several interfaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.ingestion.loose_json import tool_definition

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
CHAT = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "given",
    [
        CHAT,
        json.dumps(CHAT),
        {"type": "function", "name": "read", "description": "Reads.", "parameters": json.dumps(SCHEMA)},
        {"name": "read", "description": "Reads.", "input_schema": SCHEMA},
        {"title": "read", "description": "Reads.", "inputSchema": SCHEMA, "annotations": {}},
    ],
)
def test_every_form_becomes_the_chat_form(given: Any) -> None:
    assert tool_definition(given) == CHAT


@pytest.mark.parametrize(
    "given",
    [
        {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar"}},
        {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}},
    ],
)
def test_a_freeform_tool_takes_its_text_as_input(given: Any) -> None:
    assert tool_definition(given) == {
        "type": "function",
        "function": {
            "name": "apply_patch",
            "description": "Edits.",
            "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
        },
    }


@pytest.mark.parametrize("given", [None, 3, "read", [], {}, {"function": {}}, {"name": 3}])
def test_what_has_no_name_is_none(given: Any) -> None:
    assert tool_definition(given) is None
