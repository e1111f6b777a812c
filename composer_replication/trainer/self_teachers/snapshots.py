"""Self-teachers without an average: the policy as it is, as it was, and a blend of the two.

Shapes: P positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates, without_wrappers
from composer_replication.channels.scoring import Batch, hinted_states
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.trainer.self_teachers.substitution import Substitution, check_state, saved


class LiveTeacher:
    """The policy as it is at the moment of the pass; it has no state. The hint in the context makes the difference."""

    kind = "live"

    def __init__(self, model: nn.Module) -> None:
        self._policy = without_wrappers(model)

    def hinted_states(
        self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None = None
    ) -> HiddenStates:
        return hinted_states(self._policy, inputs, teacher_index_P2, token_budget)

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self.kind, state, {})


class FrozenTeacher:
    """The policy as it was when the teacher was made.

    It keeps a copy of what training changes: the trainable parameters, and the buffers that are saved with a model. So
    it costs one more copy of the model if the whole model trains, and one of the adapter (of any kind) if an adapter
    does.
    """

    kind = "frozen"

    def __init__(self, model: nn.Module) -> None:
        self._substitution = Substitution(model)
        saved_names = self._substitution.policy.state_dict().keys()
        self._buffers = {name for name, _ in self._substitution.policy.named_buffers() if name in saved_names}
        self._kept = {name: tensor.detach().clone() for name, tensor in self._changing().items()}

    def hinted_states(
        self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None = None
    ) -> HiddenStates:
        for name, tensor in self._changing().items():
            self._kept[name] = self._kept[name].to(tensor)
        return self._substitution.hinted_states(self._kept, inputs, teacher_index_P2, token_budget)

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, torch.Tensor]:
        return saved(self._kept)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self.kind, state, self._kept)
        self._kept = {name: state[name].detach().clone().to(kept) for name, kept in self._kept.items()}

    def _changing(self) -> dict[str, torch.Tensor]:
        buffers = self._substitution.policy.named_buffers()
        return {
            **self._substitution.trained_parameters(),
            **{name: buffer for name, buffer in buffers if name in self._buffers},
        }


class TrustRegionTeacher:
    """`logits = (1 - mix)·frozen + mix·live`, both in the hinted context; it makes every pass twice.

    Where both read their hidden states through one head without a cap, the hidden states are mixed instead of the
    logits: the same, as logits are linear in them and the weights add up to one. Elsewhere the logits are made, (P, V)
    in float32.
    """

    kind = "trust_region"

    def __init__(self, model: nn.Module, mix: float) -> None:
        self._frozen = FrozenTeacher(model)
        self._live = LiveTeacher(model)
        self._mix = mix

    def hinted_states(
        self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None = None
    ) -> HiddenStates:
        frozen = self._frozen.hinted_states(inputs, teacher_index_P2, token_budget)
        live = self._live.hinted_states(inputs, teacher_index_P2, token_budget)
        if frozen.head.is_same(live.head) and frozen.head.softcap is None:
            mixed_PH = torch.lerp(frozen.hidden.float(), live.hidden.float(), self._mix)
            return HiddenStates(mixed_PH.to(frozen.hidden.dtype), frozen.head)
        logits_PV = _logits(frozen).lerp_(_logits(live), self._mix)
        return HiddenStates(logits_PV, LogitHead(None))

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._frozen.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._frozen.load_state_dict(state)


@torch.no_grad()
def _logits(states: HiddenStates) -> torch.Tensor:
    weight = states.head.weight
    # A model under autocast leaves its hidden states in another type than its head's weight.
    hidden_PH = states.hidden if weight is None else states.hidden.to(weight.dtype)
    return states.head.logits(hidden_PH).float()
