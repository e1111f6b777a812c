"""Self-teachers: the weights that score hinted contexts for channel 2, made from the policy itself.

Not to be confused with the remote teachers of `teacher_replay`, which answer over the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, get_args

import torch
from torch import nn

from composer_replication._arguments import check_choice, check_positive, check_range
from composer_replication.causal_lm import HiddenStates
from composer_replication.channels.hint_distillation import HintDistillation, TeacherKind
from composer_replication.channels.scoring import Batch
from composer_replication.trainer.self_teachers.averages import EMATeacher
from composer_replication.trainer.self_teachers.snapshots import FrozenTeacher, LiveTeacher, TrustRegionTeacher

__all__ = ["SelfTeacher", "make_teacher"]


class SelfTeacher(Protocol):
    """Scores hinted contexts without gradient and in eval mode, and says what a checkpoint must hold of it."""

    @property
    def kind(self) -> str:
        """The name under which `make_teacher` knows it."""

    def hinted_states(
        self, inputs: Batch, teacher_index_P2: torch.Tensor, token_budget: int | None = None
    ) -> HiddenStates:
        """The (P, H) hidden states at (P, 2) positions of `ctx_teacher_input_ids`, and the head that reads them.

        With a `token_budget`, in passes of no more tokens than that (see `channels.hinted_states`).
        The head's tensors may be the teacher's own: read it before the next update.
        """

    def update(self) -> None:
        """Follow the policy. Call it once per optimiser step, after the step."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that a resumed run needs to go on exactly: contiguous tensors on the CPU, none sharing memory."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up a saved state whole, or raise a `ValueError` that names what is missing or misshapen."""


def make_teacher(
    kind: TeacherKind,
    model: nn.Module,
    *,
    rate: float = HintDistillation.ema_rate,
    mix: float = HintDistillation.trust_region_mix,
) -> SelfTeacher:
    """Make a self-teacher from the policy as it is now.

    Every kind runs through the policy's own modules, so wrappers, patches and hooks on them are in force in its passes
    too; those that differ from the policy keep no second model but only what training changes. A policy that FSDP or
    DeepSpeed has sharded is refused, when the teacher is made or at its next use: that is untried.

    Args:
        kind: "live" is the policy itself; "frozen" is the policy as it is now; "ema" an average of it over the steps;
            "trust_region" adds `mix` of the live policy's logits to those of the frozen one.
        model: the policy: a Hugging Face causal LM or a PEFT model of one, also inside a data-parallel wrapper.
        rate: of the average: teacher ← (1 - rate)·teacher + rate·policy at each update.
        mix: the live policy's share in the trust region's logits.

    Raises:
        ValueError: an unknown kind, a rate outside (0, 1], a mix outside [0, 1], a policy of which no parameter trains,
            or one that this kind of teacher cannot follow; the message says which kind can.
    """
    check_choice("kind", kind, get_args(TeacherKind))
    check_positive("rate", rate)
    check_range("rate", rate, 0.0, 1.0)
    check_range("mix", mix, 0.0, 1.0)
    if kind == "live":
        return LiveTeacher(model)
    if kind == "frozen":
        return FrozenTeacher(model)
    if kind == "ema":
        return EMATeacher(model, rate)
    return TrustRegionTeacher(model, mix)
