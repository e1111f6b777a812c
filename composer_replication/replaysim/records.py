"""Preference pairs on their way through the operators: flat texts for data-juicer, chat messages for whoever trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec

from composer_replication.histories import assistant_message
from composer_replication.teacher_replay.records import DPOPair
from composer_replication.traces import Message, ToolCall, Turn, parse_action, parse_arguments, render_action

_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=repr)
_REQUIRED: Mapping[str, type] = {
    "state_id": str,
    "state_messages": Sequence,
    "chosen": str,
    "rejected": str,
    "n_teachers_agreeing": int,
}
# Python takes these for the types above.
_NOT_MEANT: Mapping[str, type | tuple[type, ...]] = {"state_messages": (str, bytes), "n_teachers_agreeing": bool}


@dataclass
class NormalizedDPOPair:
    """A pair that passed the recipe, as chat messages.

    `metadata` says what the pair went through: the recipe and its digest, the executor, the operators and the
    statistics they judged by; under "pair", whatever else the pair brought along. `{"skipped": True}` if none ran.
    """

    state_id: str
    state_messages: list[dict[str, Any]]
    chosen_messages: list[dict[str, Any]]
    rejected_messages: list[dict[str, Any]]
    n_teachers_agreeing: int
    metadata: dict[str, Any]


class PairRecord(TypedDict):
    """What operators and reports need of a pair: `chosen` and `rejected` are the texts that operators read and change.

    `state` is a digest of the state's messages. `lesson` is one of what the pair teaches: the calls of both sides (the
    text of a side without any), and the state without the steps at its end in which the student already did what it
    does here. So the pairs of a student that is stuck, and repeats itself, are one lesson.
    """

    index: int
    state_id: str
    state: str
    lesson: str
    chosen: str
    rejected: str
    tool_call: bool


def to_records(pairs: Iterable[Mapping[str, Any]]) -> Iterator[PairRecord]:
    """The records of pairs, in order.

    Raises:
        ValueError: a pair lacks a key, or one is of the wrong type; the message has the pair's number.
    """
    digests = _StateDigests()
    for index, pair in enumerate(pairs):
        check_pair(pair, f"pair {index}")
        messages = list(pair["state_messages"])
        beginnings = digests.of(messages)
        chosen, rejected = parse_action(pair["chosen"]), parse_action(pair["rejected"])
        situation = beginnings[_length_without_repeats(messages, _calls_of_turn(rejected))]
        lesson = [situation, *(_calls_of_turn(side) or side.content for side in (chosen, rejected))]
        yield PairRecord(
            index=index,
            state_id=pair["state_id"],
            state=beginnings[len(messages)],
            lesson=hashlib.blake2b(_canonical(lesson), digest_size=16).hexdigest(),
            chosen=_encodable(pair["chosen"]),
            rejected=_encodable(pair["rejected"]),
            tool_call=bool(chosen.tool_calls or rejected.tool_calls),
        )


def check_pair(pair: Any, name: str) -> None:
    """Require the keys of a `DPOPair`, and their types.

    Raises:
        ValueError: names the pair by `name`, and the key.
    """
    if not isinstance(pair, Mapping):
        raise ValueError(f"{name} is no pair but {type(pair).__name__}; a pair has {', '.join(_REQUIRED)}")
    for key, wanted in _REQUIRED.items():
        if key not in pair:
            raise ValueError(f"{name} lacks {key!r}; a pair has {', '.join(_REQUIRED)}")
        value = pair[key]
        if not isinstance(value, wanted) or isinstance(value, _NOT_MEANT.get(key, ())):
            raise ValueError(f"{name}: {key!r} is of type {type(value).__name__}")


def action_messages(action: str) -> list[Message]:
    """An action in the form of `render_action` as chat messages: prose as content, its calls as tool calls."""
    return [assistant_message(parse_action(action))]


def normalized(
    pair: Mapping[str, Any], metadata: dict[str, Any], *, chosen: str | None = None, rejected: str | None = None
) -> NormalizedDPOPair:
    """What a pair comes out as. `chosen` and `rejected` are its texts after the operators, if any ran."""
    texts, changed = {}, []
    for side, after in (("chosen", chosen), ("rejected", rejected)):
        if after is None or after == _encodable(pair[side]):
            texts[side] = pair[side]
        else:
            texts[side] = after
            changed.append(side)
    extras = {key: value for key, value in pair.items() if key not in _REQUIRED}
    metadata = metadata | ({"changed": changed} if changed else {})
    return NormalizedDPOPair(
        state_id=pair["state_id"],
        state_messages=list(pair["state_messages"]),
        chosen_messages=action_messages(texts["chosen"]),
        rejected_messages=action_messages(texts["rejected"]),
        n_teachers_agreeing=pair["n_teachers_agreeing"],
        metadata=metadata | ({"pair": extras} if extras else {}),
    )


def to_pair(pair: NormalizedDPOPair) -> DPOPair:
    """A normalised pair as the flat one that it would come from."""
    made: dict[str, Any] = {
        "state_id": pair.state_id,
        "state_messages": pair.state_messages,
        "chosen": _action(pair.chosen_messages),
        "rejected": _action(pair.rejected_messages),
        "n_teachers_agreeing": pair.n_teachers_agreeing,
        **pair.metadata.get("pair", {}),
    }
    return made  # type: ignore[return-value]


def _action(messages: Sequence[Message]) -> str:
    """The action that `action_messages` made these of."""
    (message,) = messages
    calls = [
        ToolCall(call["id"], call["function"]["name"], *parse_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return render_action(Turn("assistant", message["content"], tool_calls=calls))


def _encodable(text: str) -> str:
    """The text as UTF-8 can hold it: logs have halves of characters, which no engine's files take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _canonical(value: Any) -> bytes:
    """A message, or anything of JSON, on one line, whatever the order of its keys."""
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
    """What an assistant's message called, and what came of it. `begin` is its place in the history."""

    begin: int
    calls: _Calls
    results: list[Any]


def _step_before(messages: Sequence[Any], end: int) -> _Step | None:
    """The step that a history's first `end` messages end with."""
    begin = end - 1
    while begin >= 0 and isinstance(messages[begin], Mapping) and messages[begin].get("role") == "tool":
        begin -= 1
    if begin < 0 or begin == end - 1:
        return None
    results = [message.get("content") for message in messages[begin + 1 : end]]
    return _Step(begin, _calls_of_message(messages[begin]), results)


def _length_without_repeats(messages: Sequence[Any], calls: _Calls) -> int:
    """How much of a history there is before the steps at its end that only repeat the one before them: the same calls
    with the same results. A call that gave another result is news."""
    end = len(messages)
    last = _step_before(messages, end) if calls else None
    while last is not None and last.calls == calls:
        earlier = _step_before(messages, last.begin)
        if earlier is None or earlier[1:] != last[1:]:
            break
        end, last = last.begin, earlier
    return end


class _StateDigests:
    """Digests of histories. Those of a trace are each the beginning of the next: what they share is read once."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._start()

    def _start(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._digests = [self._hash.hexdigest()]

    def of(self, messages: list[Message]) -> Sequence[str]:
        """The digests of all beginnings of a history, by their length; to be used before the next is asked for."""
        known = len(self._messages)
        if messages[:known] != self._messages:
            self._start()
            known = 0
        for message in messages[known:]:
            self._hash.update(_canonical(message) + b"\n")
            self._digests.append(self._hash.hexdigest())
        self._messages = messages
        return self._digests
