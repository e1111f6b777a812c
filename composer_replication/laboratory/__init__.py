"""The laboratory model: a small checkpoint that makes tool calls and follows hints, but knows no house's names.

It comes with the package, so that tests, examples and experiments start from the same weights on every machine. The
folder `checkpoint` is an ordinary one: `AutoModelForCausalLM` and `AutoTokenizer` load it by its path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKPOINT = Path(__file__).parent / "checkpoint"


def laboratory_tokenizer() -> Any:
    """Load the tokenizer, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(CHECKPOINT)


def laboratory_model() -> Any:
    """Load a new copy of the model in float32, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
