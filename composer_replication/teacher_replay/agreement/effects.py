"""An effect: one thing that an action does, whichever tool or command does it; and when two of them are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.teacher_replay.agreement.code import same_code
from composer_replication.teacher_replay.agreement.edits import Edit, are_independent, patch_changes, same_edit
from composer_replication.teacher_replay.agreement.prose import likeness
from composer_replication.teacher_replay.agreement.shell.lines import Form, is_absolute, seen_from

# Beyond this, sequences are not searched for a common order.
_MOST_EFFECTS = 300
NOTES = frozenset({"\0notes"})
"""`Effect.touches` of an effect that only notes what is to be done: nothing else depends on it."""


@dataclass(frozen=True)
class Effect:
    """One thing that is done, in a form to compare.

    `local` has paths as they were written, `resolved` has them seen from `directory` (None: not known). `is_bound`
    says that the directory matters through these paths alone. `prose` and `code` are texts that may be worded
    otherwise; `is_query` says that words have no order, `path` is the file that code belongs to. `edit` is set for a
    change of a file. `reads` says that nothing is changed; `touches` are the paths that are read or changed, None if
    that may be anything. `ending` tells whether the text that is written ends its last line ("": not known). `joint`
    is how it follows what may fail before it ("&&", ";"; "": by a call of its own, or nothing may). `limit` is the time
    it may take, as a precaution ("": none). `is_at_stake` says that it destroys or publishes, so where it is done must
    not be guessed.
    """

    local: Form
    resolved: Form
    directory: str | None = None
    is_bound: bool = False
    prose: tuple[str, ...] = ()
    is_query: bool = False
    code: tuple[str, ...] = ()
    path: str = ""
    edit: Edit | None = None
    reads: bool = False
    touches: frozenset[str] | None = None
    ending: str = ""
    joint: str = ""
    limit: str = ""
    is_at_stake: bool = False


def effect(*form: object, **fields: Any) -> Effect:
    """An effect that no directory matters for."""
    return Effect(form, form, is_bound=True, **fields)


def on_path(kind: str, path: str, *details: object, directory: str | None = None, **fields: Any) -> Effect:
    """Something that is done to one file."""
    where = seen_from(directory, path)
    local, resolved = (kind, seen_from(None, path), *details), (kind, where, *details)
    return Effect(local, resolved, directory, is_bound=True, path=where, touches=frozenset({where}), **fields)


def move_effect(source: str, target: str, directory: str | None = None) -> Effect:
    """A file moved, or given another name."""
    seen = (seen_from(directory, source), seen_from(directory, target))
    local = ("move", seen_from(None, source), seen_from(None, target))
    return Effect(local, ("move", *seen), directory, is_bound=True, touches=frozenset(seen))


def patch_effects(text: str, directory: str | None = None) -> list[Effect]:
    """Return the effects of a patch, file by file."""
    return [_change_effect(*change, directory) for change in patch_changes(text)]


def _change_effect(kind: str, path: str, what: str | Edit, directory: str | None) -> Effect:
    if isinstance(what, Edit):
        return on_path("edit", path, directory=directory, edit=what)
    if kind == "move":
        return move_effect(path, what, directory)
    if kind == "patch":
        return Effect((kind, path), (kind, path), directory)
    return on_path(kind, path, directory=directory, code=(what,) if kind == "write" else ())


def same_effect(first: Effect, second: Effect) -> float | None:
    """Return how alike two equal effects are (1.0, or the likeness of their texts); None if they are not the same."""
    if not _same_form(first, second) or len(first.prose) != len(second.prose) or len(first.code) != len(second.code):
        return None
    if any(_differ(getattr(first, name), getattr(second, name)) for name in ("ending", "joint", "limit")):
        return None
    if first.edit is not None and second.edit is not None and not same_edit(first.edit, second.edit, first.path):
        return None
    if not all(same_code(one, other, first.path) for one, other in zip(first.code, second.code, strict=True)):
        return None
    likenesses = [1.0]
    for one, other in zip(first.prose, second.prose, strict=True):
        found = likeness(one, other, as_request=True, is_query=first.is_query)
        if not found.same:
            return None
        likenesses.append(found.similarity)
    return min(likenesses)


def _differ(first: str, second: str) -> bool:
    """Whether both are known and not the same."""
    return bool(first) and bool(second) and first != second


def _same_form(first: Effect, second: Effect) -> bool:
    if first.resolved == second.resolved and first.is_bound and second.is_bound:
        return True
    may_restate = not first.is_at_stake and not second.is_at_stake
    meets = first.directory == second.directory or (may_restate and _restates(first.directory, second.directory))
    return meets and (first.local == second.local or first.resolved == second.resolved)


def _restates(first: str | None, second: str | None) -> bool:
    """Whether one names an absolute directory and the other none: agents restate the directory they are in."""
    return (first is None) != (second is None) and is_absolute(first or second or "")


def same_effects(first: Sequence[Effect], second: Sequence[Effect]) -> float | None:
    """Return how alike two sequences are that come to the same; None if they do not.

    Independent effects may change places.

    Each effect of the first is looked for in the second; it may come after others only if it is independent of them.
    """
    if len(first) != len(second):
        return None
    if len(first) > _MOST_EFFECTS:
        return 1.0 if first == second else None
    left = list(second)
    least = 1.0
    for one in first:
        for place, other in enumerate(left):
            alike = same_effect(one, other)
            if alike is not None:
                least = min(least, alike)
                del left[place]
                break
            if not _independent(one, other):
                return None
        else:
            return None
    return least


def _independent(first: Effect, second: Effect) -> bool:
    if first.reads and second.reads:
        return True
    if NOTES in (first.touches, second.touches) and first.touches != second.touches:
        return True
    if first.touches is None or second.touches is None:
        return False
    if not any(_overlaps(one, other) for one in first.touches for other in second.touches):
        return True
    return first.edit is not None and second.edit is not None and are_independent(first.edit, second.edit)


def _overlaps(first: str, second: str) -> bool:
    return first == second or first.startswith(f"{second}/") or second.startswith(f"{first}/") or "." in (first, second)
