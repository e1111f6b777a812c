"""Small random causal LMs of real architectures."""

from __future__ import annotations

from typing import Any

import torch

from composer_replication._arguments import check_choice


def tiny_model(
    architecture: str = "qwen2",
    *,
    vocab_size: int,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    tie_word_embeddings: bool = False,
    seed: int = 0,
) -> Any:
    """A randomly initialised Qwen2 ("qwen2") or Llama ("llama") in float32; the global random state stays as it is.

    Raises:
        ValueError: an unknown architecture.
    """
    check_choice("architecture", architecture, ("qwen2", "llama"))
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    config_class = {"qwen2": Qwen2Config, "llama": LlamaConfig}[architecture]
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096,
        # Five times the usual: a model this small would otherwise predict the same everywhere, whatever its context.
        initializer_range=0.1,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
