"""The demo's teachers, and the sample traces replayed with them over real HTTP into pairs to train on."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication._tiny import replay_samples, run_loss_demo
from composer_replication._tiny.sample_replay import LOCAL_TEACHERS, careful, hasty, thorough
from composer_replication.batch import VARIANTS, SampleTrace, sample_trace
from composer_replication.cli import app as cli
from composer_replication.replaysim import DJNormalizer
from composer_replication.teacher_replay.pairs import comparer_for
from composer_replication.traces import Message, ToolCall, Turn, parse_action, render_action


def action_of(sample: SampleTrace, *, better: bool) -> str:
    """The sample's right call, or its wrong one."""
    message = sample.better_action if better else sample.messages[sample.erring_message]
    (call,) = message["tool_calls"]
    function = call["function"]
    return render_action(Turn("assistant", tool_calls=[ToolCall("", function["name"], function["arguments"])]))


# One as replay infers it from the student's wrong call, and two that are described in some of the same words.
DECOYS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name, description in (
        ("open_file", "The open_file tool of this session."),
        ("write_file", "Write a file of the project."),
        ("run_shell", "Run a command."),
    )
]


def prompt(sample: SampleTrace) -> list[Message]:
    return sample.messages[: sample.erring_message]


def only_call(action: str) -> ToolCall:
    (call,) = parse_action(action).tool_calls
    return call


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(12))
def test_careful_and_thorough_are_right_and_hasty_errs_like_the_student(variant: str, seed: int) -> None:
    sample = sample_trace(variant, seed)
    plain = careful(prompt(sample), tools=[*DECOYS, *sample.tools])
    wordy = thorough(prompt(sample), tools=[*DECOYS, *sample.tools])
    quick = hasty(prompt(sample))
    assert (plain, quick) == (action_of(sample, better=True), action_of(sample, better=False))
    assert parse_action(wordy).content
    assert only_call(wordy).arguments != only_call(plain).arguments
    for mode, agree in (("exact", False), ("action", True)):
        compare = comparer_for(mode)  # type: ignore[arg-type]
        one, other, third = map(parse_action, (plain, wordy, quick))
        assert compare(one, other).same is agree
        assert not compare(one, third).same
        assert not compare(other, third).same


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_definitions_decide_what_is_called(variant: str) -> None:
    sample = sample_trace(variant, 3)
    tools = copy.deepcopy(sample.tools)
    for tool, name in zip(tools, ("inspect_source", "evaluate"), strict=True):
        tool["function"]["name"] = name
        tool["function"]["parameters"]["required"] = ["it"]
    for teacher in (careful, thorough):
        call = only_call(teacher(prompt(sample), tools))
        assert (call.name, list(call.arguments)) == ("inspect_source" if variant == "factorial" else "evaluate", ["it"])


def test_the_last_request_decides_what_it_is_called_with() -> None:
    sample = sample_trace("factorial")
    asked = [*prompt(sample), {"role": "user", "content": "Rather find 7 in [1, 7, 9]."}]
    assert only_call(careful(asked, sample.tools)).arguments == {"code": "print([1, 7, 9].index(7))"}


@pytest.mark.parametrize("name", LOCAL_TEACHERS)
def test_a_request_out_of_its_depth_gets_no_answer(name: str) -> None:
    with pytest.raises(ValueError, match=r"neither a \.py file nor a list to search: 'Sing\.'"):
        LOCAL_TEACHERS[name]([{"role": "user", "content": "Sing."}])


def test_a_tool_that_is_not_there_is_not_called() -> None:
    with pytest.raises(ValueError, match="no tool is described as one to read a file"):
        careful(prompt(sample_trace("factorial")), DECOYS)


@pytest.mark.parametrize("seed", [0, 5])
def test_what_comes_back_over_http_is_the_right_call_against_the_students(seed: int) -> None:
    asked: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = []

    def watched(name: str, teacher: Callable[..., str]) -> Callable[..., str]:
        def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
            asked.append((name, messages, tools))
            return teacher(messages) if teacher is hasty else teacher(messages, tools)

        return answer

    replay = replay_samples(seed, {name: watched(name, teacher) for name, teacher in LOCAL_TEACHERS.items()})
    assert Counter(name for name, _, _ in asked) == {"careful": 2, "thorough": 2, "hasty": 2}
    for _, messages, tools in asked:
        # Neither what the student did nor what came of it.
        assert [message["role"] for message in messages] == ["system", "user"]
        assert {"read_file", "run_python"} <= {tool["function"]["name"] for tool in tools}
    assert (len(replay.states), len(replay.answers), replay.cost_usd) == (2, 6, 0.0)
    assert all(row["latency_s"] > 0 for row in replay.answers)
    # One of them calls what it was not offered, or with an argument of another name, as the student did: no vote.
    assert {row["teacher_slug"] for row in replay.answers if row["error"] is not None} == {"hasty"}
    assert (replay.by_meaning, replay.by_text, replay.recipe) == (2, 0, "default")
    assert list(replay.pairs) == list(VARIANTS)
    for variant, pair in replay.pairs.items():
        assert pair["chosen"] == action_of(sample_trace(variant, seed), better=True)
        assert pair["rejected"] == action_of(sample_trace(variant, seed), better=False)
        assert pair["teachers"] == ["careful", "thorough"]


def test_the_first_of_those_who_agree_is_quoted_as_it_wrote() -> None:
    replay = replay_samples(0, {"thorough": thorough, "careful": careful, "hasty": hasty})
    chosen = parse_action(replay.pairs["factorial"]["chosen"])
    assert chosen.content == "Let me look at the file before I answer."
    assert chosen.tool_calls[0].arguments["path"].startswith("./src/")
    # The demo takes it as it is, and its marks do not depend on it.
    settings: dict[str, Any] = {"steps": 2, "warm_up_steps": 1}
    quoted, plain = list(run_loss_demo(pairs=replay.pairs, **settings)), list(run_loss_demo(**settings))
    assert quoted[0].right_call == plain[0].right_call
    assert quoted[0].active_tokens["trace_replay_dpo"] > plain[0].active_tokens["trace_replay_dpo"]


def test_teachers_that_side_with_the_student_make_no_pair() -> None:
    replay = replay_samples(0, {"careful": careful, "hasty": hasty, "hastier": hasty})
    assert (replay.by_meaning, replay.pairs) == (0, {})
    with pytest.raises(ValueError, match="no preference pair for factorial, binary_search: too few teachers agreed"):
        next(run_loss_demo(pairs=replay.pairs))


def test_the_quickstart_says_in_one_line_that_there_is_no_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str] = []

    def hasty_too(messages: list[dict[str, Any]]) -> str:
        answers.append(hasty(messages))
        return answers[-1]

    monkeypatch.setitem(LOCAL_TEACHERS, "thorough", hasty_too)
    assert cli.run(["quickstart"]) == 1
    assert len(answers) == 2  # not once more for the demo itself
    captured = capsys.readouterr()
    assert "6 calls, $0.0000; 0 pairs by meaning, 0 by text; 0 kept by the recipe default" in captured.out
    assert captured.err.startswith("error: there is no preference pair for factorial, binary_search")
    assert len(captured.err.splitlines()) == 1


def test_only_what_the_recipe_keeps_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tmp_path / "long.yaml"
    longer = len(action_of(sample_trace("binary_search", 0), better=True))
    recipe.write_text(f"process:\n  - text_length_filter: {{text_key: chosen, min_len: {longer}}}\n")
    monkeypatch.setattr(DJNormalizer, "DEFAULT_RECIPE", recipe)
    replay = replay_samples(0)
    assert (replay.by_meaning, list(replay.pairs), replay.recipe) == (2, ["binary_search"], "long")
    with pytest.raises(ValueError, match="no preference pair for factorial: "):
        next(run_loss_demo(pairs=replay.pairs))


def test_without_data_juicer_the_pairs_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "data_juicer", None)
    assert cli.run(["quickstart", "--steps", "2"]) == 0
    assert "2 pairs by meaning, 0 by text; not normalised: that needs pip install" in capsys.readouterr().out
    assert list(replay_samples(0).pairs) == list(VARIANTS)


def test_a_teacher_that_fails_is_named_with_its_reason() -> None:
    def broken(messages: list[dict[str, Any]]) -> str:
        raise LookupError("out of ideas")

    with pytest.raises(RuntimeError, match=r"1 of 3 calls to local teachers failed on factorial; broken: .*out of id"):
        replay_samples(0, {"careful": careful, "thorough": thorough, "broken": broken})


def test_the_demo_asks_no_teacher_unless_it_needs_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = replay_samples(1).pairs

    def fail(seed: int) -> None:
        raise AssertionError(f"teachers were asked about seed {seed}")

    monkeypatch.setattr("composer_replication._tiny.sample_replay.replay_samples", fail)
    assert next(run_loss_demo(seed=1, warm_up_steps=1, pairs=pairs)).active_tokens["trace_replay_dpo"] > 0
    next(run_loss_demo(seed=1, warm_up_steps=1, beta_replay=0.0))
    with pytest.raises(AssertionError, match="teachers were asked about seed 1"):
        next(run_loss_demo(seed=1, warm_up_steps=1))


def test_pairs_of_other_traces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pair rejects .*the call that goes wrong here is"):
        next(run_loss_demo(seed=1, warm_up_steps=1, pairs=replay_samples(2).pairs))
