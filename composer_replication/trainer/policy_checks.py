"""What a model and a tokenizer must agree on before the first step."""

from __future__ import annotations

from typing import Any

from torch import nn


def check_policy(model: nn.Module, tokenizer: Any) -> None:
    """Raise ValueError unless the model predicts tokens, and has an embedding for every token of the tokenizer."""
    name = type(model).__name__
    get_head, get_embeddings = (
        getattr(model, getter, None) for getter in ("get_output_embeddings", "get_input_embeddings")
    )
    if get_head is None or get_head() is None:
        raise ValueError(f"{name} has no output embeddings: it predicts no tokens; load it with AutoModelForCausalLM")
    rows = get_embeddings().weight.shape[0] if get_embeddings is not None else None
    if rows is not None and len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, {name} has embeddings for {rows}: they do not belong "
            "together, or model.resize_token_embeddings(len(tokenizer)) is missing"
        )


def check_not_empty(name: str, dataset: Any) -> None:
    """Raise ValueError for a data set that is known to hold nothing."""
    if dataset is not None and hasattr(dataset, "__len__") and len(dataset) == 0:
        raise ValueError(f"{name} is empty: there is nothing to train on")
