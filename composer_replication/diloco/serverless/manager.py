"""The place of `torchft.Manager` where replicas only share an object store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from typing import Any

import torch

from composer_replication.diloco.serverless import membership
from composer_replication.diloco.serverless.allreduce import ObjectStoreAllReduce
from composer_replication.diloco.serverless.one_round import Gradient
from composer_replication.diloco.serverless.packing import Layout, pack, unpack_into
from composer_replication.diloco.serverless.participants import RoundClosedError
from composer_replication.diloco.serverless.threads import in_background
from composer_replication.diloco.state_file import State, dump_state, state_digest

log = logging.getLogger(__name__)


class _Count(int):
    """A number that can be called, as torchft's `num_participants()` is."""

    def __call__(self) -> int:
        return int(self)


class _ImmediateWork:
    """A finished piece of work with the methods of torch's `Work`."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self._tensor = tensor

    def wait(self, timeout: object = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has the tensor."""
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._tensor)
        return future


class _RoundWork(_ImmediateWork):
    """A tensor that is averaged with the others of its round."""

    def __init__(self, tensor: torch.Tensor, manager: ObjectStoreManager) -> None:
        super().__init__(tensor)
        self._manager = manager

    def wait(self, timeout: object = None) -> bool:
        """Wait for the round; the tensor is averaged then."""
        self._manager.wait()
        return True


class ObjectStoreManager:
    """Gives torchft's outer loop its averages through an `ObjectStoreAllReduce`.

    The tensors that are queued by `allreduce` make one round, which runs in the background from `launch` on, or from
    the first `wait`. A replica that comes late, or comes back, takes over the others' state in `join`, which
    `start_quorum` calls if nobody did; so does one that the others went on without. All methods are for one thread.

    `has_average` is set by whoever resumes with the average of a round in flight; after `join`, `average_counts` says
    whether it is to be applied. `bytes_up` and `bytes_down` count what went over the wire; `last_participants` are the
    ranks of the last round.
    """

    heals_to_shared = True
    """A healed replica starts its round from the shared parameters: the round waits for it, or ends without it."""

    def __init__(self, store: ObjectStoreAllReduce) -> None:
        self._store = store
        self.rank = store.rank
        self.num_participants = _Count(store.world_size)
        self.names: Sequence[str] | None = None
        self.digest: Callable[[], str] | None = None
        self.has_average = False
        self.average_counts = store.world_size == 1
        self.never_waits = store.averaging == "decoupled"
        self._use_async_quorum = False
        self._step = store.round_id
        self._state_dict_fns: dict[str, tuple[Any, Any]] = {}
        self._tokens = self._steps = 0.0
        self._sent = 0.0, 0.0
        self._queued: list[torch.Tensor] = []
        self._round: Future[list[torch.Tensor]] | None = None
        self._has_joined = store.world_size == 1
        self._has_healed = False

    @property
    def bytes_up(self) -> int:
        """Bytes sent so far."""
        return self._store.store.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes received so far."""
        return self._store.store.bytes_down

    @property
    def last_participants(self) -> tuple[int, ...]:
        """Ranks whose gradients are in the last average."""
        return self._store.last_members.ranks

    def join(self) -> None:
        """Begin the run with the other replicas, or take over the state of one that has begun; only once.

        Raises:
            TimeoutError: replicas are missing, or nobody answers.
        """
        if self._has_joined:
            return
        self._has_joined = True
        state, self.average_counts = membership.begin(
            self._store.place,
            self._step,
            self.digest() if self.digest is not None else state_digest(self._saved()),
            self._state,
            has_average=self.has_average,
            min_participants=self._store.min_participants,
            grace_s=self._store.grace_s,
        )
        if state is not None:
            self._take_over(state)

    def report_progress(self, tokens: float, steps: float) -> None:
        """Count what this replica was trained on since the last round."""
        self._tokens += tokens
        self._steps += steps

    def start_quorum(self, *_: Any, **__: Any) -> None:
        """Begin a round; join the run first if that was not done, as torchft's own DiLoCo does not."""
        self.join()
        self._has_healed = False

    def wait_quorum(self) -> int:
        """The number of replicas."""
        return int(self.num_participants)

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> _ImmediateWork:
        """Queue a tensor for the round; it is averaged, in place, when the returned work was waited for."""
        self._queued.append(tensor)
        return _RoundWork(tensor, self)

    def launch(self) -> None:
        """Start the round of the queued tensors in the background."""
        if self._round is not None or not self._queued or self._has_healed:
            return
        gradient = Gradient(
            pack(self._queued), Layout.of(self._queued, self._fitting_names()), self._tokens, self._steps
        )
        self._sent = self._tokens, self._steps
        self._tokens = self._steps = 0.0
        if self._store.world_size > 1:
            self._round = in_background(lambda: self._store.average(gradient))

    def is_done(self) -> bool:
        """Whether the launched round has ended. One that waits for replicas which ask to join lets them in."""
        if self._round is not None and not self._round.done():
            self._let_in(self._waiting_for_join())
        return self._round is None or self._round.done()

    def is_averaged(self) -> bool:
        """Whether the launched round has ended with an average."""
        return self._round is None or (self._round.done() and self._round.exception() is None)

    def wait(self) -> None:
        """Wait for the round, and put the averages into the queued tensors."""
        if not self._queued:
            return
        self.launch()
        tensors, self._queued = self._queued, []
        running, self._round = self._round, None
        if running is None:
            return
        try:
            unpack_into(self._result(running), tensors)
        except RoundClosedError as error:
            log.warning("%s: taking over their state", error)
            self._store.exchange.leave(self._step)
            self._take_over(membership.ask_to_join(self._store.place))
            self._tokens = self._steps = 0.0
            self._has_healed = True
        except BaseException:
            self._store.exchange.stop()
            raise
        else:
            self.num_participants = _Count(len(self.last_participants))

    def should_commit(self, *_: Any, **__: Any) -> bool:
        """True, and the round counts; False if this replica took over another's state instead of averaging."""
        self.wait()
        if self._has_healed:
            return False
        self._step += 1
        self._store.round_id = self._step
        if self.never_waits:
            # The average has taken the place of the steps that were made while it was waited for.
            self._tokens = self._steps = 0.0
        return True

    def abandon(self) -> None:
        """Leave the launched round, if there is one, to the others."""
        if self._round is not None:
            self._store.exchange.stop()
        self._queued, self._round = [], None

    def after_round(self) -> None:
        """Let those in who asked to join, with the state after the round; the outer loop calls it."""
        members = self._store.last_members
        if members.joining and members.leader == self.rank and not self._has_healed:
            self._let_in(members.joining)

    def current_step(self) -> int:
        """Rounds that were committed."""
        return self._step

    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def register_state_dict_fn(self, key: str, load_fn: Any, save_fn: Any) -> None:
        """Register state that a replica takes over when it joins."""
        self._state_dict_fns[key] = (load_fn, save_fn)

    def allow_state_dict_read(self) -> None:
        """State is read only between steps."""

    def disallow_state_dict_read(self) -> None:
        """State is read only between steps."""

    def state_dict(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return tensors and JSON values for a checkpoint: the round, and what the codecs still owe."""
        residuals = {} if self._store.world_size == 1 else self._store.exchange.state_dict()
        numbers = {"step": self._step, "world_size": self._store.world_size}
        # A round that is under way is sent again.
        tokens, steps = self._sent if self._round is not None else (0.0, 0.0)
        return residuals, {**numbers, "tokens": self._tokens + tokens, "steps": self._steps + steps}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; for another number of replicas, only the round."""
        self._step = self._store.round_id = numbers["step"]
        self._tokens, self._steps = numbers["tokens"], numbers["steps"]
        if numbers["world_size"] != self._store.world_size:
            log.warning("the checkpoint is of %d replicas: what the codecs owed is dropped", numbers["world_size"])
        elif self._store.world_size > 1:
            self._store.exchange.load_state_dict(tensors)

    def _result(self, running: Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        while not wait_for_futures([running], timeout=self._store.place.poll_interval_s).done:
            self._let_in(self._waiting_for_join())
        return running.result()

    def _waiting_for_join(self) -> Sequence[int]:
        """The missing ranks, if it falls to this one to answer them."""
        missing = self._store.exchange.waits_for
        lowest = min((rank for rank in range(self._store.world_size) if rank not in missing), default=self.rank)
        return sorted(missing) if lowest == self.rank else []

    def _let_in(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            membership.welcome(self._store.place, rank, self._state)

    def _saved(self) -> dict[str, Any]:
        return {key: save() for key, (_, save) in self._state_dict_fns.items()}

    def _state(self) -> bytes:
        return dump_state({"step": self._step, "state": self._saved()})

    def _take_over(self, taken: State) -> None:
        for key, (load, _) in self._state_dict_fns.items():
            load(taken["state"][key])
        log.info("rank %d goes on from round %d", self.rank, taken["step"])
        self._step = self._store.round_id = taken["step"]
        self._store.exchange.load_state_dict({})
        if self._store.quorum is not None:
            self._store.quorum.expect_all()

    def _fitting_names(self) -> Sequence[str] | None:
        return self.names if self.names is not None and len(self.names) == len(self._queued) else None


MockManager = ObjectStoreManager
