"""The outer loop of one replica: torchft's DiLoCo with guards, full healing, checkpoints and a record of each round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch
from torchft.local_sgd import DiLoCo
from torchft.utils import get_stream_context
from torchft.work import _DummyWork

from composer_replication.diloco.outer_state import OuterState, entry
from composer_replication.diloco.torchft_traps import check_buckets

_log = logging.getLogger(__name__)
State: TypeAlias = dict[str, Any]
# Each of them is tried `retries` times more: what fails that often fails for a reason that stays.
_FAILED_ROUNDS = 3
# A checkpoint waits so long for a round in flight; `diloco run` waits longer for a checkpoint.
_CHECKPOINT_S, _LAST_ROUND_S, _LOOK_S = 20.0, 60.0, 0.05
_WHAT_TO_CHECK = (
    "check the logs of the other replicas, that diloco.hostname of each is an address that the others reach, and that "
    "no firewall closes ports between them"
)


@dataclass(frozen=True)
class OuterRound:
    """One sync of one fragment, as this replica saw it.

    Attributes:
        round: rounds committed before this one, so the first is 0; a round that was not committed is tried again.
        participants: replicas whose deltas were averaged.
        committed: whether the average was applied; if not, the local parameters are the shared ones again.
        seconds_waited: time that the inner loop stood still for the round.
        healed: whether this replica took over another one's state since the last round.
        bytes_up: bytes sent for the round.
        bytes_down: bytes received for the round.
        fragment: index of the fragment.
    """

    round: int
    participants: int
    committed: bool
    seconds_waited: float
    healed: bool
    bytes_up: int
    bytes_down: int
    fragment: int


class OuterLoop(DiLoCo):  # type: ignore[misc]
    """A context manager that synchronises the fragments' parameters after every so many steps of `inner_optimizer`.

    A manager may have more than torchft's: `join()` is called before the first step; `launch()` when the tensors of a
    fragment are queued; `is_done()` lets a checkpoint give up a round that takes long, and, with `never_waits`, a
    sync that is not done is postponed by one inner step, and at the end `is_averaged()` says whether it counts;
    `agree(digest)` compares shared states before they are averaged; `meets_first` wants a quorum before the first step
    and an `agree` that says whether anyone has a round, and `meeting_timeout_s` is how long that may fail;
    `heals_to_shared` lets a healed replica begin its round anew;
    `retries` is how often a failed round is tried again at once; `after_round()` is called after every sync; `names`
    and `digest` are set for messages and comparisons; `bytes_up`, `bytes_down` and `last_participants` are figures of
    its rounds.

    `on_skipped` is called with the steps that this replica will not make: it came when the others were at a sync.

    Raises, in a step of the inner optimiser:
        RuntimeError: a quorum had fewer than `min_participants`, round after round failed, or a parameter of this
            replica is not finite.
    """

    def __init__(
        self,
        manager: Any,
        model_fragments: Sequence[torch.nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizers: Sequence[torch.optim.Optimizer],
        *,
        sync_every: int,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        min_participants: int | None = None,
        should_quantize: bool = False,
        on_round: Callable[[OuterRound], None] | None = None,
    ) -> None:
        self._min_participants = min_participants
        self._on_round = on_round
        self._outer = list(outer_optimizers)
        self._more: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._in_flight: int | None = None
        self._waited = 0.0
        self._healed = False
        self._failed_rounds = self._failed_attempts = 0
        self.on_skipped: Callable[[int], None] | None = None
        super().__init__(
            manager,
            list(model_fragments),
            inner_optimizer,
            self._outer,
            sync_every=sync_every,
            should_quantize=should_quantize,
            fragment_sync_delay=fragment_sync_delay,
            fragment_update_alpha=fragment_update_alpha,
        )
        self._state = OuterState(self._fragments, self._outer)
        self._never_waits: bool = getattr(manager, "never_waits", False)
        self._heals_to_shared: bool = getattr(manager, "heals_to_shared", False)
        manager.digest = self.digest
        self._bytes = self._bytes_so_far()
        for fragment in self._fragments:
            check_buckets(fragment)

    def notice(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
        """Register more state that a healed replica takes over, such as the trainer's position."""
        if key in self._more:
            raise ValueError(f"state {key!r} is registered already: choose another key")
        self._more[key] = (load, save)

    def restore_global(self) -> None:
        """Set the local parameters to the shared ones."""
        self._restore_parameters()

    def digest(self) -> str:
        """Return a hash of the shared parameters and the outer momentum: equal on replicas that are in step."""
        return self._state.digest()

    def state_dict(self) -> tuple[dict[str, torch.Tensor], State]:
        """Return tensors and JSON values for a checkpoint; the local parameters are the model's own business.

        A round in flight is waited for, and its average is saved: the resumed run applies it at the same step. If that
        fails or takes long, or the manager never waits, the resumed run sends again.
        """
        # Others may have left before they sent.
        has_average = self._in_flight is not None and self._is_done_within(0.0 if self._never_waits else _CHECKPOINT_S)
        if has_average:
            self._retry()
            self._wait_for_average()
        # Who waited may have healed instead, and then has nothing in flight.
        has_average = has_average and self._in_flight is not None and self._error() is None
        tensors = {name: tensor.detach().clone() for name, tensor in self._state.shared().items()}
        numbers: State = {"local_step": self._local_step, "in_flight": self._in_flight if has_average else None}
        if has_average:
            averages = self._fragments[self._in_flight]._grads
            tensors |= {f"average/{name}": tensor.clone() for name, tensor in averages.items()}
        elif self._in_flight is not None:
            numbers["local_step"] = self._before_sending
        if hasattr(self._manager, "state_dict"):
            state = self._manager.state_dict()
            numbers["manager_has_tensors"] = isinstance(state, tuple)
            of_manager, numbers["manager"] = state if isinstance(state, tuple) else ({}, state)
            tensors |= {f"manager/{name}": tensor for name, tensor in of_manager.items()}
        return tensors, numbers

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned. Raises a ValueError if it is of other fragments."""
        self._state.load_shared(tensors)
        self._local_step, self._in_flight = numbers["local_step"], numbers["in_flight"]
        if self._in_flight is not None:
            fragment = self._fragments[self._in_flight]
            for name, parameter in fragment._model_fragment.named_parameters():
                average = entry(tensors, f"average/{name}", parameter)
                fragment._grads[name] = average.detach().to(parameter.device, copy=True)
            fragment._allreduce_work = [_DummyWork(None)]
        if "manager" in numbers:
            prefix = "manager/"
            of_manager = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            state = numbers["manager"]
            self._manager.load_state_dict(*([of_manager, state] if numbers["manager_has_tensors"] else [state]))

    def __enter__(self) -> OuterLoop:
        super().__enter__()
        if hasattr(self._manager, "join"):
            self._manager.has_average = self._in_flight is not None
            self._manager.join()
            if self._in_flight is not None and not self._manager.average_counts:
                self._drop_round()
        if getattr(self._manager, "meets_first", False) and self._in_flight is None:
            self._join()
        return self

    def _join(self) -> None:
        """Meet the others before the first step: a replica that is behind has nothing of its own to train.

        The others may be at a sync; then the round is also this replica's.

        Raises:
            RuntimeError: for as long as the manager allows, a quorum was found and its members did not connect.
        """
        start, failed, failing_since = time.monotonic(), 0, 0.0
        while True:
            self._manager.start_quorum()
            has_round = self._manager.agree(self.digest(), has_round=False)
            if self._error() is None:
                break
            failed += 1
            failing_since = failing_since or time.monotonic()
            said = f"attempt {failed} to connect to the other replicas failed ({self._reason()})"
            if time.monotonic() - failing_since >= self._manager.meeting_timeout_s:
                raise RuntimeError(f"{said}: {_WHAT_TO_CHECK}")
            # The first may be a replica that heals; then at growing distances, as an attempt may be short.
            if failed & (failed - 1) == 0:
                _log.warning("%s, trying again; if this goes on, %s", said, _WHAT_TO_CHECK)
            self._manager.should_commit()
        if has_round:
            self._check_participants()
            skipped = self._before_sending + 1 - self._local_step
            self._local_step += skipped
            if self.on_skipped is not None:
                self.on_skipped(skipped)
            self._send(start)
            if self._local_step == self._sync_every:
                self._finish_round()

    def _register_state_dict_fn(self) -> None:
        """Register what a healed replica takes over; torchft would leave out the local parameters."""
        self._manager.register_state_dict_fn("outer_loop", self._heal, self._save)

    def _save(self) -> State:
        local = {} if self._heals_to_shared else self._state.local()
        return {
            "shared": {name: tensor.detach().clone() for name, tensor in self._state.shared().items()},
            "local": {name: parameter.detach().clone() for name, parameter in local.items()},
            "inner": self._local_optimizer.state_dict(),
            "local_step": self._local_step,
            "more": {key: save() for key, (_, save) in self._more.items()},
        }

    def _heal(self, state: State) -> None:
        """Take over another replica's state.

        One whose shared state is the same already keeps its own local parameters: at the first round torchft sends
        everyone the state of one replica, and what the others have learned by then would be lost.
        """
        if self._state.equals(state["shared"]):
            return
        self._state.load_shared(state["shared"])
        if self._heals_to_shared:
            self.restore_global()
            self._drop_round()
            self._local_step = 0
        else:
            self._state.load_local(state["local"])
            self._local_step = state["local_step"]
        self._local_optimizer.load_state_dict(state["inner"])
        for key, (load, _) in self._more.items():
            load(state["more"][key])
        self._healed = True

    def _step_post_hook(self, *_: Any) -> None:
        self._manager.allow_state_dict_read()
        self._local_step += 1
        if self._local_step == self._before_sending + 1:
            self._begin_round()
        if self._local_step >= self._sync_every and not self._is_pending():
            self._finish_round()

    @property
    def _before_sending(self) -> int:
        """The local step after which the next one sends."""
        return int(self._sync_every - self._fragment_sync_delay - 1)

    def _is_pending(self) -> bool:
        """Return whether a round is under way that is not waited for."""
        return self._never_waits and not self._manager.is_done()

    def _is_done_within(self, seconds: float) -> bool:
        """Return whether the round under way ends in that time, where the manager can say so."""
        until = time.monotonic() + seconds
        while hasattr(self._manager, "is_done") and not self._manager.is_done():
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    def finish(self) -> None:
        """End with the shared parameters: a round under way is waited for, a minute where rounds are not waited for.

        Raises:
            RuntimeError: the last round failed, so the shared parameters are without its steps.
        """
        if self._in_flight is not None:
            if self._never_waits and not (self._is_done_within(_LAST_ROUND_S) and self._manager.is_averaged()):
                _log.warning(
                    "round %d was not averaged, and its steps are lost: too few others were there, or they are ahead",
                    self._manager.current_step(),
                )
                self._manager.abandon()
                self._drop_round()
            else:
                self._finish_round()
        self.restore_global()
        if self._failed_rounds:
            self._give_up()

    def _drop_round(self) -> None:
        """Forget the round in flight; it is sent again."""
        if self._in_flight is not None:
            self._fragments[self._in_flight]._allreduce_work = []
            self._local_step, self._in_flight = self._before_sending, None

    def _wait_for_average(self) -> None:
        assert self._in_flight is not None
        fragment = self._fragments[self._in_flight]
        with get_stream_context(fragment._stream):
            for work in fragment._allreduce_work:
                work.wait()
        if fragment._stream is not None:
            fragment._stream.synchronize()

    def _begin_round(self) -> None:
        start = time.monotonic()
        self._check_finite()
        self._meet()
        self._send(start)

    def _meet(self) -> None:
        here = self._local_step
        self._manager.start_quorum()
        # Whoever has healed this replica may have been at its start, and the others are at this sync.
        self._local_step = here
        self._check_participants()
        if hasattr(self._manager, "agree"):
            self._manager.agree(self.digest())

    def _send(self, start: float) -> None:
        self._in_flight = self._current_fragment()
        fragment = self._fragments[self._in_flight]
        self._manager.names = [name for name, _ in fragment._model_fragment.named_parameters()]
        fragment.prepare_sync()
        if hasattr(self._manager, "launch"):
            self._manager.launch()
        self._waited = time.monotonic() - start

    def _finish_round(self) -> None:
        start = time.monotonic()
        self._retry()
        number, fragment = self._manager.current_step(), self._in_flight
        assert fragment is not None
        committed = self._fragments[fragment].perform_sync()
        self._local_step, self._in_flight = 0, None
        seconds = self._waited + time.monotonic() - start
        before, self._bytes = self._bytes, self._bytes_so_far()
        up, down = (after - earlier for after, earlier in zip(self._bytes, before, strict=True))
        if self._on_round is not None:
            self._on_round(
                OuterRound(number, self._participants(), committed, seconds, self._healed, up, down, fragment)
            )
        # One that took over a state instead of averaging did not fail.
        failed = not committed and (self._error() is not None or not self._healed)
        self._healed = False
        if hasattr(self._manager, "after_round"):
            self._manager.after_round()
        if committed:
            self._failed_rounds = self._failed_attempts = 0
        elif failed:
            self._failed_rounds += 1
            self._failed_attempts += 1
            if self._failed_rounds == _FAILED_ROUNDS:
                self._give_up()

    def _give_up(self) -> NoReturn:
        raise RuntimeError(
            f"round {self._manager.current_step()} failed {self._failed_attempts} times in a row and its steps are "
            f"lost ({self._reason()}): {_WHAT_TO_CHECK}"
        )

    def _retry(self) -> None:
        """Meet and average again while that fails: torchft would throw away the inner steps of the round."""
        for _ in range(getattr(self._manager, "retries", 0)):
            self._wait_for_average()
            if self._error() is None:
                return
            self._failed_attempts += 1
            _log.warning("round %d failed, trying again: %s", self._manager.current_step(), self._reason())
            # It records the failure, so that the next quorum makes new connections.
            self._manager.should_commit()
            # Connections are open as long as work of theirs is held, and others may wait for this end of them.
            self._fragments[self._in_flight]._allreduce_work = []
            self._meet()
            self._in_flight = self._current_fragment()
            self._fragments[self._in_flight].prepare_sync()

    def _error(self) -> Any:
        errored = getattr(self._manager, "errored", None)
        return None if errored is None else errored()

    def _reason(self) -> str:
        return str(self._error() or "it was not committed").partition("\n")[0]

    def _check_finite(self) -> None:
        for name, parameter in self._state.local().items():
            if not parameter.isfinite().all():
                raise RuntimeError(
                    f"round {self._manager.current_step()}: {name!r} is not finite on this replica, and is kept out of "
                    "the average: its training has diverged; restart it from a checkpoint"
                )

    def _check_participants(self) -> None:
        wanted, there = self._min_participants, self._participants()
        # A manager with `last_participants` knows them after the round and has a minimum of its own.
        if wanted is not None and there < wanted and not hasattr(self._manager, "last_participants"):
            raise RuntimeError(
                f"round {self._manager.current_step()} has {there} participants and min_participants is {wanted}: "
                f"start the lighthouse with min_replicas={wanted}, or replicas train apart without an error"
            )

    def _participants(self) -> int:
        after: Any = getattr(self._manager, "last_participants", None)
        if after is not None:
            return after if isinstance(after, int) else len(after)
        count = getattr(self._manager, "num_participants", None)
        return 1 if count is None else int(count())

    def _bytes_so_far(self) -> tuple[int, int]:
        return int(getattr(self._manager, "bytes_up", 0)), int(getattr(self._manager, "bytes_down", 0))
