"""Channel 3's pairs in an order of their own.

The order is a function of seed and epoch alone, so it neither takes from nor gives to the random state that rollouts
are sampled with, and a run that was killed goes on with exactly the next pairs.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Mapping, Sequence

import torch

from composer_replication.trainer.preference_rows import PreferenceRow


class ReplayPairs:
    """An endless supply of batches of pairs.

    The epochs' permutations form one stream. Process p of n takes every n-th pair of it, from the p-th on: all of them
    together see each pair once in an epoch, whether or not the number of pairs divides.
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
        """Take the pairs.

        Args:
            rows: the pairs, in the same order in every process.
            references: (N, 2) summed log-probabilities of chosen and rejected under the reference policy; None: the
                loss needs none.
            seed: with the epoch, of the order.
            pad_token_id: what rows are filled up with. It is masked.
            process_index: which process this is.
            num_processes: how many there are.

        Raises:
            ValueError: no rows, a row with an empty part, references of another shape or not finite, or a process
                outside the range.
        """
        check_rows(rows)
        if references is not None:
            if references.shape != (len(rows), 2):
                raise ValueError(f"references has shape {tuple(references.shape)}, expected ({len(rows)}, 2)")
            if not bool(torch.isfinite(references).all()):
                raise ValueError("references holds values that are not finite: compute them again")
        if not 0 <= process_index < num_processes:
            raise ValueError(
                f"process_index must be in 0..{num_processes - 1} (num_processes - 1), got {process_index}"
            )
        self._rows = rows
        self._pairs = int(rows_digest(rows)[:15], 16)
        self._references = references
        self._seed = seed
        self._pad_token_id = pad_token_id
        self._process_index = process_index
        self._num_processes = num_processes
        # Where in the stream process 0 goes on: it says it for all, since all have drawn equally often.
        self._position = 0
        self._order: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        """The number of pairs, of all processes."""
        return len(self._rows)

    @property
    def epoch(self) -> float:
        """How often the pairs have been seen."""
        return self._position / len(self._rows)

    def next_batch(self, size: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """The next `size` pairs of this process; a batch may reach into the next epoch.

        Returns:
            `dpo_{chosen,rejected}_{input_ids,attention_mask,response_mask}` (size, T), padded on the right, and with
            references `dpo_{chosen,rejected}_ref_logprobs` (size,).

        Raises:
            ValueError: a size below 1.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        places = [self._place(self._position + self._process_index + self._num_processes * n) for n in range(size)]
        self._position += self._num_processes * size
        batch = preference_batch([self._rows[place] for place in places], pad_token_id=self._pad_token_id)
        if self._references is not None:
            chosen, rejected = self._references[places].unbind(1)
            batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"] = chosen, rejected
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def state_dict(self) -> dict[str, int]:
        """The position, and what it is a position in; the same in every process."""
        return {"position": self._position, "seed": self._seed, "pairs": self._pairs}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on behind the batches that were drawn before `state_dict`; the number of processes may be another.

        Raises:
            ValueError: the state is of other pairs or another seed, or lacks something.
        """
        mine = self.state_dict()
        if missing := mine.keys() - state.keys():
            raise ValueError(f"the replay pairs' state lacks {', '.join(sorted(missing))}")
        for name, what in (("seed", "another seed"), ("pairs", "other pairs")):
            if state[name] != mine[name]:
                raise ValueError(
                    f"the replay pairs' state was saved with {what} ({state[name]}, here {mine[name]}): resume with "
                    "the same replay_dataset and seed, or start a new run"
                )
        if state["position"] < 0:
            raise ValueError(f"the replay pairs' position must not be negative, got {state['position']}")
        self._position = int(state["position"])

    def _place(self, stream_position: int) -> int:
        epoch, place = divmod(stream_position, len(self._rows))
        if self._order is None or self._order[0] != epoch:
            order = list(range(len(self._rows)))
            # Seeded by a text, `random` hashes it: neighbouring seeds and epochs have nothing in common.
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1][place]


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
