"""Many patterns over a text: whatever trying each of them finds is found."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.pattern_set import FirstMatch, Gates, required_literals, wider_gate


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
def test_the_first_match_is_what_trying_every_pattern_finds(text: str) -> None:
    given = [(f"kind {number}", pattern) for number, pattern in enumerate([*PATTERNS, r"^\w\.$"])]
    for flags in (re.RegexFlag(0), re.IGNORECASE, re.MULTILINE):
        expected = next((kind for kind, pattern in given if re.search(pattern, text, flags)), None)
        found = FirstMatch(flags, given).find(text)
        assert (found and found[0]) == expected


def test_a_pattern_without_a_literal_is_always_tried() -> None:
    found = FirstMatch(re.MULTILINE, [("letters", "abc"), ("digits", r"^\d+$")]).find("12")
    assert found is not None
    assert found[0] == "digits"


def test_patterns_are_tried_in_order() -> None:
    patterns = FirstMatch(re.MULTILINE, [("a", "abc"), ("b", "abc|xyz")])
    found = [patterns.find(text) for text in ("abc", "xyz", "no")]
    assert [one and one[0] for one in found] == ["a", "b", None]


@pytest.mark.parametrize("bytewise", [False, True])
def test_gates_tell_which_of_them_match(bytewise: bool) -> None:
    gates = Gates(["abc", "(?m)^b", ""], bytewise=bytewise)
    assert gates.matching("a\nb – é".encode()) == [1, 2]


def test_a_byte_is_a_character_to_bytewise_gates() -> None:
    text = "é".encode()
    assert Gates(["^.$"]).matching(text) == [0]
    assert Gates(["^..$"], bytewise=True).matching(text) == [0]


@pytest.mark.parametrize(
    ("pattern", "gate"),
    [
        (re.compile(r"(?<![-_])key-[0-9a-f]{32}"), "key-[0-9a-f]{32}"),
        (re.compile(r"[A-Za-z0-9]{14}\.atlasv1\.\w+"), r"\.atlasv1\.\w+"),
        (re.compile(r"x{1,5000}", re.IGNORECASE), "(?i:x{1,})"),
    ],
)
def test_a_wider_gate_is_what_re2_can_run(pattern: re.Pattern[str], gate: str) -> None:
    assert wider_gate(pattern) == gate
