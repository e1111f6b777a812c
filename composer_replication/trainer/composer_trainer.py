"""`ComposerReplicationTrainer`: TRL's GRPO with hint self-distillation at the turns that went wrong, and replay pairs.

total = grpo + α·sdpo + β·trace_replay

TRL generates, calls tools and scores. Then failing turns get hints, and the hidden states of the forward pass of TRL's
own loss are kept: channel 2 compares them with what the teacher predicts for the same token ids
with the hint in context, and channel 3 adds preference pairs from a sampler of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from composer_replication._arguments import check_keywords, keywords_of
from composer_replication._optional import require
from composer_replication.causal_lm import keeping_hidden_states, recognise_head, run_causal_lm
from composer_replication.channels.hint_distillation import HintGenerator
from composer_replication.channels.scoring import summed_logprobs
from composer_replication.channels.settings import ChannelSettings, RolloutKeywords, documents_keywords
from composer_replication.chat_templates import TemplatedTokenizer, tool_definitions
from composer_replication.envs.reset_text import separating
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.template_check import check_chat_template
from composer_replication.trainer.advantages import SequenceKL
from composer_replication.trainer.cached_rollouts import cached_rollouts, keeps_caches
from composer_replication.trainer.channel_engine import (
    ChannelEngine,
    StepEnds,
    check_not_empty,
    check_policy,
    gradient_shares,
    site_numbers,
)
from composer_replication.trainer.channel_log import MetricsFile
from composer_replication.trainer.checkpoint import ChannelCheckpoints
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.gate_calibration import RowCalibration
from composer_replication.trainer.on_policy_hints import (
    SITES,
    OnPolicyHints,
    buffered_tensors,
    restored_buffer,
)
from composer_replication.trainer.pairs import given_pairs, replay_pairs
from composer_replication.trainer.preference_rows import ShownContext, check_shown_context
from composer_replication.trainer.rollouts import Rollout
from composer_replication.trainer.trace_rows import TraceBatches

logger = logging.getLogger(__name__)

GRPOTrainer: Any = require("trl", "train").GRPOTrainer


class TrainerKeywords(RolloutKeywords, total=False):
    """The keyword arguments that `ComposerReplicationTrainer` takes besides its own: the channels' and TRL's."""

    model: Any
    reward_funcs: Any
    args: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    reward_processing_classes: Any
    callbacks: Any
    optimizers: tuple[Any, Any]
    quantization_config: Any
    peft_config: Any
    tools: Any
    rollout_func: Any
    environment_factory: Any


@documents_keywords("rollouts")
class ComposerReplicationTrainer(ChannelCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """A `trl.GRPOTrainer` with three channels; with both weights 0 it is one, number for number.

    Everything that `GRPOTrainer` takes is passed through: objectives, tools, environments, `rollout_func`, LoRA. One
    thing differs: a text that an environment's `reset` returns does not merge with the last word of the prompt.

    Args:
        settings: the channels' settings; each of them is a keyword as well (`alpha_sdpo=0.3`), which comes first.
        hint_generator: `(error_kind, error_meta) -> hint or None`; None: templates, then the error's own text.
        replay_dataset: preference pairs of `extract_dpo_pairs`, normalised ones, or rows in TRL's preference form; or a
            file of them (.jsonl, .parquet). They must show the tools and the system prompt of the rollouts.
        trace_dataset: `TraceExample`s whose failing turns are added to channel 2.
        data_collator: a `ComposerDataCollator` for the traces; None makes one.
        reference_cache: folder for the reference's log-probabilities; None: `output_dir/reference_logprobs`.

    Raises:
        ValueError: a setting out of range, an empty data set, or a model whose vocabulary does not fit its tokenizer.
        TypeError: there is no such argument; the message has the nearest one.
    """

    tools: Any
    rollout_func: Any

    def __init__(
        self,
        *positional: Any,
        settings: ChannelSettings | None = None,
        hint_generator: HintGenerator | None = None,
        replay_dataset: Iterable[Any] | str | os.PathLike[str] | None = None,
        trace_dataset: Sequence[Any] | None = None,
        data_collator: Any = None,
        reference_cache: str | Path | None = None,
        **keywords: Unpack[TrainerKeywords],
    ) -> None:
        own = keywords_of(ComposerReplicationTrainer.__init__)
        of_channels = RolloutKeywords.__annotations__
        check_keywords("ComposerReplicationTrainer", keywords, [*own, *of_channels, *keywords_of(GRPOTrainer.__init__)])
        kwargs: dict[str, Any] = dict(keywords)
        given = {name: kwargs.pop(name) for name in of_channels if name in kwargs}
        settings = (settings or ChannelSettings()).updated(**given)
        grpo, hints, replay = settings.grpo, settings.sdpo, settings.replay
        if hints.routing == "srpo" and hints.alpha == 0:
            raise ValueError("routing='srpo' sends failed rollouts to channel 2, but alpha_sdpo is 0")
        check_not_empty("train_dataset", kwargs.get("train_dataset", positional[3] if len(positional) > 3 else None))
        check_not_empty("trace_dataset", trace_dataset)
        if isinstance(environments := kwargs.get("environment_factory"), Mapping):
            kwargs["environment_factory"] = {name: separating(factory) for name, factory in environments.items()}
        elif environments is not None:
            kwargs["environment_factory"] = separating(environments)
        super().__init__(*positional, **kwargs)
        check_policy(self.model, self._tokenizer)
        if self._is_vlm and (hints.alpha > 0 or replay.beta > 0 or grpo.kl_in_advantage > 0):
            raise ValueError(
                "channels 2 and 3 and kl_in_advantage score text only, and ignore the images of a vision-language "
                "model: set their weights to 0"
            )
        rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if hints.hint_source != "error" and rows % self.num_generations:
            raise ValueError(
                f"hint_source={hints.hint_source!r} needs whole groups in each process, but {rows} rollouts are not a "
                f"multiple of {self.num_generations}: choose other batch sizes"
            )
        if data_collator is not None and trace_dataset is None:
            logger.warning("data_collator has no effect: it collates trace_dataset, which was not given")
        hint_generator = hint_generator or as_collator_hint(LayeredHints())
        self._templated = TemplatedTokenizer(
            self._tokenizer,
            getattr(self, "chat_template", None) or self._tokenizer.chat_template,
            getattr(self, "chat_template_kwargs", None) or {},
            tuple(self.eos_token_ids),
        )
        if hints.alpha > 0 and self._templated.chat_template and self._is_conversational():
            check_chat_template(self._templated, tools=bool(self.tools), hints=True)
        self._rewards: torch.Tensor | None = None
        self._definitions: dict[str | None, list[dict[str, Any]] | None] = {}
        self._train_sampler: Any = None
        self._keeps_states = hints.alpha > 0 and recognise_head(self.model) is not None
        self._replay_batch_size = replay.batch_size or max(1, self.args.per_device_train_batch_size // 2)
        pairs = None
        if replay.beta > 0 and replay_dataset is not None:
            rows_of_pairs = given_pairs(replay_dataset)
            check_shown_context(rows_of_pairs, self._shown_contexts())
            pairs = replay_pairs(
                self,
                self._templated,
                rows_of_pairs,
                replay,
                batch_size=self._replay_batch_size,
                reference_cache=reference_cache,
            )
        self._traces = None
        if hints.alpha > 0 and trace_dataset is not None:
            collator = data_collator or ComposerDataCollator(
                tokenizer=self._templated,
                config=CollatorConfig(hint_generator=hint_generator, max_windows=8, **hints.of_sites()),
            )
            self._traces = TraceBatches(
                trace_dataset,
                collator,
                batch_size=hints.trace_batch_size,
                seed=self.args.seed,
                process_index=self.accelerator.process_index,
                num_processes=self.accelerator.num_processes,
            )
        self._sequence_kl = None
        if grpo.kl_in_advantage > 0:
            self._sequence_kl = SequenceKL(
                self.model,
                grpo.kl_in_advantage,
                temperature=self.temperature,
                rows_per_pass=self.args.per_device_train_batch_size,
            )
        weights = {"grpo": 1.0, "sdpo": hints.alpha, "replay": replay.beta}
        if self._traces is not None:
            weights["traces"] = hints.alpha
        self.channels = ChannelEngine(
            self.model,
            settings,
            pairs=pairs,
            channels=weights,
            reduce=lambda sums: self.accelerator.reduce(sums, reduction="sum"),
            processes=self.accelerator.num_processes,
            seed=self.args.seed,
        )
        if "sdpo" in self.channels.calibrations:
            self._check_prompts_differ()
        self._trace_calibration = None
        if self._traces is not None and "traces" in self.channels.calibrations:
            self._trace_calibration = RowCalibration(
                self.channels.calibrations["traces"], self._traces.rows, collator, size=hints.trace_batch_size
            )
        self._hints = OnPolicyHints(
            self.channels,
            self._templated,
            hint_generator,
            accelerator=self.accelerator,
            rows_per_pass=self.args.per_device_train_batch_size,
            max_length=_context_limit(self.model),
            temperature=self.temperature,
        )
        self._keeps_caches = keeps_caches(self, grpo.rollout_loop)
        self.add_callback(StepEnds(self))
        self.add_callback(MetricsFile(Path(self.args.output_dir, "metrics.jsonl")))

    # What was generated is kept, because its tensors no longer say which turn is which.

    def _generate(self, prompts: list[Any]) -> Any:
        is_cached = self._keeps_caches and isinstance(prompts[0], list)
        result = self._generate_with_kept_caches(prompts) if is_cached else super()._generate(prompts)
        if self.channels.settings.sdpo.alpha > 0 and self.model.training:
            prompt_ids, completion_ids, tool_mask, completions = result[:4]
            rollouts = [
                Rollout(
                    prompt=prompt if isinstance(prompt, list) else [],
                    messages=completion if isinstance(completion, list) and self.rollout_func is None else [],
                    prompt_ids=list(prompt_ids[row]),
                    completion_ids=list(completion_ids[row]),
                    generated=[1] * len(completion_ids[row]) if tool_mask is None else list(tool_mask[row]),
                    tools=self._tool_definitions(row),
                )
                for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
            ]
            self._hints.keep(rollouts, result[5].get("hints"))
        return result

    def _generate_with_kept_caches(self, prompts: list[Any]) -> Any:
        """Generate with a `rollout_func` of our own. TRL checks and logs the result as that of any other."""
        tools = self.tools
        # Without tools and messages: otherwise TRL would parse the rollouts and call the tools once more.
        self.tools, self.rollout_func = [], lambda _, trainer: cached_rollouts(prompts, trainer)
        try:
            result = list(super()._generate([""] * len(prompts)))
        finally:
            self.tools, self.rollout_func = tools, None
        messages, calls, failures = (result[5].pop(name) for name in ("messages", "calls", "failures"))
        result[3] = messages
        if tools:
            counts = torch.tensor([[len(calls), sum(calls), sum(failures)]], device=self.accelerator.device)
            rollouts, called, failed = self.accelerator.gather(counts).sum(0)
            metrics = self._metrics["train" if self.model.training else "eval"]
            metrics["tools/call_frequency"].append((called / rollouts).item())
            metrics["tools/failure_frequency"].append((failed / called.clamp(min=1)).item())
        return tuple(result)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards_per_func: torch.Tensor = super()._calculate_rewards(*args, **kwargs)
        for name, column in zip(self.reward_func_names, rewards_per_func.T, strict=True):
            if bool(torch.isinf(column).any()):
                raise ValueError(f"the reward function {name!r} gave an infinite reward: it has no advantage")
        unscored = torch.isnan(rewards_per_func).all(dim=1)
        if not self.channels.is_idle:
            # TRL gives such rollouts no advantage; the log says how many there were.
            mode = "train" if self.model.training else "eval"
            self._metrics[mode]["rewards/unscored"].append(unscored.float().sum().item())
        rewards = (rewards_per_func * self.reward_weights.to(rewards_per_func.device)).nansum(dim=1)
        self._rewards = rewards.masked_fill(unscored, float("nan"))
        return rewards_per_func

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        """A reward function's `log_extra("hint", [...])` is a text per rollout (or None) for channel 2."""
        if column == "hint":
            if self.model.training:
                self._hints.listen(values)
            values = ["" if value is None else str(value) for value in values]
        super()._log_completion_extra(column, values)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._hints.forget()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        if self._sequence_kl is not None:
            with self.accelerator.autocast():
                output["advantages"] = self._sequence_kl.adjusted(
                    self.model, output, self.num_generations, self.accelerator
                )
        if self.channels.settings.sdpo.alpha > 0:
            assert self._rewards is not None
            self._hints.add_to(
                output, self._rewards, self.environments, group=self.num_generations, step=self.state.global_step
            )
        return output

    # The loss.

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """GRPO's loss as TRL computes it, plus what channels 2 and 3 add in training."""
        if self.model.training:
            self.saw_tokens(inputs["completion_mask"].sum())
        if not self.model.training or self.channels.is_idle:
            policy_loss: torch.Tensor = super()._compute_loss(model, inputs)
            return policy_loss
        with keeping_hidden_states(model) as kept:
            policy_loss = super()._compute_loss(model, inputs)
        parts: dict[str, torch.Tensor | None] = {"grpo": policy_loss}
        self._log_policy(policy_loss, inputs)
        settings, alpha = self.channels.settings, self.channels.alpha(self.state.global_step)
        share = 1.0 / self.current_gradient_accumulation_steps
        if settings.sdpo.alpha > 0 and inputs.get(SITES) is not None:
            hint_loss = self._hints.loss(
                model,
                inputs,
                kept.hidden_states() if self._keeps_states else None,
                step=self.state.global_step,
                # As TRL does for its own normaliser: a generation's tokens, brought down to one optimiser step.
                windows=self.args.steps_per_generation / self.current_gradient_accumulation_steps,
            )
            parts["sdpo"] = None if hint_loss is None else alpha * hint_loss
        if self._traces is not None:
            if self._trace_calibration is not None:
                self._trace_calibration.measure(self._changes)
            batch = self._traces.next_batch(self.accelerator.device)
            parts["traces"] = alpha * self._compute_sdpo_loss(model, batch, share=share)
        pairs = self.channels.replay_batch(self._replay_batch_size, self.accelerator.device)
        if pairs is not None:
            parts["replay"] = settings.replay.beta * self._compute_trace_replay_loss(model, pairs, share=share)
        if self.channels.is_share_step(self.state.global_step, self.accelerator.sync_gradients):
            for channel, part in gradient_shares(parts, self.model.parameters()).items():
                self._metrics["train"][f"channels/{channel}/gradient_share"].append(part)
        return torch.stack([part for part in parts.values() if part is not None]).sum()

    def _compute_sdpo_loss(
        self, model: nn.Module, inputs: Mapping[str, torch.Tensor], *, share: float = 1.0
    ) -> torch.Tensor:
        """Channel 2 over a batch of the collator's: a pass of the student's own, then as for rollouts.

        Returns 0, with no gradient to give, if α is 0, the batch has no hinted contexts, or the gate leaves none.
        """
        student = run_causal_lm(model, inputs["input_ids"], inputs.get("attention_mask"))
        nothing = student.hidden.sum() * 0.0
        if self.channels.settings.sdpo.alpha == 0 or "ctx_teacher_input_ids" not in inputs:
            return nothing
        judged = self.channels.judge(inputs, site_numbers(inputs), channel="traces")
        loss = self.channels.hint_loss(
            student,
            inputs,
            judged,
            token_weight=share / max(int(judged.kept_P.sum()), 1),
            channel="traces",
            step=self.state.global_step,
        )
        return nothing if loss is None else loss

    def _changes(self, batch: dict[str, torch.Tensor]) -> list[float]:
        batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
        return self.channels.changes(batch, site_numbers(batch))

    def _compute_trace_replay_loss(
        self, model: nn.Module, inputs: Mapping[str, torch.Tensor], *, share: float = 1.0
    ) -> torch.Tensor:
        """Channel 3 over a batch with `dpo_*` keys, reference log-probabilities included."""
        return self.channels.replay_loss(model, inputs, share=share)

    @staticmethod
    def _sequence_logprobs(model: nn.Module, input_ids: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
        """The (B,) summed log-probabilities of the response tokens."""
        return summed_logprobs(run_causal_lm(model, input_ids), input_ids, response_mask > 0)

    # Steps, metrics.

    def _log_policy(self, policy_loss: torch.Tensor, inputs: dict[str, Any]) -> None:
        mask = inputs["completion_mask"]
        mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
        log = self.channels.log
        log.add("grpo", "loss", policy_loss / self.accelerator.num_processes)
        # Rows without an advantage have no gradient, unless something other than the reward is in the loss.
        moving = inputs["advantages"] != 0
        if self.beta != 0 or self._entropy_bonus_enabled:
            moving = torch.ones_like(moving)
        moving_B1 = (moving if moving.dim() == 1 else moving.any(dim=1)).unsqueeze(1)
        log.add("grpo", "active_tokens", (mask * moving_B1).sum())
        log.add("grpo", "active_rows", moving_B1.sum())
        if not bool(moving.any()):
            log.explain("grpo", {"same_reward": 1})

    def end_step(self) -> None:
        """Update teacher, TAID and metrics after an optimiser step, and warn when a channel is inactive."""
        if self.channels.is_idle:
            return
        for name, value in self.channels.end_step(self.state.global_step, self.accelerator.device).items():
            self._metrics["train"][name].append(value)

    def _tool_definitions(self, row: int) -> list[dict[str, Any]] | None:
        return self._definitions_in(self._batch_environments[row] if self.environment_factories is not None else None)

    def _definitions_in(self, name: str | None) -> list[dict[str, Any]] | None:
        """The tools of the environment with this name; None is the only one, or none."""
        if name not in self._definitions:
            # Made of docstrings: once is enough.
            tools = self.tools if self.environment_factories is None else self._env_tools[name]
            self._definitions[name] = tool_definitions(tools)
        return self._definitions[name]

    def _is_conversational(self) -> bool:
        return any(not isinstance(row.get("prompt"), str) for row in islice(self.train_dataset or (), 1))

    def _shown_contexts(self) -> Iterator[ShownContext]:
        """The context that each prompt shows, with the tools of its environment."""
        for row in self.train_dataset:
            prompt = row.get("prompt") or []
            name = row.get("environment") if self.environment_factories and self._multi_environment else None
            # An environment that does not exist is refused by TRL when its row is drawn.
            if not isinstance(prompt, str) and name in (self.environment_factories or {None: None}):
                yield ShownContext.of(prompt, self._definitions_in(name))

    def _check_prompts_differ(self) -> None:
        """Raise ValueError if no rollout can get a hint of another prompt. An environment may add to the prompts."""
        prompts = (row.get("prompt") for row in self.train_dataset)
        first = next(prompts, None)
        if self.environment_factories is None and all(one == first for one in prompts):
            raise ValueError(
                "the gate's calibrate needs hints of other prompts, but all rows of train_dataset have the same: add "
                "prompts, or leave calibrate out"
            )

    # Checkpoints.

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        epochs, steps = super()._init_training_state(*args, **kwargs)
        # TRL's sampler draws a permutation per epoch from one generator and knows no epochs: a resumed run would see
        # the first epoch's order again.
        if self._train_sampler is not None and self._train_sampler.shuffle:
            for _ in range(epochs):
                torch.randperm(self._train_sampler.num_samples, generator=self._train_sampler.generator)
        return epochs, steps

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Rollouts that are still to be used, metrics that are not logged yet, and the position in the traces."""
        tensors, rows = buffered_tensors(self._buffered_inputs if self._is_buffer_in_use() else None)
        return tensors, {
            "step": self._step,
            "buffer": rows,
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "traces": None if self._traces is None else self._traces.state_dict(),
            "reference": None if self._sequence_kl is None else self._sequence_kl.state_dict(),
        }

    def load_own_state(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `own_state` gave."""
        if self._sequence_kl is not None and numbers["reference"] is not None:
            self._sequence_kl.load_state_dict(numbers["reference"])
        if self._traces is not None and numbers["traces"] is not None:
            self._traces.load_state_dict(numbers["traces"])
        self._step = numbers["step"]
        self._buffered_inputs = restored_buffer(tensors, numbers["buffer"], self.accelerator.device)
        for name, values in numbers["metrics"].items():
            self._metrics["train"][name] = list(values)

    def _is_buffer_in_use(self) -> bool:
        return (
            self._buffered_inputs is not None
            and self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        )


def _context_limit(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    limit = getattr(
        config.get_text_config() if hasattr(config, "get_text_config") else config, "max_position_embeddings", None
    )
    return limit if isinstance(limit, int) else None
