"""Lessons: right calls are learned and wrong ones are not, in houses of which nothing can be known beforehand."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from composer_replication.envs.contract import Lesson, call_tool, schemas_of, tools_of
from composer_replication.envs.house_style import Call, HouseStyle, make_lessons, make_tasks
from composer_replication.envs.house_style.customs import EFFECT_OF_TOOL, EFFECTS
from composer_replication.envs.house_style.lessons import DONE, hint_for, lessons, preference_pairs
from composer_replication.envs.house_style.words import WORDS
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.hint_generator.marking import mark_errors
from composer_replication.traces import Source, ToolCall, Trace, Turn
from composer_replication.trainer.rollouts import _result

LESSONS = make_lessons(1500)


def call_of(message: dict[str, Any]) -> Call:
    function = message["tool_calls"][0]["function"]
    return Call(function["name"], function["arguments"])


def signature(call: Call) -> str:
    return f"{call.tool}({', '.join(call.arguments)})"


def learned_calls(lesson: Lesson) -> list[tuple[list[dict[str, Any]], Call, str]]:
    """The calls to learn, with the messages before them and their result."""
    messages = lesson.messages
    return [
        (messages[:place], call_of(messages[place]), messages[place + 1]["content"]) for place in lesson.learned[:-1]
    ]


def test_what_works_is_learned_and_what_fails_is_not() -> None:
    for lesson in LESSONS[:300]:
        spoken = [place for place, message in enumerate(lesson.messages) if message["role"] == "assistant"]
        assert lesson.learned[-1] == spoken[-1] == len(lesson.messages) - 1
        assert lesson.messages[-1] == DONE
        assert 1 <= len(lesson.learned[:-1]) <= 3
        for place in spoken[:-1]:
            result = lesson.messages[place + 1]
            assert result["role"] == "tool"
            assert result["name"] == call_of(lesson.messages[place]).tool
            assert result["content"].startswith("{'error': ") == (place not in lesson.learned)


def test_without_help_every_style_is_as_likely() -> None:
    first = [learned_calls(lesson)[0] for lesson in LESSONS]
    unhelped = Counter(signature(call) for before, call, _ in first if before[-1]["role"] == "user")
    for effect in EFFECTS.values():
        counts = [unhelped[one] for one in effect.signatures]
        assert min(counts) > 0.5 * sum(counts) / len(counts)
    kinds = Counter(before[-1]["role"] for before, _, _ in first)
    assert set(kinds) == {"user", "system", "tool"}
    assert min(kinds.values()) > 0.25 * len(LESSONS)


def test_help_names_the_call_that_follows() -> None:
    for lesson in LESSONS[:300]:
        for before, call, _ in learned_calls(lesson):
            helped = before[-1]["role"] == "system" or "'error'" in before[-1]["content"]
            assert not helped or signature(call) in before[-1]["content"]


def test_a_house_does_not_change_within_a_lesson() -> None:
    for lesson in LESSONS[:300]:
        customs: dict[str, str] = {}
        for _, call, _ in learned_calls(lesson):
            assert customs.setdefault(EFFECT_OF_TOOL[call.tool], signature(call)) == signature(call)


def test_hints_are_those_that_a_trainer_makes_of_a_rollout() -> None:
    tools = schemas_of(HouseStyle())
    hint, kinds = as_collator_hint(LayeredHints()), set()
    for lesson in LESSONS[:60]:
        spoken = [place for place, message in enumerate(lesson.messages) if message["role"] == "assistant"]
        for place in set(spoken) - set(lesson.learned):
            call = call_of(lesson.messages[place])
            made = ToolCall("c", call.tool, call.arguments)
            error, failed = _result(lesson.messages[place + 1]["content"], made)
            assert failed
            turns = [Turn("assistant", "", tool_calls=[made]), Turn("tool", error, tool_call_id="c", is_error=True)]
            mark_errors(Trace("", turns, Source("", ""), tools=tools), flags_errors=False)
            assert hint_for(call, error) == hint(str(turns[0].tool_error), turns[0].error_meta or {})
            kinds.add(error.split("'")[0])
    assert kinds == {"Unknown tool ", "Unexpected parameter ", "Missing required parameter "}


def test_they_are_the_same_for_a_seed_and_have_the_words_they_are_given() -> None:
    assert make_lessons(5) == LESSONS[:5]
    assert make_lessons(5, seed=1) != LESSONS[:5]
    text = str(LESSONS)
    assert not any(f"{stem}{ending}" in text for stem in WORDS["dev"].stems for ending in WORDS["dev"].endings)
    assert not any(stem in text for stem in WORDS["held_out"].stems if stem not in ("echo", "arrow"))
    held_out = str(list(islice(lessons(random.Random(0), WORDS["held_out"], calls=(2,)), 20)))
    assert any(stem in held_out for stem in WORDS["held_out"].stems)


@pytest.mark.parametrize("house", [0, 3])
def test_a_pair_is_the_call_that_a_house_takes_against_one_that_it_does_not(house: int) -> None:
    tasks = make_tasks("train", 40)
    pairs = preference_pairs(tasks, house)
    for task, pair in zip(tasks, pairs, strict=True):
        (chosen,), (rejected,) = pair["chosen"], pair["rejected"]
        for message, fails in ((rejected, True), (chosen, False)):
            call = call_of(message)
            assert [EFFECT_OF_TOOL[call.tool], *call.arguments.values()] == task["steps"][0]
            environment = HouseStyle(house)
            environment.reset(**task)
            assert call_tool(tools_of(environment), call.tool, call.arguments)[1] == fails
        assert (pair["prompt"], pair["tools"]) == (task["prompt"], schemas_of(environment))
    assert len({signature(call_of(pair["rejected"][0])) for pair in pairs}) > 10
    assert preference_pairs(tasks, house) == pairs != preference_pairs(tasks, house, seed=1)
