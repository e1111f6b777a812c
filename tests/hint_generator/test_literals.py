"""Which fixed texts a pattern cannot match without."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.hint_generator.literals import required_literals
from composer_replication.hint_generator.rules import Rules


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"File does not exist", ("File does not exist",)),
        (r"^fatal: (?P<what>\w+)", ("fatal: ",)),
        (r"colou?r", ("colo",)),
        (r"abc+def", ("abc",)),
        (r"\d+ passed", (" passed",)),
        (r"one two|three", ("one two", "three")),
        (r"(?:error|warning): \S", ("error", "warning")),
        (r"(?:error|warning)?: \S+ found", (" found",)),
        (r"a\.b\(c\)", ("a.b(c)",)),
        (r"[abc|]xyz[^]]", ("xyz",)),
        (r"(?!no such)word", ("word",)),
        (r"x{2,3}yes{0,1}t", ()),  # "ye" is too short to tell anything
        (r"ab|long enough", ()),
        (r"\w+", ()),
    ],
)
def test_required_literals(pattern: str, literals: tuple[str, ...]) -> None:
    assert required_literals(pattern) == literals


PATTERNS = [r"(?:ab|cd)+efg", r"^abc?d", r"a\.b[cd]{2}efg", r"(?P<n>abc|bcd)(?:e|f)*", r"abc|(?:d|e)fg(?=a)"]


@given(st.sampled_from(PATTERNS), st.text("abcdefg.", max_size=12))
def test_a_match_holds_one_of_the_literals(pattern: str, text: str) -> None:
    literals = required_literals(pattern)
    if literals and re.search(pattern, text):
        assert any(literal in text for literal in literals)


@given(st.text("abcdefgABC. \n", max_size=30))
def test_rules_find_what_trying_every_pattern_finds(text: str) -> None:
    given = [(f"kind {number}", pattern) for number, pattern in enumerate([*PATTERNS, r"^\w\.$"])]
    for flags in (re.RegexFlag(0), re.IGNORECASE, re.MULTILINE):
        expected = next((kind for kind, pattern in given if re.search(pattern, text, flags)), None)
        found = Rules(flags, *given).find(text)
        assert (found and found[0]) == expected


def test_a_rule_without_a_literal_is_always_tried() -> None:
    found = Rules(re.MULTILINE, ("letters", "abc"), ("digits", r"^\d+$")).find("12")
    assert found is not None
    assert found[0] == "digits"


def test_rules_are_tried_in_order_and_join() -> None:
    first, second = Rules(re.MULTILINE, ("a", "abc")), Rules(re.MULTILINE, ("b", "abc|xyz"))
    found = [(first + second).find(text) for text in ("abc", "xyz", "no")]
    assert [one and one[0] for one in found] == ["a", "b", None]
    with pytest.raises(ValueError, match="different flags"):
        first + Rules(re.IGNORECASE, ("c", "abc"))
