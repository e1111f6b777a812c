"""From whatever holds preference pairs to the batches of channel 3, with real reference log-probabilities."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from composer_replication.trainer.replay.pair_files import pairs_in
from composer_replication.trainer.replay.pairs import ReplayPairs
from composer_replication.trainer.replay.preference_rows import PreferenceStats, preference_rows
from composer_replication.trainer.replay.reference_logprobs import reference_logprobs, reference_policy

logger = logging.getLogger(__name__)


def given_pairs(replay_dataset: Iterable[Any] | str | os.PathLike[str] | None) -> list[Any]:
    """The pairs that a trainer was given, or those in the file that it was given.

    Raises:
        ValueError: the file is missing, or holds something else.
    """
    if not isinstance(replay_dataset, str | os.PathLike):
        return list(replay_dataset or ())
    try:
        return list(pairs_in(replay_dataset))
    except (ValueError, OSError) as error:
        raise ValueError(f"replay_dataset: {error}") from None


def replay_pairs(
    model: nn.Module,
    tokenizer: Any,
    pairs: Iterable[Any],
    *,
    accelerator: Any,
    max_length: int,
    needs_reference: bool,
    cache_dir: Path,
    batch_size: int,
    seed: int,
) -> ReplayPairs:
    """Render the pairs, and score them once by the policy as it is now, which is the reference, or with adapters off.

    One process scores them and writes the cache, the others read it.

    Raises:
        ValueError: no pair can be used; the message counts why.
    """
    stats = PreferenceStats()
    rows = preference_rows(tokenizer, pairs, max_length=max_length, stats=stats)
    dropped = ", ".join(f"{count} {reason}" for reason, count in stats.pairs_dropped.most_common())
    if not rows:
        raise ValueError(f"replay_dataset has no pair that can be used: {dropped or 'it is empty'}")
    if dropped:
        logger.warning("replay_dataset: %d pairs are used, others are left out: %s", stats.pairs, dropped)
    if stats.prompts_truncated:
        logger.warning("replay_dataset: %d prompts lost their beginning to max_length", stats.prompts_truncated)
    references = None
    if needs_reference:
        with accelerator.main_process_first(), accelerator.autocast(), reference_policy(model) as reference:
            references = reference_logprobs(
                reference,
                rows,
                pad_token_id=tokenizer.pad_token_id,
                batch_size=batch_size,
                cache_dir=cache_dir,
                device=next(model.parameters()).device,
                precision=accelerator.mixed_precision,
            )
    return ReplayPairs(
        rows,
        references=references,
        seed=seed,
        pad_token_id=tokenizer.pad_token_id,
        process_index=accelerator.process_index,
        num_processes=accelerator.num_processes,
    )
