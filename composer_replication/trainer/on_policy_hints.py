"""Channel 2 on policy: from the rollouts that TRL has just made to a loss on the turns that went wrong in them.

Everything about the hints is decided before the first micro-batch: which turns failed, what the teacher says with the
hint, which hints pass the gate. So the tokens that carry loss are counted over the whole generation, and each has the
same weight, whichever micro-batch it is in.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn

from composer_replication.causal_lm import HiddenStates, run_causal_lm
from composer_replication.channels.hint_distillation import HintGenerator
from composer_replication.channels.scoring import at
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.traces import dump_json
from composer_replication.trainer.advantages import routed_advantages
from composer_replication.trainer.channel_engine import ChannelEngine, JudgedHints
from composer_replication.trainer.gate_calibration import HintedTurn, measured_in_parts
from composer_replication.trainer.rollout_hints import find_hint_sites, hinted_batch
from composer_replication.trainer.rollouts import Rollout
from composer_replication.trainer.sites import HintSite

SITES = "hint_sites"
"""The key under which TRL's batches carry each rollout's sites."""
_TOKENS = "hint_tokens"
_OF_ROLLOUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
_BUFFER = "buffer"


class OnPolicyHints:
    """The rollouts of a trainer, kept from their generation until they are learned from.

    Args:
        channels: teacher, gate and log.
        tokenizer: renders as the rollouts' prompts were rendered.
        hint_generator: writes the hint for an error.
        accelerator: the trainer's; reduces over processes, and sets the precision of the teacher's passes.
        rows_per_pass: rollouts of a micro-batch; the teacher's passes are over no more tokens.
        max_length: of a hinted context, in tokens.
        temperature: that the rollouts are sampled at.
    """

    def __init__(
        self,
        channels: ChannelEngine,
        tokenizer: Any,
        hint_generator: HintGenerator,
        *,
        accelerator: Any,
        rows_per_pass: int,
        max_length: int | None,
        temperature: float = 1.0,
    ) -> None:
        self._hint_generator = hint_generator
        self._channels = channels
        self._tokenizer = tokenizer
        self._accelerator = accelerator
        self._rows_per_pass = rows_per_pass
        self._max_length = max_length
        self._temperature = temperature
        self._rollouts: list[Rollout] = []
        self._texts: list[Any] = []
        # The teacher's states of each site, by its identity: equal sites may stand in different rollouts. They hold for
        # the optimiser step that follows the generation; then the teacher has moved.
        self._states: dict[int, torch.Tensor] = {}
        self._head: LogitHead | None = None
        self._states_of_step = -1

    def forget(self) -> None:
        """Drop what was kept: a new generation begins."""
        self._rollouts, self._texts = [], []

    def keep(self, rollouts: Sequence[Rollout], texts: Sequence[Any] | None) -> None:
        """Keep the generated rollouts, and the hints of the function that generated them."""
        self._rollouts = list(rollouts)
        if texts is not None:
            self.listen(texts)

    def listen(self, texts: Sequence[Any]) -> None:
        """Keep a text (or None) per rollout; of several, the first that is not None counts.

        Raises:
            ValueError: another number of texts than of rollouts.
        """
        if self._rollouts and len(texts) != len(self._rollouts):
            raise ValueError(
                f"there must be a hint (or None) for each of {len(self._rollouts)} rollouts, got {len(texts)}"
            )
        before = self._texts or [None] * len(texts)
        self._texts = [new if old is None else old for old, new in zip(before, texts, strict=True)]

    def add_to(
        self,
        output: dict[str, Any],
        rewards: torch.Tensor,
        environments: Sequence[Any] | None,
        *,
        group: int,
        step: int,
    ) -> None:
        """Put each rollout's sites into the batch that TRL has scored, and route rollouts as the options say.

        Args:
            output: TRL's batch, in the order of the rollouts.
            rewards: of the rollouts of all processes; NaN where nothing scored one.
            environments: of the rollouts, if there are any.
            group: rollouts per prompt.
            step: optimiser steps made so far.
        """
        rows = len(self._rollouts)
        first = self._accelerator.process_index * rows
        settings = self._channels.settings.sdpo
        succeeded = _succeeded(rewards.tolist(), group, settings.success_threshold)[first : first + rows]
        if all(rollout.prompt for rollout in self._rollouts):
            found, reasons = find_hint_sites(
                self._rollouts,
                tokenizer=self._tokenizer,
                hint_generator=self._hint_generator,
                hint_source=settings.hint_source,
                **settings.of_sites(),
                feedback=[_feedback(environment) for environment in environments or [None] * rows],
                reward_texts=self._texts or [None] * rows,
                rewards=rewards[first : first + rows].tolist(),
                groups=[(first + row) // group for row in range(rows)],
                succeeded=succeeded,
                max_length=self._max_length,
            )
        else:
            # Plain text has no turns, and so no place for a hint's message.
            found, reasons = [[] for _ in range(rows)], Counter(not_conversational=rows)
        # A completion that TRL masks out (truncated, and `mask_truncated_completions`) carries no loss here either.
        learns = (output["completion_mask"].sum(dim=1) > 0).tolist()
        reasons["truncated"] += sum(len(sites) for sites, able in zip(found, learns, strict=True) if not able)
        self._channels.log.explain("sdpo", reasons)
        found = [sites if able else [] for sites, able in zip(found, learns, strict=True)]
        self._states_of_step = step
        self._states = {}
        with self._accelerator.autocast():
            self._calibrate(output, found)
            kept = self._judged(output, found)
        output[SITES] = kept
        device = output["completion_ids"].device
        tokens = sum(stop - start for sites in kept for site in sites for start, stop in site.spans)
        output[_TOKENS] = self._accelerator.reduce(torch.tensor(float(tokens), device=device), reduction="sum")
        if settings.routing == "srpo":
            routed = [bool(sites) and not good for sites, good in zip(kept, succeeded, strict=True)]
            output["advantages"] = routed_advantages(output["advantages"], torch.tensor(routed, device=device))
        self.forget()

    def loss(
        self, model: nn.Module, inputs: dict[str, Any], student: HiddenStates | None, *, step: int, windows: float
    ) -> torch.Tensor | None:
        """Return channel 2's loss over a micro-batch, without α; None if no turn in it carries one.

        Args:
            model: the policy, for a model whose states could not be kept from GRPO's own pass.
            inputs: TRL's micro-batch with its sites.
            student: the states kept from GRPO's pass.
            step: optimiser steps made so far.
            windows: optimiser steps that share a generation's rollouts.
        """
        built = hinted_batch(inputs, inputs[SITES], pad_token_id=self._tokenizer.pad_token_id)
        if built is None:
            return None
        batch, site_of_pair_P = built
        if student is None:
            # Not through a data-parallel wrapper: other processes may have no such turn, and would not take part.
            bare = self._accelerator.unwrap_model(model)
            student = run_causal_lm(bare, batch["input_ids"], batch["attention_mask"])
        if step == self._states_of_step:
            assert self._head is not None
            states = [self._states[id(site)] for sites in inputs[SITES] for site in sites]
            teacher = HiddenStates(torch.cat(states), self._head)
        else:
            teacher = self._channels.hinted(batch)
        judged = JudgedHints(torch.ones_like(site_of_pair_P, dtype=torch.bool), teacher)
        # Gradients are averaged over the processes, hence the factor.
        token_weight = self._accelerator.num_processes * windows / float(inputs[_TOKENS])
        return self._channels.hint_loss(
            student,
            batch,
            judged,
            token_weight=token_weight,
            channel="sdpo",
            step=step,
            sampled_P=sampled_logprobs(inputs, batch["sdpo_student_index"]),
            temperature=self._temperature,
        )

    def _calibrate(self, output: dict[str, Any], found: list[list[HintSite]]) -> None:
        """Measure foreign hints at the turns of this generation, as long as the gate lacks a threshold."""
        calibration = self._channels.calibrations.get("sdpo")
        if calibration is None or calibration.threshold is not None:
            return
        prompts = [dump_json(rollout.prompt).encode() for rollout in self._rollouts]
        sessions = [hashlib.sha256(prompt).hexdigest()[:16] for prompt in prompts]
        turns = [HintedTurn(sessions[row], row, site) for row, sites in enumerate(found) for site in sites]

        def measured(drawn: Sequence[HintedTurn]) -> list[float]:
            part = {name: output[name][[turn.row for turn in drawn]] for name in _OF_ROLLOUTS}
            built = hinted_batch(part, [[turn.site] for turn in drawn], pad_token_id=self._tokenizer.pad_token_id)
            assert built is not None, "rows without a token to learn from have no sites"
            return self._channels.changes(*built)

        # Every process takes part, with turns or without: what one lacks, rollouts of another may have.
        calibration.hear(gather_object([turn.told() for turn in turns]))
        drawn = calibration.draw(
            turns,
            max_length=self._max_length,
            process=self._accelerator.process_index,
            processes=self._accelerator.num_processes,
        )
        calibration.add(gather_object(measured_in_parts(measured, drawn, self._rows_per_pass)))

    def _judged(self, output: dict[str, Any], found: list[list[HintSite]]) -> list[list[HintSite]]:
        """Return the sites that pass the gate; no pass of the teacher is larger than one of the student."""
        kept: list[list[HintSite]] = [[] for _ in found]
        built = hinted_batch(output, found, pad_token_id=self._tokenizer.pad_token_id)
        if built is None:
            return kept
        batch, site_of_pair_P = built
        of_site = [(row, site) for row, sites in enumerate(found) for site in sites]
        rewarded = output["advantages"] > 0
        rewarded_B = rewarded if rewarded.dim() == 1 else rewarded.any(dim=1)
        judged = self._channels.judge(
            batch,
            site_of_pair_P,
            channel="sdpo",
            rewarded_S=rewarded_B[[row for row, _ in of_site]],
            token_budget=self._rows_per_pass * batch["input_ids"].shape[1],
        )
        self._head = judged.teacher.head
        for number, (row, site) in enumerate(of_site):
            own_P = site_of_pair_P == number
            if bool(judged.kept_P[own_P].all()):
                kept[row].append(site)
                self._states[id(site)] = judged.teacher.hidden[own_P]
        return kept


def sampled_logprobs(inputs: Mapping[str, Any], index_P2: torch.Tensor) -> torch.Tensor | None:
    """The (P,) log-probabilities of tokens when they were sampled; NaN where they are not known, None if none are.

    vLLM's own come first, because the policy that TRL computes the others with may differ from it. TRL computes none
    for rollouts that are used up before the policy changes.
    """
    known = [inputs[name] for name in ("sampling_per_token_logps", "old_per_token_logps") if name in inputs]
    if not known:
        return None
    width = inputs["prompt_ids"].shape[1]
    completion_P2 = index_P2 - torch.tensor([0, width], device=index_P2.device)
    first_P, last_P = (at(logprobs, completion_P2) for logprobs in (known[0], known[-1]))
    return torch.where(first_P.isnan(), last_P, first_P)


def _feedback(environment: Any) -> Any:
    say = getattr(environment, "_feedback", None)
    return say() if callable(say) else None


def _succeeded(rewards: Sequence[float], group: int, threshold: float | None) -> list[bool]:
    """Whether each rollout did well: its reward reaches the threshold or, without one, exceeds its group's mean.

    A rollout that nothing scored counts as one that did well, because only failed ones are corrected.
    """
    good = []
    for start in range(0, len(rewards), group):
        of_group = rewards[start : start + group]
        scored = [reward for reward in of_group if not math.isnan(reward)]
        least = sum(scored) / len(scored) if scored else 0.0
        good += [
            math.isnan(reward) or (reward > least if threshold is None else reward >= threshold) for reward in of_group
        ]
    return good


def buffered_tensors(
    buffer: Sequence[Mapping[str, Any]] | None,
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]] | None]:
    """Split a trainer's buffer into tensors under flat names, and the rest of each micro-batch as JSON takes it.

    The buffer has the rollouts that were generated but not used up when a checkpoint is saved. Without them, a run
    resumed between two generations would sample anew where the uninterrupted one goes on learning.
    """
    if buffer is None:
        return {}, None
    tensors: dict[str, torch.Tensor] = {}
    rests: list[dict[str, Any]] = []
    for number, inputs in enumerate(buffer):
        rest: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                # Slices of one batch share their storage, which safetensors refuses.
                tensors[f"{_BUFFER}.{number}.{name}"] = value.detach().clone()
            else:
                rest[name] = [[site.to_json() for site in own] for own in value] if name == SITES else value
        rests.append(rest)
    return tensors, rests


def restored_buffer(
    tensors: Mapping[str, torch.Tensor], rests: Sequence[Mapping[str, Any]] | None, device: torch.device | str
) -> list[dict[str, Any]] | None:
    """Put together what `buffered_tensors` split."""
    if rests is None:
        return None
    buffer: list[dict[str, Any]] = []
    for number, rest in enumerate(rests):
        prefix = f"{_BUFFER}.{number}."
        inputs = {name.removeprefix(prefix): one.to(device) for name, one in tensors.items() if name.startswith(prefix)}
        sites = [[HintSite.from_json(site) for site in own] for own in rest.get(SITES) or ()]
        buffer.append({**inputs, **rest, **({SITES: sites} if SITES in rest else {})})
    return buffer
