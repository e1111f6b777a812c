"""What a hint is made of."""

from __future__ import annotations

from typing import Any, TypedDict


class HintContext(TypedDict, total=False):
    """One error, as `mark_errors` writes it into `error_meta`. Every key may be absent."""

    error_kind: str
    error_message: str
    available_tools: list[str]
    tool_name: str
    tool_schema: dict[str, Any]
    intent: str
    # whose mistake it was, and where
    students_mistake: bool
    masked: bool  # the command hid its failure from the log
    tool_call_id: str
    reported_by: str  # the call whose result showed what this turn had written; absent if it was this one
    # what the call was about
    path: str
    command: str
    command_name: str
    exit_code: int
    # what the error names
    name: str
    available_names: list[str]
    suggestion: str
    signature: str
    signatures: list[str]
    missing_parameters: list[str]
    unexpected_parameters: list[str]
    expected_types: dict[str, str]
    matches: int
    size: str
    limit: str
    status: int
    test: str
    # of a repeated failure
    original_kind: str
    repeats: int
