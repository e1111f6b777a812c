"""The results of teacher replay: a row for every answer of a teacher, and preference pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from composer_replication.traces import Message, ToolCall, Turn, parse_action, render_action


class GateSettings(TypedDict):
    """The settings of a gate, kept with the rows it let through: pairs must be extracted by the same ones.

    `agreement` is "exact", "action", or "custom" for a comparer of the caller's own.
    """

    agreement: str
    agreement_threshold: int
    min_margin: int


def gate_settings(agreement: str | Callable[..., Any], agreement_threshold: int, min_margin: int) -> GateSettings:
    """Return the settings as rows keep them."""
    name = agreement if isinstance(agreement, str) else "custom"
    return GateSettings(agreement=name, agreement_threshold=agreement_threshold, min_margin=min_margin)


def add_gate(gates: list[GateSettings], row: Mapping[str, Any]) -> None:
    """Add the gate of a row to those seen so far."""
    gate = row.get("gated_by")
    if gate is not None and gate not in gates:
        gates.append(gate)


class _TeacherCall(TypedDict):
    state_id: str
    teacher_slug: str
    response_text: str | None
    latency_s: float
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    error: str | None


class TeacherCallResult(_TeacherCall, total=False):
    """One teacher's answer at one state.

    `response_text` is the answer in the form of `render_action`, so that it compares with the student's action; it is
    None if there was none, and `error` says why. `prompt_tokens` counts the whole prompt; `cached_tokens` is the part
    of it that the provider had cached. `cost_usd` is what the answer cost when it was made; `stored` marks one that
    the ledger already had, which cost nothing this time. `gated_by` is there if a sequential gate decided who is asked.
    """

    cached_tokens: int
    stored: bool
    gated_by: GateSettings


class TeacherRow(msgspec.Struct):
    """`TeacherCallResult` between rooms: the answer is a turn, None if there is none that can be used."""

    state_id: str
    teacher_slug: str
    turn: Turn | None
    latency_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    error: str | None = None
    cached_tokens: int = 0
    stored: bool = False
    gated_by: GateSettings | None = None

    @classmethod
    def of(cls, result: TeacherCallResult) -> TeacherRow:
        """Return the row that a result describes, its text parsed.

        Raises:
            ValueError: the result lacks a key.
        """
        missing = [name for name in ("state_id", "teacher_slug", "response_text", "error") if name not in result]
        if missing:
            raise ValueError(f"a teacher's result lacks {', '.join(map(repr, missing))}: {sorted(result)}")
        text = result["response_text"]
        given: dict[str, Any] = {name: value for name, value in result.items() if name in cls.__struct_fields__}
        return cls(**{**given, "turn": None if text is None else parse_action(text)})

    def result(self) -> TeacherCallResult:
        """Return the row with its answer as a text."""
        given: dict[str, Any] = {
            "state_id": self.state_id,
            "teacher_slug": self.teacher_slug,
            "response_text": None if self.turn is None else render_action(self.turn),
        }
        rest = {name: getattr(self, name) for name in self.__struct_fields__[3:]}
        if self.gated_by is None:
            del rest["gated_by"]
        return cast(TeacherCallResult, given | rest)


class Pair(msgspec.Struct):
    """A preference pair between rooms: both sides are turns in the form of `bare_action`.

    `details` holds what else a `DPOPair` says: its optional keys, and keys of the caller's own.
    """

    state_id: str
    messages: Sequence[Message]
    chosen: Turn
    rejected: Turn
    n_teachers_agreeing: int
    details: dict[str, Any] = {}

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The definitions of the tools that both sides could call."""
        return self.details.get("tools") or []

    @classmethod
    def of(cls, pair: Mapping[str, Any], where: str = "pair") -> Pair:
        """Return the pair that a `DPOPair` describes, its actions parsed.

        A side may also be a turn, or the turn's JSON object.

        Raises:
            ValueError: a key is missing or has the wrong type; the message starts with `where`.
        """
        check_pair(pair, where)
        details = dict(pair)
        chosen, rejected = (_side(details.pop(side), where) for side in ("chosen", "rejected"))
        state_id, messages, agreeing = (
            details.pop(key) for key in ("state_id", "state_messages", "n_teachers_agreeing")
        )
        return cls(state_id, messages, chosen, rejected, agreeing, details)

    def with_texts(self) -> DPOPair:
        """Return the pair with its actions as texts and its history as a list."""
        return cast(DPOPair, {**self.row(render_action), "state_messages": list(self.messages)})

    def row(self, side: Callable[[Turn], Any]) -> dict[str, Any]:
        """Return the keys of a `DPOPair`, with its sides as `side` writes them."""
        return {
            "state_id": self.state_id,
            "state_messages": self.messages,
            "chosen": side(self.chosen),
            "rejected": side(self.rejected),
            "n_teachers_agreeing": self.n_teachers_agreeing,
            **self.details,
        }


def bare_action(turn: Turn) -> Turn:
    """Return what a turn did, and nothing else of it: its text and its calls, numbered, without thinking."""
    calls = [
        ToolCall(f"call_{number}", call.name, call.arguments, call.raw_arguments)
        for number, call in enumerate(turn.tool_calls)
    ]
    return Turn("assistant", turn.content, tool_calls=calls)


def _side(given: Any, where: str) -> Turn:
    try:
        return bare_action(parse_action(given) if isinstance(given, str) else msgspec.convert(given, Turn))
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: not a pair, a side is not a turn ({error})") from None


class _Pair(TypedDict):
    state_id: str
    state_messages: Sequence[Message]
    chosen: str
    rejected: str
    n_teachers_agreeing: int


class DPOPair(_Pair, total=False):
    """Teachers agreed on `chosen` where the student did `rejected`; both are texts without thinking.

    `teachers` are those that agreed, `margin` is by how many they outnumber the next best action (the student's own
    counts as one), `similarity` is how alike their answers are (1.0: the same), `tools` are the definitions of what the
    actions call: those that the teachers were given, or of the shell, where they were to write commands as text.
    """

    teachers: list[str]
    margin: int
    similarity: float
    tools: list[dict[str, Any]]


_PAIR_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "state_id": (str, "text"),
    "state_messages": (Sequence, "list"),
    "chosen": ((str, dict, Turn), "text"),
    "rejected": ((str, dict, Turn), "text"),
    "n_teachers_agreeing": (int, "number"),
}


def check_pair(pair: Any, where: str) -> None:
    """Raise ValueError unless a pair has the required keys of a `DPOPair`, with values of their types."""
    if not isinstance(pair, Mapping):
        raise ValueError(f"{where}: not a pair, but {type(pair).__name__}")
    for key, (kind, name) in _PAIR_KINDS.items():
        value = pair.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is Sequence and isinstance(value, str)):
            raise ValueError(f"{where}: not a pair, {key!r} is missing or not a {name}")


def check_state(state: Any, where: str) -> None:
    """Raise ValueError unless a state has its id, its messages and its action."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: a state is an object, not {type(state).__name__}")
    for name, kind in (("state_id", str), ("messages", Sequence), ("student_action", str)):
        value = state.get(name)
        if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
            raise ValueError(f"{where}: a state needs {name!r}, a {'list' if kind is Sequence else 'text'}")
