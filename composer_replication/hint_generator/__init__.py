"""From failed tool calls to hints: what went wrong, whose mistake it was, and what to do instead."""

from composer_replication._optional import lazy_exports

__all__ = [
    "HINT_TEMPLATES",
    "OTHERS_KINDS",
    "OUTCOME_KINDS",
    "STUDENT_KINDS",
    "HintContext",
    "HintSource",
    "JudgeHints",
    "LayeredHints",
    "RawErrorHints",
    "as_collator_hint",
    "classify",
    "dispatch",
    "hint_json_decode",
    "hint_repeated_failure",
    "hint_runtime_error",
    "hint_tool_not_found",
    "hint_type_error",
    "is_students_mistake",
    "looks_like_error",
    "mark_errors",
    "register",
    "template_hints",
]

_MODULES = {
    "classifier": ("classify", "looks_like_error"),
    "details": ("HintContext",),
    "errors": ("OTHERS_KINDS", "OUTCOME_KINDS", "STUDENT_KINDS", "is_students_mistake"),
    "errors.calls": (
        "hint_json_decode",
        "hint_repeated_failure",
        "hint_runtime_error",
        "hint_tool_not_found",
        "hint_type_error",
    ),
    "judge": ("JudgeHints",),
    "layers": (
        "HINT_TEMPLATES",
        "HintSource",
        "LayeredHints",
        "RawErrorHints",
        "as_collator_hint",
        "dispatch",
        "register",
        "template_hints",
    ),
    "marking": ("mark_errors",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
