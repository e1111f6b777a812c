"""Sources of hints, one after the other."""

from __future__ import annotations

import pytest

from composer_replication.hint_generator import (
    OTHERS_KINDS,
    HintContext,
    LayeredHints,
    RawErrorHints,
    as_collator_hint,
    template_hints,
)


def test_the_first_source_that_has_a_hint_wins() -> None:
    asked = []

    def silent(ctx: HintContext) -> str | None:
        asked.append("silent")
        return None

    def empty(ctx: HintContext) -> str | None:
        asked.append("empty")
        return ""

    def last(ctx: HintContext) -> str | None:
        asked.append("last")
        return f"Do {ctx['error_kind']}."

    assert LayeredHints([silent, empty, last, silent])({"error_kind": "x"}) == "Do x."
    assert asked == ["silent", "empty", "last"]
    assert LayeredHints([silent])({"error_kind": "x"}) is None


@pytest.mark.parametrize("kind", sorted(OTHERS_KINDS))
def test_what_is_not_the_students_mistake_gets_no_hint(kind: str) -> None:
    def never(ctx: HintContext) -> str | None:
        pytest.fail("was asked")

    assert LayeredHints([never])({"error_kind": kind}) is None
    assert LayeredHints([never])({"error_kind": "json_decode", "students_mistake": False}) is None


def test_by_default_templates_come_before_the_error_itself() -> None:
    hints = LayeredHints()
    assert hints({"error_kind": "edit_before_read", "path": "a.py"}) == "Read `a.py` before you edit or overwrite it."
    assert hints({"error_kind": "my own", "error_message": "a\n\nb"}) == "Avoid this error: a b"
    assert hints({"error_kind": "my own"}) is None


def test_the_error_itself_is_trimmed() -> None:
    hint = RawErrorHints(max_characters=20)({"error_message": "x" * 100})
    assert hint == f"Avoid this error: {'x' * 19}…"
    with pytest.raises(ValueError, match="max_characters"):
        RawErrorHints(max_characters=0)


def test_as_the_collator_calls_it() -> None:
    hint = as_collator_hint(template_hints)
    meta = {"error_kind": "other", "path": "a.py"}
    assert hint("edit_before_read", meta) == "Read `a.py` before you edit or overwrite it."
    assert hint("json_decode", None) is not None
    assert hint("never heard of", {}) is None
    assert meta == {"error_kind": "other", "path": "a.py"}
