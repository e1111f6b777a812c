"""Traces rendered once, before training, and the sampler that feeds those with hints to channel 2.

A step has as many rows as the batch size says, however long a trace is.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from composer_replication.traces import TraceExample
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.epoch_positions import EpochPositions
from composer_replication.trainer.trace_rows import TraceRow

logger = logging.getLogger(__name__)


def rendered_traces(examples: Iterable[TraceExample], collator: ComposerDataCollator) -> list[TraceRow]:
    """Return the rows of all traces that teach something; a warning counts those that the chat template refuses.

    Raises:
        ValueError: nothing is left.
    """
    rows: list[TraceRow] = []
    refused: list[str] = []
    for example in examples:
        try:
            rows += [row.compact() for row in collator.rows(example) if row.teaches]
        except ValueError as error:
            refused.append(str(error))
    if not rows:
        why = f": {refused[0]}" if refused else ", no assistant turn to learn from"
        raise ValueError(f"none of the traces can be trained on{why}")
    if refused:
        logger.warning("%d traces are left out, the first because %s", len(refused), refused[0])
    stats = collator.stats
    dropped = ", ".join(f"{count} {reason}" for reason, count in stats.sites_dropped.most_common())
    logger.info(
        "%d rows, %d hinted turns; without a hint: %s", len(rows), stats.sites, dropped or f"{stats.hints_missing}"
    )
    return rows


def rows_digest(rows: Sequence[TraceRow]) -> str:
    """Return a hash of all token ids and of where they carry loss: a run is resumed with the same rows."""
    digest = hashlib.sha256()
    for row in rows:
        for numbers in (row.ids, row.response_mask, *(site.hinted(row.ids) for site in row.sites)):
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(array("i", numbers).tobytes())
    return digest.hexdigest()


def check_same_rows(saved: str, own: str) -> None:
    """Raise ValueError unless the digest of a checkpoint's rows equals that of the rows that are here."""
    if saved != own:
        raise ValueError(
            "the checkpoint was made with other traces, or with the same rendered in another way: resume with the same "
            "data and settings, or start a new run"
        )


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
        """Return the next rows as a batch."""
        batch = self._collator.collate([self._rows[place] for place in self._positions.next(self._batch_size)])
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the position among the rows, and the rows' digest."""
        return {"rows": self._digest, "position": self._positions.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError if it is of other traces."""
        check_same_rows(state["rows"], self._digest)
        self._positions.load_state_dict(state["position"])
