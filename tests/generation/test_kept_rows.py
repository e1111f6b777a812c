"""Rows that are read bit by bit, selected and joined give the logits of a pass over each row alone."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from typing import Any

import pytest
import torch
from packable_models import VOCABULARY, Passes, build
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, MambaConfig

from composer_replication._tiny import tiny_model
from composer_replication.generation import kept_rows
from composer_replication.generation.kept_rows import KeptRows, gathered, generating, read_prompts, why_not_kept

# Numbers of float32 are sums of some hundred terms here, in another order.
CLOSE = 2000 * torch.finfo(torch.float32).eps
ARCHITECTURES = ["cohere", "gemma", "glm4", "gpt2", "gpt_neox", "granite", "llama", "mixtral", "olmo2", "phi", "phi3"]
ARCHITECTURES += ["qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2"]


def ids(seed: int, *lengths: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def alone(model: Any, rows: list[list[int]]) -> torch.Tensor:
    """The logits after each row, from a pass over the row and nothing else."""
    with torch.no_grad():
        return torch.stack([model(torch.tensor([row])).logits[0, -1] for row in rows])


def check(model: Any, kept: KeptRows, added: list[list[int]], rows: list[list[int]]) -> None:
    """Read what is added to rows, and compare the logits of those that it was added to."""
    with generating(model):
        logits = kept.read(added)
    compare(model, logits, rows, [place for place, new in enumerate(added) if new])


def compare(model: Any, logits: torch.Tensor, rows: list[list[int]], places: list[int] | None = None) -> None:
    places = list(range(len(rows))) if places is None else places
    expected = alone(model, [rows[place] for place in places])
    torch.testing.assert_close(logits[places], expected, rtol=CLOSE, atol=CLOSE * float(expected.abs().max()))


def longer(rows: list[list[int]], added: list[list[int]]) -> list[list[int]]:
    return [row + new for row, new in zip(rows, added, strict=True)]


def converse(model: Any) -> None:
    """Ragged blocks, nothing for some rows, rows that leave, come twice and are joined again."""
    kept, rows = KeptRows(model, 3), [[], [], []]
    for seed, lengths in enumerate([(9, 4, 6), (1, 0, 1), (1, 1, 1), (3, 5, 0), (0, 1, 2)]):
        added = ids(seed, *lengths)
        rows = longer(rows, added)
        check(model, kept, added, rows)
    left, right = gathered([(kept, [2, 0])]), gathered([(kept, [1])])
    added = ids(5, 1, 2)
    check(model, left, added, longer([rows[2], rows[0]], added))
    both, rows = gathered([(right, [0, 0]), (left, [1])]), [rows[1], rows[1], rows[0] + added[1]]
    added = ids(6, 2, 3, 1)
    check(model, both, added, longer(rows, added))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_each_row_alone(architecture: str) -> None:
    settings = {"sliding_window": None} if architecture in ("starcoder2", "mixtral", "phi3") else {}
    model = build(architecture, **settings)
    assert why_not_kept(model) is None
    converse(model)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_any_model_with_a_mask_of_two_dimensions(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "packs", lambda *_: False)
    converse(build("qwen3", attention))


def test_eager_attention_and_adapters() -> None:
    converse(build("qwen2", "eager"))
    model = get_peft_model(build("llama"), LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    converse(model.eval())


@pytest.mark.parametrize("loose", [0.5, 1e9])
def test_gaps_between_a_rows_columns_may_be_closed(loose: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "_LOOSE", loose)
    monkeypatch.setattr(kept_rows, "_SPARE", 1)
    converse(build("qwen2"))


def test_gaps_are_closed_when_they_are_most_of_a_batch() -> None:
    model = build("qwen2")
    with generating(model):
        kept = KeptRows(model, 2)
        kept.read(ids(0, 2, 20))
        kept.read(ids(1, 3, 0))
        short = gathered([(kept, [0])])
        assert short._own_BT.tolist() == [[True] * 5]
        assert gathered([(kept, [1])])._own_BT.shape == (1, 23)


def test_what_prompts_share_is_read_once() -> None:
    model = build("qwen2")
    (shared,) = ids(0, 12)
    first, second, third = (shared + rest for rest in ids(1, 3, 1, 6))
    prompts = [first, first, second, third, third, shared + third[12:13]]
    passes = Passes(model.get_decoder())
    with generating(model):
        kept, logits = read_prompts(model, prompts)
    assert passes.shapes == [(1, 12), (4, 6)]
    compare(model, logits, prompts)
    added = ids(2, 1, 1, 2, 1, 3, 1)
    check(model, kept, added, longer(prompts, added))


@pytest.mark.parametrize("prompts", [[[5]], [[5], [5]], [[5], [5, 6]], [[5, 6, 7], [5, 6]], [[1, 2], [3]]])
def test_prompts_that_share_all_or_nothing(prompts: list[list[int]]) -> None:
    model = build("qwen2")
    with generating(model):
        _, logits = read_prompts(model, prompts)
    compare(model, logits, prompts)


def test_generating_leaves_a_model_as_it_was() -> None:
    model = tiny_model("qwen2", vocab_size=VOCABULARY).train()
    model.model.layers[0].eval()
    before = [(module.training, model.config._attn_implementation) for module in model.modules()]
    with suppress(KeyError), generating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise KeyError
    assert [(module.training, model.config._attn_implementation) for module in model.modules()] == before
    assert torch.is_grad_enabled()


def _mamba() -> nn.Module:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, state_size=4)
    return AutoModelForCausalLM.from_config(config)


def _flash() -> nn.Module:
    model: nn.Module = build("qwen2")
    model.config._attn_implementation = "flash_attention_2"
    return model


def _prompt_tuned() -> Any:
    return get_peft_model(build("qwen2"), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: build("mistral", sliding_window=8), "DynamicSlidingWindowLayer"),
        (lambda: build("gemma2"), "DynamicSlidingWindowLayer"),
        (_mamba, "cache of its own kind|state that does not grow|LinearAttention"),
        (lambda: AutoModelForCausalLM.from_config(BloomConfig(hidden_size=8, n_layer=1, n_head=2)), "position_ids"),
        (_flash, "flash_attention_2"),
        (_prompt_tuned, "virtual tokens"),
        (lambda: nn.Linear(2, 2), "Linear has a cache of its own kind"),
    ],
)
def test_models_whose_caches_cannot_be_kept_are_named(make: Any, reason: str) -> None:
    found = why_not_kept(make())
    assert found is not None
    assert re.search(reason, found)
