"""Preference pairs on their way through the operators: flat texts for data-juicer, chat messages for whoever trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

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
    """A pair in both of its shapes: `chosen` and `rejected` are what text operators read and change, the messages are
    what comes out in the end. `state` is a digest of the state's messages, `extras` is what else the pair carries."""

    index: int
    state_id: str
    state: str
    state_messages: list[Message]
    chosen: str
    rejected: str
    chosen_messages: list[Message]
    rejected_messages: list[Message]
    n_teachers_agreeing: int
    extras: dict[str, Any]


def to_records(pairs: Iterable[Mapping[str, Any]]) -> Iterator[PairRecord]:
    """The records of pairs, in order.

    Raises:
        ValueError: a pair lacks a key, or one is of the wrong type; the message has the pair's number.
    """
    digests = _StateDigests()
    for index, pair in enumerate(pairs):
        check_pair(pair, f"pair {index}")
        messages = list(pair["state_messages"])
        yield PairRecord(
            index=index,
            state_id=pair["state_id"],
            state=digests.of(messages),
            state_messages=messages,
            chosen=_encodable(pair["chosen"]),
            rejected=_encodable(pair["rejected"]),
            chosen_messages=action_messages(pair["chosen"]),
            rejected_messages=action_messages(pair["rejected"]),
            n_teachers_agreeing=pair["n_teachers_agreeing"],
            extras={key: value for key, value in pair.items() if key not in _REQUIRED},
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


def makes_a_call(record: PairRecord) -> bool:
    """Whether a pair is about tool calls: one of its sides makes one."""
    return any("tool_calls" in message for message in (*record["chosen_messages"], *record["rejected_messages"]))


def normalized(
    record: PairRecord, metadata: dict[str, Any], *, chosen: str | None = None, rejected: str | None = None
) -> NormalizedDPOPair:
    """The pair that a record comes out as. `chosen` and `rejected` are its texts after the operators, if any ran."""
    messages, changed = {}, []
    for side, before, after in (("chosen", record["chosen"], chosen), ("rejected", record["rejected"], rejected)):
        if after is None or after == before:
            messages[side] = record["chosen_messages"] if side == "chosen" else record["rejected_messages"]
        else:
            messages[side] = action_messages(after)
            changed.append(side)
    metadata = metadata | ({"changed": changed} if changed else {})
    return NormalizedDPOPair(
        state_id=record["state_id"],
        state_messages=record["state_messages"],
        chosen_messages=messages["chosen"],
        rejected_messages=messages["rejected"],
        n_teachers_agreeing=record["n_teachers_agreeing"],
        metadata=metadata | ({"pair": record["extras"]} if record["extras"] else {}),
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


def _canonical(message: Message) -> bytes:
    """A message as one line of JSON, whatever the order of its keys."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # half a character; `json` can spell it
        return json.dumps(message, sort_keys=True, default=repr).encode()


class _StateDigests:
    """Digests of histories. Those of a trace are each the beginning of the next: what they share is read once."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._hash = hashlib.blake2b(digest_size=16)

    def of(self, messages: list[Message]) -> str:
        known = len(self._messages)
        if messages[:known] != self._messages:
            self._hash, known = hashlib.blake2b(digest_size=16), 0
        for message in messages[known:]:
            self._hash.update(_canonical(message) + b"\n")
        self._messages = messages
        return self._hash.hexdigest()
