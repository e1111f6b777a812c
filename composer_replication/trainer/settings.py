"""What the three channels can be told, in one place: both trainers take it, and the configuration fills it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from composer_replication._arguments import check_choice, check_non_negative, check_positive, check_range
from composer_replication.channels import DPOVariant
from composer_replication.distillation.fused.divergence import Divergence
from composer_replication.loss import SDPOWrapper, sdpo_divergence
from composer_replication.trainer.choices import TeacherKind
from composer_replication.trainer.hint_gate import HintGate


@dataclass(frozen=True)
class ChannelSettings:
    """The weights and the settings of channels 2 and 3; see `ComposerReplicationTrainer` for what each one means.

    Raises:
        ValueError: a setting out of range.
    """

    alpha_sdpo: float = 0.1
    beta_replay: float = 0.05
    sdpo_jsd_beta: float = 0.5
    sdpo_temperature: float = 1.0
    sdpo_token_clip: float | None = None
    replay_dpo_beta: float = 0.1
    dpo_variant: DPOVariant = "dpo"
    simpo_beta: float = 2.0
    simpo_gamma: float = 1.0
    sdpo_wrapper: SDPOWrapper = "none"
    taid_t_start: float = 0.4
    taid_t_end: float = 1.0
    taid_alpha: float = 5e-4
    taid_beta: float = 0.99
    entropy_opd_h_max: float | None = None
    hint_gate: HintGate | None = field(default_factory=HintGate)
    sdpo_teacher: TeacherKind = "ema"
    ema_rate: float = 0.05
    trust_region_mix: float = 0.05
    inactive_patience: int = 20
    gradient_share_steps: int = 50

    def __post_init__(self) -> None:
        check_non_negative("alpha_sdpo", self.alpha_sdpo)
        check_non_negative("beta_replay", self.beta_replay)
        check_range("sdpo_jsd_beta", self.sdpo_jsd_beta, 0.0, 1.0)
        check_positive("sdpo_temperature", self.sdpo_temperature)
        check_positive("sdpo_token_clip", self.sdpo_token_clip)
        check_positive("replay_dpo_beta", self.replay_dpo_beta)
        check_choice("dpo_variant", self.dpo_variant, ("dpo", "simpo"))
        check_positive("simpo_beta", self.simpo_beta)
        check_non_negative("simpo_gamma", self.simpo_gamma)
        check_choice("sdpo_teacher", self.sdpo_teacher, get_args(TeacherKind))
        check_range("ema_rate", self.ema_rate, 0.0, 1.0)
        check_range("trust_region_mix", self.trust_region_mix, 0.0, 1.0)
        check_positive("entropy_opd_h_max", self.entropy_opd_h_max)
        for name in ("inactive_patience", "gradient_share_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 (never) or a number of steps, got {getattr(self, name)!r}")
        # Says what is wrong with the wrapper's settings before anything is loaded.
        self.divergence(self.taid_t_start)

    def divergence(self, taid_t: float) -> Divergence:
        """The criterion of channel 2 while TAID's coefficient stands at `taid_t`."""
        return sdpo_divergence(
            self.sdpo_wrapper,
            jsd_beta=self.sdpo_jsd_beta,
            temperature=self.sdpo_temperature,
            token_clip=self.sdpo_token_clip,
            taid_t=taid_t,
            h_max=self.entropy_opd_h_max,
        )
