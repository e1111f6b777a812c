"""Values in JSON logs, whose type and name vary: a reader takes what it can use and nothing raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from composer_replication.ingestion.log_file import decode_value
from composer_replication.python_syntax import parse_literal
from composer_replication.traces import Usage


def fields(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one where the log has something else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A JSON array (as a new list), or an empty one where the log has something else."""
    return list(value) if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a JSON array; none where the log has something else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_or_none(value: Any) -> str | None:
    """A string that says something, or None."""
    return value if isinstance(value, str) and value else None


def text_at(record: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None if there is none, or something else."""
    return text_or_none(record.get(key))


def first_of(record: Any, *keys: str) -> Any:
    """The first value under one of the keys that is not null; None if there is none, or no object."""
    if not isinstance(record, Mapping):
        return None
    return next((record[key] for key in keys if record.get(key) is not None), None)


def name_of(value: Any) -> str:
    """A type, role or kind as a log has it, short enough to count by."""
    return (value if isinstance(value, str) else type(value).__name__)[:40]


def whole(value: Any) -> int:
    """A count that fits 63 bits, or 0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else 0


def is_nonzero(code: Any) -> bool:
    """Whether this is an exit code, and one of a failure."""
    return isinstance(code, int) and not isinstance(code, bool) and code != 0


def time_of(value: Any) -> str | None:
    """A time as text: as the log has it, or made from seconds since 1970."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, tz=timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def nanoseconds(given: Any) -> int | None:
    """A time as nanoseconds since 1970: ISO text, seconds to nanoseconds by their size, or `[seconds, nanos]`."""
    if isinstance(given, str):
        try:
            given = float(given) if "." in given else int(given)
        except ValueError:
            return _from_iso(given)
    if isinstance(given, list) and len(given) == 2 and all(isinstance(part, int) for part in given):
        return int(given[0]) * 10**9 + int(given[1])
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 2**64:
        return None
    scale = next(scale for limit, scale in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3), (2e19, 1)) if given < limit)
    return int(given * scale)


_ISO_TIME = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)"
    r"(?:[Tt ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)? ?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)


def _from_iso(text: str) -> int | None:
    """Read by hand: before Python 3.11, `fromisoformat` refuses `Z`, `+0000`, and nanoseconds."""
    match = _ISO_TIME.fullmatch(text.strip())
    if match is None:
        return None
    *parts, fraction, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    try:
        offset = timezone(timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1))
        time = datetime(year, month, day, hour, minute, second, tzinfo=offset)
    except ValueError:
        return None
    return int(time.timestamp()) * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))


def iso_time(time: int | None) -> str | None:
    """Nanoseconds as ISO text in UTC."""
    if time is None:
        return None
    seconds, rest = divmod(time, 10**9)
    try:
        whole = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None
    return whole.isoformat().replace("+00:00", "Z")


def decoded(value: Any) -> Any:
    """A value that may be JSON text; `UNREADABLE` if it is text, but not JSON."""
    return decode_value(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else value


def python_literal(text: str) -> Any:
    """An object or a list that some logs have as Python prints it; None if the text is anything else."""
    try:
        return parse_literal(text) if text.startswith(("{", "[")) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def known(record: dict[str, Any]) -> dict[str, Any]:
    """The entries that have a value."""
    return {key: value for key, value in record.items() if value is not None and value not in ("", {}, [])}


def usage_of(given: Any) -> Usage | None:
    """Return token counts, whichever names the provider or harness uses; None if there are none."""
    record = fields(given)
    details = fields(record.get("prompt_tokens_details")) or fields(record.get("input_tokens_details"))
    extra = fields(record.get("extra"))

    def count(*names: str) -> int:
        for name in names:
            for place in (record, details, extra):
                if whole(place.get(name)):
                    return whole(place.get(name))
        return 0

    cached = count("cached_input_tokens", "cached_tokens", "cache_read_input_tokens", "cache_read_tokens")
    written = count(
        "cache_creation_input_tokens", "cache_creation_tokens", "cache_write_input_tokens", "cache_write_tokens"
    )
    prompt = count("prompt_tokens")
    if not prompt:
        prompt = count("input_tokens")
        if "cache_read_input_tokens" in record:
            # Anthropic's own form counts the cached part beside the rest of the prompt.
            prompt += cached + written
    usage = Usage(
        input_tokens=prompt,
        output_tokens=count("completion_tokens", "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
    )
    return usage if usage != Usage() else None


VERDICTS = ("resolved", "success", "reward")
"""Keys under which agent harnesses write whether the task was solved."""
SCORES = ("reward", "final_reward", "score", "label")
"""Keys under which rows of data sets score a conversation."""


def reward_of(*records: dict[str, Any], keys: tuple[str, ...] = VERDICTS) -> float | None:
    """The first number, or yes or no (1 or 0), under one of the keys; the records are asked in their order."""
    for record in records:
        for key in keys:
            value = record.get(key)
            if isinstance(value, bool | int | float) and -1e300 < value < 1e300:  # which NaN is not either
                return float(value)
    return None


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
