"""The order of examples: shuffled per epoch, split among processes, resumable.

The order is a function of seed and epoch alone, so it does not touch the random state that rollouts are
sampled with, and a resumed run continues with exactly the next examples.
"""

from __future__ import annotations

import random
from collections.abc import Mapping


class EpochPositions:
    """An endless walk over `count` examples.

    The epochs' permutations form one stream. Process p of n takes every n-th example of it, from the p-th on: all of
    them together see each example once in an epoch, whether or not the number of examples divides.

    Raises:
        ValueError: no examples, or a process outside the range.
    """

    def __init__(self, count: int, *, seed: int, process_index: int = 0, num_processes: int = 1) -> None:
        if count < 1:
            raise ValueError("there must be at least one example to draw from, got none")
        if not 0 <= process_index < num_processes:
            raise ValueError(
                f"process_index must be in 0..{num_processes - 1} (num_processes - 1), got {process_index}"
            )
        self._count = count
        self._seed = seed
        self._process_index = process_index
        self._num_processes = num_processes
        # The position of process 0 in the stream; it holds for all, since all have drawn equally often.
        self._position = 0
        self._order: tuple[int, list[int]] | None = None

    @property
    def epoch(self) -> float:
        """Number of passes over the examples so far."""
        return self._position / self._count

    def next(self, size: int) -> list[int]:
        """The next `size` examples of this process; they may reach into the next epoch.

        Raises:
            ValueError: a size below 1.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        places = [self._place(self._position + self._process_index + self._num_processes * n) for n in range(size)]
        self._position += self._num_processes * size
        return places

    def state_dict(self) -> dict[str, int]:
        """The position, and what it is a position in; the same in every process."""
        return {"position": self._position, "seed": self._seed, "count": self._count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after what was drawn before `state_dict`; the number of processes may differ.

        Raises:
            ValueError: the state is of other examples or another seed, or lacks something.
        """
        mine = self.state_dict()
        if missing := mine.keys() - state.keys():
            raise ValueError(f"the position's state lacks {', '.join(sorted(missing))}")
        for name, what in (("seed", "another seed"), ("count", "another number of examples")):
            if state[name] != mine[name]:
                raise ValueError(
                    f"the position was saved with {what} ({state[name]}, here {mine[name]}): resume with the same data "
                    "and seed, or start a new run"
                )
        if state["position"] < 0:
            raise ValueError(f"a position must not be negative, got {state['position']}")
        self._position = int(state["position"])

    def _place(self, stream_position: int) -> int:
        epoch, place = divmod(stream_position, self._count)
        if self._order is None or self._order[0] != epoch:
            order = list(range(self._count))
            # Seeded by a text, `random` hashes it: neighbouring seeds and epochs have nothing in common.
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1][place]
