"""The three channels over one model and one batch, and their weighted sum.

total = lm_ce + α·sdpo_jsd + β·trace_replay_dpo
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from composer_replication._arguments import check_range, check_vocabulary, entry
from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels.hint_distillation import HintDistillation, SDPOWrapper, sdpo_channel
from composer_replication.channels.policy import lm_channel
from composer_replication.channels.preference import DPOVariant, Preference
from composer_replication.channels.scoring import Batch, ChannelLoss
from composer_replication.channels.settings import documents_keywords


@dataclass
class LossComponents:
    """The channels' losses as scalar tensors, their weighted sum, and how many tokens each of them saw.

    `active_tokens` has one entry per channel, under the name of its field; 0 means the channel was off.
    """

    lm_ce: torch.Tensor
    sdpo_jsd: torch.Tensor
    trace_replay_dpo: torch.Tensor
    total: torch.Tensor
    active_tokens: dict[str, int] = field(default_factory=dict)

    def detached(self) -> dict[str, float]:
        """The four losses as Python floats, for logging."""
        return {
            name: float(getattr(self, name).detach()) for name in ("lm_ce", "sdpo_jsd", "trace_replay_dpo", "total")
        }


@documents_keywords("rollouts")
def compose_loss(
    model: nn.Module,
    inputs: Batch,
    *,
    alpha_sdpo: float = HintDistillation.alpha,
    beta_replay: float = Preference.beta,
    sdpo_jsd_beta: float = HintDistillation.jsd_beta,
    sdpo_temperature: float = HintDistillation.temperature,
    sdpo_token_clip: float | None = HintDistillation.token_clip,
    replay_dpo_beta: float = Preference.dpo_beta,
    lm_ce_label_smoothing: float = 0.0,
    dpo_variant: DPOVariant = Preference.variant,
    replay_nll_weight: float = Preference.nll_weight,
    sdpo_wrapper: SDPOWrapper = HintDistillation.wrapper,
    taid_t: float | None = None,
    simpo_beta: float = Preference.simpo_beta,
    simpo_gamma: float = Preference.simpo_gamma,
    entropy_opd_h_max: float | None = HintDistillation.entropy_opd_h_max,
    teacher_model: nn.Module | None = None,
) -> LossComponents:
    """Compute `lm_ce + alpha_sdpo·sdpo_jsd + beta_replay·trace_replay_dpo`.

    A channel is off if its weight is 0 or its inputs are absent, all of them; its loss is then 0 and so is its entry
    in `active_tokens`. Inputs that are present but incomplete or unusable raise.

    Args:
        model: a Hugging Face causal LM, or any module that takes `input_ids=` and returns an object with `.logits`.
        inputs: the batch. Always `input_ids` and `response_mask` (B, T). For SDPO `ctx_teacher_input_ids` (B', T') with
            either `sdpo_student_index` and `sdpo_teacher_index` (P, 2) — pairs of (row, column) naming the same
            token in both — or `sdpo_loss_mask` of `input_ids`' shape. For replay `dpo_chosen_input_ids`,
            `dpo_chosen_response_mask` and the `dpo_rejected_` ones, and for `dpo_variant` "dpo"
            or "dpo_norm" also `dpo_chosen_ref_logprobs`, `dpo_rejected_ref_logprobs` (B'',). Any `..._input_ids` may
            bring an attention mask (`attention_mask`, `ctx_teacher_attention_mask`, `dpo_chosen_attention_mask`,
            `dpo_rejected_attention_mask`); without one, padding is taken to be on the right.
        lm_ce_label_smoothing: as in `torch.nn.functional.cross_entropy`.
        taid_t: TAID's coefficient in [0, 1]; required with `sdpo_wrapper="taid"`.
        teacher_model: scores the hinted context instead of `model` itself (an EMA or frozen copy).

    The other arguments are settings of the channels (below, `HintDistillation` and `Preference`). `sdpo_jsd_beta` and
    `sdpo_token_clip` have an effect with `sdpo_wrapper="none"` only, `sdpo_temperature` has none with TAID.

    Raises:
        ValueError: a setting out of range, a missing or misshapen input, an empty mask, token ids that differ at
            paired positions or lie outside the vocabulary, or NaN logits.
        TypeError: `model` or `teacher_model` is not a module.
    """
    for name, given in (("model", model), ("teacher_model", model if teacher_model is None else teacher_model)):
        if not isinstance(given, nn.Module):
            raise TypeError(f"{name} must be a loaded model, got {given!r}: use AutoModelForCausalLM.from_pretrained")
    hints = HintDistillation(
        alpha=alpha_sdpo,
        jsd_beta=sdpo_jsd_beta,
        temperature=sdpo_temperature,
        token_clip=sdpo_token_clip,
        wrapper=sdpo_wrapper,
        entropy_opd_h_max=entropy_opd_h_max,
    )
    preference = Preference(
        beta=beta_replay,
        variant=dpo_variant,
        dpo_beta=replay_dpo_beta,
        simpo_beta=simpo_beta,
        simpo_gamma=simpo_gamma,
        nll_weight=replay_nll_weight,
    )
    check_range("lm_ce_label_smoothing", lm_ce_label_smoothing, 0.0, 1.0)
    if taid_t is not None:
        check_range("taid_t", taid_t, 0.0, 1.0)
    divergence = hints.divergence(taid_t)
    _check_inputs(model, inputs)
    input_ids = entry(inputs, "input_ids")
    student = run_causal_lm(model, input_ids, inputs.get("attention_mask"))
    lm = lm_channel(student, inputs, label_smoothing=lm_ce_label_smoothing)
    sdpo = replay = ChannelLoss(torch.zeros_like(lm.loss), 0)
    if alpha_sdpo > 0 and _has_any(inputs, "ctx_teacher_", "sdpo_"):
        sdpo = sdpo_channel(student, model if teacher_model is None else teacher_model, inputs, divergence)
    if beta_replay > 0 and _has_any(inputs, "dpo_"):
        replay = ChannelLoss(*preference.loss(model, inputs)[:2])
    return LossComponents(
        lm_ce=lm.loss,
        sdpo_jsd=sdpo.loss,
        trace_replay_dpo=replay.loss,
        total=lm.loss + alpha_sdpo * sdpo.loss + beta_replay * replay.loss,
        active_tokens={
            "lm_ce": lm.active_tokens,
            "sdpo_jsd": sdpo.active_tokens,
            "trace_replay_dpo": replay.active_tokens,
        },
    )


def _check_inputs(model: nn.Module, inputs: Batch) -> None:
    """Refuse what would fail deep inside the model, or not at all."""
    if "labels" in inputs and "response_mask" not in inputs:
        raise ValueError(
            "inputs has labels and no response_mask: give response_mask = (labels != -100), 1 on the tokens to learn"
        )
    get_embeddings = getattr(model, "get_input_embeddings", None)
    weight = getattr(get_embeddings() if get_embeddings is not None else None, "weight", None)
    # A sharded weight does not show the vocabulary.
    if isinstance(weight, torch.Tensor) and weight.dim() == 2 and len(weight):
        for name, ids in inputs.items():
            if name.endswith("input_ids") and ids.dim() == 2:
                check_vocabulary(name, ids, len(weight))


def _has_any(inputs: Batch, *prefixes: str) -> bool:
    return any(name.startswith(prefixes) for name in inputs)
