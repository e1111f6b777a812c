"""Actions are the same if they do the same: what their calls do decides, and without calls, what their texts say."""

from __future__ import annotations

from dataclasses import dataclass, field

from composer_replication._optional import require
from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.effects import Effect, same_effects
from composer_replication.teacher_replay.agreement.prose import likeness
from composer_replication.teacher_replay.agreement.tool_effects import call_effects
from composer_replication.traces import Turn, action_text

_LONGEST_COMPARED = 4_000
_NOT_QUITE = 0.99
_REMEMBERED = 256


class ActionComparer:
    """Compares what two actions do.

    Prose and thinking beside a call do not count. If neither has a call, their texts are compared; a call and a text
    are different.

    Raises:
        MissingExtraError: the extra "replay" is not installed.
    """

    def __init__(self) -> None:
        self._fuzz = require("rapidfuzz.fuzz", "replay")
        # Needed as soon as texts are compared: what is missing is told before anything is done.
        require("snowballstemmer", "replay")
        self._known: dict[str, _Action] = {}

    def __call__(self, first: Turn, second: Turn, /) -> Comparison:
        # In one order: sameness is not transitive, so a search for equals could depend on where it begins.
        one, other = sorted((self._understood(first), self._understood(second)), key=lambda action: action.key)
        if one == other:
            return Comparison(True, 1.0)
        if one.has_calls != other.has_calls:
            return Comparison(False, 0.0)
        if not one.has_calls:
            found = likeness(one.text, other.text)
            return found if found.same else Comparison(False, min(found.similarity, _NOT_QUITE))
        alike = same_effects(one.effects, other.effects)
        if alike is not None:
            return Comparison(True, alike)
        # Only the beginnings are looked at, and what is not the same is not wholly alike.
        return Comparison(False, min(self._fuzz.ratio(one.shown, other.shown) / 100, _NOT_QUITE))

    def __repr__(self) -> str:
        return "ActionComparer()"

    def _understood(self, turn: Turn) -> _Action:
        # A state is compared and done with: what is kept serves its own answers.
        key = action_text(turn)
        found = self._known.get(key)
        if found is None:
            found = _understood(key, turn)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found


@dataclass(frozen=True)
class _Action:
    key: str = field(compare=False)
    has_calls: bool
    text: str
    effects: tuple[Effect, ...] = ()
    shown: str = ""


def _understood(key: str, turn: Turn) -> _Action:
    if not turn.tool_calls:
        return _Action(key, False, turn.content)
    effects = [one for call in turn.tool_calls for one in call_effects(call)]
    shown = "\n".join(
        f"{call.name} {call.raw_arguments or call.arguments}"[:_LONGEST_COMPARED] for call in turn.tool_calls
    )
    return _Action(key, True, "", tuple(effects), shown[:_LONGEST_COMPARED])
