"""Launch a run from a configuration: load and check everything, then train."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback, set_seed

from composer_replication._optional import EXTRAS, require, require_all
from composer_replication.chat_templates import TemplatedTokenizer, configured_ends
from composer_replication.generation.chat import tool_template
from composer_replication.pretrained import READY_MODELS
from composer_replication.run.arguments import (
    channel_settings,
    checked_arguments,
    collator_config,
)
from composer_replication.run.configuration import Config
from composer_replication.run.data import TrainingData, described, has_thinking, load_training_data, makes_tool_calls
from composer_replication.run.environment import RolloutParts
from composer_replication.run.folder import RunDirectory, step_of
from composer_replication.run.model_loading import (
    check_lengths,
    check_model,
    check_tools,
    load_model,
    load_tokenizer,
    lora_config,
)
from composer_replication.run.optimizers import OptimizerFactory
from composer_replication.run.replicas import become_replica, of_replica, rows_of_replica
from composer_replication.template_check import check_chat_template
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.preference_rows import has_calls

OnLog = Callable[[int, Mapping[str, Any]], None]
"""Called after every step with its number, and the metrics if it logged any."""

_LONGEST_SAMPLE = 4000


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the checkpoint to load, the first and the last step, and the trainer's metrics."""

    output_dir: Path
    checkpoint: Path
    resumed_from: int
    steps: int
    metrics: Mapping[str, Any]


class TrainingRun:
    """A run that is ready to start: the trainer is made, and of the run directory nothing but its cache is written.

    Raises:
        ValueError: something that the configuration names cannot be used; the message names the setting.
        MissingExtraError: packages that the run needs are not installed; it names all of them.
    """

    def __init__(self, config: Config, *, on_log: OnLog | None = None) -> None:
        check_installed(config)
        config, replica = of_replica(config)
        self.config = config
        self.directory = RunDirectory(config.training.output_dir)
        self.checkpoint = self.directory.checkpoint(config)
        # Known before the run, which may remove the checkpoint as one too many.
        self.resumes_from = 0 if self.checkpoint is None else step_of(self.checkpoint)
        # What is cheap to find wrong comes first: the weights are loaded last.
        inputs = checked_inputs(config)
        self.data, tokenizer = inputs.data, inputs.tokenizer
        inputs = replace(inputs, data=rows_of_replica(inputs.data, replica, config))
        set_seed(config.training.seed)  # adapters begin at random
        model = load_model(config.model)
        check_model(model, tokenizer, config.model)
        check_lengths(model, config)
        if config.environment is None:
            model = _with_adapters(config, model)
        self.directory.make()
        try:
            if config.environment is None:
                self.trainer = _trace_trainer(config, model, inputs)
            else:
                self.trainer = _rollout_trainer(config, model, inputs)
        except ValueError as error:
            # The trainers name their arguments, a user their settings.
            raise ValueError(str(error).replace("replay_dataset", "data.pairs")) from error
        self.trainer.described_data = described(self.data, config)
        self.trainer.optimizer_cls_and_kwargs = (OptimizerFactory, dict(vars(config.optimizer)))
        become_replica(self.trainer, replica)
        self._add_callbacks(on_log)

    def run(self) -> RunResult:
        """Train to the last step and write the last checkpoint.

        A finished run trains nothing; as a replica, it meets the others, which may be behind.
        """
        trainer, checkpoint, folder = self.trainer, self.checkpoint, self.directory.folder
        if checkpoint is not None and self.resumes_from >= self.config.training.steps:
            if trainer.replica is not None:
                trainer.meet_at_the_end(str(checkpoint), self.resumes_from)
            return RunResult(folder, checkpoint, self.resumes_from, self.resumes_from, {})
        if trainer.is_world_process_zero():
            self.directory.begin(self.config, self.resumes_from)
        output = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        step = int(trainer.state.global_step)
        return RunResult(folder, folder / f"checkpoint-{step}", self.resumes_from, step, dict(output.metrics))

    def stop(self) -> None:
        """End after the step under way, with a checkpoint."""
        self._stop.asked = True

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end early."""
        return self._stop.asked

    def _add_callbacks(self, on_log: OnLog | None) -> None:
        # The command prints; the library does not.
        for callback in (PrinterCallback, ProgressCallback):
            self.trainer.remove_callback(callback)
        self._stop = StopCallback()
        self.trainer.add_callback(self._stop)
        if self.config.environment is not None and self.config.training.samples_per_log:
            self.trainer.add_callback(
                SampleCallback(self.trainer, self.directory, self.config.training.samples_per_log)
            )
        if on_log is not None:
            self.trainer.add_callback(LogCallback(on_log))


@dataclass(frozen=True)
class RunInputs:
    """The parts of a trainer without the model; a dry run checks the same."""

    rollouts: RolloutParts
    arguments: Any
    data: TrainingData
    tokenizer: Any


def check_installed(config: Config) -> None:
    """Raise one error that names every package the run needs and does not find.

    Raises:
        MissingExtraError: with the command that installs them.
    """
    needed = {"train": EXTRAS["train"].modules}
    if config.model.name in READY_MODELS:
        needed |= READY_MODELS[config.model.name].needs
    require_all(needed)


def checked_inputs(config: Config) -> RunInputs:
    """Everything that can be loaded and checked without the weights.

    Raises:
        ValueError: see `RolloutParts`, `checked_arguments`, `load_training_data` and `load_tokenizer`; or the template
            cannot render what there is.
    """
    rollouts = RolloutParts(config.environment)
    arguments = checked_arguments(config, rollouts.weights)
    data = load_training_data(config.data, config.environment)
    rollouts.check_columns(name for row in data.prompts for name in row)
    if config.environment is not None and data.traces and not data.counts["traces"].get("error_turns"):
        raise ValueError(
            f"data.traces: no turn in {config.data.traces} went wrong; with an environment, traces serve channel 2 "
            "alone: remove them"
        )
    tokenizer = load_tokenizer(config.model)
    calls_tools = {
        "environment.class": config.environment is not None and config.environment.class_ is not None,
        "data.traces": makes_tool_calls(data),
        "data.pairs": any(has_calls(pair) for pair in data.pairs),
    }
    for key, calls in calls_tools.items():
        if calls:
            check_tools(tokenizer, key)
    try:
        check_chat_template(
            rollout_tokenizer(tokenizer, config),
            tools=calls_tools["environment.class"] or calls_tools["data.traces"],
            growing=bool(data.traces),
            hints=config.channels.sdpo.alpha > 0,
            thinking=config.data.thinking == "keep" and has_thinking(data),
        )
    except ValueError as error:
        raise ValueError(f"model.chat_template: {error}") from None
    return RunInputs(rollouts, arguments, data, tokenizer)


def _rollout_trainer(config: Config, model: Any, inputs: RunInputs) -> Any:
    from datasets import Dataset

    from composer_replication.trainer.composer_trainer import ComposerReplicationTrainer

    data, tokenizer, rollouts = inputs.data, inputs.tokenizer, inputs.rollouts
    columns = dict.fromkeys(name for row in data.prompts for name in row)
    collator = None
    if data.traces:
        collator = ComposerDataCollator(rollout_tokenizer(tokenizer, config, model), collator_config(config))
    return ComposerReplicationTrainer(
        model=model,
        reward_funcs=rollouts.rewards or None,
        args=inputs.arguments,
        train_dataset=Dataset.from_dict({name: [row.get(name) for row in data.prompts] for name in columns}),
        processing_class=tokenizer,
        peft_config=lora_config(config.model),
        environment_factory=rollouts.factory,
        settings=channel_settings(config),
        replay_dataset=data.pairs or None,
        trace_dataset=data.traces or None,
        data_collator=collator,
    )


def rollout_tokenizer(tokenizer: Any, config: Config, model: Any = None) -> Any:
    """The tokenizer with the template of the rollouts."""
    has_tools = config.environment is not None and config.environment.class_ is not None
    template = tool_template(tokenizer) if has_tools else tokenizer.chat_template
    return TemplatedTokenizer(tokenizer, template, end_ids=configured_ends(model))


def _with_adapters(config: Config, model: Any) -> Any:
    """The model with its adapters, if it gets any; TRL's trainer makes them itself."""
    adapters = lora_config(config.model)
    if adapters is None:
        return model
    model = require("peft", "train").get_peft_model(model, adapters)
    if config.training.gradient_checkpointing:
        model.enable_input_require_grads()
    return model


def _trace_trainer(config: Config, model: Any, inputs: RunInputs) -> Any:
    from composer_replication.trainer.trace_trainer import TraceTrainer

    return TraceTrainer(
        model,
        inputs.arguments,
        inputs.data.traces,
        inputs.tokenizer,
        settings=channel_settings(config),
        collator=collator_config(config),
        replay_dataset=inputs.data.pairs or None,
    )


class SampleCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the first few rollouts of a logging step to samples.jsonl: prompt, completion, rewards, advantage."""

    def __init__(self, trainer: Any, directory: RunDirectory, count: int) -> None:
        self._trainer, self._directory, self._count = trainer, directory, count
        self._last_step = -1

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer; other processes than the first write nothing."""
        logs = self._trainer._logs
        # The summary at the end of a run is logged under its last step once more.
        if not state.is_world_process_zero or not logs["prompt"] or state.global_step == self._last_step:
            return
        self._last_step = state.global_step
        rewards = {name: list(values) for name, values in logs["rewards"].items()}
        prompts, completions, advantages = (list(logs[name]) for name in ("prompt", "completion", "advantages"))
        self._directory.add_samples(
            {
                "step": state.global_step,
                "prompt": _shortened(prompts[index]),
                "completion": _shortened(completions[index]),
                "rewards": {name: _number(values[index]) for name, values in rewards.items()},
                "advantage": _number(advantages[index]),
            }
            for index in range(min(self._count, len(prompts)))
        )


class LogCallback(TrainerCallback):  # type: ignore[misc]
    """Passes steps and metrics to a function, in the first process."""

    def __init__(self, on_log: Callable[[int, Mapping[str, Any]], None]) -> None:
        self._on_log = on_log

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after every optimiser step."""
        if state.is_world_process_zero:
            self._on_log(state.global_step, {})

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Called by the trainer with the metrics."""
        if state.is_world_process_zero:
            self._on_log(state.global_step, logs or {})


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Ends the run after the step in which `asked` became true, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after every optimiser step."""
        if self.asked:
            control.should_save = control.should_training_stop = True


def _shortened(value: Any) -> Any:
    """A text, or messages, with long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SAMPLE else value[:_LONGEST_SAMPLE] + " [...]"
    if isinstance(value, Mapping):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(one) for one in value]
    return value


def _number(value: Any) -> float | None:
    """A number for JSON; None for NaN, which a rollout has that a reward function did not score."""
    number = float(value)
    return number if math.isfinite(number) else None
