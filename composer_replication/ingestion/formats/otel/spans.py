"""Spans in one form, whichever file they were written to, and their attributes as a tree.

Five containers: OTLP JSON (`resourceSpans`, one document or one per line, as the collector's file exporter writes it;
`resourceLogs` for events that were logged beside the span), the Python SDK's `span.to_json()` objects (also
pretty-printed one after another, as the console exporter prints them), flat rows with an `attributes` object, Phoenix's
rows with one column per attribute (`attributes.llm.model_name`), and trees: spans that hold the spans below them
(`child_spans`), under an object with the id of their trace or alone; tables have that object as text.

An attribute may have a dotted key, be in nested objects, or both mixed:
`llm.input_messages.0.message.role`, `{"llm": {"input_messages": [{"message.role": …}]}}` and everything between them
are read alike. Only the keys of a span are split at their dots; values stay as they are, so that the arguments of a
tool keep theirs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from composer_replication.ingestion.log_file import (
    PADDING,
    UNREADABLE,
    LogFile,
    decode_value,
    values_in_line,
    without_surrogates,
)
from composer_replication.ingestion.loose_json import (
    decoded,
    fields,
    first_of,
    nanoseconds,
    objects,
    text_or_none,
    whole,
)
from composer_replication.ingestion.statistics import IngestionStats

Attributes: TypeAlias = dict[str, Any]

OWN_VALUE = "\x00own"
"""The key of a branch's own value: of `gen_ai.prompt`, beside `gen_ai.prompt.0.role`."""

_DEEPEST = 32
_LONGEST_NUMBER = 20


def grow(flat: Mapping[Any, Any]) -> Attributes:
    """A tree of attributes, its keys split at their dots."""
    tree: Attributes = {}
    ours = {id(tree)}  # objects of the file are copied before anything is put into them
    for key, value in flat.items():
        if value is None:
            continue
        *branches, leaf = str(key).split(".", _DEEPEST)
        node = tree
        for branch in branches:
            below = node.get(branch)
            if not isinstance(below, dict):
                below = {} if below is None else {OWN_VALUE: below}
            elif id(below) not in ours:
                below = dict(below)
            ours.add(id(below))
            node[branch] = below
            node = below
        there = node.get(leaf)
        if isinstance(there, dict):
            node[leaf] = {**there, **(value if isinstance(value, dict) else {OWN_VALUE: value})}
            ours.add(id(node[leaf]))
        else:
            node[leaf] = value
    return tree


def look(node: Any, path: str) -> Any:
    """The value at a dotted path, or None. A branch that has a value of its own gives that value."""
    found = _walk(node, path)
    return found.get(OWN_VALUE, found) if isinstance(found, dict) else found


def _walk(node: Any, path: str) -> Any:
    if not isinstance(node, dict):
        return None
    if path in node:
        return node[path]
    end = path.rfind(".")
    while end > 0:
        if path[:end] in node:
            found = _walk(node[path[:end]], path[end + 1 :])
            if found is not None:
                return found
        end = path.rfind(".", 0, end)
    return None


def text_at(node: Any, *paths: str) -> str | None:
    """The first non-empty text at one of the paths."""
    for path in paths:
        value = text_or_none(look(node, path))
        if value is not None:
            return value
    return None


def number_at(node: Any, *paths: str) -> int:
    """The first whole number at one of the paths, or 0."""
    for path in paths:
        value = look(node, path)
        if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_NUMBER:
            value = int(value)
        if whole(value):
            return whole(value)
    return 0


def items_at(node: Any, path: str) -> list[Any]:
    """A list: as one, or as branches `0`, `1`, … in their order (some may be missing)."""
    found = _walk(node, path)
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        numbered = sorted((int(key), value) for key, value in found.items() if key.isascii() and key.isdigit())
        return [value for _, value in numbered]
    return []


Event: TypeAlias = tuple[str, Attributes]
"""An event's name, and its attributes together with its body."""


@dataclass
class Span:
    """One span. Ids are lower-case hex where the file had hex or base64; `start` and `end` are nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str = ""
    start: int | None = None
    end: int | None = None
    attributes: Attributes = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    failed: bool = False
    failure: str = ""
    scope: str | None = None
    line: int = 1
    is_log: bool = False
    """Not a span but an event that was logged for one; `events` holds it."""


_NOWHERE = Span("", "")


def read_spans(log: LogFile, stats: IngestionStats) -> Iterator[Span]:
    """Every span of a file, in the file's order. Each counts as one record; anything else is counted as skipped."""
    for line, value in _values(log, stats):
        found = list(_entries(value, line))
        spans = [span for span in found if span is not None]
        stats.n_records_total += max(1, len(found))
        if len(spans) < len(found) or (not found and not _is_export(value)):
            stats.skip("not a span", max(1, len(found) - len(spans)))
        for span in spans:
            span.line = line
            yield span


def _entries(value: Any, line: int) -> Iterator[Span | None]:
    """The spans of one JSON value, each before those inside it; None for a value in their place that is not a span.

    What a span inside another leaves out it has from its place: its trace, its parent and its time.
    """
    waiting: list[tuple[Any, Span | None]] = [(value, None)]  # trees may be deeper than Python's calls
    number = 0
    while waiting:
        value, above = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, above) for one in reversed(value)]
        elif _is_export(value):
            yield from _from_export(value)
        elif not isinstance(value, dict):
            yield None
        else:
            below = above
            if is_span(value) or (above is not None and _is_named(value)):
                number += 1
                below = _from_row(value, above or _NOWHERE, made_up_id=f"{line}.{number}" if above is not None else "")
                yield below
                yield from (_from_log_record(row, below) for row in objects(value.get("logs")))
            elif above is None and is_tree(value):
                value = _tree(value)
                below = Span(_hex(first_of(value, *_TRACE_ID)), "")
            else:
                yield None
            if below is not None:
                waiting += [(value[key], below) for key in _CHILDREN if value.get(key) is not None]


def is_span(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object is one span: both its ids, a name, a start, and attributes or spans below it."""
    context = value.get("context")
    ids = context if isinstance(context, dict) else value
    has_ids = any(key in ids for key in _TRACE_ID) and any(key in ids for key in _SPAN_ID)
    begins = any(key in value for key in _START) or ("span_name" in value and _TREE_START in value)
    return has_ids and begins and _is_named(value)


def _is_named(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object has a span's name and attributes, or spans below it; in a tree that is enough."""
    return ("name" in value or "span_name" in value) and (
        isinstance(value.get("attributes", value.get("span_attributes")), dict | list)
        or any(key.startswith("attributes.") for key in value)
        or any(objects(value.get(key)) for key in _CHILDREN)
    )


def is_tree(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object lists the spans of a trace, which may leave the trace's id to it."""
    value = _tree(value)
    trace = {key: value[key] for key in _TRACE_ID if key in value}
    return any(is_span({**trace, **one}) for one in objects(value.get("spans")))


def _tree(value: Mapping[str, Any]) -> Mapping[str, Any]:
    text = value.get("trace")
    return fields(decoded(text)) if isinstance(text, str) and '"spans"' in text[:_BEGINNING] else value


OPENINFERENCE_KINDS = ("LLM", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR")
_TRACE_ID = ("trace_id", "traceId", "context.trace_id")
_SPAN_ID = ("span_id", "spanId", "context.span_id")
_PARENT_ID = ("parent_id", "parentSpanId", "parent_span_id", "parentId")
_START = ("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime")
_END = ("end_time", "endTimeUnixNano", "end_time_unix_nano", "endTime")
_TREE_START = "timestamp"  # elsewhere that is the time of a log record
_CHILDREN = ("child_spans", "childSpans", "children", "spans")
_EXPORTS = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs", "batches")
_SCOPED = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "scopeLogs", "scope_logs")


def _is_export(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(key), list) for key in _EXPORTS)


def is_export_of_spans(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an OTLP export: its resources hold scopes."""
    resources = [one for key in _EXPORTS for one in objects(value.get(key))]
    return bool(resources) and any(isinstance(one.get(key), list) for one in resources for key in _SCOPED)


def _from_export(value: Mapping[str, Any]) -> Iterator[Span]:
    for resource in (one for key in _EXPORTS for one in objects(value.get(key))):
        for scoped in (one for key in _SCOPED for one in objects(resource.get(key))):
            scope = _scope_name(scoped.get("scope") or scoped.get("instrumentationLibrary"))
            for row in objects(scoped.get("spans")):
                span = _from_row(row)
                span.scope = scope
                yield span
            for row in objects(scoped.get("logRecords") or scoped.get("log_records")):
                yield _from_log_record(row)


def _from_row(row: Mapping[str, Any], above: Span = _NOWHERE, *, made_up_id: str = "") -> Span:
    context = row.get("context")
    ids = context if isinstance(context, dict) else row
    failed, failure = _status(row)
    attributes = _attributes(row.get("attributes", row.get("span_attributes")))
    columns = {key.removeprefix("attributes."): value for key, value in row.items() if key.startswith("attributes.")}
    if columns:
        attributes = {**attributes, **grow(columns)}
    kind = row.get("span_kind")
    if kind in OPENINFERENCE_KINDS and look(attributes, "openinference.span.kind") is None:
        attributes = {**attributes, "openinference.span.kind": kind}
    start = nanoseconds(first_of(row, *_START, _TREE_START))
    end = nanoseconds(first_of(row, *_END))
    scope = row.get("scope") or row.get("instrumentation_scope") or row.get("instrumentationScope")
    return Span(
        trace_id=_hex(first_of(ids, *_TRACE_ID)) or above.trace_id,
        span_id=_hex(first_of(ids, *_SPAN_ID)) or made_up_id,
        parent_id=_hex(first_of(row, *_PARENT_ID)) or above.span_id,
        name=str(row.get("name", row.get("span_name")) or ""),
        start=above.start if start is None else start,
        end=_end_after(start, row.get("duration")) if end is None else end,
        attributes=attributes,
        events=[_event(one) for one in objects(row.get("events"))],
        failed=failed,
        failure=failure,
        scope=_scope_name(scope or {"name": row.get("scope_name"), "version": row.get("scope_version")}),
    )


def _from_log_record(row: Mapping[str, Any], of: Span = _NOWHERE) -> Span:
    """An event of the logs signal; older SDKs put its name into an attribute."""
    attributes = _attributes(first_of(row, "attributes", "log_attributes"))
    name = row.get("eventName") or row.get("event_name") or look(attributes, "event.name") or ""
    body = _any_value(row.get("body"))
    if isinstance(body, dict):
        attributes = {**attributes, **body}
    time = nanoseconds(first_of(row, "timeUnixNano", "time_unix_nano", "observedTimeUnixNano", _TREE_START))
    return Span(
        trace_id=_hex(first_of(row, *_TRACE_ID)) or of.trace_id,
        span_id=_hex(first_of(row, *_SPAN_ID)) or of.span_id,
        start=time,
        end=time,
        events=[(str(name), attributes)],
        is_log=True,
    )


def _event(row: Mapping[str, Any]) -> Event:
    attributes = _attributes(row.get("attributes"))
    body = row.get("body")
    return str(row.get("name") or ""), {**attributes, **body} if isinstance(body, dict) else attributes


def _status(row: Mapping[str, Any]) -> tuple[bool, str]:
    status = row.get("status")
    if isinstance(status, dict):
        code = status.get("code", status.get("status_code"))
        text = status.get("message") or status.get("description")
    else:
        code = row.get("status_code", row.get("statusCode", status))
        text = row.get("status_message") or row.get("statusMessage")
    failed = code == 2 or (isinstance(code, str) and code.rsplit(".", 1)[-1].upper().endswith("ERROR"))
    return failed, text if isinstance(text, str) else ""


def _scope_name(scope: Any) -> str | None:
    if not isinstance(scope, dict):
        return None
    parts = [part for part in (scope.get("name"), scope.get("version")) if isinstance(part, str) and part]
    return " ".join(parts) or None


def _attributes(given: Any) -> Attributes:
    """Attributes as OTLP's list of keys and values or as an object, as a tree."""
    if isinstance(given, list):
        return grow(
            {one["key"]: _any_value(one.get("value")) for one in objects(given) if isinstance(one.get("key"), str)}
        )
    return grow(given) if isinstance(given, dict) else {}


def _any_value(value: Any) -> Any:
    """OTLP's `AnyValue` as a plain value; anything else as it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "stringValue" | "string_value" | "boolValue" | "bool_value" | "bytesValue" | "bytes_value":
            return inner
        case "intValue" | "int_value":
            return int(inner) if isinstance(inner, str) and inner.lstrip("-").isdigit() else inner
        case "doubleValue" | "double_value":
            return inner
        case "arrayValue" | "array_value":
            values = inner.get("values") if isinstance(inner, dict) else None
            return [_any_value(one) for one in values] if isinstance(values, list) else []
        case "kvlistValue" | "kvlist_value":
            values = objects(inner.get("values") if isinstance(inner, dict) else None)
            return {one["key"]: _any_value(one.get("value")) for one in values if isinstance(one.get("key"), str)}
    return value


_DURATION = re.compile(r"PT(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9})(?:\.(\d+))?S)?", re.ASCII)


def _end_after(start: int | None, duration: Any) -> int | None:
    """The end of a span that says how long it took, as ISO text. The unit of a number is unknown."""
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if start is None or match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    return start + (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((match[4] or "0")[:9].ljust(9, "0"))


def _hex(given: Any) -> str:
    """An id in one spelling: the SDK's `0x` goes, protobuf's base64 becomes hex, an id of zeros is none."""
    if not isinstance(given, str):
        return ""
    text = given.strip().removeprefix("0x")
    if (len(text) == 24 and text.endswith("==")) or (len(text) == 12 and text.endswith("=")):
        try:
            text = base64.b64decode(text, validate=True).hex()
        except (binascii.Error, ValueError):
            return text
    return text.lower() if text.strip("0-") else ""


def _values(log: LogFile, stats: IngestionStats) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file and the lines they begin on.

    Lines of their own, one document, or objects printed over several lines: those begin and end with a brace at the
    margin, which finds them again after a damaged one and between the other output of a program.
    """
    block: list[bytes] = []
    begun, closing = 0, b"}"
    first = True
    for number, line in log.lines():
        text = line.rstrip(PADDING)
        if block and text != b"{":
            block.append(line)
            if text == closing:
                yield from _found(begun, b"".join(block), stats)
                block = []
            continue
        if block:
            yield from _found(begun, b"".join(block), stats)
        block = []
        if first and text.lstrip(PADDING)[:1] in (b"{", b"[") and decode_value(text.lstrip(PADDING)) is UNREADABLE:
            whole = log.document(IngestionStats())
            if whole is not None:
                yield number, whole
                return
        first = False
        if text in (b"{", b"["):
            block, begun, closing = [line], number, b"}" if text == b"{" else b"]"
        else:
            yield from _found(number, line, stats)
    if block:
        yield from _found(begun, b"".join(block), stats)


def _found(line: int, text: bytes, stats: IngestionStats) -> Iterator[tuple[int, Any]]:
    values = values_in_line(text, stats, lambda value: _is_export(value) or is_span(value) or is_tree(value))
    if not values and len(text) < _LONGEST_SEARCHED and b'pans"' in text:
        values = _spans_of_cut_export(text.decode("utf-8", "replace"))
        stats.recovered["beside a broken part"] += len(values)
    yield from ((line, value) for value in values)


def _spans_of_cut_export(text: str) -> list[Any]:
    """The whole spans in an export that was cut: what holds them all does not parse, each of them does."""
    values: list[Any] = []
    position = text.find('{"')
    while position >= 0:
        try:
            value, end = _SCANNER.raw_decode(text, position)
        except RecursionError:
            break  # each of the many spans around the deepest ones would take as long to fail
        except ValueError:
            end = position + 1
        else:
            values += [without_surrogates(value)] if is_span(value) else []
        position = text.find('{"', end)
    return values


_SCANNER = json.JSONDecoder(strict=False)
_LONGEST_SEARCHED = 64 * 1024 * 1024
_BEGINNING = 4096
