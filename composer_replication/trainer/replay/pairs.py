"""Channel 3's pairs, batch by batch, in an order of their own."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence

import torch

from composer_replication.trainer.epoch_positions import EpochPositions
from composer_replication.trainer.replay.preference_rows import PreferenceRow


class ReplayPairs:
    """An endless supply of batches of pairs.

    Args:
        rows: the pairs, in the same order in every process.
        references: (N, 2) summed log-probabilities of chosen and rejected under the reference policy; None: the loss
            needs none.
        seed: with the epoch, of the order.
        pad_token_id: what rows are filled up with. It is masked.
        process_index: which process this is.
        num_processes: how many there are.

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
    ) -> None:
        check_rows(rows)
        self._rows = rows
        self._digest = int(rows_digest(rows)[:15], 16)
        self._references: torch.Tensor | None = None
        self.references = references
        self._pad_token_id = pad_token_id
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
        """How often the pairs have been seen."""
        return self._positions.epoch

    def next_batch(self, size: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """The next `size` pairs of this process; a batch may reach into the next epoch.

        Returns:
            `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` (size, T), padded on the right, and with
            references `dpo_{chosen,rejected}_ref_logprobs` (size,).

        Raises:
            ValueError: a size below 1.
        """
        places = self._positions.next(size)
        batch = preference_batch([self._rows[place] for place in places], pad_token_id=self._pad_token_id)
        if self._references is not None:
            chosen, rejected = self._references[places].unbind(1)
            batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen, rejected
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, int]:
        """The position, and what it is a position in; the same in every process."""
        return {**self._positions.state_dict(), "pairs": self._digest}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on behind the batches that were drawn before `state_dict`; the number of processes may be another.

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


def preference_batch(rows: Sequence[PreferenceRow], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Rows as `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}`, padded on the right to the longest."""
    batch: dict[str, torch.Tensor] = {}
    for side in ("chosen", "rejected"):
        responses = [row.chosen_ids if side == "chosen" else row.rejected_ids for row in rows]
        prompts_B1 = torch.tensor([len(row.prompt_ids) for row in rows])[:, None]
        lengths_B1 = prompts_B1 + torch.tensor([len(response) for response in responses])[:, None]
        column_T = torch.arange(int(lengths_B1.max()))
        ids_BT = torch.full((len(rows), len(column_T)), pad_token_id)
        for number, (row, response) in enumerate(zip(rows, responses, strict=True)):
            ids_BT[number, : int(lengths_B1[number])] = torch.tensor([*row.prompt_ids, *response])
        batch[f"dpo_{side}_input_ids"] = ids_BT
        batch[f"dpo_{side}_attention_mask"] = (column_T < lengths_B1).long()
        batch[f"dpo_{side}_response_mask"] = ((column_T >= prompts_B1) & (column_T < lengths_B1)).long()
    return batch


def check_rows(rows: Sequence[PreferenceRow]) -> None:
    """Raise a ValueError if there is no pair, or one that lacks a prompt or a response."""
    if not rows:
        raise ValueError("rows is empty: channel 3 needs at least one preference pair")
    for number, row in enumerate(rows):
        for name, ids in row._asdict().items():
            if not ids:
                raise ValueError(f"rows[{number}].{name} is empty: a pair has a prompt and two responses")


def rows_digest(rows: Sequence[PreferenceRow]) -> str:
    """A hash of all token ids, and of which part of which pair they stand in."""
    digest = hashlib.sha256()
    for row in rows:
        for ids in row:
            digest.update(len(ids).to_bytes(8, "little"))
            digest.update(array("q", ids).tobytes())
    return digest.hexdigest()
