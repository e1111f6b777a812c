"""Sources of hints, tried in order: templates first, then the error's own text and, if you have one, a judge.

LayeredHints()                                                # templates, then the error itself if it names something
LayeredHints([template_hints, JudgeHints(...), RawErrorHints()])                  # a judge for what is vague
LayeredHints([template_hints, RawErrorHints(only_if_telling=True), JudgeHints(...)])  # a judge as the last resort
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from composer_replication.hint_generator.details import HintContext, names_something, one_line
from composer_replication.hint_generator.errors import is_students_mistake
from composer_replication.hint_generator.errors.form import ERRORS

HINT_TEMPLATES: dict[str, Callable[[HintContext], str]] = {
    kind: error.hint for kind, error in ERRORS.items() if error.hint is not None
}
"""The hint of each kind. `register` adds to it."""


def dispatch(error_kind: str, ctx: HintContext | None = None) -> str | None:
    """The hint for an error, or None: for an unknown kind, and for one that is not the student's mistake."""
    template = HINT_TEMPLATES.get(error_kind)
    if template is None or not is_students_mistake(error_kind):
        return None
    return template(ctx if ctx is not None else {})


def register(error_kind: str, fn: Callable[[HintContext], str]) -> None:
    """Add a template, or replace one. Kinds that are not the student's mistake take none."""
    if not is_students_mistake(error_kind):
        raise ValueError(f"{error_kind!r} is not a mistake of the student's, so it gets no hint: choose another kind")
    HINT_TEMPLATES[error_kind] = fn


def is_vague(kind: str) -> bool:
    """Whether the template of a kind says nothing about the cause: all that it has is the error's own text."""
    error = ERRORS.get(kind)
    return error is not None and error.is_vague and HINT_TEMPLATES.get(kind) is error.hint


class HintSource(Protocol):
    """Anything that makes a hint of an error's context, or says None."""

    def __call__(self, ctx: HintContext, /) -> str | None: ...


def template_hints(ctx: HintContext) -> str | None:
    """The hint of the kind's template. None for a vague kind whose error names nothing: others may know more.

    `dispatch` has a text for those too.
    """
    kind = ctx.get("error_kind")
    if not kind:
        return None
    if is_vague(kind) and not _is_telling(ctx):
        return None
    return dispatch(kind, ctx)


class RawErrorHints:
    """The error's own text, trimmed. Small models gain little from it: measure before you use it.

    Args:
        max_characters: of the text that is quoted.
        only_if_telling: give no hint if the text names nothing, so that the next source is asked.
    """

    def __init__(self, max_characters: int = 300, *, only_if_telling: bool = False) -> None:
        if max_characters < 1:
            raise ValueError(f"max_characters must be at least 1, not {max_characters}")
        self.max_characters = max_characters
        self.only_if_telling = only_if_telling

    def __call__(self, ctx: HintContext, /) -> str | None:
        if self.only_if_telling and not _is_telling(ctx):
            return None
        lines = [line for line in str(ctx.get("error_message") or "").splitlines() if line.strip()]
        text = one_line(" ".join(lines[:6]), self.max_characters)
        return f"Avoid this error: {text}" if text else None


class LayeredHints:
    """The first hint that one of the sources has; none for what was not the student's mistake."""

    def __init__(self, sources: Iterable[HintSource] | None = None) -> None:
        self.sources: tuple[HintSource, ...] = (
            tuple(sources) if sources is not None else (template_hints, RawErrorHints(only_if_telling=True))
        )

    def __call__(self, ctx: HintContext, /) -> str | None:
        if not is_students_mistake(ctx.get("error_kind", ""), ctx):
            return None
        for source in self.sources:
            hint = source(ctx)
            if hint:
                return hint
        return None


def _is_telling(ctx: HintContext) -> bool:
    return names_something(str(ctx.get("error_message") or ""))


def as_collator_hint(source: HintSource) -> Callable[[str, Mapping[str, Any] | None], str | None]:
    """A source in the form that the collator's `hint_generator` takes: `(error_kind, error_meta) -> hint | None`."""

    def hint(error_kind: str, error_meta: Mapping[str, Any] | None = None) -> str | None:
        return source(cast(HintContext, {**(error_meta or {}), "error_kind": error_kind}))

    return hint
