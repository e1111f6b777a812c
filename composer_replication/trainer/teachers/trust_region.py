"""A teacher between the policy as it was and the policy as it is, held near the former.

Shapes: P positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels import Batch
from composer_replication.distillation.fused.head import LogitHead
from composer_replication.trainer.teachers.frozen import FrozenTeacher
from composer_replication.trainer.teachers.live import LiveTeacher


class TrustRegionTeacher:
    """`logits = (1 - mix)·frozen + mix·live`, both in the hinted context; it makes two passes.

    Where both read their hidden states through one head without a cap, the hidden states are mixed instead of the
    logits: the same, as logits are linear in them and the weights add up to one. Elsewhere the logits are made, (P, V)
    in float32.
    """

    kind = "trust_region"

    def __init__(self, model: nn.Module, mix: float) -> None:
        self._frozen = FrozenTeacher(model)
        self._live = LiveTeacher(model)
        self._mix = mix

    def hinted_states(self, inputs: Batch, teacher_index_P2: torch.Tensor) -> HiddenStates:
        frozen = self._frozen.hinted_states(inputs, teacher_index_P2)
        live = self._live.hinted_states(inputs, teacher_index_P2)
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
