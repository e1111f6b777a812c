"""Channel 3's pairs: rendered, scored once by the reference policy, drawn batch by batch in an order of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from composer_replication.channels.preference import Preference
from composer_replication.teacher_replay.pair_files import training_pairs
from composer_replication.trainer.preference_rows import (
    PairInput,
    PreferenceRow,
    PreferenceStats,
    check_rows,
    parsed,
    preference_batch,
    preference_rows,
    rows_digest,
)
from composer_replication.trainer.reference_logprobs import pair_logprobs, reference_logprobs, reference_policy
from composer_replication.trainer.trace_rows import EpochPositions

logger = logging.getLogger(__name__)


def given_pairs(replay_dataset: Iterable[Any] | str | os.PathLike[str] | None) -> list[PairInput]:
    """Return the pairs that a trainer was given, directly or as a file.

    Raises:
        ValueError: the file is missing, or holds something else.
    """
    if not isinstance(replay_dataset, str | os.PathLike):
        return [parsed(pair, number) for number, pair in enumerate(replay_dataset or ())]
    try:
        return list(training_pairs(replay_dataset))
    except (ValueError, OSError) as error:
        raise ValueError(f"replay_dataset: {error}") from None


def replay_pairs(
    trainer: Trainer,
    tokenizer: Any,
    pairs: Iterable[PairInput],
    settings: Preference,
    *,
    batch_size: int,
    reference_cache: str | os.PathLike[str] | None,
) -> ReplayPairs:
    """Render the pairs, and score them once by the reference policy: the trainer's model as it is now, with its
    adapters off.

    One process scores them and writes the cache (by default, in the trainer's output directory), the others read it.

    Raises:
        ValueError: no pair can be used; the message counts why.
    """
    model, accelerator = trainer.model, trainer.accelerator
    stats = PreferenceStats()
    rows = preference_rows(tokenizer, pairs, max_length=settings.max_length, stats=stats)
    dropped = stats.dropped()
    if not rows:
        raise ValueError(f"replay_dataset has no pair that can be used: {dropped or 'it is empty'}")
    if dropped:
        logger.warning("replay_dataset: %d pairs are used, others are left out: %s", stats.pairs, dropped)
    if stats.prompts_truncated:
        logger.warning(
            "replay_dataset: %d prompts are longer than replay_max_length: %d messages after the task are left out",
            *(stats.prompts_truncated, stats.prompt_messages_left_out),
        )

    def score(part: Sequence[PreferenceRow]) -> torch.Tensor:
        # The trainer may have wrapped its model since.
        policy = trainer.model
        with accelerator.autocast():
            return pair_logprobs(policy, part, tokenizer.pad_token_id, batch_size, next(policy.parameters()).device)

    references = None
    if settings.needs_reference:
        with accelerator.main_process_first(), accelerator.autocast(), reference_policy(model) as reference:
            references = reference_logprobs(
                reference,
                rows,
                pad_token_id=tokenizer.pad_token_id,
                batch_size=batch_size,
                cache_dir=Path(reference_cache or Path(trainer.args.output_dir, "reference_logprobs")),
                device=next(model.parameters()).device,
                precision=accelerator.mixed_precision,
            )
    return ReplayPairs(
        rows,
        references=references,
        seed=trainer.args.seed,
        pad_token_id=tokenizer.pad_token_id,
        process_index=accelerator.process_index,
        num_processes=accelerator.num_processes,
        score=score,
        reduce=lambda values: accelerator.reduce(values.to(accelerator.device), reduction="sum").cpu(),
    )


class ReplayPairs:
    """An endless supply of batches of pairs.

    Args:
        rows: the pairs, in the same order in every process.
        references: (N, 2) summed log-probabilities of chosen and rejected under the reference policy; None: the loss
            needs none.
        seed: of the order, together with the epoch.
        pad_token_id: id of the padding, which is masked.
        process_index: index of this process.
        num_processes: number of processes.
        score: (n, 2) summed log-probabilities of rows under the policy as it is now; needed to refresh.
        reduce: sums a tensor over all processes.

    Raises:
        ValueError: no rows, a row with an empty part, references of another shape or not finite, or a process outside
            the range.
    """

    def __init__(
        self,
        rows: Sequence[PreferenceRow],
        *,
        references: torch.Tensor | None,
        seed: int,
        pad_token_id: int,
        process_index: int = 0,
        num_processes: int = 1,
        score: Callable[[Sequence[PreferenceRow]], torch.Tensor] | None = None,
        reduce: Callable[[torch.Tensor], torch.Tensor] = lambda values: values,
    ) -> None:
        check_rows(rows)
        self._rows = rows
        self._digest = int(rows_digest(rows)[:15], 16)
        self._references: torch.Tensor | None = None
        self.references = references
        self._pad_token_id = pad_token_id
        self._share = process_index, num_processes
        self._score = score
        self._reduce = reduce
        self.resting: frozenset[int] = frozenset()
        self._positions = EpochPositions(len(rows), seed=seed, process_index=process_index, num_processes=num_processes)

    def __len__(self) -> int:
        """The number of pairs, of all processes."""
        return len(self._rows)

    @property
    def references(self) -> torch.Tensor | None:
        """The reference policy's log-probabilities, (N, 2)."""
        return self._references

    @references.setter
    def references(self, references: torch.Tensor | None) -> None:
        if references is not None:
            if references.shape != (len(self._rows), 2):
                raise ValueError(f"references has shape {tuple(references.shape)}, expected ({len(self._rows)}, 2)")
            if not bool(torch.isfinite(references).all()):
                raise ValueError("references holds values that are not finite: compute them again")
        self._references = references

    @property
    def epoch(self) -> float:
        """The number of times the pairs have been seen."""
        return self._positions.epoch

    @property
    def all_rest(self) -> bool:
        """Whether there is no pair to draw."""
        return len(self.resting) == len(self)

    @torch.no_grad()
    def refresh(self, settings: Preference) -> None:
        """Let the pairs rest that the policy prefers by `settings.refresh_margin` now, and only those.

        Every process scores a share of the pairs, as many as the others, and all learn the same margins.
        """
        assert self._score is not None
        assert settings.refresh_margin is not None
        index, processes = self._share
        mine = [(index + processes * n) % len(self) for n in range(-(-len(self) // processes))]
        rows = [self._rows[place] for place in mine]
        lengths_N2 = torch.tensor([[len(row.chosen_ids), len(row.rejected_ids)] for row in rows])
        references_N2 = self._references[mine] if settings.needs_reference and self._references is not None else None
        chosen_N, rejected_N = settings.rewards(self._score(rows), lengths_N2, references_N2).unbind(1)
        margins_N = torch.zeros(len(self), dtype=chosen_N.dtype)
        for number, place in enumerate(mine):
            if index + processes * number < len(self):  # the rest are there so that all processes do the same passes
                margins_N[place] = chosen_N[number] - rejected_N[number]
        margins_N = self._reduce(margins_N)
        self.resting = frozenset((margins_N >= settings.refresh_margin).nonzero().flatten().tolist())

    def next_batch(self, size: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the next `size` pairs of this process that do not rest; a batch may reach into the next epoch.

        Returns:
            `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` (size, T), padded on the right, and with
            references `dpo_{chosen,rejected}_ref_logprobs` (size,).

        Raises:
            ValueError: a size below 1, or all pairs rest.
        """
        places = self._positions.next(size, self.resting)
        batch = preference_batch([self._rows[place] for place in places], pad_token_id=self._pad_token_id)
        if self._references is not None:
            chosen, rejected = self._references[places].unbind(1)
            batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen, rejected
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the position, a digest of the pairs, and those that rest; the same in every process."""
        return {**self._positions.state_dict(), "pairs": self._digest, "resting": sorted(self.resting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batches that were drawn before `state_dict`; the number of processes may differ.

        Raises:
            ValueError: the state is of other pairs or another seed, or lacks something.
        """
        if "pairs" not in state:
            raise ValueError("the replay pairs' state lacks pairs")
        if state["pairs"] != self._digest:
            raise ValueError(
                f"the replay pairs' state was saved with other pairs ({state['pairs']}, here {self._digest}): resume "
                "with the same replay_dataset, or start a new run"
            )
        self._positions.load_state_dict(state)
        self.resting = frozenset(state.get("resting", ()))
