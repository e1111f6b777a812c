from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packable_models import Passes
from trainer.scripted_rollouts import ANSWER, CONTENT, NOT_FOUND, OPENED, READ, padded, play

from composer_replication.channels.hint_distillation import HintGate
from composer_replication.channels.settings import ChannelSettings
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.trainer import on_policy_hints
from composer_replication.trainer.channel_engine import ChannelEngine
from composer_replication.trainer.on_policy_hints import OnPolicyHints, _succeeded, sampled_logprobs
from composer_replication.trainer.rollout_hints import find_hint_sites, hinted_batch


def _hints() -> OnPolicyHints:
    nothing: Any = None
    return OnPolicyHints(nothing, nothing, nothing, accelerator=nothing, rows_per_pass=1, max_length=None)


def test_of_several_that_speak_the_first_is_heard() -> None:
    hints = _hints()
    hints.listen(["a", None, None])
    hints.listen([None, "b", None])
    hints.listen(["c", "c", None])
    assert hints._texts == ["a", "b", None]
    hints.forget()
    assert hints._texts == []


def test_a_wrong_number_of_texts_is_refused() -> None:
    hints = _hints()
    rollouts: list[Any] = [object(), object()]
    hints.keep(rollouts, None)
    with pytest.raises(ValueError, match="each of 2 rollouts, got 3"):
        hints.listen([None, None, "x"])


def test_success_is_above_the_group_or_from_a_threshold_on() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, math.nan]
    assert _succeeded(rewards, 4, None) == [True, False, False, False, False, False, False, True]
    assert _succeeded(rewards, 4, 0.5) == [True, False, False, False, True, True, True, True]


def test_the_samplers_own_probabilities_come_first() -> None:
    # Two prompt columns; the first token of the second rollout and the last of the first.
    index = torch.tensor([[1, 2], [0, 4]])
    prompts = torch.zeros(2, 2, dtype=torch.long)
    old = -torch.arange(1.0, 7.0).view(2, 3)
    sampling = torch.tensor([[-0.1, -0.2, math.nan], [-0.4, -0.5, -0.6]])
    assert sampled_logprobs({"prompt_ids": prompts}, index) is None
    for given, expected in (
        ({"old_per_token_logps": old}, [-4.0, -3.0]),
        ({"old_per_token_logps": old, "sampling_per_token_logps": sampling}, [-0.4, -3.0]),
        ({"sampling_per_token_logps": sampling}, [-0.4, math.nan]),
    ):
        found = sampled_logprobs({"prompt_ids": prompts, **given}, index)
        assert found is not None
        torch.testing.assert_close(found, torch.tensor(expected), equal_nan=True)


def test_a_process_with_one_prompt_measures_the_hints_of_others(
    qwen_tokenizer: Any, qwen_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = [play(qwen_tokenizer, [OPENED, NOT_FOUND, ANSWER]) for _ in range(2)]
    found, _ = find_hint_sites(rollouts, tokenizer=qwen_tokenizer, hint_generator=as_collator_hint(LayeredHints()))
    settings = ChannelSettings(beta_replay=0.0, hint_gate=HintGate(calibrate=4))
    channels = ChannelEngine(qwen_model, settings, pairs=None, channels={"sdpo": 0.1})
    nothing: Any = None
    hints = OnPolicyHints(
        *(channels, qwen_tokenizer, nothing),
        accelerator=SimpleNamespace(process_index=1, num_processes=2),
        rows_per_pass=2,
        max_length=None,
    )
    hints.keep(rollouts, None)
    others: list[list[Any]] = [[("their prompt", "Stay calm.", (5, 6, 7))], [0.25, 0.5]]
    monkeypatch.setattr(on_policy_hints, "gather_object", lambda own: [*others.pop(0), *own])
    hints._calibrate(padded(rollouts, qwen_tokenizer.pad_token_id), found)
    calibration = channels.calibrations["sdpo"]
    assert not others
    assert len(calibration.state_dict()["changes"]) == 4
    assert calibration.threshold is not None


@pytest.mark.parametrize("rows_per_pass", [1, 2, 4])
def test_a_generation_is_judged_in_passes_no_larger_than_the_students(
    qwen_tokenizer: Any, qwen_model: Any, rows_per_pass: int
) -> None:
    errs = [OPENED, NOT_FOUND]
    scripts = [[*errs, *errs, *errs, ANSWER], [ANSWER], [READ, CONTENT, *errs, ANSWER], [*errs, READ, CONTENT, ANSWER]]
    rollouts = [play(qwen_tokenizer, script) for script in scripts]
    generator = as_collator_hint(LayeredHints())
    found, _ = find_hint_sites(rollouts, tokenizer=qwen_tokenizer, hint_generator=generator)
    assert [len(sites) for sites in found] == [3, 0, 1, 1]
    channels = ChannelEngine(
        qwen_model, ChannelSettings(beta_replay=0.0), pairs=None, channels={"sdpo": 0.1, "replay": 0.0}
    )
    nothing: Any = None
    hints = OnPolicyHints(
        channels, qwen_tokenizer, nothing, accelerator=nothing, rows_per_pass=rows_per_pass, max_length=None
    )
    output = {**padded(rollouts, qwen_tokenizer.pad_token_id), "advantages": torch.tensor([-1.0, 1.0, -1.0, -1.0])}
    passes = Passes(qwen_model)
    kept = hints._judged(output, found)
    width = output["prompt_ids"].shape[1] + output["completion_ids"].shape[1]
    hint = max(len(site.hint_ids) for sites in found for site in sites)
    assert all(rows * columns <= max(rows_per_pass * width, width + hint) for rows, columns in passes.shapes)
    assert kept == found
    # The states of each site are those of its own row in a pass of its own.
    assert channels.teacher is not None
    for row, sites in enumerate(found):
        for site in sites:
            alone = [[site] if number == row else [] for number in range(len(found))]
            built = hinted_batch(output, alone, pad_token_id=qwen_tokenizer.pad_token_id)
            assert built is not None
            expected = channels.teacher.hinted_states(built[0], built[0]["sdpo_teacher_index"])
            torch.testing.assert_close(hints._states[id(site)], expected.hidden, rtol=1e-4, atol=1e-4)
            assert hints._head is not None
            assert hints._head.is_same(expected.head)
