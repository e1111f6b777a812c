"""An average over N replicas through an object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import torch

from composer_replication._arguments import check_choice, check_count, check_non_negative, check_positive
from composer_replication._optional import lazy_exports
from composer_replication.diloco.serverless.averaging import Averaging
from composer_replication.diloco.serverless.codecs import CodecName
from composer_replication.diloco.serverless.exchange import Exchange
from composer_replication.diloco.serverless.membership import agree_on_run_id
from composer_replication.diloco.serverless.one_round import Gradient, Terms
from composer_replication.diloco.serverless.packing import Layout, flat_view, unpack_into
from composer_replication.diloco.serverless.participants import Members, Quorum
from composer_replication.diloco.serverless.place import Place
from composer_replication.diloco.serverless.store import ObjectStore

if TYPE_CHECKING:
    from composer_replication.diloco.serverless.manager import MockManager, _ImmediateWork

__all__ = ["MockManager", "ObjectStoreAllReduce", "_ImmediateWork"]


class ObjectStoreAllReduce:
    """Averages tensors over all ranks of a run, in rounds that every rank makes in the same order.

    Args:
        uri: where the ranks meet: a folder or `file://`, `s3://`, `gs://`, `az://`, `hf://`, `memory://` (threads).
        rank: of this replica, from 0.
        world_size: number of replicas. 1 leaves tensors as they are and needs no store.
        round_id: number of the first round; None is 0.
        timeout_s: limit for the other ranks to come to a round.
        poll_interval_s: longest pause between two looks; the first ones are much shorter.
        run_id: name of the run in `uri`, the same on all ranks and never used before. None: the ranks agree on one at
            the first round; then a rank that ends cannot come back.
        codec: "float32", "bfloat16", "int8", "int4", "sparse" or "auto" (`codecs`).
        averaging: "mean", "tokens" or "decoupled" (`averaging`).
        min_participants: how many suffice for a round, after `grace_s`; None waits for all. "decoupled" has more than
            half of them for None. Needs a store with conditional creation, so not `hf://`.
        grace_s: how long a round waits for the others when there are enough; also for a reducer that is silent.
        retry_s: how long a request to the store may fail before the round does.
        storage_options: for the fsspec file system; never in a message.

    Raises:
        ValueError: an argument out of range, or one that `uri` cannot do.
        MissingExtraError: the package for `uri` is not installed.
    """

    def __init__(
        self,
        uri: str,
        rank: int,
        world_size: int,
        *,
        round_id: int | None = None,
        timeout_s: float = 1800.0,
        poll_interval_s: float = 1.0,
        run_id: str | None = None,
        codec: str = "float32",
        averaging: str = "mean",
        min_participants: int | None = None,
        grace_s: float = 10.0,
        retry_s: float = 60.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_count("world_size", world_size)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank!r}: it must be from 0 to {world_size - 1}, for world_size {world_size}")
        check_non_negative("round_id", round_id or 0)
        check_positive("timeout_s", timeout_s)
        check_positive("poll_interval_s", poll_interval_s)
        check_non_negative("grace_s", grace_s)
        check_choice("codec", codec, get_args(CodecName))
        check_choice("averaging", averaging, get_args(Averaging))
        if run_id is not None and (not run_id or not all(one.isalnum() or one in "-_." for one in run_id)):
            raise ValueError(f"run_id is {run_id!r}: use letters, digits, '-', '_' and '.'")
        if averaging == "decoupled" and min_participants is None:
            min_participants = world_size // 2 + 1
        if min_participants is not None:
            check_count("min_participants", min_participants)
            if min_participants > world_size:
                raise ValueError(f"min_participants is {min_participants}, more than world_size {world_size}")
        self.store = ObjectStore(uri, retry_s=retry_s, storage_options=storage_options)
        if min_participants is not None and not self.store.can_create:
            raise ValueError(
                f"{self.store.scheme}:// cannot create objects conditionally ({uri}), which rounds without some ranks "
                "need: leave out min_participants and averaging='decoupled', or use another store"
            )
        self.rank, self.world_size = rank, world_size
        self.averaging, self.min_participants, self.grace_s = averaging, min_participants, grace_s
        self._codec, self._timeout_s, self._poll_interval_s = codec, timeout_s, poll_interval_s
        self._run_id = run_id
        self._exchange: Exchange | None = None
        self.quorum: Quorum | None = None
        self._round = round_id or 0
        self.last_members = Members(tuple(range(world_size)))

    @property
    def round_id(self) -> int:
        """Number of the next round."""
        return self._round

    @round_id.setter
    def round_id(self, number: int) -> None:
        self._round = number

    @property
    def exchange(self) -> Exchange:
        """The run that this rank takes part in; the ranks agree on its id first if they were given none."""
        if self._exchange is None:
            run_id = self._run_id or agree_on_run_id(
                self.store,
                self.rank,
                self.world_size,
                timeout_s=self._timeout_s,
                poll_interval_s=self._poll_interval_s,
            )
            place = Place(self.store, run_id, self.rank, self.world_size, self._timeout_s, self._poll_interval_s)
            if self.min_participants is not None:
                self.quorum = Quorum(place, self.min_participants, self.grace_s)
            self._exchange = Exchange(Terms(place, self._codec, self.averaging, self.quorum))
        return self._exchange

    @property
    def place(self) -> Place:
        """Where the ranks of the run meet."""
        return self.exchange.place

    def allreduce(self, tensor: torch.Tensor, *, name: str | None = None) -> torch.Tensor:
        """Average one tensor, in place; return it. Raises as `allreduce_many`."""
        self.allreduce_many([tensor], names=None if name is None else [name])
        return tensor

    def allreduce_many(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        names: Sequence[str] | None = None,
        tokens: float = 0.0,
        steps: float = 0.0,
    ) -> None:
        """Average several tensors in one round, in place. They are as they were if an error is raised.

        Args:
            tensors: floating-point tensors, the same on every rank.
            names: their names, for messages, and to know embeddings ("decoupled").
            tokens: what they were trained on, if `averaging` weighs by it.
            steps: in so many steps.

        Raises:
            TimeoutError: ranks are missing; it names them.
            ValueError: another rank's tensors or settings differ, values are not finite, or an object stays damaged.
            RoundClosedError: the others went on without this rank, and are too far ahead.
            StoreError: the store fails for good.
        """
        layout = Layout.of(tensors, names)
        if self.world_size > 1:
            unpack_into(self.average(Gradient(flat_view(tensors), layout, tokens, steps)), tensors)
        else:
            self._round += 1

    def average(self, gradient: Gradient) -> list[torch.Tensor]:
        """Make one round, and return the average as a flat vector in consecutive pieces."""
        if self.averaging != "mean" and not gradient.tokens > 0:
            raise ValueError(
                f"averaging={self.averaging!r} weighs by tokens and rank {self.rank} reports {gradient.tokens:g} in "
                f"round {self._round}: pass tokens and steps, or report_progress() before the round"
            )
        average, self.last_members = self.exchange.run(self._round, gradient)
        self._round += 1
        return average


__getattr__, __dir__ = lazy_exports(
    __name__,
    dict.fromkeys(("MockManager", "_ImmediateWork"), "composer_replication.diloco.serverless.manager"),
)
