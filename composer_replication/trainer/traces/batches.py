"""Failing turns of logged traces that ride along in channel 2, from a sampler of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from composer_replication.traces import TraceExample
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.epoch_positions import EpochPositions
from composer_replication.trainer.traces.rendered import check_same_rows, rendered_traces, rows_digest


class TraceBatches:
    """Batches of the rows that have a hinted turn; the others would cost a pass and teach channel 2 nothing.

    Raises:
        ValueError: no trace has a failing turn that gets a hint; the message counts why.
    """

    def __init__(
        self,
        examples: Sequence[TraceExample],
        collator: ComposerDataCollator,
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._rows = [row for row in rendered_traces(examples, collator) if row.sites]
        if not self._rows:
            stats = collator.stats
            reasons = {**stats.sites_dropped, "without anything for the hint generator to say": stats.hints_missing}
            counted = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            raise ValueError(
                f"none of the {len(examples)} traces has a failing turn with a hint ({counted or 'no errors'}): "
                "channel 2 has nothing to score in them"
            )
        self._digest = rows_digest(self._rows)
        self._collator = collator
        self._batch_size = batch_size
        self._positions = EpochPositions(
            len(self._rows), seed=seed, process_index=process_index, num_processes=num_processes
        )

    def next_batch(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """The next rows as a batch."""
        batch = self._collator.collate([self._rows[place] for place in self._positions.next(self._batch_size)])
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """The position among the rows, and which rows they are."""
        return {"rows": self._digest, "position": self._positions.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError if it is of other traces."""
        check_same_rows(state["rows"], self._digest)
        self._positions.load_state_dict(state["position"])
