"""Which examples come next, from a position alone: shuffled per epoch, shared out among processes, resumable."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class EpochPositions:
    """An endless walk over `count` examples; every epoch is a new permutation that `seed` and its number decide.

    The global random state is neither used nor changed. All processes together see every example once per epoch, up to
    a remainder that is smaller than their number.
    """

    def __init__(self, count: int, *, seed: int, process_index: int = 0, num_processes: int = 1) -> None:
        if count < 1:
            raise ValueError("there must be at least one example to draw from, got none")
        self._count = count
        self._seed = seed
        self._process_index = process_index
        self._num_processes = num_processes
        self._taken = 0
        self._epoch = -1
        self._order: list[int] = []

    def next(self, size: int) -> list[int]:
        """The next `size` examples of this process."""
        first = self._taken
        self._taken += size
        return [self._at(position * self._num_processes + self._process_index) for position in range(first, self._taken)]

    def state_dict(self) -> dict[str, int]:
        """How many examples have been taken, and of how many."""
        return {"taken": self._taken, "count": self._count, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where the state was taken.

        Raises:
            ValueError: it is of another data set or seed.
        """
        if (state["count"], state["seed"]) != (self._count, self._seed):
            raise ValueError(
                f"the position is in {state['count']} examples shuffled by seed {state['seed']}, here are {self._count} "
                f"and seed {self._seed}: resume with the same data and seed"
            )
        self._taken = state["taken"]

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = torch.randperm(self._count, generator=generator).tolist()
            self._epoch = epoch
        return self._order[place]
