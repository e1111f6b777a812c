"""Traces rendered once, before training: as many rows in a step as the batch size says, however long a trace is."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterable, Sequence

from composer_replication.traces import TraceExample
from composer_replication.trainer.data_collator import ComposerDataCollator
from composer_replication.trainer.traces.rows import TraceRow

logger = logging.getLogger(__name__)


def rendered_traces(examples: Iterable[TraceExample], collator: ComposerDataCollator) -> list[TraceRow]:
    """The rows of all traces that teach something; a trace that the chat template refuses is left out, and said so.

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
        raise ValueError(f"none of the traces can be learnt from{why}")
    if refused:
        logger.warning("%d traces are left out, the first because %s", len(refused), refused[0])
    stats = collator.stats
    dropped = ", ".join(f"{count} {reason}" for reason, count in stats.sites_dropped.most_common())
    logger.info(
        "%d rows, %d hinted turns; without a hint: %s", len(rows), stats.sites, dropped or f"{stats.hints_missing}"
    )
    return rows


def rows_digest(rows: Sequence[TraceRow]) -> str:
    """A hash of all token ids and of where they carry loss: a run is resumed with the same rows."""
    digest = hashlib.sha256()
    for row in rows:
        for numbers in (row.ids, row.response_mask, *(site.ids for site in row.sites)):
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(array("i", numbers).tobytes())
    return digest.hexdigest()


def check_same_rows(saved: str, own: str) -> None:
    """Raise ValueError unless two digests are equal: those of a checkpoint's rows, and of the rows that are here."""
    if saved != own:
        raise ValueError(
            "the checkpoint was made with other traces, or with the same rendered in another way: resume with the same "
            "data and settings, or start a new run"
        )
