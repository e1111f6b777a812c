"""Hint sites: before the right turn, on its tokens, in the template's own words; the rest counted by reason."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer.scripted_rollouts import (
    ANSWER,
    CONTENT,
    NOT_FOUND,
    OPENED,
    PROMPT,
    READ,
    answers,
    calls,
    play,
    raised,
    says,
)

from composer_replication._tiny import tiny_tokenizer
from composer_replication.hint_generator import LayeredHints, RawErrorHints, as_collator_hint
from composer_replication.trainer.rollout_hints import best_siblings, find_hint_sites, solution_text
from composer_replication.trainer.rollouts import Rollout, sampled_turns
from composer_replication.trainer.sites import HintSite

ERRING = [OPENED, NOT_FOUND, READ, CONTENT, ANSWER]
CLEAN = [READ, CONTENT, ANSWER]
HINTS = as_collator_hint(LayeredHints())


def find(
    tokenizer: Any, rollouts: Sequence[Rollout], hint_generator: Any = HINTS, **options: Any
) -> tuple[list[list[HintSite]], Counter[str]]:
    return find_hint_sites(rollouts, tokenizer=tokenizer, hint_generator=hint_generator, **options)


def only(tokenizer: Any, rollout: Rollout, **options: Any) -> HintSite:
    ((site,),), _ = find(tokenizer, [rollout], **options)
    return site


def scored(tokenizer: Any, rollout: Rollout, site: HintSite) -> list[str]:
    return [tokenizer.decode(rollout.ids[start:stop]) for start, stop in site.spans]


def hinted_text(tokenizer: Any, rollout: Rollout, site: HintSite) -> str:
    """What the teacher reads, to the last token that is scored."""
    text: str = tokenizer.decode(site.hinted(rollout.ids))
    return text


def templated(tokenizer: Any, rollout: Rollout, place: int, hint: str, role: str = "system", end: int = 0) -> str:
    """The same conversation rendered whole by the template, with the hint before the message at `place`."""
    spoken = [*rollout.prompt, *rollout.messages[:place], {"role": role, "content": hint}]
    text = tokenizer.apply_chat_template(
        [*spoken, *rollout.messages[place : (end or place) + 1]], tools=rollout.tools, tokenize=False
    )
    return text[: text.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)]


def test_the_hint_comes_before_the_erring_turn_as_the_template_would_put_it(tokenizer: Any) -> None:
    rollout = play(tokenizer, [READ, CONTENT, OPENED, NOT_FOUND, ANSWER])
    site = only(tokenizer, rollout)
    assert (site.kind, site.source) == ("tool_not_found", "tool")
    assert site.hint.startswith("There is no tool named `open_file` here")
    (turn,) = scored(tokenizer, rollout, site)
    assert '"open_file"' in turn
    assert turn.endswith(tokenizer.eos_token)
    assert hinted_text(tokenizer, rollout, site) == templated(tokenizer, rollout, 2, site.hint)


def test_recovery_turns_are_the_next_ones(tokenizer: Any) -> None:
    rollout = play(tokenizer, ERRING)
    site = only(tokenizer, rollout, sdpo_target="recovery_turn")
    (turn,) = scored(tokenizer, rollout, site)
    assert '"read_file"' in turn
    assert hinted_text(tokenizer, rollout, site) == templated(tokenizer, rollout, 2, site.hint)


def test_without_a_next_turn_there_is_no_recovery(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, [ANSWER])
    _, counts = find(qwen_tokenizer, [rollout], feedback=["Look first."], sdpo_target="recovery_turn")
    assert counts == {"no_next_turn": 1}


def test_feedback_is_the_hint_as_it_is(tokenizer: Any) -> None:
    rollout = play(tokenizer, CLEAN)
    site = only(tokenizer, rollout, feedback=[{0: "The lamp is off.\n  Say so."}])
    assert (site.kind, site.source, site.hint) == ("feedback", "environment", "The lamp is off.\n  Say so.")
    assert hinted_text(tokenizer, rollout, site) == templated(tokenizer, rollout, 0, site.hint)
    site = only(tokenizer, rollout, reward_texts=["Give the number alone."])
    assert (site.source, scored(tokenizer, rollout, site)) == ("reward", ["It prints 1." + tokenizer.eos_token])
    site = only(tokenizer, rollout, reward_texts=[{-2: ("type_error", {"signature": "read_file(path)"})}])
    assert (site.kind, site.source) == ("type_error", "reward")
    assert "`read_file(path)`" in site.hint


def test_who_knows_more_speaks_first_and_once(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, ERRING)

    def sources(**said: Any) -> list[tuple[str, str]]:
        (sites,), _ = find(qwen_tokenizer, [rollout], **said)
        return [(site.source, site.hint[:5]) for site in sites]

    assert sources(feedback=[{0: "env"}], reward_texts=[{0: "rew"}]) == [("environment", "env")]
    assert sources(reward_texts=[{0: "rew"}]) == [("reward", "rew")]
    assert sources(feedback=[{2: "env"}]) == [("tool", "There"), ("environment", "env")]
    # Without a hint of its own, the environment leaves the word to the tool's error.
    assert sources(feedback=[{0: ("interrupted", None)}]) == [("tool", "There")]


def test_several_failing_calls_of_a_turn_are_one_site(qwen_tokenizer: Any) -> None:
    both = says("", ("open_file", {"path": "a"}), ("close_file", {"path": "a"}))
    rollout = play(qwen_tokenizer, [both, NOT_FOUND, raised("close_file", "Tool close_file not found."), ANSWER])
    assert "open_file" in only(qwen_tokenizer, rollout).hint


def test_parallel_calls_where_the_template_refuses_them_do_not_hinder_later_hints() -> None:
    llama = tiny_tokenizer("llama3_1")
    rollout = play(llama, ERRING)
    doubled = {**OPENED, "tool_calls": OPENED["tool_calls"] * 2}
    rollout = replace(rollout, messages=[doubled, NOT_FOUND, *rollout.messages[1:]])
    (sites,), counts = find(llama, [rollout], feedback=[{1: "Look first."}])
    assert [site.hint for site in sites][1] == "Look first."
    assert counts == {"sites": 2}


CHARGED = [
    calls("write_file", path="shop/cart.py", content="print(itms)\n"),
    answers("write_file", "written"),
    calls("bash", command="ruff check"),
    answers("bash", "Exit code 1\nshop/cart.py:1:7: F821 Undefined name `itms`"),
    ANSWER,
]


def test_reasons_are_counted(qwen_tokenizer: Any) -> None:
    tokenizer = qwen_tokenizer
    clean, erring = play(tokenizer, CLEAN), play(tokenizer, ERRING)
    rejected = play(tokenizer, [READ, raised("read_file", "The user rejected the call"), ANSWER])
    cases: list[tuple[Rollout, dict[str, Any], str]] = [
        (clean, {}, "no_error"),
        (rejected, {}, "not_the_students_mistake"),
        (clean, {"feedback": [{0: ("hook_blocked", {})}]}, "not_the_students_mistake"),
        (clean, {"feedback": [{0: ("timeout", {"students_mistake": False})}]}, "not_the_students_mistake"),
        (
            play(tokenizer, [calls("bash", command="pytest"), answers("bash", "Exit code 1\n1 failed"), ANSWER]),
            {},
            "outcome",
        ),
        (play(tokenizer, CHARGED), {"sdpo_target": "recovery_turn"}, "no_next_turn"),
        (play(tokenizer, [READ, raised("read_file", ""), ANSWER]), {}, "no_hint"),
        (erring, {"hint_generator": lambda kind, meta: None}, "no_hint"),
        (replace(erring, messages=ERRING[:-1]), {}, "turns_do_not_match"),
        (replace(erring, prompt_ids=erring.prompt_ids[:-1]), {}, "header_not_found"),
        (replace(erring, completion_ids=[], generated=[], messages=[says("")]), {}, "truncated"),
        (replace(erring, completion_ids=[], generated=[], messages=[]), {}, "truncated"),
        (play(tokenizer, [READ], keep_last=9), {}, "truncated"),
        (erring, {"max_length": 10}, "too_long"),
    ]
    for rollout, options, reason in cases:
        (sites,), counts = find(tokenizer, [rollout], **options)
        assert sites == []
        assert counts == {reason: 1}, reason
    assert find(tokenizer, [clean], feedback=[{7: "x"}])[1] == {"no_such_turn": 1, "no_error": 1}


def test_a_site_that_just_fits_is_kept(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, ERRING)
    site = only(qwen_tokenizer, rollout)
    longest = len(site.hinted(rollout.ids))
    assert only(qwen_tokenizer, rollout, max_length=longest) == site
    assert find(qwen_tokenizer, [rollout], max_length=longest - 1)[1] == {"too_long": 1}


def test_a_turn_that_the_limit_cut_is_still_scored(tokenizer: Any) -> None:
    rollout = play(tokenizer, [READ, CONTENT, ANSWER], keep_last=3)
    site = only(tokenizer, rollout, reward_texts=["Be brief."])
    assert site.spans[-1][1] - site.spans[0][0] == 3
    assert site.spans[-1][1] == len(rollout.ids)


@pytest.mark.parametrize("answer", ["{{ raise_exception('system first') }}", ""])
def test_a_role_that_the_template_does_not_show_becomes_the_users(qwen_tokenizer: Any, answer: str) -> None:
    strict = copy.deepcopy(qwen_tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" + answer + "{% else %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    rollout = play(strict, [ANSWER])
    ((site,),), counts = find(strict, [rollout], feedback=["Look."])
    assert counts == {"sites": 1, "hint_role_user": 1}
    assert strict.decode(site.hint_ids) == "<|im_start|>user\nLook.<|im_end|>\n"
    assert find(strict, [rollout], feedback=["Look."], hint_role="user")[1] == {"sites": 1}


@pytest.mark.parametrize(
    ("shown", "became"),
    [
        # What such a template changes in earlier messages does not matter: these ids are the student's own.
        ("{{ messages|length }}{% for m in messages %}", "sites"),
        ("{% for m in messages[:1] %}", "hint_not_rendered"),
    ],
)
def test_a_hint_is_taken_from_what_follows_the_last_message(qwen_tokenizer: Any, shown: str, became: str) -> None:
    narrow = copy.deepcopy(qwen_tokenizer)
    narrow.chat_template = (
        shown + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    )
    rollout = replace(
        play(qwen_tokenizer, [ANSWER]),
        prompt_ids=narrow.apply_chat_template(PROMPT, add_generation_prompt=True, return_dict=False),
    )
    (sites,), counts = find(narrow, [rollout], feedback=["Look."])
    assert counts == {became: 1}
    assert all(narrow.decode(site.hint_ids) == "<|im_start|>system\nLook.<|im_end|>\n" for site in sites)


def test_without_messages_feedback_still_finds_its_turn(tokenizer: Any) -> None:
    rollout = play(tokenizer, ERRING)
    bare = only(tokenizer, replace(rollout, messages=[]), feedback=[{1: "Look."}])
    known = next(site for site in find(tokenizer, [rollout], feedback=[{1: "Look."}])[0][0] if site.hint == "Look.")
    assert bare == known


GROUP: dict[str, Any] = {"rewards": [0.0, 1.0], "groups": [7, 7], "succeeded": [False, True]}


def test_a_failed_rollout_is_told_of_its_sibling_before_all_its_turns(tokenizer: Any) -> None:
    failed = play(tokenizer, [OPENED, NOT_FOUND, says("It prints 2.")])
    (sites, none), counts = find(tokenizer, [failed, play(tokenizer, CLEAN)], hint_source="sibling", **GROUP)
    assert (none, counts) == ([], {"sites": 1, "succeeded": 1})
    (site,) = sites
    assert (site.kind, site.source) == ("sibling", "sibling")
    assert "It prints 1." in site.hint
    assert "2" not in site.hint
    call, answer = scored(tokenizer, failed, site)
    assert "open_file" in call
    assert answer.startswith("It prints 2.")
    assert hinted_text(tokenizer, failed, site) == templated(tokenizer, failed, 0, site.hint, end=2)


def test_both_put_the_sibling_before_the_error(tokenizer: Any) -> None:
    failed = play(tokenizer, [OPENED, NOT_FOUND, says("It prints 2.")])
    ((site,), _), counts = find(tokenizer, [failed, play(tokenizer, CLEAN)], hint_source="both", **GROUP)
    assert counts == {"sites": 1, "no_error": 1}
    solution, _, advice = site.hint.partition("\n\n")
    assert solution.endswith("It prints 1.")
    assert advice.startswith("There is no tool named `open_file`")
    assert (site.source, len(site.spans)) == ("tool", 1)
    assert hinted_text(tokenizer, failed, site) == templated(tokenizer, failed, 0, site.hint)


def test_at_most_so_many_turns_are_hinted_the_first_ones(tokenizer: Any) -> None:
    asked: list[str] = []

    def hints(kind: str, meta: Mapping[str, Any] | None) -> str:
        asked.append(kind)
        return f"hint {len(asked)}"

    rejected = raised("read_file", "The user rejected the call")
    rollout = play(tokenizer, [*([OPENED, NOT_FOUND] * 4), READ, rejected, ANSWER])
    (sites,), counts = find(tokenizer, [rollout], hints, max_hinted_turns=2)
    assert [site.hint for site in sites] == ["hint 1", "hint 2"]
    assert [text for site in sites for text in scored(tokenizer, rollout, site)] == [
        tokenizer.decode(rollout.ids[span.start : span.stop]) for span in (sampled_turns(rollout, tokenizer) or [])[:2]
    ]
    assert (counts["sites"], counts["too_many"], counts["not_the_students_mistake"]) == (2, 2, 1)
    assert len(asked) == 2  # nobody is asked about a turn that gets no hint
    assert len(find(tokenizer, [rollout], hints)[0][0]) == 4


def test_the_failing_call_is_taken_out_of_its_hint_and_the_siblings_stays(qwen_tokenizer: Any) -> None:
    failing = calls("run_python", code="print(open('a.py').read() )")
    error = raised("run_python", "SyntaxError in {'code': \"print(open('a.py').read() )\"}: use `read_file(path)`.")
    rollouts = [play(qwen_tokenizer, [failing, error, ANSWER]), play(qwen_tokenizer, [failing, CONTENT, ANSWER])]
    raw = as_collator_hint(LayeredHints([RawErrorHints()]))
    options: dict[str, Any] = {
        "hint_source": "both",
        "rewards": [0.0, 1.0],
        "groups": [0, 0],
        "succeeded": [False, True],
    }
    solution, code = solution_text(rollouts[1], qwen_tokenizer), "print(open('a.py').read() )"
    assert code in solution
    said: Any = [{0: f"You wrote {code} where a tool is needed."}, None]
    for feedback, quoted, begin, end in (
        (None, f"{{'code': \"{code}\"}}", "Avoid this error: SyntaxError in ", ": use `read_file(path)`."),
        (said, code, "You wrote ", " where a tool is needed."),
    ):
        for strips in (False, True):
            (sites, _), _ = find(qwen_tokenizer, rollouts, raw, strip_attempt=strips, feedback=feedback, **options)
            told = f"{begin}{'…' if strips else quoted}{end}"
            assert [site.hint for site in sites] == [f"{solution}\n\n{told}"]


@pytest.mark.parametrize(("terms", "told"), [(80, "… is too long"), (200, "…")])
def test_a_call_is_found_where_the_message_or_the_hint_cuts_it(qwen_tokenizer: Any, terms: int, told: str) -> None:
    code = "print( " + "1 + " * terms + "1)"
    failing = calls("run_python", code=code)
    rollout = play(qwen_tokenizer, [failing, raised("run_python", f"Refused: {code} is too long"), ANSWER])
    raw = as_collator_hint(LayeredHints([RawErrorHints()]))
    assert only(qwen_tokenizer, rollout, hint_generator=raw).hint.endswith(" 1 + 1 +…")
    assert only(qwen_tokenizer, rollout, hint_generator=raw, strip_attempt=True).hint == (
        f"Avoid this error: Refused: {told}"
    )


def test_both_fall_back_to_the_sibling_alone(qwen_tokenizer: Any) -> None:
    wrong, right = play(qwen_tokenizer, [says("It prints 2.")]), play(qwen_tokenizer, CLEAN)
    ((site,), _), counts = find(qwen_tokenizer, [wrong, right], hint_source="both", **GROUP)
    assert (site.source, counts["sites"]) == ("sibling", 1)
    erring = play(qwen_tokenizer, ERRING)
    (_, (site,)), _ = find(qwen_tokenizer, [right, erring], hint_source="both", **{**GROUP, "succeeded": [True, True]})
    assert site.hint.startswith("There is no tool")


@pytest.mark.parametrize("hint_source", ["sibling", "both"])
def test_nobody_to_learn_from(qwen_tokenizer: Any, hint_source: str) -> None:
    wrong = play(qwen_tokenizer, [says("It prints 2.")])
    for change in ({"succeeded": [False, False]}, {"groups": [1, 2], "succeeded": [False, True]}):
        (sites, _), counts = find(
            qwen_tokenizer, [wrong, play(qwen_tokenizer, CLEAN)], hint_source=hint_source, **{**GROUP, **change}
        )
        assert sites == []
        assert counts["no_sibling"] == change["succeeded"].count(False)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"hint_source": "x"}, "hint_source must be one of"),
        ({"sdpo_target": "x"}, "sdpo_target must be one of"),
        ({"max_length": 0}, "max_length must be a positive whole number"),
        ({"feedback": []}, "feedback must have one value for each of the 1 rollouts, got 0"),
        ({"reward_texts": [None] * 2}, "reward_texts must have one value for each of the 1 rollouts, got 2"),
        ({"hint_source": "sibling"}, "succeeded must have one value for each of the 1 rollouts, got none"),
        ({"hint_source": "both", "succeeded": [True], "groups": [1]}, "rewards must have one value"),
        ({"feedback": [3]}, "an environment's feedback must be a text"),
    ],
)
def test_bad_arguments_are_refused(qwen_tokenizer: Any, options: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        find(qwen_tokenizer, [play(qwen_tokenizer, CLEAN)], **options)


def test_sites_survive_json_and_those_of_older_checkpoints_load(qwen_tokenizer: Any) -> None:
    site = only(qwen_tokenizer, play(qwen_tokenizer, ERRING), hint_generator=lambda kind, meta: "Look.")
    assert HintSite.from_json(json.loads(json.dumps(site.to_json()))) == site
    assert HintSite.from_json(site.to_json()) == site
    older = (
        '{"kind": "tool_not_found", "source": "tool", "hint": "Look.", "hint_ids": [1, 87, 93, 286, 73, 81, 203, 48, '
        '83, 83, 79, 18, 2, 203], "header": 366, "spans": [[374, 398]]}'
    )
    assert HintSite.from_json(json.loads(older)) == site
    assert HintSite.from_json({**json.loads(older), "first": 0}) == site


def test_the_best_of_the_group_and_the_first_of_equals() -> None:
    rewards = [0.0, 1.0, 2.0, 2.0, 9.0, 0.0]
    groups = ["a", "a", "a", "a", "b", "c"]
    assert best_siblings(rewards, groups, [False, True, True, True, True, False]) == [2, None, None, None, None, None]


def test_one_that_nothing_scored_is_nobodys_example() -> None:
    assert best_siblings([0.0, float("nan"), 1.0], [0, 0, 0], [False, True, True]) == [2, None, None]
    assert best_siblings([0.0, float("nan")], [0, 0], [False, True]) == [None, None]


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_a_sibling_succeeded_shares_the_prompt_and_is_another(rollouts: list[tuple[float, int, bool]]) -> None:
    rewards, groups, succeeded = (list(column) for column in zip(*rollouts, strict=True))
    for index, sibling in enumerate(best_siblings(rewards, groups, succeeded)):
        candidates = [other for other in range(len(rollouts)) if groups[other] == groups[index] and succeeded[other]]
        if succeeded[index] or not candidates:
            assert sibling is None
            continue
        assert sibling in candidates
        assert sibling != index
        assert rewards[sibling] == max(rewards[other] for other in candidates)
        assert all(rewards[other] < rewards[sibling] for other in candidates if other < sibling)


def test_a_solution_is_its_calls_and_its_answer(tokenizer: Any) -> None:
    rollout = play(tokenizer, [READ, CONTENT, ANSWER])
    assert solution_text(rollout, tokenizer) == (
        'A correct solution of this task:\nCall read_file with {"path": "a.py"}\nIt prints 1.'
    )
    bare = solution_text(replace(rollout, messages=[]), tokenizer)
    assert "read_file" in bare
    assert "It prints 1." in bare
    assert "print(1)" not in bare
    assert tokenizer.eos_token not in bare


def test_a_long_solution_keeps_its_beginning_and_its_end(qwen_tokenizer: Any) -> None:
    rollout = play(qwen_tokenizer, [says("first " + "x" * 5000 + " last")])
    text = solution_text(rollout, qwen_tokenizer, max_characters=101).removeprefix("A correct solution of this task:\n")
    assert text.startswith("first x")
    assert text.endswith("x last")
    assert len(text.replace(" … ", "")) == 101


def test_a_rollout_without_words_is_no_solution(qwen_tokenizer: Any) -> None:
    assert solution_text(play(qwen_tokenizer, [says("")]), qwen_tokenizer) == ""


TOKENIZERS = {name: tiny_tokenizer(name) for name in ("qwen2_5", "llama3_1")}
WORDS = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="<|"), min_size=1, max_size=12)


@st.composite
def scripts(draw: st.DrawFn, parallel: bool) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages of a rollout, and the numbers of its turns that err."""
    messages: list[dict[str, Any]] = []
    erring = []
    for number in range(draw(st.integers(0, 4))):
        fails = draw(st.booleans())
        told = draw(WORDS)
        # A path of its own: the same call again would be another error.
        given = {"path": f"{number}{told}"}
        made = [("read_file", given)]
        results = [raised("read_file", f"File does not exist: {told}") if fails else answers("read_file", f"> {told}")]
        if parallel and draw(st.booleans()):
            made.append(("open_file", given))
            results.append(raised("open_file", "Tool open_file not found."))
            fails = True
        messages += [says("", *made), *results]
        erring += [number] if fails else []
    return [*messages, says(f"A: {draw(WORDS)}")], erring


@settings(max_examples=30)
@given(st.sampled_from(sorted(TOKENIZERS)), st.data())
def test_every_erring_turn_of_any_rollout_gets_its_hint(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    messages, erring = data.draw(scripts(parallel=name == "qwen2_5"))
    prompt = [{"role": "system", "content": data.draw(WORDS)}] * data.draw(st.integers(0, 1)) + PROMPT
    rollout = play(tokenizer, messages, prompt=prompt)
    (sites,), counts = find(tokenizer, [rollout])
    places = rollout.spoken
    assert counts["sites"] == len(erring)
    assert len(sites) == len(erring)
    for number, site in zip(erring, sites, strict=True):
        assert hinted_text(tokenizer, rollout, site) == templated(tokenizer, rollout, places[number], site.hint)
        ((start, stop),) = site.spans
        assert all(rollout.generated[start - len(rollout.prompt_ids) : stop - len(rollout.prompt_ids)])
        assert rollout.generated[start - len(rollout.prompt_ids) - 1] == 0 or start == len(rollout.prompt_ids)
        assert rollout.ids[stop - 1] == tokenizer.eos_token_id
