"""A language model that says what is written, in any loop that has a cache; without a cache it is a tiny Qwen2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Qwen2ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from composer_replication._tiny import tiny_model

VOCABULARY = 640


class ScriptedModel(Qwen2ForCausalLM):  # type: ignore[misc]
    """Its cache holds the ids themselves: whatever a loop does to rows and columns happens to what it has read.

    `says` gives the next token after the ids of a row.
    """

    says: Callable[[list[int]], int]

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        if past_key_values is None:
            return super().forward(input_ids, attention_mask, position_ids, **options)
        states = torch.stack([input_ids, position_ids], -1)[:, None].double()
        seen, _ = past_key_values.update(states, states, 0)
        owned = torch.ones(seen.shape[0], seen.shape[2]) if attention_mask is None else attention_mask
        logits = torch.full((len(input_ids), 1, VOCABULARY), -float("inf"))
        for row, (columns, own) in enumerate(zip(seen[:, 0].long(), owned > 0, strict=True)):
            ids, positions = columns[own].T.tolist()
            assert positions == list(range(len(ids)))
            logits[row, 0, self.says(ids) if ids else 0] = 0.0
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


def scripted_model(says: Callable[[list[int]], int]) -> Any:
    plain = tiny_model("qwen2", vocab_size=VOCABULARY)
    plain.__class__ = ScriptedModel
    plain.says = says
    return plain
