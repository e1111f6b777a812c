"""The gate, the losses and the state of channels 2 and 3 as a trainer runs them."""

from __future__ import annotations

import logging
import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packable_models import Passes

from composer_replication.batch import build_batch
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels import sdpo_channel
from composer_replication.channels.hint_distillation import HintGate
from composer_replication.channels.settings import ChannelSettings
from composer_replication.opsd import GeneralizedJSD
from composer_replication.trainer.channel_engine import ChannelEngine, StepEnds, gradient_shares, site_numbers
from composer_replication.trainer.channel_log import InactiveChannelWarning
from composer_replication.trainer.pairs import ReplayPairs
from composer_replication.trainer.preference_rows import PreferenceRow

CHANNELS = {"grpo": 1.0, "sdpo": 0.1, "replay": 0.0}


def _engine(model: Any, **settings: Any) -> ChannelEngine:
    return ChannelEngine(model, ChannelSettings(beta_replay=0.0, **settings), pairs=None, channels=CHANNELS)


def _drift(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def test_the_gate_measures_the_hint_and_not_how_far_the_policy_has_come(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    engine = _engine(qwen_model, sdpo_teacher="frozen", hint_gate=HintGate(min_gap=1e-4))
    _drift(qwen_model)
    judged = engine.judge(batch, site_numbers(batch), channel="sdpo")
    assert judged.kept_P.all()
    # The same turn with no hint before it: nothing is said, whatever teacher and policy have come to differ by.
    empty = {
        **batch,
        "ctx_teacher_input_ids": batch["input_ids"],
        "ctx_teacher_attention_mask": batch["attention_mask"],
        "sdpo_teacher_index": batch["sdpo_student_index"],
    }
    empty.pop("sdpo_loss_mask")
    assert not engine.judge(empty, site_numbers(empty), channel="sdpo").kept_P.any()
    metrics = engine.end_step(1)
    assert metrics["channels/sdpo/sites"] == 2
    assert metrics["channels/sdpo/too_small"] == 1


def test_the_gap_is_positive_where_the_hint_makes_the_turn_less_likely(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    engine = _engine(qwen_model, sdpo_teacher="live", hint_gate=HintGate(min_gap=0.0))
    engine.judge(batch, site_numbers(batch), channel="sdpo")

    def logprobs(ids: torch.Tensor, index_P2: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = qwen_model(ids).logits.log_softmax(-1)
        rows, columns = index_P2.T
        return logits[rows, columns - 1, ids[rows, columns]]

    bare = logprobs(batch["input_ids"], batch["sdpo_student_index"])
    hinted = logprobs(batch["ctx_teacher_input_ids"], batch["sdpo_teacher_index"])
    metrics = engine.end_step(1)
    assert metrics["channels/sdpo/signed_gap"] == pytest.approx(float((bare - hinted).mean()), rel=1e-4)
    assert metrics["channels/sdpo/gap"] == pytest.approx(float((bare - hinted).abs().mean()), rel=1e-4)
    # A calibrated gate compares the absolute value of the mean, not the mean of absolute values.
    assert metrics["channels/sdpo/gap"] > 1.1 * abs(metrics["channels/sdpo/signed_gap"])
    assert engine.changes(batch, site_numbers(batch)) == pytest.approx([abs(float((bare - hinted).mean()))], rel=1e-4)


@pytest.mark.parametrize("token_budget", [None, 40])
def test_hints_are_measured_with_and_without_in_passes_of_the_budget(
    qwen_tokenizer: Any, qwen_model: Any, token_budget: int | None
) -> None:
    batch = build_batch(qwen_tokenizer)
    engine = _engine(qwen_model, sdpo_teacher="frozen")
    passes = Passes(qwen_model)
    bare_P, hinted_P, teacher = engine.measured(batch, token_budget)
    largest = max(rows * columns for rows, columns in passes.shapes)
    assert largest <= (token_budget or batch["input_ids"].numel()) or all(rows == 1 for rows, _ in passes.shapes)
    states = run_causal_lm(qwen_model.eval(), batch["ctx_teacher_input_ids"], batch["ctx_teacher_attention_mask"])
    expected_PH = states.predicting(batch["sdpo_teacher_index"])
    torch.testing.assert_close(teacher.hidden, expected_PH.detach(), rtol=1e-4, atol=1e-5)
    for logprobs_P, prefix, index in ((bare_P, "", "student"), (hinted_P, "ctx_teacher_", "teacher")):
        ids, (rows, columns) = batch[f"{prefix}input_ids"], batch[f"sdpo_{index}_index"].T
        logits = qwen_model(input_ids=ids, attention_mask=batch[f"{prefix}attention_mask"]).logits.log_softmax(-1)
        torch.testing.assert_close(logprobs_P, logits[rows, columns - 1, ids[rows, columns]], rtol=1e-4, atol=1e-5)
    # What is kept for the step is the states with the hint, and no more.
    assert teacher.hidden.untyped_storage().nbytes() == teacher.hidden.nbytes
    torch.testing.assert_close(engine.hinted(batch, token_budget).hidden, teacher.hidden, rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_channel_with_every_token_weighed(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    engine = _engine(qwen_model, sdpo_teacher="frozen", hint_gate=None)
    _drift(qwen_model)
    student = run_causal_lm(qwen_model, batch["input_ids"], batch["attention_mask"])
    judged = engine.judge(batch, site_numbers(batch), channel="sdpo")
    loss = engine.hint_loss(student, batch, judged, token_weight=0.01, channel="sdpo")
    assert loss is not None
    assert engine.teacher is not None
    mean, tokens = sdpo_channel(student, engine.teacher.hinted_states, batch, GeneralizedJSD(beta=0.5))
    torch.testing.assert_close(loss, mean * tokens * 0.01)
    none = judged._replace(kept_P=torch.zeros_like(judged.kept_P))
    assert engine.hint_loss(student, batch, none, token_weight=0.01, channel="sdpo") is None


@pytest.mark.parametrize("clip", [None, 1.5, 100.0])
def test_tokens_are_weighted_by_how_stale_they_are(qwen_tokenizer: Any, qwen_model: Any, clip: float | None) -> None:
    batch = build_batch(qwen_tokenizer)
    engine = _engine(qwen_model, sdpo_teacher="frozen", hint_gate=None, importance_clip=clip, sdpo_jsd_beta=1.0)
    _drift(qwen_model)
    qwen_model.eval()
    judged = engine.judge(batch, site_numbers(batch), channel="sdpo")
    judged = judged._replace(kept_P=torch.arange(len(judged.kept_P)) % 3 > 0)  # the gate has left some out
    index = batch["sdpo_student_index"]
    rows, columns = index.T
    logits = qwen_model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[rows, columns - 1]
    now_P = (logits / 0.7).log_softmax(-1).gather(1, batch["input_ids"][rows, columns, None])[:, 0]
    old_P = now_P.detach() + torch.linspace(-2.0, 2.0, len(now_P))
    old_P[1] = torch.nan
    student = run_causal_lm(qwen_model, batch["input_ids"], batch["attention_mask"])
    loss = engine.hint_loss(student, batch, judged, token_weight=0.01, channel="sdpo", sampled_P=old_P, temperature=0.7)
    ratios = [
        1.0 if old != old else math.exp(now - old) for now, old in zip(now_P.tolist(), old_P.tolist(), strict=True)
    ]
    weights = torch.tensor([1.0 if clip is None else min(ratio, clip) for ratio in ratios])
    if clip == 1.5:
        assert 0 < int((weights == 1.5).sum()) < len(weights)
    student_P, teacher_P = logits.log_softmax(-1), judged.teacher.head.logits(judged.teacher.hidden).log_softmax(-1)
    divergences = (student_P.exp() * (student_P - teacher_P.detach())).sum(-1)
    expected = (weights * divergences)[judged.kept_P].sum() * 0.01
    assert loss is not None
    torch.testing.assert_close(loss, expected)
    parameter = qwen_model.get_input_embeddings().weight
    for got, wanted in zip(*(torch.autograd.grad(one, [parameter]) for one in (loss, expected)), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)
    metrics = engine.end_step(1)
    assert metrics.get("channels/sdpo/importance_weight") == (
        None if clip is None else pytest.approx(float(weights[judged.kept_P].mean()), rel=1e-4)
    )


def _with_pairs(model: Any, pairs: ReplayPairs | None = None, **settings: Any) -> ChannelEngine:
    chosen = ChannelSettings(**{"alpha_sdpo": 0.0, "inactive_patience": 1, **settings})
    return ChannelEngine(model, chosen, pairs=pairs, channels={"replay": 0.05})


def _response_logprobs(model: Any, batch: dict[str, torch.Tensor], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = batch[f"dpo_{side}_input_ids"], batch[f"dpo_{side}_response_mask"]
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (logprobs * mask[:, 1:]).sum(1), mask.sum(1)


@pytest.mark.parametrize("variant", ["dpo", "dpo_norm", "simpo", "nll"])
def test_rewards_are_above_the_reference_and_per_token_where_the_loss_is(
    variant: Any, qwen_tokenizer: Any, qwen_model: Any
) -> None:
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    _drift(qwen_model)
    with_reference = variant in ("dpo", "dpo_norm")
    rewards = []
    for side in ("chosen", "rejected"):
        sums_B, lengths_B = _response_logprobs(qwen_model, batch, side)
        gains_B = sums_B - batch[f"dpo_{side}_ref_logprobs"] if with_reference else sums_B
        rewards.append(gains_B if variant == "dpo" else gains_B / lengths_B)
    engine = _with_pairs(qwen_model, dpo_variant=variant, inactive_patience=0)
    for _ in range(2):
        engine.replay_loss(qwen_model, batch, share=0.5)
    metrics = engine.end_step(1)
    assert metrics["channels/replay/margin"] == pytest.approx(float((rewards[0] - rewards[1]).mean()), rel=1e-3)
    if with_reference:
        assert metrics["channels/replay/chosen_reward"] == pytest.approx(float(rewards[0].mean()), rel=1e-3)
    else:
        assert "channels/replay/chosen_reward" not in metrics


def test_pairs_are_scored_after_every_so_many_steps(qwen_model: Any) -> None:
    scored: list[int] = []

    def score(rows: list[PreferenceRow]) -> torch.Tensor:
        scored.append(len(rows))
        return torch.tensor([[-1.0, -9.0], [-1.0, -2.0], [-1.0, -9.0]])[: len(rows)]

    rows = [PreferenceRow([1, number], [2, 3], [4, 5]) for number in range(3)]
    pairs = ReplayPairs(rows, references=torch.zeros(3, 2), seed=0, pad_token_id=0, score=score)
    engine = _with_pairs(qwen_model, pairs, refresh_pairs_every=2, refresh_margin=8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InactiveChannelWarning)
        resting = [engine.end_step(step)["channels/replay/resting"] for step in range(1, 5)]
    assert (resting, scored) == ([0, 0, 2, 2], [3, 3])
    assert engine.numbers()["pairs"]["resting"] == [0, 2]
    kept, woken = (
        _with_pairs(qwen_model, ReplayPairs(rows, references=None, seed=0, pad_token_id=0), **settings)
        for settings in ({"refresh_pairs_every": 9, "refresh_margin": 1.0}, {})
    )
    for other in (kept, woken):
        other.load(engine.tensors(), engine.numbers())
    assert kept.pairs is not None
    assert kept.pairs.resting == {0, 2}
    # Nothing would ever score them again.
    assert woken.pairs is not None
    assert not woken.pairs.resting


def test_a_channel_whose_pairs_all_rest_is_inactive_and_says_why(qwen_model: Any) -> None:
    pairs = ReplayPairs([PreferenceRow([1], [2], [3])], references=None, seed=0, pad_token_id=0)
    engine = _with_pairs(qwen_model, pairs, dpo_variant="simpo", refresh_pairs_every=9, refresh_margin=1.0)
    assert engine.replay_batch(2, "cpu") is not None
    pairs.resting = frozenset({0})
    assert engine.replay_batch(2, "cpu") is None
    with pytest.warns(InactiveChannelWarning, match="'replay' .* the policy preferred every pair by refresh_margin"):
        engine.end_step(1)


def test_taid_goes_on_after_a_resume_and_begins_anew_in_the_next_run(qwen_model: Any) -> None:
    settings = {"sdpo_wrapper": "taid", "taid_t_start": 0.5, "sdpo_teacher": "live"}
    first = _engine(qwen_model, **settings)
    first.begin(10)
    first.end_step(1)
    resumed = _engine(qwen_model, **settings)
    resumed.load(first.tensors(), first.numbers())
    resumed.begin(10)
    assert resumed.taid_t == first.taid_t == pytest.approx(0.55)
    resumed.begin(10)
    assert resumed.taid_t == 0.5
    resumed.end_step(1)


def test_shares_are_of_the_gradients_norms() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    losses = {"a": 3.0 * weight.sum(), "b": weight.sum(), "c": None, "d": torch.tensor(1.0)}
    assert gradient_shares(losses, [weight]) == pytest.approx({"a": 0.75, "b": 0.25})
    assert weight.grad is None


def test_a_checkpoint_beyond_the_last_step_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = SimpleNamespace(channels=SimpleNamespace(begin=lambda steps: None), go_on_logging=lambda: None)
    with caplog.at_level(logging.WARNING):
        StepEnds(trainer).on_train_begin(None, SimpleNamespace(global_step=1, max_steps=2), None)
    assert caplog.messages == []
    StepEnds(trainer).on_train_begin(None, SimpleNamespace(global_step=4, max_steps=2), None)
    assert caplog.messages == [
        "the checkpoint is of step 4 and max_steps is 2: there is nothing left to train; raise max_steps"
    ]
