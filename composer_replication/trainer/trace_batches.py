"""Failing turns of logged traces that ride along in channel 2, from a sampler of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from composer_replication.traces import TraceExample
from composer_replication.trainer.data_collator import CollatorConfig, ComposerDataCollator
from composer_replication.trainer.epoch_positions import EpochPositions


class TraceBatches:
    """Collated batches of the traces that have a failing turn; the others would cost a pass and teach nothing here.

    Raises:
        ValueError: no trace has a failing turn.
    """

    def __init__(
        self,
        examples: Sequence[TraceExample],
        collator: Callable[[Sequence[TraceExample]], Mapping[str, torch.Tensor]],
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._examples = [
            example for example in examples if any(turn.get("tool_error") for turn in example.get("turns", ()))
        ]
        if not self._examples:
            raise ValueError(f"none of the {len(examples)} traces has a failing turn: channel 2 has nothing to score")
        self._collator = collator
        self._batch_size = batch_size
        self._positions = EpochPositions(
            len(self._examples), seed=seed, process_index=process_index, num_processes=num_processes
        )

    @classmethod
    def for_trainer(
        cls,
        examples: Sequence[TraceExample],
        collator: Any,
        tokenizer: Any,
        *,
        hint_generator: Callable[[str, Mapping[str, Any]], str | None],
        hint_role: str,
        sdpo_target: Any,
        **sampling: Any,
    ) -> TraceBatches:
        """With the collator that was given, or one with the trainer's own settings; pairs come from elsewhere."""
        if collator is None:
            config = CollatorConfig(
                hint_generator=hint_generator, hint_role=hint_role, sdpo_target=sdpo_target, enable_replay_dpo=False
            )
            collator = ComposerDataCollator(tokenizer=tokenizer, config=config)
        return cls(examples, collator, **sampling)

    def next_batch(self, device: torch.device | str) -> dict[str, torch.Tensor] | None:
        """The next traces as a batch; None if no failing turn of theirs got a hint."""
        batch = self._collator([self._examples[position] for position in self._positions.next(self._batch_size)])
        if "ctx_teacher_input_ids" not in batch:
            return None
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, int]:
        """The position among the traces."""
        return self._positions.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore what `state_dict` gave; ValueError if it is of other traces."""
        self._positions.load_state_dict(state)
