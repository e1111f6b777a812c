"""The one walk over a trace's calls: what failed, who is charged with it, and what a filter leaves."""

from __future__ import annotations

import pytest
from ingestion.failing_traces import calling, failing_trace, result

from composer_replication.ingestion.error_views import SiteFilter, call_sites
from composer_replication.traces import Source, ToolCall, Trace, Turn


def test_every_call_with_its_result_and_what_it_is_charged_with() -> None:
    sites = [
        (site.index, site.tool, site.answer_index, site.failed_as, site.charged_as)
        for site in call_sites(failing_trace())
    ]
    assert sites == [
        (1, "Edit", 2, None, "test_failure"),
        (3, "Bash", 4, "test_failure", None),
        (5, "Edit", 6, "edit_before_read", "edit_before_read"),
        (7, "Bash", 8, "user_rejected", "user_rejected"),
        (9, "Grep", 10, "no_match", None),
    ]


def test_the_turns_that_show_what_went_wrong() -> None:
    assert [site.turns for site in call_sites(failing_trace())] == [[1, 4], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_only_a_charged_mistake_of_the_student_has_a_hint() -> None:
    assert [site.index for site in call_sites(failing_trace()) if site.hint] == [1, 5]


def test_of_parallel_calls_the_one_that_is_meant_is_charged() -> None:
    both = Turn("assistant", tool_calls=[ToolCall("call_1", "Read"), ToolCall("call_2", "Bash")])
    both.tool_error, both.error_meta = "timeout", {"tool_call_id": "call_2"}
    sites = call_sites(Trace("s", [both], Source("s", "x")))
    assert [(site.tool, site.charged_as, site.answer) for site in sites] == [
        ("Read", None, None),
        ("Bash", "timeout", None),
    ]


def test_results_without_a_call_and_turns_without_one_count_too() -> None:
    lost = result("lost", "no", failed=True)
    lost.error_kind = "runtime_error"
    unparsed = Turn("assistant", "do it", tool_error="malformed_call")
    sites = call_sites(Trace("s", [unparsed, lost, result("fine", "yes")], Source("s", "x")))
    assert [(site.index, site.call, site.answer_index, site.failed_as, site.charged_as) for site in sites] == [
        (0, None, None, None, "malformed_call"),
        (1, None, 1, "runtime_error", None),
    ]


def test_copies_from_another_file_are_left_out() -> None:
    copied, answer = calling("a", "Bash"), result("a", "no", failed=True)
    copied.repeats, answer.error_kind = True, "timeout"
    assert list(call_sites(Trace("s", [copied, answer], Source("s", "x")))) == []


@pytest.mark.parametrize(
    ("kinds", "tools", "wanted"),
    [
        ([], [], [1, 3, 5, 7, 9]),
        (["test_failure"], [], [1, 3]),
        (["no_match", "user_rejected"], [], [7, 9]),
        ([], ["Edit"], [1, 5]),
        (["test_failure"], ["Bash"], [3]),
        (["no_match"], ["Bash"], []),
    ],
)
def test_a_filter_by_kind_and_tool(kinds: list[str], tools: list[str], wanted: list[int]) -> None:
    chosen = SiteFilter(kinds, tools)
    assert [site.index for site in chosen.sites(failing_trace())] == wanted
    chosen.check()


def test_what_occurs_nowhere_is_said_with_what_does() -> None:
    chosen = SiteFilter(["typo"], [])
    chosen.sites(failing_trace())
    each = r"test_failure \(1\), edit_before_read \(1\), user_rejected \(1\), no_match \(1\)$"
    with pytest.raises(ValueError, match=r"^no error of kind typo here; there are " + each):
        chosen.check()
    chosen = SiteFilter([], ["Write"])
    chosen.sites(failing_trace())
    with pytest.raises(
        ValueError, match=r"^no error of tool Write here; there are Edit \(2\), Bash \(2\), Grep \(1\)$"
    ):
        chosen.check()
    with pytest.raises(ValueError, match=r"^no error of kind typo here; there are none at all$"):
        SiteFilter(["typo"], []).check()


def test_a_failure_that_another_turn_is_charged_with_counts_once() -> None:
    """As `--stats` counts it: the call that it is charged to did not fail itself."""
    unparsed = Turn("assistant", "do it", tool_error="malformed_call")
    chosen = SiteFilter(["typo"], [])
    for trace in (failing_trace(), failing_trace(), Trace("s", [unparsed], Source("s", "x"))):
        chosen.sites(trace)
    with pytest.raises(ValueError, match=r"test_failure \(2\), .*, malformed_call \(1\)$"):
        chosen.check()
