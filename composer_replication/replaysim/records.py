"""A pair in the normaliser: texts for the operators, the lesson for deduplicators, its line in the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec

from composer_replication.histories import assistant_message
from composer_replication.teacher_replay.records import Pair, bare_action
from composer_replication.traces import Message, Turn, parse_action, parse_arguments, render_action

_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=repr)


@dataclass
class NormalizedDPOPair:
    """A pair that passed the recipe: a `Pair` with its actions as chat messages, and its metadata.

    `metadata` says what the pair went through: the recipe and its digest, the executor, the operators and the
    statistics they judged by; under "pair", the pair's `details`. `{"skipped": True}` if no operator ran.
    """

    state_id: str
    state_messages: list[dict[str, Any]]
    chosen_messages: list[dict[str, Any]]
    rejected_messages: list[dict[str, Any]]
    n_teachers_agreeing: int
    metadata: dict[str, Any]

    @classmethod
    def of(cls, pair: Pair, metadata: dict[str, Any]) -> NormalizedDPOPair:
        """Return a pair with its metadata."""
        return cls(
            state_id=pair.state_id,
            state_messages=list(pair.messages),
            chosen_messages=[assistant_message(pair.chosen)],
            rejected_messages=[assistant_message(pair.rejected)],
            n_teachers_agreeing=pair.n_teachers_agreeing,
            metadata=metadata | ({"pair": pair.details} if pair.details else {}),
        )


class PairRecord(TypedDict):
    """The part of a pair that operators and reports need: `chosen` and `rejected` are the texts that operators change.

    `state` is a digest of the state's messages. `lesson` is a digest of what the pair teaches: the calls of both sides
    (the text of a side without any), and the state without the steps at its end in which the student already did what
    it does here. So the pairs of a student that is stuck, and repeats itself, are one lesson.
    """

    index: int
    state_id: str
    state: str
    lesson: str
    chosen: str
    rejected: str
    tool_call: bool


def to_records(pairs: Iterable[Pair]) -> Iterator[PairRecord]:
    """Return the records of pairs, in order."""
    digests = _StateDigests()
    for index, pair in enumerate(pairs):
        messages = list(pair.messages)
        beginnings = digests.of(messages)
        situation = beginnings[_length_without_repeats(messages, _calls_of_turn(pair.rejected))]
        lesson = [situation, *(_calls_of_turn(side) or side.content for side in (pair.chosen, pair.rejected))]
        yield PairRecord(
            index=index,
            state_id=pair.state_id,
            state=beginnings[len(messages)],
            lesson=hashlib.blake2b(_canonical(lesson), digest_size=16).hexdigest(),
            chosen=_operator_text(pair.chosen),
            rejected=_operator_text(pair.rejected),
            tool_call=bool(pair.chosen.tool_calls or pair.rejected.tool_calls),
        )


def with_texts(pair: Pair, *, chosen: str, rejected: str) -> tuple[Pair, list[str]]:
    """Return a pair with its actions as operators left their texts, and the names of the sides that changed."""
    given = {"chosen": (pair.chosen, chosen), "rejected": (pair.rejected, rejected)}
    changed = {
        side: bare_action(parse_action(text)) for side, (turn, text) in given.items() if text != _operator_text(turn)
    }
    return (msgspec.structs.replace(pair, **changed) if changed else pair), list(changed)


@dataclass(frozen=True)
class DroppedPair:
    """A pair that an operator dropped. `reason` has the statistic and the bound that it missed."""

    index: int
    state_id: str
    op: str
    field: str
    reason: str
    tool_call: bool


@dataclass
class OpReport:
    """One operator: how many pairs reached it, how many it dropped, and how many of those were about tool calls."""

    op: str
    field: str
    seen: int
    dropped: int = 0
    dropped_tool_calls: int = 0


@dataclass
class NormalizeReport:
    """The summary of one `normalize`. A pair counts as a tool-call pair if either of its sides makes a call."""

    recipe: str | None
    recipe_sha256: str | None
    executor: str | None
    pairs_in: int = 0
    pairs_out: int = 0
    tool_call_pairs_in: int = 0
    tool_call_pairs_out: int = 0
    ops: list[OpReport] = field(default_factory=list)
    dropped: list[DroppedPair] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)


def _operator_text(turn: Turn) -> str:
    """Return a turn's text as UTF-8 can hold it: logs have halves of characters, which no engine's files take."""
    text = render_action(turn)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _canonical(value: Any) -> bytes:
    """Return JSON on one line, with sorted keys."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # half a character; `json` can spell it
        return json.dumps(value, sort_keys=True, default=repr).encode()


# The name of each call, its arguments, and their text if they are no JSON object.
_Calls = list[tuple[str, dict[str, Any], str | None]]


def _calls_of_turn(turn: Turn) -> _Calls:
    return [(call.name, call.arguments, call.raw_arguments) for call in turn.tool_calls]


def _calls_of_message(message: Any) -> _Calls:
    try:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        return [(function["name"], *parse_arguments(function["arguments"])) for function in functions]
    except (AttributeError, KeyError, TypeError):  # not in OpenAI's form
        return []


class _Step(NamedTuple):
    """The calls of an assistant's message, and their results. `begin` is its place in the history."""

    begin: int
    calls: _Calls
    results: list[Any]


def _step_before(messages: Sequence[Any], end: int) -> _Step | None:
    """Return the step at the end of a history's first `end` messages."""
    begin = end - 1
    while begin >= 0 and isinstance(messages[begin], Mapping) and messages[begin].get("role") == "tool":
        begin -= 1
    if begin < 0 or begin == end - 1:
        return None
    results = [message.get("content") for message in messages[begin + 1 : end]]
    return _Step(begin, _calls_of_message(messages[begin]), results)


def _length_without_repeats(messages: Sequence[Any], calls: _Calls) -> int:
    """Return the length of a history without the steps at its end that repeat the one before them: the same calls with
    the same results."""
    end = len(messages)
    last = _step_before(messages, end) if calls else None
    while last is not None and last.calls == calls:
        earlier = _step_before(messages, last.begin)
        if earlier is None or earlier[1:] != last[1:]:
            break
        end, last = last.begin, earlier
    return end


class _StateDigests:
    """Digests of histories. Each history of a trace is the beginning of the next: what they share is read once."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._start()

    def _start(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._digests = [self._hash.hexdigest()]

    def of(self, messages: list[Message]) -> Sequence[str]:
        """Return the digests of all beginnings of a history, by length; valid until the next call."""
        known = len(self._messages)
        if messages[:known] != self._messages:
            self._start()
            known = 0
        for message in messages[known:]:
            self._hash.update(_canonical(message) + b"\n")
            self._digests.append(self._hash.hexdigest())
        self._messages = messages
        return self._digests
