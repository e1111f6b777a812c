"""compose_loss: parity with the plain computation, ablations, gradients, learning, and refusals."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model

from composer_replication import LossComponents, build_batch, compose_loss
from composer_replication._tiny import tiny_model
from composer_replication.batch import VARIANTS
from composer_replication.causal_lm import run_causal_lm
from composer_replication.distillation import (
    avg_sequence_logprob,
    dpo_loss,
    entropy_aware_opd_loss,
    generalized_jsd_loss,
    simpo_loss,
    sum_sequence_logprob,
    taid_loss,
)


@pytest.fixture
def batch(tokenizer: Any, model: Any) -> dict[str, torch.Tensor]:
    reference = tiny_model("qwen2", vocab_size=640, seed=5)
    return build_batch(tokenizer, model=reference)


def logits_at(model: Any, ids: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return model(ids).logits[index[:, 0], index[:, 1] - 1].unsqueeze(0)


def token_logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logprobs = model(ids).logits.log_softmax(-1)[:, :-1]
    return F.pad(logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1), (1, 0))


def straightforward(
    model: Any, batch: dict[str, torch.Tensor], divergence: Any, settings: dict[str, Any]
) -> list[torch.Tensor]:
    """The three channels as one would first write them: full logits, a pass each."""
    ids, mask = batch["input_ids"], batch["response_mask"].bool()
    lm = F.cross_entropy(model(ids).logits[:, :-1][mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
    with torch.no_grad():
        teacher = logits_at(model, batch["ctx_teacher_input_ids"], batch["sdpo_teacher_index"])
    sdpo = divergence(logits_at(model, ids, batch["sdpo_student_index"]), teacher)
    chosen, rejected = (
        (token_logprobs(model, batch[f"dpo_{side}_input_ids"]), batch[f"dpo_{side}_response_mask"])
        for side in ("chosen", "rejected")
    )
    nll = -chosen[0][chosen[1].bool()].mean()
    anchor = settings.get("replay_nll_weight", 0.0) * nll
    averages = avg_sequence_logprob(*chosen), avg_sequence_logprob(*rejected)
    references = batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"]
    beta = settings.get("replay_dpo_beta", 0.1)
    if settings.get("dpo_variant") == "nll":
        return [lm, sdpo, nll]
    if settings.get("dpo_variant") == "simpo":
        beta, gamma = settings.get("simpo_beta", 2.0), settings.get("simpo_gamma", 1.0)
        return [lm, sdpo, simpo_loss(*averages, beta=beta, gamma=gamma) + anchor]
    if settings.get("dpo_variant") == "dpo_norm":
        per_token = [one / mask.sum(1) for one, (_, mask) in zip(references, (chosen, rejected), strict=True)]
        return [lm, sdpo, dpo_loss(*averages, *per_token, beta=beta) + anchor]
    sums = sum_sequence_logprob(*chosen), sum_sequence_logprob(*rejected)
    return [lm, sdpo, dpo_loss(*sums, *references, beta=beta) + anchor]


@pytest.mark.parametrize(
    ("settings", "divergence"),
    [
        ({}, lambda s, t: generalized_jsd_loss(s, t)),
        (
            {"sdpo_jsd_beta": 0.0, "sdpo_temperature": 2.0, "sdpo_token_clip": 1e-4},
            lambda s, t: generalized_jsd_loss(s, t, beta=0.0, temperature=2.0, token_clip=1e-4),
        ),
        ({"sdpo_wrapper": "taid", "taid_t": 0.4}, lambda s, t: taid_loss(s, t, t=0.4)),
        (
            {"sdpo_wrapper": "entropy_opd", "entropy_opd_h_max": 3.0},
            lambda s, t: entropy_aware_opd_loss(s, t, h_max=3.0),
        ),
        (
            {"sdpo_wrapper": "entropy_opd", "sdpo_temperature": 2.0},
            lambda s, t: entropy_aware_opd_loss(s, t, temperature=2.0),
        ),
        ({"replay_dpo_beta": 0.7}, lambda s, t: generalized_jsd_loss(s, t)),
        ({"dpo_variant": "simpo"}, lambda s, t: generalized_jsd_loss(s, t)),
        (
            {"dpo_variant": "simpo", "simpo_beta": 1.3, "simpo_gamma": 0.2, "replay_nll_weight": 0.4},
            lambda s, t: generalized_jsd_loss(s, t),
        ),
        ({"replay_nll_weight": 0.4}, lambda s, t: generalized_jsd_loss(s, t)),
        ({"dpo_variant": "dpo_norm", "replay_nll_weight": 0.4}, lambda s, t: generalized_jsd_loss(s, t)),
        ({"dpo_variant": "nll"}, lambda s, t: generalized_jsd_loss(s, t)),
    ],
)
def test_equals_the_straightforward_computation(
    model: Any, batch: dict[str, torch.Tensor], settings: dict[str, Any], divergence: Any
) -> None:
    components = compose_loss(model, batch, alpha_sdpo=0.7, beta_replay=0.3, **settings)
    lm, sdpo, replay = straightforward(model, batch, divergence, settings)
    torch.testing.assert_close(components.lm_ce, lm, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(components.sdpo_jsd, sdpo, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(components.trace_replay_dpo, replay, rtol=1e-4, atol=1e-5)
    total = lm + 0.7 * sdpo + 0.3 * replay
    torch.testing.assert_close(components.total, total, rtol=1e-5, atol=1e-5)
    for (name, _), mine, other in zip(
        model.named_parameters(),
        torch.autograd.grad(components.total, list(model.parameters())),
        torch.autograd.grad(total, list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_label_smoothing_is_torchs(model: Any, batch: dict[str, torch.Tensor]) -> None:
    mask = batch["response_mask"].bool()
    expected = F.cross_entropy(
        model(batch["input_ids"]).logits[:, :-1][mask[:, 1:]],
        batch["input_ids"][:, 1:][mask[:, 1:]],
        label_smoothing=0.1,
    )
    torch.testing.assert_close(compose_loss(model, batch, lm_ce_label_smoothing=0.1).lm_ce, expected)


def gradients(model: Any, components: LossComponents) -> list[torch.Tensor]:
    return list(torch.autograd.grad(components.total, list(model.parameters())))


def test_ablations_are_bit_exact(model: Any, batch: dict[str, torch.Tensor]) -> None:
    full = compose_loss(model, batch, alpha_sdpo=0.5, beta_replay=0.25)
    assert full.total == full.lm_ce + 0.5 * full.sdpo_jsd + 0.25 * full.trace_replay_dpo

    without_sdpo = compose_loss(model, batch, alpha_sdpo=0.0, beta_replay=0.25)
    assert without_sdpo.lm_ce == full.lm_ce
    assert without_sdpo.trace_replay_dpo == full.trace_replay_dpo
    assert without_sdpo.sdpo_jsd == 0
    assert without_sdpo.total == full.lm_ce + 0.25 * full.trace_replay_dpo

    lm_only = compose_loss(model, batch, alpha_sdpo=0.0, beta_replay=0.0)
    assert lm_only.total == lm_only.lm_ce == full.lm_ce
    assert lm_only.active_tokens == {**full.active_tokens, "sdpo_jsd": 0, "trace_replay_dpo": 0}

    # Switching a channel off by its weight is the same as not having its inputs, gradients included.
    bare = {name: batch[name] for name in ("input_ids", "attention_mask", "response_mask")}
    absent = compose_loss(model, bare, alpha_sdpo=0.5, beta_replay=0.25)
    assert absent.total == lm_only.total
    for one, other in zip(gradients(model, absent), gradients(model, lm_only), strict=True):
        assert torch.equal(one, other)


def test_a_channel_is_normalised_by_its_own_tokens(model: Any, batch: dict[str, torch.Tensor]) -> None:
    fewer = dict(batch)
    fewer["response_mask"] = batch["response_mask"].clone()
    fewer["response_mask"][1] = 0
    assert compose_loss(model, fewer).lm_ce != compose_loss(model, batch).lm_ce
    assert compose_loss(model, fewer).sdpo_jsd == compose_loss(model, batch).sdpo_jsd
    assert compose_loss(model, fewer).trace_replay_dpo == compose_loss(model, batch).trace_replay_dpo


def test_detached_gives_four_floats(qwen_model: Any, qwen_tokenizer: Any) -> None:
    detached = compose_loss(qwen_model, build_batch(qwen_tokenizer)).detached()
    assert list(detached) == ["lm_ce", "sdpo_jsd", "trace_replay_dpo", "total"]
    assert all(type(value) is float for value in detached.values())


def test_the_first_token_is_never_a_target(model: Any, batch: dict[str, torch.Tensor]) -> None:
    """Nothing predicts it; an index one column earlier would wrap around to the row's end."""
    plain = compose_loss(model, batch)
    masked = dict(batch)
    for name in ("response_mask", "dpo_chosen_response_mask", "dpo_rejected_response_mask"):
        masked[name] = batch[name].clone()
        masked[name][:, 0] = 1
    other = compose_loss(model, masked)
    assert other.total == plain.total
    assert other.active_tokens == plain.active_tokens
    only_first = {**batch, "response_mask": torch.zeros_like(batch["response_mask"])}
    only_first["response_mask"][:, 0] = 1
    with pytest.raises(ValueError, match="response_mask selects no token of input_ids after the first column"):
        compose_loss(model, only_first)


def test_padding_changes_nothing(model: Any, batch: dict[str, torch.Tensor]) -> None:
    padded = dict(batch)
    for prefix, masks in (
        ("", ("response_mask",)),
        ("ctx_teacher_", ("sdpo_loss_mask",)),
        ("dpo_chosen_", ("dpo_chosen_response_mask",)),
        ("dpo_rejected_", ("dpo_rejected_response_mask",)),
    ):
        # 0 is a token like any other here: padding is told by the mask alone.
        for name in (f"{prefix}input_ids", f"{prefix}attention_mask", *masks):
            padded[name] = F.pad(batch[name], (0, 5))
    plain, other = compose_loss(model, batch), compose_loss(model, padded)
    for name in ("lm_ce", "sdpo_jsd", "trace_replay_dpo"):
        torch.testing.assert_close(getattr(other, name), getattr(plain, name), rtol=1e-5, atol=1e-7)
    assert other.active_tokens == plain.active_tokens


@pytest.mark.parametrize("prefix", ["", "ctx_teacher_", "dpo_"])
def test_left_padding_is_hidden_by_each_passs_attention_mask(qwen_model: Any, qwen_tokenizer: Any, prefix: str) -> None:
    batch = build_batch(qwen_tokenizer, model=tiny_model("qwen2", vocab_size=640, seed=5))
    shifted = dict(batch)
    for name, tensor in batch.items():
        is_own = name in ("input_ids", "attention_mask", "response_mask") if not prefix else name.startswith(prefix)
        if (is_own and tensor.dim() == 2) or (prefix == "ctx_teacher_" and name == "sdpo_loss_mask"):
            shifted[name] = F.pad(tensor, (5, 0))
    moved_index = {"": "sdpo_student_index", "ctx_teacher_": "sdpo_teacher_index"}.get(prefix)
    if moved_index is not None:
        shifted[moved_index] = batch[moved_index] + torch.tensor([0, 5])
    plain, other = compose_loss(qwen_model, batch), compose_loss(qwen_model, shifted)
    for channel in ("lm_ce", "sdpo_jsd", "trace_replay_dpo"):
        torch.testing.assert_close(getattr(other, channel), getattr(plain, channel), rtol=1e-3, atol=1e-6)
    # Without the mask the padding is read, and the numbers show it.
    if prefix == "dpo_":
        unmasked = {n: t for n, t in shifted.items() if not (n.startswith("dpo_") and n.endswith("attention_mask"))}
    else:
        unmasked = {name: t for name, t in shifted.items() if name != f"{prefix}attention_mask"}
    assert compose_loss(qwen_model, unmasked).total.item() != pytest.approx(other.total.item(), abs=1e-6)


def passes(model: Any, run: Any) -> list[tuple[tuple[int, ...], bool]]:
    """The shapes of the ids of each forward pass during `run`, and whether it kept a graph."""
    seen = []

    def note(_: Any, __: Any, kwargs: dict[str, Any], ___: Any) -> None:
        assert kwargs["use_cache"] is False
        seen.append((tuple(kwargs["input_ids"].shape), torch.is_grad_enabled()))

    hook = model.model.register_forward_hook(note, with_kwargs=True)
    try:
        run()
    finally:
        hook.remove()
    return seen


def test_three_passes_and_the_teachers_is_short_and_without_gradient(
    model: Any, batch: dict[str, torch.Tensor]
) -> None:
    student, teacher, preference = passes(model, lambda: compose_loss(model, batch))
    assert student == (tuple(batch["input_ids"].shape), True)
    # One column less than the last paired token's: nothing behind its prediction is read.
    assert teacher == ((1, int(batch["sdpo_teacher_index"][:, 1].max())), False)
    # The pair in one row: what both begin with, then what is left of each, without the last tokens predicted.
    chosen, rejected = (batch[f"dpo_{side}_input_ids"][0].tolist() for side in ("chosen", "rejected"))
    shared = next(column for column, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other)
    last = [int(batch[f"dpo_{side}_response_mask"].nonzero()[-1, 1]) for side in ("chosen", "rejected")]
    assert preference == ((1, sum(last) - shared), True)
    assert len(passes(model, lambda: compose_loss(model, batch, alpha_sdpo=0.0, beta_replay=0.0))) == 1
    assert not model.model._forward_hooks
    assert not model.lm_head._forward_hooks


@pytest.fixture
def fresh_accelerate_state() -> Iterator[None]:
    """Accelerate keeps one state per process; other tests' trainers have set it, and later ones set it again."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerate_state")
def test_mixed_precision_by_accelerate_keeps_the_fused_path(qwen_tokenizer: Any, qwen_model: Any) -> None:
    """Accelerate casts inside `forward`, where the caller's autocast state does not show it."""
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    exact = compose_loss(qwen_model, batch).detached()
    prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare(qwen_model)
    assert run_causal_lm(prepared, batch["input_ids"]).head.weight is qwen_model.lm_head.weight
    assert len(passes(qwen_model, lambda: compose_loss(prepared, batch))) == 3
    assert compose_loss(prepared, batch).detached() == pytest.approx(exact, rel=2e-2, abs=2e-2)


def test_the_teacher_pass_takes_only_the_rows_with_pairs(qwen_model: Any, qwen_tokenizer: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    assert batch["ctx_teacher_input_ids"].shape[0] == 2
    moved = {name: t.roll(1, 0) if name.startswith("ctx_") else t for name, t in batch.items()}
    moved["sdpo_loss_mask"] = batch["sdpo_loss_mask"].roll(1, 0)
    moved["sdpo_teacher_index"] = batch["sdpo_teacher_index"] + torch.tensor([1, 0])
    assert passes(qwen_model, lambda: compose_loss(qwen_model, moved))[1][0][0] == 1
    assert compose_loss(qwen_model, moved).sdpo_jsd == compose_loss(qwen_model, batch).sdpo_jsd


def test_teacher_receives_no_gradient(model: Any, batch: dict[str, torch.Tensor]) -> None:
    teacher = tiny_model("llama", vocab_size=640, seed=9)
    components = compose_loss(model, batch, teacher_model=teacher)
    components.total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert components.sdpo_jsd != compose_loss(model, batch).sdpo_jsd


def test_a_live_teacher_is_a_constant_target(model: Any, batch: dict[str, torch.Tensor]) -> None:
    """Teaching oneself must give the gradient that a frozen copy of oneself would."""
    frozen = copy.deepcopy(model).requires_grad_(False)
    live, copied = (
        torch.autograd.grad(
            compose_loss(model, batch, teacher_model=t).sdpo_jsd, list(model.parameters()), allow_unused=True
        )
        for t in (None, frozen)
    )
    for one, other in zip(live, copied, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_the_teacher_scores_without_dropout(qwen_tokenizer: Any, qwen_model: Any) -> None:
    model = get_peft_model(
        qwen_model, LoraConfig(target_modules=["q_proj", "v_proj"], r=4, lora_dropout=0.5, init_lora_weights=False)
    )
    batch = build_batch(qwen_tokenizer)
    student = tiny_model("qwen2", vocab_size=640, seed=3)
    model.train()
    one, other = (compose_loss(student, batch, teacher_model=model).sdpo_jsd for _ in range(2))
    assert one == other
    assert model.training


def test_works_with_lora_and_autocast(qwen_tokenizer: Any, qwen_model: Any) -> None:
    model = get_peft_model(qwen_model, LoraConfig(target_modules=["q_proj", "v_proj"], r=4))
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        components = compose_loss(model, batch)
    components.total.backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trained)
    assert any(parameter.grad.abs().max() > 0 for parameter in trained)
    exact = compose_loss(model, batch)
    assert components.lm_ce.item() == pytest.approx(exact.lm_ce.item(), rel=1e-2)


def test_autocast_loses_no_gradient_to_the_teachers_pass(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        components = compose_loss(qwen_model, batch, alpha_sdpo=1.0, beta_replay=1.0)
    (replay_gradient,) = torch.autograd.grad(components.trace_replay_dpo, qwen_model.model.layers[0].mlp.up_proj.weight)
    assert replay_gradient.abs().max() > 0


def test_tied_embeddings_get_both_gradients(qwen_tokenizer: Any) -> None:
    tied = tiny_model("qwen2", vocab_size=640, tie_word_embeddings=True, seed=1)
    batch = build_batch(qwen_tokenizer, model=tied)
    mine = torch.autograd.grad(compose_loss(tied, batch).total, tied.get_input_embeddings().weight)[0]
    lm, sdpo, replay = straightforward(tied, batch, generalized_jsd_loss, {})
    other = torch.autograd.grad(lm + 0.1 * sdpo + 0.05 * replay, tied.get_input_embeddings().weight)[0]
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)


def test_loss_falls_on_alternating_batches_with_sdpo_firing(tokenizer: Any, model: Any) -> None:
    """Two batches in turn, a frozen teacher of its own, all channels live at every step; held-out data falls too."""
    teacher = tiny_model("qwen2", vocab_size=640, seed=7)
    with torch.no_grad():
        teacher.lm_head.weight.mul_(20)  # opinions strong enough to be learned
    batches = [build_batch(tokenizer, variant=variant, model=model, seed=1) for variant in VARIANTS]
    held_out = build_batch(tokenizer, variant="factorial", model=model, seed=2)
    settings: dict[str, Any] = {"alpha_sdpo": 1.0, "beta_replay": 0.5, "teacher_model": teacher}

    def measure() -> list[dict[str, float]]:
        with torch.no_grad():
            return [compose_loss(model, batch, **settings).detached() for batch in (*batches, held_out)]

    before = measure()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(40):
        components = compose_loss(model, batches[step % 2], **settings)
        assert components.active_tokens["sdpo_jsd"] > 0
        assert components.sdpo_jsd > 1e-3
        optimizer.zero_grad()
        components.total.backward()
        optimizer.step()
    after = measure()
    for start, end in zip(before, after, strict=True):
        assert end["total"] < 0.7 * start["total"]
    for start, end in zip(before[:2], after[:2], strict=True):
        assert end["trace_replay_dpo"] < 0.5 * start["trace_replay_dpo"]


def test_sdpo_alone_pulls_the_student_toward_the_hinted_teacher(qwen_tokenizer: Any, qwen_model: Any) -> None:
    teacher = tiny_model("qwen2", vocab_size=640, seed=7)
    with torch.no_grad():
        teacher.lm_head.weight.mul_(20)
    batch = build_batch(qwen_tokenizer)
    optimizer = torch.optim.AdamW(qwen_model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = compose_loss(qwen_model, batch, teacher_model=teacher).sdpo_jsd
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("name", ["model", "teacher_model"])
def test_a_model_by_name_is_refused(qwen_tokenizer: Any, qwen_model: Any, name: str) -> None:
    models = {"model": qwen_model, name: "Qwen/Qwen2.5-0.5B"}
    with pytest.raises(TypeError, match=f"^{name} must be a loaded model, got 'Qwen/.*from_pretrained"):
        compose_loss(models.pop("model"), build_batch(qwen_tokenizer), **models)


@pytest.mark.parametrize("name", ["input_ids", "ctx_teacher_input_ids", "dpo_rejected_input_ids"])
@pytest.mark.parametrize("token", [640, -100])
def test_ids_outside_the_vocabulary_are_named(qwen_tokenizer: Any, qwen_model: Any, name: str, token: int) -> None:
    batch = build_batch(qwen_tokenizer, model=qwen_model)
    batch[name] = batch[name].clone()
    batch[name][0, 3] = token
    with pytest.raises(ValueError, match=rf"^{name}\[0, 3\] is {token}, and the model has 640 embeddings"):
        compose_loss(qwen_model, batch)


def test_labels_are_no_response_mask(qwen_tokenizer: Any, qwen_model: Any) -> None:
    batch = build_batch(qwen_tokenizer)
    batch["labels"] = batch["input_ids"].masked_fill(batch.pop("response_mask") == 0, -100)
    with pytest.raises(ValueError, match=r"response_mask = \(labels != -100\)"):
        compose_loss(qwen_model, batch)
    batch["response_mask"] = (batch["labels"] != -100).long()
    assert compose_loss(qwen_model, batch).active_tokens["lm_ce"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha_sdpo": -0.1}, "alpha_sdpo must be a finite number >= 0, got -0.1"),
        ({"beta_replay": math.nan}, "beta_replay must be a finite number >= 0, got nan"),
        ({"sdpo_jsd_beta": 1.2}, r"sdpo_jsd_beta must be in \[0, 1\], got 1.2"),
        ({"sdpo_temperature": 0.0}, "sdpo_temperature must be a positive finite number, got 0.0"),
        ({"sdpo_token_clip": 0.0}, "sdpo_token_clip must be a positive finite number, got 0.0"),
        ({"sdpo_wrapper": "tiad"}, "sdpo_wrapper must be one of 'none', 'taid', 'entropy_opd', got 'tiad'"),
        ({"sdpo_wrapper": "taid"}, r"sdpo_wrapper='taid' needs taid_t in \[0, 1\], got None"),
        ({"sdpo_wrapper": "taid", "taid_t": 1.5}, r"taid_t must be in \[0, 1\], got 1.5"),
        ({"taid_t": -1.0}, r"taid_t must be in \[0, 1\], got -1.0"),
        ({"dpo_variant": "kto"}, "dpo_variant must be one of 'dpo', 'simpo', 'dpo_norm', 'nll', got 'kto'"),
        ({"replay_dpo_beta": 0.0}, "replay_dpo_beta must be a positive finite number, got 0.0"),
        ({"simpo_beta": -1.0}, "simpo_beta must be a positive finite number, got -1.0"),
        ({"replay_nll_weight": -1.0}, "replay_nll_weight must be a finite number >= 0, got -1.0"),
        ({"simpo_gamma": -1.0}, "simpo_gamma must be a finite number >= 0, got -1.0"),
        ({"lm_ce_label_smoothing": 2.0}, r"lm_ce_label_smoothing must be in \[0, 1\], got 2.0"),
        ({"entropy_opd_h_max": -1.0}, "entropy_opd_h_max must be a positive finite number, got -1.0"),
    ],
)
def test_bad_settings_are_named(qwen_tokenizer: Any, qwen_model: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        compose_loss(qwen_model, build_batch(qwen_tokenizer, model=qwen_model), **settings)
