"""Sources of hints, one after the other."""

from __future__ import annotations

import pytest

from composer_replication.hint_generator import (
    HINT_TEMPLATES,
    OTHERS_KINDS,
    HintContext,
    LayeredHints,
    RawErrorHints,
    as_collator_hint,
    dispatch,
    register,
    template_hints,
)

VAGUE_KINDS = ["runtime_error", "command_failed", "mcp_error"]
SILENT = [
    "",
    "it is stuck",
    "Something went quite wrong here",
    "### Error\nIt failed.",
    "Error: failed",
    "Operation failed.",
]
TELLING = [
    "cannot open a.py",
    "no column named `size`",
    "unknown key 'size'",
    "/srv/data is full",
    "use --force to overwrite",
    "ValueError: too many values",
    "max_tokens exceeds the limit",
    "Ref e12 is gone",
    "expected 3 columns",
]


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
    assert hints({"error_kind": "my own", "error_message": "a.py\n\nb"}) == "Avoid this error: a.py b"
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


@pytest.mark.parametrize("kind", VAGUE_KINDS)
@pytest.mark.parametrize("message", SILENT)
def test_the_template_of_a_vague_kind_leaves_it_to_others_if_nothing_is_named(kind: str, message: str) -> None:
    ctx: HintContext = {"error_kind": kind, "error_message": message, "tool_name": "Frob", "exit_code": 1}
    assert template_hints(ctx) is None
    assert dispatch(kind, ctx)


@pytest.mark.parametrize("kind", VAGUE_KINDS)
@pytest.mark.parametrize("message", TELLING)
def test_what_an_error_names_is_enough_for_a_template(kind: str, message: str) -> None:
    ctx: HintContext = {"error_kind": kind, "error_message": message}
    assert template_hints(ctx) == dispatch(kind, ctx)


def test_a_template_of_ones_own_is_never_vague(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HINT_TEMPLATES, "runtime_error", HINT_TEMPLATES["runtime_error"])
    register("runtime_error", lambda _: "Mine.")
    assert template_hints({"error_kind": "runtime_error"}) == "Mine."


def test_a_judge_is_asked_before_or_behind_the_error_itself() -> None:
    asked: list[str] = []

    def judge(ctx: HintContext) -> str | None:
        asked.append(ctx["error_message"])
        return "Do it well."

    before = LayeredHints([template_hints, judge, RawErrorHints()])
    behind = LayeredHints([template_hints, RawErrorHints(only_if_telling=True), judge])
    for hints in (before, behind):
        asked.clear()
        assert hints({"error_kind": "runtime_error", "error_message": "it is stuck"}) == "Do it well."
        assert hints({"error_kind": "edit_before_read", "error_message": "it is stuck"}) != "Do it well."
        assert asked == ["it is stuck"]
    named: HintContext = {"error_kind": "my own", "error_message": "cannot open a.py"}
    assert before(named) == "Do it well."
    assert behind(named) == "Avoid this error: cannot open a.py"


def test_by_default_an_error_that_names_nothing_gets_no_hint() -> None:
    vague: HintContext = {"error_kind": "runtime_error", "error_message": "it is stuck"}
    assert LayeredHints()(vague) is None
