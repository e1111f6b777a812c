"""An optimisation step after generation: all three channels against plain GRPO and TRL's own SDPO trainer.

Every contestant is a trainer's own `train()`, on the same rollouts; only sampling is replaced by a script. The clock
runs from where the rollouts are sampled and scored to the end of the step: finding hints, forward, teacher, losses,
backward, optimiser, teacher's update. Figures are of warm steps, so the model, the optimiser's state and an EMA teacher
are in memory before; `resident_bytes` has them, `peak_bytes` is what a step needs above that. The gradients' norms are
compared in the first step only (by default every 50th), which is not measured.

Without a GPU, TRL's fused head scores prompts too, though nothing needs them, and takes their logits' memory for it.
Here it scores completions only, as on a GPU: a faster peer. `--prompts-too` leaves it as it is.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from harness import PROFILE, reset_peak
from reporting import BenchmarkError, judged, machine, main, medians, other_cpu_seconds, resident_bytes, take_turns
from train_step_setting import GROUP, TOOLS, Script, Shape, make_tokenizer, save_model
from transformers import AutoModelForCausalLM, TrainerCallback

LARGE = "_large_vocabulary"
LENGTHS = {"rollouts": 8, "prompt": 256, "turn": 100, "tool_result": 48}
QUICK_LENGTHS = {"rollouts": 4, "prompt": 250, "turn": 48, "tool_result": 24}
# Time is compared where most of it is the layers', as in models of ordinary size; a large head would flatter us, since
# TRL's is slow without a GPU. Memory is compared at Qwen's vocabulary: with a small one, tiles of 32,768 columns cost
# TRL's GRPO as much as all the logits cost its SDPO. It hardly varies, so one process each is enough.
SHAPES = {
    "": Shape(vocabulary=32_768, hidden=384, intermediate=2048, layers=6, **LENGTHS),
    LARGE: Shape(vocabulary=151_936, hidden=256, intermediate=1408, layers=4, **LENGTHS),
}
QUICK_SHAPES = {
    "": Shape(vocabulary=8192, hidden=128, intermediate=512, layers=2, **QUICK_LENGTHS),
    LARGE: Shape(vocabulary=98_304, hidden=128, intermediate=512, layers=1, **QUICK_LENGTHS),
}
REPEATS, QUICK_REPEATS = 3, 1
STEPS = 2  # measured, after a first one that warms up

COLUMNS = ("cpu_seconds", "resident_bytes", "hinted_tokens", "pairs")
_FIGURES = ("seconds", "cpu_seconds", "peak_bytes", "resident_bytes", "busy_elsewhere")


class StepMeter(TrainerCallback):  # type: ignore[misc]
    """Measures from the moment when rollouts are there to the end of the step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._start = self._cpu_start = self._other_start = 0.0
        self._resident = 0

    def begin(self) -> None:
        """The rollouts are there."""
        self._resident = reset_peak()
        self._start, self._cpu_start = time.perf_counter(), time.process_time()
        self._other_start = other_cpu_seconds()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All other callbacks, teachers' updates among them, have run."""
        seconds, cpu_seconds = time.perf_counter() - self._start, time.process_time() - self._cpu_start
        busy = (other_cpu_seconds() - self._other_start) / seconds
        peak = resident_bytes("VmHWM") - self._resident
        self.steps.append(dict(zip(_FIGURES, (seconds, cpu_seconds, peak, self._resident, busy), strict=True)))


def arguments_of(config: type, folder: Path, shape: Shape, steps: int, **options: Any) -> Any:
    """Both trainers' defaults, apart from float32, the CPU and the sizes; gradients are checkpointed, as by default."""
    return config(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=shape.rollouts,
        num_generations=GROUP,
        max_completion_length=2 * (2 * shape.turn + shape.tool_result),
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )


def grpo_trainer(script: Script, folder: Path, shape: Shape, steps: int, meter: StepMeter, **channels: Any) -> Any:
    """TRL's, or with `channels` ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer

    rollouts, score = script.rollouts, GRPOTrainer._generate_and_score_completions

    def generate(self: Any, prompts: list[Any]) -> Any:
        if prompts != [rollout.prompt for rollout in rollouts]:
            raise BenchmarkError("the trainer asks for other prompts than the script has")
        columns = zip(*((r.prompt_ids, r.completion_ids, r.generated, r.messages) for r in rollouts), strict=True)
        return (*(list(column) for column in columns), None, {}, None, [])

    def generate_and_score(self: Any, inputs: Any) -> Any:
        output = score(self, inputs)
        meter.begin()
        return output

    # On the class: ours calls both through `super()`, and what it does after them is to be measured.
    GRPOTrainer._generate, GRPOTrainer._generate_and_score_completions = generate, generate_and_score
    trainer_class = ComposerReplicationTrainer if channels else GRPOTrainer
    return trainer_class(
        AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **_: [float(not rollout.erring) for rollout in rollouts],
        args=arguments_of(GRPOConfig, folder, shape, steps),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in script.prompts]),
        processing_class=make_tokenizer(),
        tools=TOOLS,
        **channels,
    )


def sdpo_trainer(script: Script, folder: Path, shape: Shape, steps: int, meter: StepMeter) -> Any:
    """TRL's SDPO over the whole vocabulary, with its defaults: reverse KL, an EMA teacher, no policy loss beside.

    Its teacher sees the tool's refusal in the prompts of the rollouts that erred, and only they carry loss; but it runs
    over all rows. It knows no tool turns, so all of a completion counts, tool text too.
    """
    from datasets import Dataset
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    rollouts = script.rollouts

    class Scripted(SDPOTrainer):  # type: ignore[misc]
        def _generate(self, prompt_ids: Any) -> Any:
            return [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts]

        def sample_rollouts(self, inputs: Any) -> Any:
            for row, rollout in zip(inputs, rollouts, strict=True):
                row["privileged_context"] = script.feedback(rollout)
            batch = super().sample_rollouts(inputs)
            meter.begin()
            return batch

    options = {
        "distillation_mode": "full_logits",
        "include_environment_feedback": True,
        "use_successful_as_teacher": False,
    }
    return Scripted(
        AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=[lambda completions, **_: [float(not rollout.erring) for rollout in rollouts]],
        args=arguments_of(SDPOConfig, folder, shape, steps, **options),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in script.prompts]),
        processing_class=make_tokenizer(),
    )


def _ours(*, sdpo: bool, replay: bool) -> Callable[..., Any]:
    def make(script: Script, folder: Path, shape: Shape, steps: int, meter: StepMeter) -> Any:
        channels: dict[str, Any] = {} if sdpo else {"alpha_sdpo": 0.0}
        channels |= {"replay_dataset": script.pairs} if replay else {"beta_replay": 0.0}
        return grpo_trainer(script, folder, shape, steps, meter, **channels)

    return make


TRAINERS: dict[str, Callable[..., Any]] = {
    "plain_grpo": grpo_trainer,
    "all_channels": _ours(sdpo=True, replay=True),
    "channel_2": _ours(sdpo=True, replay=False),
    "channel_3": _ours(sdpo=False, replay=True),
    "trl_sdpo": sdpo_trainer,
}
FOR_MEMORY = [f"{trainer}{LARGE}" for trainer in ("plain_grpo", "channel_2", "trl_sdpo")]


def measure(contestant: str, shape: Shape, *, prompts_too: bool) -> dict[str, float]:
    """In the child: the medians of a few warm steps."""
    if not prompts_too:
        _score_completions_only()
    with trained(contestant, shape, 1 + STEPS) as (trainer, meter):
        trainer.train()
        figures = {name: statistics.median(step[name] for step in meter.steps[1:]) for name in _FIGURES}
        return figures | _activity(trainer, contestant, shape)


@contextmanager
def trained(contestant: str, shape: Shape, steps: int) -> Iterator[tuple[Any, StepMeter]]:
    """A trainer that is ready to go, and the meter that it will report to."""
    with tempfile.TemporaryDirectory() as name:
        folder, meter = Path(name), StepMeter()
        save_model(shape, folder / "model")
        script = Script(make_tokenizer(), shape)
        trainer = TRAINERS[contestant](script, folder, shape, steps, meter)
        trainer.add_callback(meter)  # last, so that it also sees what other callbacks cost
        yield trainer, meter


def _score_completions_only() -> None:
    """Let TRL's fused head leave prompts out, as it does where it has Triton; the arithmetic stays torch's."""
    import trl.trainer.utils

    trl.trainer.utils._use_triton = lambda device: True


def _activity(trainer: Any, contestant: str, shape: Shape) -> dict[str, float]:
    """What the last step's losses stood on; a channel that was off would be fast for nothing."""
    logged = {name: values[-1] for name, values in trainer._metrics["train"].items() if values}
    logged |= {name: value for line in trainer.state.log_history for name, value in line.items() if value is not None}
    figures = {}
    if contestant in ("all_channels", "channel_2"):
        figures["hinted_tokens"] = logged["channels/sdpo/active_tokens"]
        if logged["channels/sdpo/active_rows"] != shape.rollouts / GROUP:
            raise BenchmarkError(f"channel 2 was active in {logged['channels/sdpo/active_rows']} rows")
    if contestant in ("all_channels", "channel_3"):
        figures["pairs"] = logged["channels/replay/active_rows"]
        if figures["pairs"] != shape.rollouts // 2:
            raise BenchmarkError(f"channel 3 was active in {figures['pairs']} pairs")
    if contestant == "trl_sdpo":
        share = logged["self_distillation/reprompt_sample_fraction"]
        if share != 1 / GROUP or not logged["self_distillation/distillation_loss"] > 0:
            raise BenchmarkError(f"TRL's SDPO learnt from {share} of the rollouts")
    if not math.isfinite(trainer.state.log_history[-1]["train_loss"]):
        raise BenchmarkError(f"{contestant} has no finite loss")
    return figures


def measured(contestant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """In the child: one contestant's figures."""
    trainer, large, _ = contestant.partition(LARGE)
    return measure(trainer, _shapes(arguments)[large], prompts_too=arguments.prompts_too)


def _shapes(arguments: argparse.Namespace) -> dict[str, Shape]:
    return QUICK_SHAPES if arguments.quick else SHAPES


def report(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Contestants take turns, each in a process of its own; or our step is profiled."""
    shapes = _shapes(arguments)
    if arguments.profile:
        if not arguments.prompts_too:
            _score_completions_only()
        print_profile(shapes[""])
        return None
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    options = ["--quick"] * arguments.quick + ["--prompts-too"] * arguments.prompts_too
    rounds = [*[*TRAINERS] * repeats, *FOR_MEMORY]
    runs = take_turns("train_step", rounds, options)
    results = {contestant: medians(of_contestant) for contestant, of_contestant in runs.items()}
    return {
        "benchmark": "train_step",
        "machine": {**machine("torch", "transformers", "trl"), "threads": torch.get_num_threads()},
        "shape": {
            **asdict(shapes[""]),
            **{f"{name}{LARGE}": size for name, size in asdict(shapes[LARGE]).items() if name not in LENGTHS},
            **_lengths(shapes[""]),
            "gradient_checkpointing": True,
            "prompts_scored": arguments.prompts_too,
        },
        "results": results,
        "columns": COLUMNS,
        "ratios": _ratios(results),
        "targets": _targets(results),
    }


def _lengths(shape: Shape) -> dict[str, str]:
    """How long things came out, in tokens."""
    tokenizer = make_tokenizer()
    script = Script(tokenizer, shape)
    from composer_replication.trainer.preference_rows import preference_rows

    rows = preference_rows(tokenizer, script.pairs, max_length=4096)
    spans = {
        "rollout_prompts": [len(rollout.prompt_ids) for rollout in script.rollouts],
        "rollout_completions": [len(rollout.completion_ids) for rollout in script.rollouts],
        "pair_prompts": [len(row.prompt_ids) for row in rows],
        "pair_responses": [len(ids) for row in rows for ids in (row.chosen_ids, row.rejected_ids)],
    }
    return {name: f"{min(lengths)}-{max(lengths)}" for name, lengths in spans.items()}


def _ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Times against plain GRPO's, of everyone: the median over the rounds, in each of which all took their turn."""
    plain = [run["seconds"] for run in results["plain_grpo"]["repeats"]]
    return {
        f"{name}_vs_plain_grpo": statistics.median(
            run["seconds"] / peer for run, peer in zip(results[name]["repeats"], plain, strict=True)
        )
        for name in TRAINERS
    }


def _targets(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    plain, hints, trl = (results[f"{name}{LARGE}"]["peak_bytes"] for name in ("plain_grpo", "channel_2", "trl_sdpo"))
    return [
        judged("step_vs_plain_grpo", _ratios(results)["all_channels_vs_plain_grpo"], "<=1.6"),
        judged("sdpo_memory_vs_trl", (hints - plain) / (trl - plain), "<=0.15"),
    ]


def print_profile(shape: Shape) -> None:
    """Where the time of a warm step with all channels goes, by function."""
    profile = cProfile.Profile()

    class LastStep(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == STEPS:
                profile.enable()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            profile.disable()

    with trained("all_channels", shape, 1 + STEPS) as (trainer, _):
        trainer.add_callback(LastStep())
        trainer.train()
    ours_and_the_large = "composer_replication|run_backward|grpo_trainer|clip_grad|adamw"
    pstats.Stats(profile).sort_stats("cumulative").print_stats(ours_and_the_large, 50)


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    scored = {"action": "store_true", "help": "let TRL score prompts, as it does without a GPU"}
    main(report, measure=measured, options={"--profile": PROFILE, "--prompts-too": scored})
