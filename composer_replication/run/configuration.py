"""The whole configuration: what a user wrote, filled in and checked.

Defaults that depend on other settings, and the values of a preset, are filled in before anything is checked: what is
then printed is what will run. A channel whose weight was not given and that has no data is off: its weight becomes 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import model_validator

from composer_replication.channels.fields import Settings, described
from composer_replication.channels.hint_distillation import HintDistillation
from composer_replication.channels.preference import Preference
from composer_replication.diloco.settings import DilocoSection, diloco_problems
from composer_replication.envs.registry import NAMES
from composer_replication.run.presets import PRESETS, PresetName
from composer_replication.run.sections import (
    ChannelsSection,
    DataSection,
    EnvironmentSection,
    ModelSection,
    OptimizerSection,
    Section,
    TasksSection,
    TrainingSection,
)

_LORA_LEARNING_RATE = 1e-5  # ten times that of all weights, as adapters want it
# The sections with settings that have an effect only with a certain choice (`OnlyWith`).
_WITH_CHOICES: dict[tuple[str, ...], type[Settings]] = {
    ("channels", "sdpo"): HintDistillation,
    ("channels", "replay"): Preference,
    ("optimizer",): OptimizerSection,
    ("diloco",): DilocoSection,
}


class Config(Section):
    """A training run, as `composer-replication train` takes it. Making one checks it (see `load_config`)."""

    preset: PresetName | None = None
    """Values to take for what is not written here: recommended, those that were earned by evidence; null: the
    documented defaults."""
    model: ModelSection
    """The model that is trained."""
    data: DataSection = DataSection()
    """The training data."""
    environment: EnvironmentSection | None = None
    """The environment of the rollouts; null: train on the logs alone."""
    channels: ChannelsSection = ChannelsSection()
    """The three losses that are added up."""
    optimizer: OptimizerSection = OptimizerSection()
    """The optimiser and its schedule."""
    training: TrainingSection
    """The run."""
    diloco: DilocoSection | None = None
    """Replicas of the run that train on different data and synchronise now and then; null: one model, one run."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        return _resolved(given)

    @model_validator(mode="after")
    def _check_combinations(self) -> Config:
        problems = list(_combination_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Every setting, as JSON and YAML can hold it."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """Every setting as YAML, which `load_config` reads back to an equal configuration."""
        text: str = yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)
        return text


def _resolved(given: Any) -> Any:
    """Fill in the defaults that depend on other settings; values of a wrong type are left for the checks."""
    if not isinstance(given, Mapping):
        return given
    config = _copied(given)
    for section_path in ("data", "channels", "channels.grpo", "channels.sdpo", "channels.replay", "optimizer"):
        _section(config, tuple(section_path.split(".")))
    model, data, environment = config.get("model"), config["data"], config.get("environment")
    if isinstance(grpo := _section(config, ("channels", "grpo")), dict):
        grpo.setdefault("rollout_loop", "auto")
    if isinstance(model, dict) and model.get("lora") is not None and isinstance(config["optimizer"], dict):
        config["optimizer"].setdefault("lr", _LORA_LEARNING_RATE)
    if isinstance(config["channels"], dict) and environment is None and config["channels"].get("lm") is None:
        config["channels"]["lm"] = {}
    if isinstance(data, dict):
        sdpo, replay = (_section(config, ("channels", name)) for name in ("sdpo", "replay"))
        has_hints = data.get("traces") is not None or environment is not None
        # A schedule cannot start from 0; the checks say that there is no data.
        if isinstance(sdpo, dict) and not has_hints and sdpo.get("alpha_schedule") != "linear":
            sdpo.setdefault("alpha", 0.0)
        if isinstance(replay, dict) and not data.get("pairs"):
            replay.setdefault("beta", 0.0)
    _fill_in_preset(config)
    for path, settings in _WITH_CHOICES.items():
        section = config.get("diloco") if path == ("diloco",) else _section(config, path)
        for one in described(settings) if isinstance(section, dict) else ():
            if not _has_effect(section, path, one.name):
                section.setdefault(one.name, None)
    return config


def _fill_in_preset(config: dict[str, Any]) -> None:
    for name, values in PRESETS.items():
        for key, earned in values.items() if config.get("preset") == name else ():
            *path, setting = key.split(".")
            section: Any = config
            for part in path:
                # A section that is null was turned off.
                section = section.setdefault(part, {}) if isinstance(section, dict) else None
            if isinstance(section, dict) and _has_effect(section, tuple(path), setting):
                section.setdefault(setting, earned.value)


def _has_effect(section: dict[str, Any], path: tuple[str, ...], name: str) -> bool:
    """Whether the choice is made that a setting belongs to, if it belongs to one."""
    known = {one.name: one for one in described(_WITH_CHOICES[path])} if path in _WITH_CHOICES else {}
    belongs = known[name].only_with if name in known else None
    return belongs is None or section.get(belongs.choice, known[belongs.choice].default) in belongs.values


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return value


def _section(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The section at a path; one that is missing, or empty (all its keys commented out), is put there."""
    section: Any = config
    for name in path:
        if not isinstance(section, dict):
            return None
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
    return section


def _combination_problems(config: Config) -> Iterator[str]:
    """One line for each combination that makes no sense: the key, what is wrong, and the way out."""
    yield from _unused_settings(config)
    yield from _nothing_to_learn(config)
    yield from _channels_without_data(config)
    yield from _rollouts(config)
    yield from _optimizer(config)
    if config.diloco is not None:
        yield from diloco_problems(config.diloco, config.training.steps, launched_processes())


def _unused_settings(config: Config) -> Iterator[str]:
    for path, settings in _WITH_CHOICES.items():
        section: Any = config
        for name in path:
            section = getattr(section, name)
        for one in described(settings) if section is not None else ():
            if one.only_with is None or getattr(section, one.name) is None:
                continue
            choice, values = one.only_with.choice, one.only_with.values
            if (chosen := getattr(section, choice)) not in values:
                key = ".".join(path)
                yield (
                    f"{key}.{one.name}: it has no effect with {choice} {chosen!r}; "
                    f"remove it, or set {key}.{choice}: {' or '.join(values)}"
                )
    sdpo = config.channels.sdpo
    if sdpo.wrapper == "taid" and sdpo.taid.t_start > sdpo.taid.t_end:
        yield f"channels.sdpo.taid.t_start: {sdpo.taid.t_start:g} is greater than t_end {sdpo.taid.t_end:g}"


def _nothing_to_learn(config: Config) -> Iterator[str]:
    data, channels = config.data, config.channels
    if config.environment is None and data.traces is None:
        if data.prompts is not None:
            yield "data.prompts: nothing scores the answers; give an environment (environment.class or .rewards)"
        elif data.pairs:
            yield "data.pairs: pairs need rollouts or traces beside them; give data.traces or an environment as well"
        else:
            yield "data: there is nothing to learn from; give data.traces, or an environment with data.prompts"
    elif config.environment is None and not channels.sdpo.alpha and not channels.replay.beta:
        yield (
            "channels: sdpo.alpha and replay.beta are both 0 and there is no environment, which leaves imitation of "
            "the logs; raise one of them"
        )
    elif config.environment is None and data.prompts is not None:
        yield "data.prompts: nothing scores the answers; give an environment (environment.class or .rewards)"


def _channels_without_data(config: Config) -> Iterator[str]:
    sdpo, replay = config.channels.sdpo, config.channels.replay
    if config.data.held_out and config.data.traces is None and not config.data.pairs:
        yield f"data.held_out: {config.data.held_out:g} without data.traces and data.pairs has no effect; leave it out"
    if replay.beta and not config.data.pairs:
        yield f"channels.replay.beta: {replay.beta:g} without data.pairs has no effect; give pairs, or leave it out"
    if sdpo.alpha and config.data.traces is None and config.environment is None:
        yield (
            f"channels.sdpo.alpha: {sdpo.alpha:g} without data.traces and without an environment has no effect; "
            "give one of them, or leave it out"
        )
    if sdpo.routing == "srpo" and not sdpo.alpha:
        yield "channels.sdpo.routing: srpo leaves failed rollouts to channel 2, which is off; raise channels.sdpo.alpha"
    if sdpo.routing == "srpo" and config.environment is None:
        yield "channels.sdpo.routing: srpo routes rollouts, and without an environment there are none"
    if sdpo.hint_source != "error" and config.environment is None:
        yield f"channels.sdpo.hint_source: {sdpo.hint_source} needs rollouts, and without an environment there are none"
    if sdpo.importance_clip is not None and config.environment is None:
        yield "channels.sdpo.importance_clip: it weighs tokens of rollouts, and without an environment there are none"


def _rollouts(config: Config) -> Iterator[str]:
    environment, grpo, training = config.environment, config.channels.grpo, config.training
    if environment is None:
        if grpo.beta or grpo.kl_in_advantage:
            key = "beta" if grpo.beta else "kl_in_advantage"
            yield f"channels.grpo.{key}: it applies to rollouts, and without an environment there are none"
        return
    if environment.class_ is None and not environment.rewards:
        yield "environment: it has neither a class nor rewards; give one of them"
    if environment.class_ is None and environment.arguments:
        yield "environment.arguments: they are for the class, and none is given"
    if config.channels.lm is not None:
        yield "channels.lm: with an environment, channel 1 is channels.grpo; remove it"
    if config.data.traces is not None and not config.channels.sdpo.alpha:
        yield "data.traces: with an environment, traces serve channel 2, which is off; raise channels.sdpo.alpha"
    if environment.tasks is not None:
        yield from _tasks(config, environment.class_, environment.tasks)
    elif config.data.prompts is None:
        yield (
            "data.prompts: an environment needs prompts; give a .jsonl or .parquet file with a `prompt` column, or "
            f"environment.tasks with one of {', '.join(NAMES)}"
        )
    elif config.data.prompts.suffix not in (".jsonl", ".parquet"):
        yield f"data.prompts: {config.data.prompts} must end in .jsonl or .parquet"
    processes = launched_processes()
    rollouts = training.batch_size * training.gradient_accumulation * processes
    set_otherwise = {"generation_batch_size", "steps_per_generation"} & set(grpo.trl)
    if rollouts % grpo.num_generations and not set_otherwise:
        product = f"{training.batch_size} x {training.gradient_accumulation}"
        product += f" x {processes} processes" if processes > 1 else ""
        yield (
            f"training.batch_size: batch_size x gradient_accumulation is {product} = {rollouts}, which is not a "
            f"multiple of channels.grpo.num_generations ({grpo.num_generations})"
        )


def _tasks(config: Config, made_for: str | None, tasks: TasksSection) -> Iterator[str]:
    if config.data.prompts is not None:
        yield f"environment.tasks: {config.data.prompts} (data.prompts) gives prompts already; remove one of them"
    if made_for not in NAMES:
        yield (
            f"environment.tasks: they are generated for {' and '.join(NAMES)}, not for {made_for}; "
            "give data.prompts instead"
        )
    if tasks.split == "held_out":
        yield "environment.tasks.split: held_out is for evaluation, of tasks that were never trained on; use train"


def _optimizer(config: Config) -> Iterator[str]:
    optimizer = config.optimizer
    if config.model.dtype != "float32" and config.model.lora is None:
        # A weight of 0.02 in bfloat16 has neighbours 1e-4 away: steps of 1e-6 are rounded off, and nothing is learned.
        yield (
            f"model.dtype: weights in {config.model.dtype} lose the small steps of training; keep float32 "
            "(training.bf16 still computes in bfloat16), or set model.lora"
        )
    if optimizer.name == "muon" and config.model.lora is not None:
        # An adapter's update is a product: two orthogonalised factors are not an orthogonalised product, and the factor
        # whose gradient is all but 0 at first (the other one begins at 0) would move at full length all the same.
        yield (
            "optimizer.name: muon orthogonalises the update of a whole matrix, and LoRA trains two factors instead; "
            "use adamw, or train every weight (model.lora: null)"
        )
    if optimizer.warmup >= 1 and optimizer.warmup != int(optimizer.warmup):
        yield f"optimizer.warmup: {optimizer.warmup:g} is neither a share below 1 nor a whole number of steps"


def launched_processes() -> int:
    """Number of processes that a launcher (torchrun, accelerate) has started; together they make the batch."""
    given = os.environ.get("WORLD_SIZE", "1")
    return int(given) if given.isdigit() and int(given) > 0 else 1


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that a launcher has started."""
    return os.environ.get("RANK", "0") == "0"
