"""Channels 2 and 3 as a trainer runs them: teacher, gate, TAID, pairs, their state and their log.

The losses themselves are in `channels/`. A trainer brings its own channel 1, passes on the hidden states of its forward
pass, and calls `end_step` after each optimiser step (`StepEnds`).

Shapes: P paired positions, S sites.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import TrainerCallback

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels.hint_distillation import (
    HintDistillation,
    OverlapMeter,
    hint_divergence,
    importance_weights,
    judge_sites,
)
from composer_replication.channels.scoring import Batch, at, sdpo_pairs, token_logprobs, with_bare_contexts
from composer_replication.channels.settings import ChannelSettings
from composer_replication.distillation.fused.losses import fused_token_logprobs
from composer_replication.distillation.taid import TAIDScheduler
from composer_replication.trainer.channel_log import ChannelLog, Reduce
from composer_replication.trainer.gate_calibration import GateCalibration
from composer_replication.trainer.pairs import ReplayPairs
from composer_replication.trainer.self_teachers import SelfTeacher, make_teacher

logger = logging.getLogger(__name__)


class JudgedHints(NamedTuple):
    """A (P,) mask of the pairs that passed the gate, and the teacher's hidden states at all pairs."""

    kept_P: torch.Tensor
    teacher: HiddenStates


class MeasuredHints(NamedTuple):
    """The teacher's (P,) log-probabilities of the turns' own tokens without and with the hint, and its states with
    it."""

    bare_P: torch.Tensor
    hinted_P: torch.Tensor
    teacher: HiddenStates


class ChannelEngine:
    """The state of channels 2 and 3 between steps.

    Args:
        model: the policy, as it is before training.
        settings: of all channels.
        pairs: the preference pairs of channel 3; None turns it off.
        channels: the names that a trainer reports under, with their weights.
        reduce: sums a vector over all processes.
        processes: how many there are; gradients are averaged over them.
        seed: of the draw of foreign hints, if the gate is calibrated.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ChannelSettings,
        *,
        pairs: ReplayPairs | None,
        channels: Mapping[str, float],
        reduce: Reduce = lambda sums: sums,
        processes: int = 1,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.weights = dict(channels)
        self.pairs = pairs if settings.replay.beta > 0 else None
        self.teacher = _teacher(model, settings.sdpo) if settings.sdpo.alpha > 0 else None
        self.log = ChannelLog(channels, settings.watch.inactive_patience, reduce)
        gate = settings.sdpo.gate
        # One for each source of hints, by the name that it reports under.
        self.calibrations = {
            channel: GateCalibration(gate.calibrate, gate.percentile, f"{seed}/{channel}")
            for channel in ("sdpo", "traces")
            if channels.get(channel, 0.0) > 0 and gate is not None and gate.calibrate is not None
        }
        self._processes = processes
        self._steps = 1
        self._taid: TAIDScheduler | None = None
        self._taid_state: dict[str, Any] | None = None

    def begin(self, steps: int) -> None:
        """Make what needs the number of optimiser steps of the whole run."""
        hints = self.settings.sdpo
        self._steps = steps
        if hints.wrapper == "taid" and hints.alpha > 0:
            self._taid = TAIDScheduler(max(1, steps), **vars(hints.taid))
            if self._taid_state is not None:
                self._taid.load_state_dict(self._taid_state)
                self._taid_state = None

    @property
    def taid_t(self) -> float | None:
        """TAID's coefficient for the coming step; None without TAID."""
        if self._taid is not None:
            return self._taid.t
        return self.settings.sdpo.taid.t_start if self.settings.sdpo.wrapper == "taid" else None

    def alpha(self, step: int) -> float:
        """Channel 2's weight in the optimiser step that follows `step` others."""
        return self.settings.sdpo.alpha_at(step, self._steps)

    @property
    def is_idle(self) -> bool:
        """Whether neither channel has a weight."""
        return self.settings.sdpo.alpha == 0 and self.settings.replay.beta == 0

    def is_share_step(self, step: int, is_last_micro_batch: bool) -> bool:
        """Whether the channels' gradients are to be compared here."""
        every = self.settings.watch.gradient_share_every
        return bool(every) and is_last_micro_batch and step % every == 0

    def hinted(self, batch: Batch, token_budget: int | None = None) -> HiddenStates:
        """The teacher's (P, H) states at the pairs of `batch`.

        `token_budget` is the most tokens of a pass; None: as many as the student's own pass over `batch` takes.
        """
        assert self.teacher is not None
        _, teacher_P2 = sdpo_pairs(batch)
        return self.teacher.hinted_states(batch, teacher_P2, token_budget or batch["input_ids"].numel())

    @torch.no_grad()
    def measured(self, batch: Batch, token_budget: int | None = None) -> MeasuredHints:
        """Let the teacher score the pairs of `batch` with their hints and without; see `hinted`."""
        assert self.teacher is not None
        student_P2, teacher_P2 = sdpo_pairs(batch)
        # The same teacher without the hint, so that what is measured is the hint and not how far the policy has come.
        contexts, index_2P2 = with_bare_contexts(batch, student_P2, teacher_P2)
        states = self.teacher.hinted_states(contexts, index_2P2, token_budget or batch["input_ids"].numel())
        tokens_P = at(batch["input_ids"], student_P2)
        logprobs_2P = fused_token_logprobs(states.hidden, tokens_P.repeat(2), states.head)
        hinted_P, bare_P = logprobs_2P.chunk(2)
        # A copy: the states are kept for the step, and those without the hint are not needed any more.
        return MeasuredHints(bare_P, hinted_P, HiddenStates(states.hidden[: len(tokens_P)].clone(), states.head))

    def changes(self, batch: Batch, site_of_pair_P: torch.Tensor) -> list[float]:
        """By how much each site's hint changes its turn's mean log-probability: what a calibrated gate compares."""
        bare_P, hinted_P, _ = self.measured(batch)
        changes: list[float] = judge_sites(None, bare_P, hinted_P, site_of_pair_P).signed_gap_S.abs().tolist()
        return changes

    @torch.no_grad()
    def judge(
        self,
        batch: Batch,
        site_of_pair_P: torch.Tensor,
        *,
        channel: str,
        rewarded_S: torch.Tensor | None = None,
        token_budget: int | None = None,
    ) -> JudgedHints:
        """Let the teacher score the hinted contexts, and let the gate choose among them.

        Args:
            batch: `input_ids`, the hinted contexts and the index pairs.
            site_of_pair_P: the number of the site that a pair belongs to, from 0 without gaps.
            channel: the name that it is reported under.
            rewarded_S: whether a site is in a rewarded rollout; None where there are no rewards.
            token_budget: see `hinted`.
        """
        sites = int(site_of_pair_P.max()) + 1
        self.log.add(channel, "sites", sites)
        gate = self.settings.sdpo.gate
        if gate is None:
            hinted = self.hinted(batch, token_budget)
            return JudgedHints(torch.ones_like(site_of_pair_P, dtype=torch.bool), hinted)
        bare_P, hinted_P, hinted = self.measured(batch, token_budget)
        threshold = self.calibrations[channel].threshold if channel in self.calibrations else None
        result = judge_sites(gate, bare_P, hinted_P, site_of_pair_P, rewarded_S, threshold)
        self.log.add(channel, "measured", sites)
        self.log.add(channel, "gap", result.gap_S.sum())
        self.log.add(channel, "signed_gap", result.signed_gap_S.sum())
        dropped = {rule: getattr(result, rule) for rule in ("too_small", "like_foreign", "conflicting")}
        for rule, count in dropped.items():
            self.log.add(channel, rule, count)
        self.log.explain(channel, dropped)
        return JudgedHints(result.kept_S[site_of_pair_P], hinted)

    def hint_loss(
        self,
        student: HiddenStates,
        batch: Batch,
        judged: JudgedHints,
        *,
        token_weight: float,
        channel: str,
        step: int | None = None,
        sampled_P: torch.Tensor | None = None,
        temperature: float = 1.0,
    ) -> torch.Tensor | None:
        """Channel 2 over a micro-batch: the divergences of the pairs that passed, each times `token_weight`.

        Args:
            student: from the pass over `batch["input_ids"]`.
            batch: `input_ids`, the hinted contexts and the index pairs.
            judged: the teacher's side.
            token_weight: one over the tokens of the whole optimiser step, as far as gradients are averaged.
            channel: the name that it is reported under.
            step: optimiser steps made so far: top tokens are compared in the steps that measure gradient shares, as
                sorting them costs a quarter of the divergence; None: never.
            sampled_P: the pairs' log-probabilities when they were sampled, NaN where not known; used if there is an
                `importance_clip`.
            temperature: of the sampling, which those log-probabilities include.

        Returns:
            The loss with gradient, without α; None if the gate let nothing through.
        """
        kept_P = judged.kept_P
        if not bool(kept_P.any()):
            return None
        index_P2 = batch["sdpo_student_index"][kept_P]
        hinted = HiddenStates(judged.teacher.hidden[kept_P], judged.teacher.head)
        weight_P, clip = None, self.settings.sdpo.importance_clip
        if clip is not None and sampled_P is not None:
            now_P = token_logprobs(student, batch["input_ids"], index_P2, temperature)
            weight_P = importance_weights(now_P, sampled_P[kept_P], clip)
            self.log.add(channel, "weighted", len(weight_P))
            self.log.add(channel, "importance_weight", weight_P.sum())
        divergence = self.settings.sdpo.divergence(self.taid_t)
        if step is not None and self.is_share_step(step, is_last_micro_batch=True):
            divergence = OverlapMeter(divergence, len(index_P2))
        loss, tokens = hint_divergence(student, index_P2, hinted, divergence, weight_P)
        if isinstance(divergence, OverlapMeter):
            self.log.add(channel, "compared", tokens)
            self.log.add(channel, "overlap", divergence.overlap)
        loss = loss * (tokens * token_weight)
        self.log.add(channel, "loss", loss / self._processes)
        self.log.add(channel, "active_tokens", tokens)
        self.log.add(channel, "active_rows", torch.unique(index_P2[:, 0]).numel())
        return loss

    def replay_batch(self, size: int, device: torch.device | str) -> Batch | None:
        """The next pairs of this process; None if there are none, or all of them rest."""
        if self.pairs is None or self.pairs.all_rest:
            return None
        return self.pairs.next_batch(size, device)

    def replay_loss(self, model: nn.Module, batch: Batch, *, share: float) -> torch.Tensor:
        """Channel 3 over a batch of pairs, times `share`, without β."""
        loss, tokens, chosen_reward_B, margin_B = self.settings.replay.loss(model, batch)
        loss = share * loss
        self.log.add("replay", "loss", loss / self._processes)
        self.log.add("replay", "active_tokens", tokens)
        self.log.add("replay", "active_rows", len(margin_B))
        self.log.add("replay", "measured", len(margin_B))
        self.log.add("replay", "margin", margin_B.sum())
        if chosen_reward_B is not None:
            self.log.add("replay", "referenced", len(chosen_reward_B))
            self.log.add("replay", "chosen_reward", chosen_reward_B.sum())
        return loss

    def end_step(self, step: int, device: torch.device | str = "cpu") -> dict[str, float]:
        """Update the teacher, advance TAID by one step, let pairs rest if it is time, and return the metrics of an
        optimiser step."""
        replay = self.settings.replay
        if replay.beta > 0 and (self.pairs is None or self.pairs.all_rest):
            self.log.explain("replay", {"no_pairs" if self.pairs is None else "all_rest": 1})
        metrics = self.log.close(step, device)
        for channel, calibration in self.calibrations.items():
            if calibration.threshold is not None:
                metrics[f"channels/{channel}/gate_threshold"] = calibration.threshold
        if self.pairs is not None and replay.refresh_pairs_every:
            metrics["channels/replay/resting"] = float(len(self.pairs.resting))
            if step % replay.refresh_pairs_every == 0:
                self.pairs.refresh(replay)
        if self.teacher is not None:
            metrics["channels/sdpo/alpha"] = self.alpha(step - 1)
            self.teacher.update()
            truncation = getattr(self.teacher, "truncation", 0.0)
            if truncation:
                metrics["channels/sdpo/teacher_truncation"] = float(truncation)
        if self._taid is not None:
            # Without an active token the loss is NaN, and the schedule advances without it.
            self._taid.update_t(metrics["channels/sdpo/loss"], step)
            metrics["channels/sdpo/taid_t"] = self._taid.t
        return metrics

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint needs."""
        state = {f"teacher.{name}": tensor for name, tensor in self._teacher_state().items()}
        if self.pairs is not None and self.pairs.references is not None:
            state["references"] = self.pairs.references.contiguous()
        return state

    def numbers(self) -> dict[str, Any]:
        """The rest of what a checkpoint needs, as JSON takes it."""
        return {
            "teacher": None if self.teacher is None else self.teacher.kind,
            "taid": None if self._taid is None else self._taid.state_dict(),
            "pairs": None if self.pairs is None else self.pairs.state_dict(),
            "calibrations": {channel: one.state_dict() for channel, one in self.calibrations.items()},
            "log": self.log.state_dict(),
        }

    def load(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `numbers` returned.

        Raises:
            ValueError: the checkpoint is of a run with another teacher or other pairs; the message says which.
        """
        kind = None if self.teacher is None else self.teacher.kind
        if numbers["teacher"] != kind:
            raise ValueError(
                f"the checkpoint has the teacher {numbers['teacher']!r}, this run has {kind!r}: resume with the "
                "settings of the checkpoint, or start a new run in another output_dir"
            )
        if (numbers["pairs"] is None) != (self.pairs is None):
            raise ValueError(
                f"the checkpoint was made {'without' if numbers['pairs'] is None else 'with'} preference pairs, this "
                f"run is {'without' if self.pairs is None else 'with'} them: resume with the same replay_dataset"
            )
        prefix = "teacher."
        if self.teacher is not None:
            self.teacher.load_state_dict(
                {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            )
        if self.pairs is not None:
            self.pairs.load_state_dict(numbers["pairs"])
            if not self.settings.replay.refresh_pairs_every:
                self.pairs.resting = frozenset()  # nothing would wake them
            if "references" in tensors:
                self.pairs.references = tensors["references"]
        # A run that was not calibrated from the start is so from now on.
        for channel, state in numbers.get("calibrations", {}).items():
            if channel in self.calibrations:
                self.calibrations[channel].load_state_dict(state)
        self._taid_state = numbers["taid"]  # until `begin`, when the number of steps is known
        self.log.load_state_dict(numbers["log"])

    def _teacher_state(self) -> dict[str, torch.Tensor]:
        return {} if self.teacher is None else self.teacher.state_dict()


def _teacher(model: nn.Module, hints: HintDistillation) -> SelfTeacher:
    # A configuration has null for the setting of a teacher that is not chosen.
    of_kind = {"ema": {"rate": hints.ema_rate}, "trust_region": {"mix": hints.trust_region_mix}}
    return make_teacher(hints.teacher, model, **of_kind.get(hints.teacher, {}))


def site_numbers(batch: Batch) -> torch.Tensor:
    """The (P,) sites of a collator's batch, in which every teacher row is one."""
    numbers_P: torch.Tensor
    _, numbers_P = torch.unique(batch["sdpo_teacher_index"][:, 0], return_inverse=True)
    return numbers_P


def gradient_shares(losses: Mapping[str, torch.Tensor | None], parameters: Iterable[nn.Parameter]) -> dict[str, float]:
    """Return each loss's share of the sum of the gradients' norms, over the trainable parameters.

    Costs a backward pass per loss and a second set of gradients while it lasts. Where gradients are checkpointed in a
    way that does not allow this, the result is empty, and the log says so.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    norms = {}
    for channel, loss in losses.items():
        if loss is None or not loss.requires_grad:
            continue
        try:
            gradients = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            logger.warning("gradient shares are not available with reentrant gradient checkpointing")
            return {}
        squares = [gradient.float().pow(2).sum() for gradient in gradients if gradient is not None]
        norms[channel] = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
    total = sum(norms.values())
    return {channel: norm / total if total else 0.0 for channel, norm in norms.items()}


class HasChannels(Protocol):
    """A trainer that runs a `ChannelEngine`."""

    channels: ChannelEngine

    def end_step(self) -> None: ...

    def go_on_logging(self) -> None: ...


class StepEnds(TrainerCallback):  # type: ignore[misc]
    """Tells a trainer when an optimiser step has ended, before it is logged and saved."""

    def __init__(self, trainer: HasChannels) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass on the number of steps, which is known now."""
        if state.global_step >= state.max_steps:
            logger.warning(
                "the checkpoint is of step %d and max_steps is %d: there is nothing left to train; raise max_steps",
                state.global_step,
                state.max_steps,
            )
        self._trainer.channels.begin(state.max_steps)
        self._trainer.go_on_logging()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Teacher, TAID and metrics follow the optimiser."""
        self._trainer.end_step()


def check_policy(model: nn.Module, tokenizer: Any) -> None:
    """Raise ValueError unless the model predicts tokens, and has an embedding for every token of the tokenizer."""
    name = type(model).__name__
    get_head, get_embeddings = (
        getattr(model, getter, None) for getter in ("get_output_embeddings", "get_input_embeddings")
    )
    if get_head is None or get_head() is None:
        raise ValueError(f"{name} has no output embeddings: it predicts no tokens; load it with AutoModelForCausalLM")
    rows = get_embeddings().weight.shape[0] if get_embeddings is not None else None
    if rows is not None and len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, {name} has embeddings for {rows}: they do not belong "
            "together, or model.resize_token_embeddings(len(tokenizer)) is missing"
        )


def check_not_empty(name: str, dataset: Any) -> None:
    """Raise ValueError for a data set that is known to hold nothing."""
    if dataset is not None and hasattr(dataset, "__len__") and len(dataset) == 0:
        raise ValueError(f"{name} is empty: there is nothing to train on")
