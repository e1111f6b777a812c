"""The policy as it was when the teacher was made."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from composer_replication.causal_lm import HiddenStates
from composer_replication.channels import Batch
from composer_replication.trainer.teachers.state import check_state, saved
from composer_replication.trainer.teachers.substitution import Substitution


class FrozenTeacher:
    """Keeps a copy of what training changes: the parameters that train, and the buffers that are saved with a model.

    So it costs a model's memory if the whole model trains, and an adapter's (of any kind) if an adapter does.
    """

    kind = "frozen"

    def __init__(self, model: nn.Module) -> None:
        self._substitution = Substitution(model)
        saved_names = self._substitution.policy.state_dict().keys()
        self._buffers = {name for name, _ in self._substitution.policy.named_buffers() if name in saved_names}
        self._kept = {name: tensor.detach().clone() for name, tensor in self._changing().items()}

    def hinted_states(self, inputs: Batch, teacher_index_P2: torch.Tensor) -> HiddenStates:
        for name, tensor in self._changing().items():
            self._kept[name] = self._kept[name].to(tensor)
        return self._substitution.hinted_states(self._kept, inputs, teacher_index_P2)

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
