"""The policy as its own teacher: the hint in the context makes the difference, nothing else does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates, without_wrappers
from composer_replication.channels import Batch, hinted_states
from composer_replication.trainer.teachers.state import check_state


class LiveTeacher:
    """The policy as it is at the moment of the pass; it has no state."""

    kind = "live"

    def __init__(self, model: nn.Module) -> None:
        self._policy = without_wrappers(model)

    def hinted_states(self, inputs: Batch, teacher_index_P2: torch.Tensor) -> HiddenStates:
        return hinted_states(self._policy, inputs, teacher_index_P2)

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self.kind, state, {})
