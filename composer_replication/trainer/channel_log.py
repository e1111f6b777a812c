"""The channels' metrics: sums over the micro-batches of an optimiser step, warnings when a channel is inactive, and
`metrics.jsonl`."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from composer_replication._files import whole_file
from composer_replication.channels.hint_distillation import HintDistillation
from composer_replication.channels.policy import CrossEntropy, Grpo
from composer_replication.channels.preference import Preference

# The sums of each channel. The list is fixed, because every process must send the same sums.
SUMS = {
    "grpo": Grpo.sums,
    "lm": CrossEntropy.sums,
    "sdpo": HintDistillation.sums,
    "traces": HintDistillation.sums,
    "replay": Preference.sums,
}
# Sums a vector over all processes.
Reduce = Callable[[torch.Tensor], torch.Tensor]

_WHY = {
    "no_error": "rollouts without a failing turn",
    "no_error_site": "traces without a failing turn",
    "not_the_students_mistake": "errors that were not the student's mistake",
    "outcome": "failing tests and the like that are charged to no turn",
    "no_hint": "errors for which the hint generator had nothing to say",
    "header_not_found": "turns without the template's assistant header before them",
    "turns_do_not_match": "rollouts whose turns could not be told apart",
    "truncated": "rollouts that the length limit cut before a turn could be scored",
    "succeeded": "rollouts that succeeded",
    "no_next_turn": "failing turns without a turn after them",
    "no_such_turn": "remarks on turns that do not exist",
    "hint_not_rendered": "hints that the chat template cannot show there",
    "too_long": "hinted contexts above the length limit",
    "too_many": "failing turns above max_hinted_turns",
    "no_sibling": "failed rollouts without a successful sibling",
    "not_conversational": "prompts that are plain text, in which a hint has no place",
    "too_small": "hints gated because the teacher barely differs",
    "like_foreign": "hints gated because hints of other sessions change the turn as much",
    "conflicting": "hints gated because they lower the probability of rewarded tokens",
    "same_reward": "batches in which every rollout of a group got the same reward",
    "no_pairs": "no preference pairs were given (replay_dataset)",
    "all_rest": "steps at which the policy preferred every pair by refresh_margin",
}
# Means, and the sum that has the number of values in each. The first three are always there.
_MEASURED = dict.fromkeys(("gap", "signed_gap", "margin"), "measured")
_MEANS = {**_MEASURED, "chosen_reward": "referenced", "overlap": "compared", "importance_weight": "weighted"}
# A chosen reward below this is negative; closer to 0, in nats, it may be rounding.
_BELOW_REFERENCE = -0.01
# Counted with the reasons, but not a reason for inactivity.
_NO_REASON = ("sites", "hint_role_user")


class InactiveChannelWarning(RuntimeWarning):
    """A channel with a weight above 0 has been inactive for a while."""


class NegativeChosenReward(RuntimeWarning):
    """The chosen responses of channel 3 have been less likely than under the reference for a while."""


class ChannelLog:
    """The sums of one optimiser step, and how long each channel has been inactive or has lowered the chosen responses.

    Args:
        weights: the channels with their weights; those of weight 0 are neither watched nor reported.
        patience: inactive or harmful optimiser steps before a warning; 0 never warns.
        reduce: sums a vector over all processes.
    """

    def __init__(self, weights: Mapping[str, float], patience: int, reduce: Reduce = lambda sums: sums) -> None:
        self._weights = dict(weights)
        self._patience = patience
        self._reduce = reduce
        self._sums: dict[tuple[str, str], torch.Tensor | float] = {}
        self._silent: Counter[str] = Counter()
        self._steps_below_reference = 0
        self._reasons: dict[str, Counter[str]] = {channel: Counter() for channel in SUMS}

    def add(self, channel: str, name: str, value: torch.Tensor | float) -> None:
        """Add to a sum of this step, say the active tokens of `sdpo`; tensors stay on their device until the end."""
        if name not in SUMS[channel]:
            raise ValueError(f"channel {channel!r} has no sum {name!r}, only {', '.join(SUMS[channel])}")
        value = value.detach() if isinstance(value, torch.Tensor) else value
        self._sums[channel, name] = self._sums.get((channel, name), 0.0) + value

    def explain(self, channel: str, reasons: Mapping[str, int]) -> None:
        """Count reasons why a channel had no data, or less of it."""
        self._reasons[channel].update(reasons)

    def close(self, step: int, device: torch.device | str = "cpu") -> dict[str, float]:
        """End an optimiser step: return its sums over all processes, and warn when a channel has been inactive.

        Gaps, rewards and margins are means over the sites or pairs that were measured, `overlap` and
        `importance_weight` over tokens. A loss or mean of nothing is NaN.
        """
        keys = [(channel, name) for channel in self._weights for name in SUMS[channel]]
        values = torch.tensor([float(self._sums.get(key, 0.0)) for key in keys], dtype=torch.float32)
        sums = dict(zip(keys, self._reduce(values.to(device)).tolist(), strict=True))
        self._sums = {}
        metrics: dict[str, float] = {}
        for channel, weight in self._weights.items():
            if weight == 0:
                continue
            of_channel = {name: sums[channel, name] for name in SUMS[channel]}
            # What was not measured is not 0: a mean over several steps must leave it out.
            if not of_channel["active_tokens"]:
                of_channel["loss"] = math.nan
            for name in of_channel.keys() & _MEANS.keys():
                if of_channel[_MEANS[name]]:
                    of_channel[name] /= of_channel[_MEANS[name]]
                elif name in _MEASURED:
                    of_channel[name] = math.nan
                else:
                    del of_channel[name]  # of some steps, or with some settings, only
            of_channel = {name: value for name, value in of_channel.items() if name not in _MEANS.values()}
            metrics.update({f"channels/{channel}/{name}": value for name, value in of_channel.items()})
            self._watch(channel, int(of_channel["active_tokens"]), step)
            self._watch_chosen(of_channel.get("chosen_reward", math.nan), step)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """How long channels have been inactive and why, as JSON takes it."""
        return {
            "silent": dict(self._silent),
            "steps_below_reference": self._steps_below_reference,
            "reasons": {channel: dict(reasons) for channel, reasons in self._reasons.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._silent = Counter(state["silent"])
        self._steps_below_reference = state.get("steps_below_reference", 0)
        self._reasons = {channel: Counter(state["reasons"].get(channel, {})) for channel in SUMS}

    def _watch(self, channel: str, active_tokens: int, step: int) -> None:
        if active_tokens > 0:
            self._silent[channel] = 0
            self._reasons[channel].clear()
            return
        self._silent[channel] += 1
        if self._patience and self._silent[channel] % self._patience == 0:
            reasons = ", ".join(
                f"{count} {_WHY.get(reason, reason)}" if count > 1 else _WHY.get(reason, reason)
                for reason, count in self._reasons[channel].most_common()
                if count and reason not in _NO_REASON
            )
            warnings.warn(
                f"channel {channel!r} has weight {self._weights[channel]:g} but was inactive for "
                f"{self._silent[channel]} steps (until step {step}): {reasons or 'it was given nothing'}",
                InactiveChannelWarning,
                stacklevel=2,
            )

    def _watch_chosen(self, reward: float, step: int) -> None:
        """Count the steps in a row in which the chosen lost likelihood; steps without a measurement do not count."""
        if math.isnan(reward):
            return
        self._steps_below_reference = self._steps_below_reference + 1 if reward < _BELOW_REFERENCE else 0
        if self._patience and self._steps_below_reference and self._steps_below_reference % self._patience == 0:
            warnings.warn(
                f"the chosen responses of channel 'replay' were less likely than under the reference for "
                f"{self._steps_below_reference} steps (until step {step}, where chosen_reward is {reward:.3g} nats); "
                "replay_nll_weight (channels.replay.nll_weight) holds them",
                NegativeChosenReward,
                stacklevel=2,
            )


class MetricsFile(TrainerCallback):  # type: ignore[misc]
    """Appends each logged step to `metrics.jsonl` as a line of JSON.

    A resumed run first removes the lines after its checkpoint, so the file stays in the order of the steps.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove what a killed run had logged after the checkpoint that this one starts from."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= state.global_step and state.global_step > 0:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut by a kill
        with whole_file(self.path, "metrics") as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Write one line."""
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}, default=float) + "\n")
