"""What environments and reward functions say about a rollout's turns, in the shapes in which they may say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Remark:
    """What is wrong with a turn: a text, which is the hint itself, or an error's kind and `error_meta`.

    `turn` counts the rollout's turns from 0; None: the rollout has no such turn.
    """

    turn: int | None
    text: str | None = None
    kind: str = "feedback"
    meta: Mapping[str, Any] | None = None


def remarks(given: Any, turns: int, giver: str) -> Iterator[Remark]:
    """The remarks in what `giver` said of a rollout with this many turns.

    `given` is None (nothing to say), a text (about the last turn), a mapping from turn numbers (negative ones count
    from the end) to remarks, or a list of one remark per turn. A remark is a text, a pair of an error's kind and its
    meta, or None. Blank texts say nothing.

    Raises:
        ValueError: anything else.
    """
    if isinstance(given, str):
        given = {-1: given}
    if given is None:
        return
    if isinstance(given, Mapping):
        entries = list(given.items())
    elif isinstance(given, Sequence):
        entries = list(enumerate(given))
    else:
        raise ValueError(
            f"{giver} must be a text, a mapping from turn numbers, a list of one per turn or None, got {given!r}"
        )
    for number, one in entries:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{giver} must name turns by whole numbers, got {number!r}")
        if one is None or (isinstance(one, str) and not one.strip()):
            continue
        turn = number + turns if number < 0 else number
        place = turn if 0 <= turn < turns else None
        if isinstance(one, str):
            yield Remark(place, text=one)
            continue
        kind, meta = one if isinstance(one, Sequence) and len(one) == 2 else (None, None)
        if not isinstance(kind, str) or not (meta is None or isinstance(meta, Mapping)):
            raise ValueError(f"{giver} of turn {number} must be a text, (kind, meta) or None, got {one!r}")
        yield Remark(place, kind=kind, meta=meta)
