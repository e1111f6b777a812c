"""What teacher replay hands on: a row for every answer of a teacher, and preference pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from composer_replication.teacher_replay.gate_settings import GateSettings
from composer_replication.traces import Message


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
    """What one teacher did at one state.

    `response_text` is the answer in the form of `render_action`, so that it compares with the student's action; it is
    None if there was none, and `error` says why. `prompt_tokens` counts the whole prompt; `cached_tokens` is the part
    of it that the provider had cached. `cost_usd` is what the answer cost when it was made; `stored` marks one that
    the ledger already had, which cost nothing this time. `gated_by` is there if a sequential gate decided who is asked.
    """

    cached_tokens: int
    stored: bool
    gated_by: GateSettings


class _Pair(TypedDict):
    state_id: str
    state_messages: Sequence[Message]
    chosen: str
    rejected: str
    n_teachers_agreeing: int


class DPOPair(_Pair, total=False):
    """Teachers agreed on `chosen` where the student did `rejected`; both without thinking.

    `teachers` are those that agreed, `margin` is by how many they outnumber the next best action (the student's own
    counts as one), `similarity` is how alike their answers are (1.0: the same), `tools` are the definitions of what the
    actions call: those that the teachers were given, or of the shell, where they were to write commands as text.
    """

    teachers: list[str]
    margin: int
    similarity: float
    tools: list[dict[str, Any]]


def check_state(state: Any, where: str) -> None:
    """Raise ValueError unless a state has its id, its messages and its action."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: a state is an object, not {type(state).__name__}")
    for name, kind in (("state_id", str), ("messages", Sequence), ("student_action", str)):
        value = state.get(name)
        if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
            raise ValueError(f"{where}: a state needs {name!r}, a {'list' if kind is Sequence else 'text'}")
