"""The kinds of tool errors, and whose mistake they are."""

from __future__ import annotations

# Mistakes of the student: a hint can say what to do instead.
STUDENT_KINDS = frozenset(
    {
        # the five kinds every harness has
        "tool_not_found",  # a tool that does not exist here
        "json_decode",  # arguments that are not JSON
        "malformed_call",  # an action or a patch that the harness could not parse at all
        "type_error",  # arguments that do not fit the tool's schema
        "runtime_error",  # the tool ran and failed, and nothing more is known
        "repeated_failure",  # the very call that failed a moment ago, again
        # files and edits
        "edit_before_read",
        "edit_no_match",
        "edit_multiple_matches",
        "edit_stale",
        "edit_no_change",
        "edit_syntax_error",  # the harness checked the edited file and refused the edit
        "file_not_found",
        "path_not_found",
        "is_directory",
        "file_exists",
        "file_too_large",
        "unsupported_file",  # a binary file given to a tool that reads text
        "permission_denied",
        "blocked_command",  # a command that this harness never runs, such as an editor or a long sleep
        "bad_pattern",  # a search pattern that does not compile
        # names that do not exist: a skill, an agent, a task
        "unknown_name",
        # other services
        "mcp_error",
        "http_error",
        # commands, by what their output shows
        "command_not_found",
        "shell_syntax",
        "bad_option",
        "missing_file_in_command",
        "git_error",
        "traceback",  # an outcome where it names a file's line: then whoever wrote that line erred
        "timeout",
        "command_failed",  # a non-zero exit that shows nothing more specific
    }
)

# What right actions report on earlier work: no hint for the turn that asked. The turn that wrote what fails is charged
# with the kind, where that is certain.
OUTCOME_KINDS = frozenset(
    {
        "test_failure",
        "type_or_lint_error",
        "compile_error",
        "failing_checks",  # of a CI system
        "merge_conflict",
        "no_match",  # no failure at all: grep, test, diff and the like say "no" or "different" with an exit code of 1
    }
)

# Not the student's mistake: no hint.
OTHERS_KINDS = frozenset(
    {
        "user_rejected",
        "parallel_cancelled",
        "interrupted",
        "harness_broken",
        "hook_blocked",
        "service_unavailable",  # a server that is down, overloaded or limiting, or a network that is
    }
)


def is_students_mistake(kind: str) -> bool:
    """Whether a hint may be given to a turn that is charged with this. Kinds that a user registered count too."""
    return kind not in OTHERS_KINDS
