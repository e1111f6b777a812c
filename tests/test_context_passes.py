"""Contexts that share a trunk give what each gives alone, whatever the budget; and they cost less."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
import torch
from packable_models import VOCABULARY, Passes, build
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from trainer.self_teachers.small_policies import Training, lora_policy, policy, read

from composer_replication.causal_lm import run_causal_lm
from composer_replication.channels import hinted_states, sdpo_pairs
from composer_replication.channels.hint_distillation import TeacherKind
from composer_replication.channels.scoring import with_bare_contexts
from composer_replication.context_passes import context_states
from composer_replication.rendering import Splice, hinted_rows
from composer_replication.shared_prefix import PACKABLE_ARCHITECTURES
from composer_replication.trainer.self_teachers import make_teacher

Batch = dict[str, torch.Tensor]
SPLICES: dict[str, list[list[Splice]]] = {
    # Several errors in a rollout, one in another; a hint that begins as the turn's header does; a row without any.
    "errors": [
        [Splice((5, 6, 7), 12, ((14, 18),)), Splice((8, 9), 22, ((23, 26),)), Splice((5,), 30, ((31, 36),))],
        [],
        [Splice((3, 4, 5, 6), 20, ((22, 25),))],
    ],
    "first_turn": [[Splice((5, 6), 1, ((2, 4),))], [Splice((7,), 3, ((3, 8),))], []],
    # A hint for a rollout as a whole, whose turns all carry loss; and one at a turn of the same rollout.
    "siblings": [[Splice((9, 8, 7), 8, ((9, 13), (18, 22), (30, 34))), Splice((5, 6), 28, ((30, 34),))], [], []],
    # More hints than one trunk takes.
    "many": [[Splice((5, 6, 7, 8, header), header, ((header + 2, header + 6),)) for header in range(18, 30)], [], []],
    "no_words": [[Splice((), 20, ((22, 30),))], [], []],
}
LENGTHS = (36, 30, 28)


def contexts(kind: str, *, bare: bool = True, left: int = 3, repeat: int = 1) -> tuple[Batch, torch.Tensor]:
    """Hinted contexts, with the student's own rows below, which are padded on both sides; and the tokens to predict."""
    numbers = random.Random(4)
    rows = [[numbers.randrange(VOCABULARY) for _ in range(length)] for length in LENGTHS * repeat]
    width = left + max(LENGTHS)
    batch = hinted_rows(rows, SPLICES[kind] * repeat, pad_token_id=1, left_padding=[left] * len(rows))
    padded = [[0] * left + row + [0] * (width - left - len(row)) for row in rows]
    seen = [[0] * left + [1] * len(row) + [0] * (width - left - len(row)) for row in rows]
    batch |= {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(seen)}
    student_P2, teacher_P2 = sdpo_pairs(batch)
    return with_bare_contexts(batch, student_P2, teacher_P2) if bare else (batch, teacher_P2)


def alone(model: Any, batch: Batch, index_P2: torch.Tensor) -> torch.Tensor:
    """The state before each token, from a pass over its context alone, without padding."""
    states: dict[int, torch.Tensor] = {}
    seen = batch["ctx_teacher_attention_mask"] > 0
    with torch.no_grad():
        for row in index_P2[:, 0].unique().tolist():
            states[row] = run_causal_lm(model, batch["ctx_teacher_input_ids"][row][seen[row]][None]).hidden[0]
    return torch.stack([states[row][int(seen[row, :column].sum()) - 1] for row, column in index_P2.tolist()])


def check(model: Any, kind: str, *, token_budget: int = 400, **options: Any) -> list[tuple[int, ...]]:
    """Compare, and return the shapes of the passes."""
    batch, index_P2 = contexts(kind, **options)
    expected = alone(model, batch, index_P2)
    passes = Passes(model)
    found = hinted_states(model, batch, index_P2, token_budget)
    assert not found.hidden.requires_grad
    tolerance = 1e-5 if expected.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.hidden, expected, rtol=tolerance, atol=tolerance)
    # Branches are no longer than their trunk in all: each is masked against the whole row.
    longest = int(batch["ctx_teacher_attention_mask"].sum(1).max())
    assert all(columns <= 2 * longest for _, columns in passes.shapes)
    return passes.shapes


@pytest.mark.parametrize("architecture", sorted(PACKABLE_ARCHITECTURES))
def test_every_packable_architecture_gives_what_each_context_gives_alone(architecture: str) -> None:
    # Six contexts: two trunks, and what the others do not share with them.
    ((rows, columns),) = check(build(architecture), "errors")
    assert rows == 2
    assert columns < 60


@pytest.mark.parametrize("kind", SPLICES)
@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_wherever_the_hints_are(kind: str, bare: bool, attention: str) -> None:
    check(build("qwen2", attention).double(), kind, bare=bare)
    check(build("gpt2", attention).double(), kind, bare=bare)


@pytest.mark.parametrize("architecture", ["llama", "bloom"])
@pytest.mark.parametrize("token_budget", [1, 45, 60, 100, 131, 400])
def test_no_pass_is_larger_than_the_budget(architecture: str, token_budget: int) -> None:
    batch, _ = contexts("errors", repeat=3)
    longest = int(batch["ctx_teacher_attention_mask"].sum(1).max())
    shapes = check(build(architecture).double(), "errors", token_budget=token_budget, repeat=3)
    assert all(rows * columns <= max(token_budget, longest) for rows, columns in shapes)
    # And passes are filled.
    expected = {("llama", 1): 18, ("llama", 400): 1, ("bloom", 1): 18, ("bloom", 400): 2}
    assert len(shapes) == expected.get((architecture, token_budget), len(shapes))


def test_what_contexts_share_is_computed_once() -> None:
    model = build("qwen2").double()
    tokens = {
        budget: sum(rows * columns for rows, columns in check(model, "errors", token_budget=budget, repeat=2))
        for budget in (1, 400)
    }
    rows = contexts("errors", repeat=2)[0]["ctx_teacher_attention_mask"].sum()
    assert tokens[400] < 0.6 * rows
    assert tokens[1] <= rows  # one context at a time


def _prompt_tuned() -> Any:
    return get_peft_model(build("qwen2"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


def _with_lora() -> Any:
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False, lora_dropout=0.5)
    return get_peft_model(build("qwen2"), lora)


@pytest.mark.parametrize(
    ("made", "packed"),
    [
        (_with_lora, True),
        (_prompt_tuned, False),
        (lambda: build("mistral", sliding_window=20), False),
        (lambda: build("mistral", sliding_window=64), True),
        (lambda: build("bloom"), False),
        (lambda: build("mamba"), False),
    ],
    ids=["lora", "virtual_tokens", "window", "wide_window", "alibi", "state_space"],
)
def test_models_that_cannot_share_run_in_rows(made: Any, packed: bool) -> None:
    model = made().double().eval()
    shapes = check(model, "errors", token_budget=1000)
    assert [rows for rows, _ in shapes] == [2 if packed else 6]
    model.train()
    batch, index_P2 = contexts("errors")
    torch.testing.assert_close(  # dropout is off in a teacher's pass
        hinted_states(model, batch, index_P2, 1000).hidden, alone(model.eval(), batch, index_P2), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", get_args(TeacherKind))
@pytest.mark.parametrize("made", [policy, lambda: lora_policy(trained=True)], ids=["whole", "lora"])
def test_every_kind_of_teacher_runs_within_the_budget(kind: TeacherKind, made: Any) -> None:
    model = made()
    teacher, training = make_teacher(kind, model, rate=0.5, mix=0.3), Training(model, learning_rate=0.3)
    training.step()
    teacher.update()
    batch, index_P2 = contexts("errors", left=0)
    expected = read(teacher.hinted_states(batch, index_P2))
    passes = Passes(model)
    for budget in (60, 400):
        found = read(teacher.hinted_states(batch, index_P2, budget))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert max(rows * columns for rows, columns in passes.shapes[:-1]) <= 120
    own = read(make_teacher("live", model).hinted_states(batch, index_P2, 400))
    assert torch.allclose(own, expected, atol=1e-3) is (kind == "live")


def test_the_model_is_left_as_it_was() -> None:
    model = build("llama").train()
    batch, index_P2 = contexts("errors")
    hinted_states(model, batch, index_P2, 400)
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hinted_states(model, batch, index_P2, 400)
    assert model.config._attn_implementation == "sdpa"


def test_a_context_with_gaps_is_refused() -> None:
    ids = torch.arange(8)[None]
    mask = torch.ones_like(ids)
    mask[0, 3] = 0
    with pytest.raises(ValueError, match="row 0 has gaps"):
        context_states(build("llama"), ids, mask, torch.tensor([[0, 6]]), token_budget=8)
    mask[0, :4] = 0
    with pytest.raises(ValueError, match="nothing predicts"):
        context_states(build("llama"), ids, mask, torch.tensor([[0, 6], [0, 4]]), token_budget=8)
