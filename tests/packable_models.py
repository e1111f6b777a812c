"""Tiny models of the architectures that take packed rows, and a record of what goes through them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 60
_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gemma": {"head_dim": 8},
    "gemma2": {
        "head_dim": 8,
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.0,
        "query_pre_attn_scalar": 8,
    },
    "glm4": {"head_dim": 8},
    "mixtral": {"num_local_experts": 3},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def build(architecture: str, attention: str | None = None, **settings: Any) -> Any:
    sizes = {} if architecture == "gpt2" else _SIZES
    config = transformers.AutoConfig.for_model(
        architecture,
        vocab_size=VOCABULARY,
        **{**_SPECIAL_TOKENS, **sizes, **_SETTINGS.get(architecture, {}), **settings},
    )
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, **({} if attention is None else {"attn_implementation": attention})
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from its initialisation: attention that looks anywhere, logits that differ.
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


class Passes:
    """The shapes of the ids that go through a model."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, ...]] = []
        model.register_forward_pre_hook(lambda _, __, kwargs: self.note(kwargs), with_kwargs=True)

    def note(self, kwargs: dict[str, Any]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))
