"""The trainer in a live tool environment: real rollouts, real tool errors, real hints."""

from __future__ import annotations

import json
import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trainer.live_run import arguments, house_pairs, house_tasks, metrics, trainer, uneven
from trainer.test_trace_trainer import house_traces
from trl import GRPOTrainer

from composer_replication.channels.hint_distillation import HintGate, judge_sites
from composer_replication.envs.house_style import HouseStyle
from composer_replication.laboratory import laboratory_model, laboratory_tokenizer
from composer_replication.trainer import channel_engine, on_policy_hints
from composer_replication.trainer.channel_log import InactiveChannelWarning
from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer

CHANNELS = ("grpo", "sdpo", "replay")


def _weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_three_channels_are_live_and_repeatable(tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        torch.manual_seed(number)  # what was drawn before a run is none of its business
        live = trainer(tmp_path / str(number), gradient_share_steps=1)
        before = _weights(live.model)
        live.train()
        logged = metrics(tmp_path / str(number))
        assert [line["step"] for line in logged] == [1, 2]
        for line in logged:
            for channel in CHANNELS:
                assert line[f"channels/{channel}/active_tokens"] > 0
                assert line[f"channels/{channel}/active_rows"] > 0
                assert math.isfinite(line[f"channels/{channel}/loss"])
                assert 0 < line[f"channels/{channel}/gradient_share"] < 1
            assert line["channels/sdpo/gap"] > 0.01
            assert math.isfinite(line["grad_norm"])
            total = line["channels/grpo/loss"] + 0.1 * line["channels/sdpo/loss"] + 0.05 * line["channels/replay/loss"]
            assert line["loss"] == pytest.approx(total, rel=1e-4)
            assert sum(line[f"channels/{channel}/gradient_share"] for channel in CHANNELS) == pytest.approx(1.0)
        assert any(not torch.equal(before[name], tensor) for name, tensor in _weights(live.model).items())
        runs.append((logged, _weights(live.model)))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


def test_without_weights_it_is_grpo_number_for_number(tmp_path: Path) -> None:
    ours = trainer(tmp_path / "ours", alpha_sdpo=0.0, beta_replay=0.0)
    ours.train()
    plain = GRPOTrainer(
        model=laboratory_model(),
        args=arguments(tmp_path / "plain"),
        train_dataset=Dataset.from_list(house_tasks(16)),
        processing_class=laboratory_tokenizer(),
        environment_factory=HouseStyle,
        reward_funcs=[uneven],
    )
    plain.train()
    clock = ("time", "runtime", "per_second")
    expected, got = (
        [{k: v for k, v in line.items() if not any(word in k for word in clock)} for line in run.state.log_history]
        for run in (plain, ours)
    )
    assert got == expected
    assert all(torch.equal(_weights(ours.model)[name], tensor) for name, tensor in _weights(plain.model).items())
    assert not any("channels" in name for line in got for name in line)


class _Unrewarding(HouseStyle):
    """The house without its own judgement."""

    get_reward = None  # type: ignore[assignment]


def test_channel_2_falls_on_the_turns_that_went_wrong(tmp_path: Path) -> None:
    def indifferent(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    live = trainer(
        tmp_path,
        # The same rollouts in every step, so that the losses are of the same turns.
        args={"max_steps": 6, "num_iterations": 6, "learning_rate": 3e-4},
        environment_factory=_Unrewarding,
        reward_funcs=[indifferent],  # without advantages, channel 2 is all there is
        alpha_sdpo=1.0,
        beta_replay=0.0,
        sdpo_teacher="frozen",
        gradient_share_steps=0,
    )
    live.train()
    losses = [line["channels/sdpo/loss"] for line in metrics(tmp_path)]
    assert len(losses) == 6
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.9 * losses[0]


def test_the_student_makes_one_pass_and_the_teacher_none_with_gradient(tmp_path: Path) -> None:
    live = trainer(tmp_path, beta_replay=0.0, gradient_share_steps=0, args={"max_steps": 1})
    passes: list[tuple[bool, bool]] = []
    inside: list[bool] = [False]
    backbone = live.model.get_decoder()
    backbone.register_forward_hook(lambda *_: passes.append((inside[0], torch.is_grad_enabled())))
    compute = live._compute_loss

    def watched(model: Any, inputs: Any) -> torch.Tensor:
        inside[0] = True
        try:
            return compute(model, inputs)
        finally:
            inside[0] = False

    live._compute_loss = watched
    live.train()
    assert metrics(tmp_path)[0]["channels/sdpo/active_tokens"] > 0
    assert [graded for within, graded in passes if within] == [True]
    assert not any(graded for within, graded in passes if not within)


@pytest.mark.parametrize("teacher", ["frozen", "live", "trust_region"])
def test_other_teachers_run(tmp_path: Path, teacher: Any) -> None:
    live = trainer(tmp_path, sdpo_teacher=teacher, beta_replay=0.0, args={"max_steps": 1})
    live.train()
    assert metrics(tmp_path)[0]["channels/sdpo/loss"] > 0


def test_lora_trains_the_adapter_alone(tmp_path: Path) -> None:
    live = trainer(tmp_path, peft_config=LoraConfig(r=4, target_modules="all-linear", init_lora_weights=True))
    before = _weights(live.model)
    live.train()
    changed = {name for name, tensor in _weights(live.model).items() if not torch.equal(before[name], tensor)}
    assert changed
    assert all("lora_" in name for name in changed)
    for line in metrics(tmp_path):
        assert all(line[f"channels/{channel}/active_tokens"] > 0 for channel in CHANNELS)
    # The reference is the model with its adapter off, which is what the adapter began as.
    assert metrics(tmp_path)[0]["channels/replay/loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_taid_advances_once_per_optimiser_step(tmp_path: Path) -> None:
    live = trainer(
        tmp_path,
        sdpo_wrapper="taid",
        taid_t_start=0.5,
        beta_replay=0.0,
        gradient_share_steps=0,
        args={"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    )
    live.train()
    assert [line["channels/sdpo/taid_t"] for line in metrics(tmp_path)] == pytest.approx([0.75, 1.0], abs=1e-3)


def test_accumulation_does_not_change_the_weight_of_a_token(tmp_path: Path) -> None:
    """One optimiser step over the same rollouts, in one micro-batch and in four."""
    gaps: list[torch.Tensor] = []

    def measured(*arguments: Any) -> Any:
        result = judge_sites(*arguments)
        gaps.append(result.gap_S)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_engine, "judge_sites", measured)
        trainer(tmp_path / "first", gradient_share_steps=0, args={"max_steps": 1}).train()
    # Some hints pass and some do not: the gate is in the widest space between the gaps of these rollouts.
    _, below, above = max((high - low, low, high) for low, high in pairwise(sorted(torch.cat(gaps).tolist())))
    losses = []
    for rows, accumulation in ((8, 1), (2, 4)):
        folder = tmp_path / str(rows)
        live = trainer(
            folder,
            gradient_share_steps=0,
            hint_gate=HintGate(min_gap=(below + above) / 2),
            replay_batch_size=rows // 2,
            args={
                "max_steps": 1,
                "per_device_train_batch_size": rows,
                "gradient_accumulation_steps": accumulation,
            },
        )
        live.train()
        losses.append(metrics(folder)[0])
        assert 0 < losses[-1]["channels/sdpo/too_small"] < losses[-1]["channels/sdpo/sites"]
    for name in ("sdpo/loss", "sdpo/active_tokens", "sdpo/sites", "sdpo/gap", "replay/loss", "replay/active_tokens"):
        assert losses[0][f"channels/{name}"] == pytest.approx(losses[1][f"channels/{name}"], rel=1e-4), name
    assert losses[0]["grad_norm"] == pytest.approx(losses[1]["grad_norm"], rel=1e-3)


def test_a_generation_that_is_used_in_two_steps_weighs_as_in_one(tmp_path: Path) -> None:
    """The same rollouts learnt from in one optimiser step and in two, at a learning rate of 0."""
    losses = []
    for rows, steps in ((8, 1), (4, 2)):
        folder = tmp_path / str(rows)
        arguments = {
            "max_steps": steps,
            "per_device_train_batch_size": rows,
            "steps_per_generation": steps,
            "learning_rate": 0.0,
        }
        live = trainer(folder, beta_replay=0.0, sdpo_teacher="frozen", gradient_share_steps=0, args=arguments)
        live.train()
        losses.append([line["channels/sdpo/loss"] or 0.0 for line in metrics(folder)])
    assert len(losses[1]) == 2
    assert sum(losses[1]) / 2 == pytest.approx(losses[0][0], rel=1e-4)


def test_stale_rollouts_are_weighted_and_alpha_follows_its_schedule(tmp_path: Path) -> None:
    """Two steps on the same rollouts: in the first the policy is the one that sampled, in the second it is not."""
    live = trainer(
        tmp_path,
        args={"num_iterations": 2, "learning_rate": 1e-2, "temperature": 0.9},
        beta_replay=0.0,
        gradient_share_steps=2,
        hint_gate=None,
        alpha_schedule="linear",
        alpha_end=0.05,
        importance_clip=2.0,
        trace_dataset=house_traces(),
    )
    seen: list[tuple[torch.Tensor, ...]] = []
    compute = channel_engine.importance_weights

    def watched(now_P: torch.Tensor, old_P: torch.Tensor, clip: float) -> torch.Tensor:
        seen.append((now_P, old_P, compute(now_P, old_P, clip)))
        return seen[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_engine, "importance_weights", watched)
        live.train()
    logged = metrics(tmp_path)
    assert len(logged) == len(seen) == 2
    # TRL's own pass, at the temperature of the sampling, and ours give the same tokens the same probabilities.
    torch.testing.assert_close(seen[0][0], seen[0][1], atol=1e-4, rtol=0)
    assert not torch.allclose(seen[1][0], seen[1][1], atol=1e-2)
    assert logged[0]["channels/sdpo/importance_weight"] == pytest.approx(1.0, abs=1e-4)
    assert logged[1]["channels/sdpo/importance_weight"] == pytest.approx(float(seen[1][2].mean()), rel=1e-4)
    assert "channels/traces/importance_weight" not in logged[1]
    assert [line["channels/sdpo/alpha"] for line in logged] == pytest.approx([0.1, 0.05])
    for line in logged:
        hints = line["channels/sdpo/loss"] + line["channels/traces/loss"]
        assert line["loss"] == pytest.approx(line["channels/grpo/loss"] + line["channels/sdpo/alpha"] * hints, rel=1e-4)
        assert ("channels/sdpo/overlap" in line) == (line["step"] == 1)


def test_the_gate_is_calibrated_on_the_first_generation(tmp_path: Path) -> None:
    live = trainer(
        tmp_path,
        args={"max_steps": 1},
        beta_replay=0.0,
        hint_gate=HintGate(calibrate=2, percentile=0.5),
        trace_dataset=house_traces(),
    )
    measured: list[tuple[str, list[str], list[float]]] = []
    changes = live.channels.changes

    def watched(batch: Any, site_of_pair_P: torch.Tensor) -> list[float]:
        source = "sdpo" if "response_mask" not in batch else "traces"
        texts = laboratory_tokenizer().batch_decode(batch["ctx_teacher_input_ids"])
        measured.append((source, texts, changes(batch, site_of_pair_P)))
        return measured[-1][-1]

    told: dict[str, set[str]] = {}
    find = on_policy_hints.find_hint_sites

    def found(rollouts: Any, **options: Any) -> Any:
        sites, counts = find(rollouts, **options)
        for rollout, own in zip(rollouts, sites, strict=True):
            for site in own:
                told.setdefault(site.hint, set()).add(rollout.prompt[-1]["content"])
        return sites, counts

    live.channels.changes = watched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_policy_hints, "find_hint_sites", found)
        live.train()
    (line,) = metrics(tmp_path)
    for channel in ("sdpo", "traces"):
        of_channel = [change for source, _, of_part in measured for change in of_part if source == channel]
        assert len(of_channel) == 2
        assert line[f"channels/{channel}/gate_threshold"] == pytest.approx(sum(of_channel) / 2)
        assert live.channels.numbers()["calibrations"][channel]["changes"] == of_channel
    for text in (text for source, texts, _ in measured for text in texts if source == "sdpo"):
        # The hint before the turn is one that rollouts of another request are given.
        request = text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        hint = text.rpartition("<|im_start|>system\n")[2].partition("<|im_end|>")[0]
        assert request not in told[hint]


def test_a_calibration_needs_different_prompts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hints of other prompts, but all rows of train_dataset have the same"):
        trainer(
            tmp_path,
            train_dataset=Dataset.from_list(house_tasks(1) * 3),
            environment_factory=None,
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            hint_gate=HintGate(calibrate=80),
            replay_dataset=None,
        )


def test_a_gate_that_nothing_passes_is_loud(tmp_path: Path) -> None:
    live = trainer(tmp_path, hint_gate=HintGate(min_gap=1e6), beta_replay=0.0, inactive_patience=2)
    with pytest.warns(InactiveChannelWarning, match=r"'sdpo'.*barely differs"):
        live.train()
    line = metrics(tmp_path)[0]
    assert line["channels/sdpo/active_tokens"] == 0
    assert line["channels/sdpo/loss"] is None
    assert line["channels/sdpo/too_small"] == line["channels/sdpo/sites"] > 0


def test_pairs_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in house_pairs(3)))
    assert len(trainer(tmp_path / "run", replay_dataset=str(file)).channels.pairs) == 3


def test_pairs_are_compared_with_what_rollouts_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(tmp_path)
    assert "replay_dataset" not in caplog.text
    bare = [{key: value for key, value in pair.items() if key != "tools"} for pair in house_pairs(6)]
    with pytest.raises(ValueError, match=r"6 of 6 pairs call tools without showing any .* rollouts show add_line, "):
        trainer(tmp_path, replay_dataset=bare)
    with pytest.raises(ValueError, match="without showing any"):
        trainer(tmp_path, replay_dataset=bare, environment_factory={"house": HouseStyle}, **_in_environment("house"))
    trainer(tmp_path, replay_dataset=[{**pair, "prompt": pair["prompt"][1:]} for pair in house_pairs(6)])
    assert "6 of 6 pairs have another system prompt" in caplog.text


def _in_environment(name: str) -> dict[str, Any]:
    return {"train_dataset": Dataset.from_list([{**task, "environment": name} for task in house_tasks(16)])}


def test_pairs_that_were_not_given_are_missed(tmp_path: Path) -> None:
    live = trainer(tmp_path, replay_dataset=None, inactive_patience=1, args={"max_steps": 1})
    with pytest.warns(InactiveChannelWarning, match=r"'replay'.*replay_dataset"):
        live.train()


class _Taught(HouseStyle):
    """A house that says by itself what was wrong with the last turn."""

    def _feedback(self) -> str | None:
        return None if self.get_reward() else "ENVIRONMENT SAYS: answer in another way."


def test_hints_come_from_environments_and_reward_functions(tmp_path: Path) -> None:
    def strict(completions: list[Any], log_extra: Any, **_: Any) -> list[float]:
        log_extra("hint", ["REWARD SAYS: be brief." if row % 2 else None for row in range(len(completions))])
        return [0.0] * len(completions)

    seen: dict[str, str] = {}
    for name, options in (
        ("environment", {"environment_factory": _Taught}),
        ("reward", {"reward_funcs": [strict]}),
    ):
        live = trainer(
            tmp_path / name,
            hint_generator=lambda kind, meta: None,
            beta_replay=0.0,
            args={"max_steps": 1},
            **options,
        )
        compute = live.channels.hint_loss

        def watched(student: Any, batch: Any, *args: Any, _name: str = name, _do: Any = compute, **kwargs: Any) -> Any:
            seen[_name] = "".join(laboratory_tokenizer().batch_decode(batch["ctx_teacher_input_ids"]))
            return _do(student, batch, *args, **kwargs)

        live.channels.hint_loss = watched
        live.train()
    assert "ENVIRONMENT SAYS: answer in another way." in seen["environment"]
    assert "REWARD SAYS: be brief." in seen["reward"]


def test_a_failed_rollout_learns_from_its_sibling(tmp_path: Path) -> None:
    live = trainer(tmp_path, hint_source="sibling", beta_replay=0.0, hint_gate=None, args={"max_steps": 1})
    live.train()
    line = metrics(tmp_path)[0]
    assert 0 < line["channels/sdpo/active_rows"] < 8


def test_srpo_takes_failed_rollouts_with_a_hint_out_of_channel_1(tmp_path: Path) -> None:
    options: dict[str, Any] = {"environment_factory": _Unrewarding, "args": {"max_steps": 1}}
    live = trainer(tmp_path, routing="srpo", beta_replay=0.0, hint_gate=None, **options)
    seen: dict[str, Any] = {}
    generate = live._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        seen.update(generate(inputs))
        return dict(seen)

    live._generate_and_score_completions = watched
    live.train()
    hinted = torch.tensor([bool(sites) for sites in seen["hint_sites"]])
    failed = torch.tensor(uneven([None] * 8)) == 0  # half of each group; the others did better than its mean
    assert (hinted & failed).any()
    assert (hinted & ~failed).any()
    assert torch.equal(seen["advantages"] == 0, hinted & failed)


def test_srpo_leaves_rollouts_whose_hint_was_gated_to_channel_1(tmp_path: Path) -> None:
    rows = []
    for routing in ("none", "srpo"):
        folder = tmp_path / routing
        gate = HintGate(min_gap=1e6)
        trainer(folder, routing=routing, beta_replay=0.0, hint_gate=gate, args={"max_steps": 1}).train()
        rows.append(metrics(folder)[0]["channels/grpo/active_rows"])
    assert rows[0] == rows[1] > 0


def test_kl_in_the_advantage_leaves_the_mean_of_a_group_alone(tmp_path: Path) -> None:
    outputs = []
    for coefficient in (0.0, 0.5):
        live = trainer(
            tmp_path / str(coefficient),
            alpha_sdpo=0.0,
            beta_replay=0.0,
            kl_in_advantage=coefficient,
            args={"max_steps": 2, "learning_rate": 1e-2},
        )
        seen: list[torch.Tensor] = []
        generate = live._generate_and_score_completions

        def watched(inputs: Any, _do: Any = generate, _seen: Any = seen) -> Any:
            output = _do(inputs)
            _seen.append(output["advantages"].clone())
            return output

        live._generate_and_score_completions = watched
        live.train()
        outputs.append(seen)
    # At the first step policy and reference are the same.
    torch.testing.assert_close(outputs[0][0], outputs[1][0], atol=1e-4, rtol=0)
    difference = outputs[1][1] - outputs[0][1]
    assert difference.abs().max() > 1e-3
    rounding = 1e-5 * max(1.0, float(difference.abs().max()))
    torch.testing.assert_close(difference.view(-1, 4).sum(1), torch.zeros(2), atol=rounding, rtol=0)


def test_bad_input_is_named_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_dataset is empty"):
        trainer(tmp_path, train_dataset=Dataset.from_list([]))
    with pytest.raises(ValueError, match=r"no pair that can be used.*empty side"):
        trainer(tmp_path, replay_dataset=[{**house_pairs(1)[0], "chosen": []}])
    with pytest.raises(ValueError, match="alpha_sdpo"):
        trainer(tmp_path, alpha_sdpo=-1.0)
    with pytest.raises(TypeError, match="has no argument 'alpha_sdp': did you mean 'alpha_sdpo'"):
        trainer(tmp_path, alpha_sdp=0.5)
    with pytest.raises(TypeError, match="has no argument 'reward_func': did you mean 'reward_funcs'"):
        trainer(tmp_path, reward_func=len)
    with pytest.raises(ValueError, match=r"replay_dataset: .*none\.jsonl: there is no such file"):
        trainer(tmp_path, replay_dataset=tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="sdpo_teacher"):
        trainer(tmp_path, sdpo_teacher="oracle")
    with pytest.raises(ValueError, match="srpo"):
        trainer(tmp_path, routing="srpo", alpha_sdpo=0.0)
    small = laboratory_model()
    small.resize_token_embeddings(100)
    with pytest.raises(ValueError, match=r"tokenizer has \d+ tokens.*embeddings for 100"):
        trainer(tmp_path, model=small)


def test_a_template_that_cannot_show_hints_is_refused_when_the_trainer_is_made(tmp_path: Path) -> None:
    tokenizer = laboratory_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages[1:] if m.role in ('system', 'user') %}{{ raise_exception('one task only') }}{% endfor %}"
        + tokenizer.chat_template
    )
    with pytest.raises(ValueError, match="refuses the conversation: one task only; trl has no better template"):
        trainer(tmp_path, processing_class=tokenizer, beta_replay=0.0)
    trainer(tmp_path, processing_class=tokenizer, beta_replay=0.0, alpha_sdpo=0.0)


def test_rewards_that_are_no_numbers(tmp_path: Path) -> None:
    def missing(completions: list[Any], **_: Any) -> list[float | None]:
        return [None if row == 0 else float(row % 2) for row in range(len(completions))]

    def infinite(completions: list[Any], **_: Any) -> list[float]:
        return [math.inf] * len(completions)

    options: dict[str, Any] = {"beta_replay": 0.0, "environment_factory": _Unrewarding, "args": {"max_steps": 1}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", InactiveChannelWarning)
        trainer(tmp_path / "missing", reward_funcs=[missing], **options).train()
    assert metrics(tmp_path / "missing")[0]["rewards/unscored"] == 1
    with pytest.raises(ValueError, match="'infinite' gave an infinite reward"):
        trainer(tmp_path / "infinite", reward_funcs=[infinite], **options).train()


def test_sequence_logprobs_are_sums_over_the_response() -> None:
    model = laboratory_model()
    ids = torch.tensor([[5, 9, 7, 11], [8, 6, 12, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)
        got = ComposerReplicationTrainer._sequence_logprobs(model, ids, mask)
    expected = [logprobs[0, 1, 7] + logprobs[0, 2, 11], logprobs[1, 0, 6] + logprobs[1, 1, 12]]
    torch.testing.assert_close(got, torch.stack(expected))
