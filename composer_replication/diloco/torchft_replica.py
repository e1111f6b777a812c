"""One replica of a torchft run: its manager, and the lighthouse where replicas meet.

What listens where: the lighthouse on its `bind`; the replica's TCP store, gloo and the state transport on `hostname`.
torchft's manager server listens on all interfaces ([::]) whatever `hostname` is, and anyone who reaches it may end the
process: let only replicas reach a replica's ports. Nothing is encrypted.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, TCPStore
from torchft._torchft import LighthouseServer
from torchft.manager import Manager
from torchft.process_group import ProcessGroupNCCL as ReconfigurableNCCL

from composer_replication._arguments import check_count, check_non_negative, check_positive
from composer_replication.diloco.local_gloo import MEET_S, LocalGloo
from composer_replication.diloco.quorums import Quorums
from composer_replication.diloco.settings import LIGHTHOUSE_VARIABLE, is_lighthouse_address
from composer_replication.diloco.state_transport import SafetensorsTransport

_log = logging.getLogger(__name__)


class Lighthouse:
    """The server where replicas meet, in this process; a context manager.

    Args:
        min_replicas: replicas without which there is no quorum. With 1, replicas may train apart without an error.
        bind: host and port to listen on; port 0 is any.
        join_timeout_s: time that a quorum without some living replica is put off for it, after a change of members.
        heartbeat_timeout_s: silence after which a replica is dead: what a killed one costs the others.
    """

    def __init__(
        self,
        min_replicas: int,
        *,
        bind: str = "127.0.0.1:0",
        join_timeout_s: float = 60.0,
        heartbeat_timeout_s: float = 1.0,
    ) -> None:
        check_count("min_replicas", min_replicas)
        check_positive("join_timeout_s", join_timeout_s)
        check_positive("heartbeat_timeout_s", heartbeat_timeout_s)
        try:
            self._server = LighthouseServer(
                bind=bind,
                min_replicas=min_replicas,
                join_timeout_ms=int(join_timeout_s * 1000),
                quorum_tick_ms=50,
                heartbeat_timeout_ms=int(heartbeat_timeout_s * 1000),
            )
        except Exception as error:
            raise OSError(f"the lighthouse cannot listen on {bind!r}: {error}; choose another bind") from error
        host, port = bind.rpartition(":")[0], self._server.address().rpartition(":")[2]
        self.address = f"http://{host}:{port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()

    def __enter__(self) -> Lighthouse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReplicaManager(Manager):  # type: ignore[misc]
    """torchft's manager with what a long run needs; see `torchft_manager`.

    `bytes_up` and `bytes_down` are those of a ring all-reduce, 2·(n - 1)/n of the tensors: gloo does not count.
    """

    meets_first = True
    retries = 3
    _client: Any
    _quorum_future: Any
    _quorum_timeout: timedelta
    _step: int

    def __init__(
        self,
        *,
        store: TCPStore,
        lighthouse: str,
        patience_s: float,
        device: torch.device,
        transport: SafetensorsTransport,
        **more: Any,
    ) -> None:
        super().__init__(lighthouse_addr=lighthouse, checkpoint_transport=transport, **more)
        self._transport = transport
        self.meeting_timeout_s = self._quorum_timeout.total_seconds()
        self._client = Quorums(self._client, lighthouse)
        self._own_store, self._lighthouse, self._patience_s, self._device = store, lighthouse, patience_s, device
        self.bytes_up = self.bytes_down = 0

    def start_quorum(self, *arguments: Any, **keywords: Any) -> None:
        """Meet the other replicas, and heal if behind. A lighthouse that is away has `patience_s` to come back.

        Raises:
            RuntimeError: there was no quorum, or a peer's state does not fit.
        """
        away_since: float | None = None
        while True:
            asked = time.monotonic()
            try:
                super().start_quorum(*arguments, **keywords)
                return
            except (ValueError, KeyError) as error:
                raise RuntimeError(
                    f"{self._replica_id} cannot take over the others' state at round {self._step}: {error}"
                ) from error
            except Exception as error:
                # Or the next call would raise this failure again.
                self._quorum_future = None
                now = time.monotonic()
                # A lighthouse that is away is noticed at once, so this one was there until now.
                if away_since is None or now - asked > self._patience_s:
                    away_since = now
                    _log.warning("the lighthouse at %s does not answer, trying again: %s", self._lighthouse, error)
                # One that has too few replicas uses up the time-out.
                if isinstance(error, TimeoutError) or now - away_since > self._patience_s:
                    raise RuntimeError(
                        f"{self._replica_id} found no {self._min_replica_size} replicas for round {self._step} in "
                        f"{now - asked:.1f} s: start the others, or the lighthouse at {self._lighthouse} ({error})"
                    ) from error
                time.sleep(0.1)

    def agree(self, digest: str, *, has_round: bool = True) -> bool:
        """Return whether any participant has a round to average; nobody commits if shared states differ.

        Of those that differ the fewer heal. torchft compares steps alone, and two replicas may have come to the same
        step in different quorums. A failure is that of the round: `errored` has it.
        """
        if self.errored() or self.num_participants() == 1:
            self._begin()
            return has_round
        own = torch.tensor([*struct.unpack("<2q", bytes.fromhex(digest)), has_round], device=self._device)
        all_of_them = [torch.empty_like(own) for _ in range(self.num_participants())]
        try:
            if self._pg.size() != len(all_of_them):
                raise RuntimeError(f"the process group has {self._pg.size()} members, the quorum {len(all_of_them)}")
            self._pg.allgather([all_of_them], [own], AllgatherOptions()).wait()
        except Exception as error:  # noqa: BLE001, a failed round like any other: it is tried again
            self.report_error(error)
            return has_round
        counted = Counter(tuple(one[:2].tolist()) for one in all_of_them)
        common, count = counted.most_common(1)[0]
        if count < len(all_of_them):
            self.report_error(
                RuntimeError(
                    f"round {self.current_step()}: {len(all_of_them) - count} of {len(all_of_them)} replicas differ"
                )
            )
            differs = tuple(own[:2].tolist()) != common
            if differs:
                _log.warning(
                    "%s differs from the other replicas at round %d: healing", self._replica_id, self.current_step()
                )
            # Those at step 0 heal from those that are not.
            self._step = 0 if differs else max(self._step, 1)
        anyone = any(bool(one[2]) for one in all_of_them)
        if not anyone:
            self._transport.forget()
            self._begin()
        return anyone

    def current_step(self) -> int:
        """Return the rounds committed so far; torchft's own count is one more once the replicas have met."""
        return max(self._step - 1, 0)

    def _begin(self) -> None:
        """Leave step 0, so that a newcomer is behind and heals."""
        if not self.errored():
            self._step = max(self._step, 1)

    def allreduce(self, tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Average in place, and count the bytes."""
        count = self.num_participants()
        moved = 2 * (count - 1) * tensor.nbytes // count
        self.bytes_up += moved
        self.bytes_down += moved
        return super().allreduce(tensor, *arguments, **keywords)

    def report_error(self, e: Exception) -> None:
        """Mark the round as failed, and let those know at once who wait for this replica's part of it."""
        super().report_error(e)
        if isinstance(self._pg, LocalGloo):
            self._pg.close_connections()

    def should_commit(self, *arguments: Any, **keywords: Any) -> bool:
        """Decide with torchft; a round that was averaged before the checkpoint we started from is committed."""
        if self._quorum_future is None:
            self._step += 1
            return True
        committed = bool(super().should_commit(*arguments, **keywords))
        if committed:
            self._transport.forget()
        return committed


def torchft_manager(
    rank: int,
    *,
    lighthouse: str,
    min_replicas: int,
    timeout_s: float = 60.0,
    quorum_timeout_s: float = 3600.0,
    patience_s: float = 60.0,
    hostname: str = "127.0.0.1",
    device: torch.device | str = "cpu",
) -> ReplicaManager:
    """Make the manager of one replica: gloo on the CPU, NCCL on CUDA (not tried on one), healing without pickle.

    Args:
        rank: number of the replica, for its name and for messages.
        lighthouse: address of the lighthouse, `http://host:port`.
        min_replicas: replicas without which nothing is committed; give the lighthouse the same.
        timeout_s: limit for one average and for a peer's state. A killed process is noticed at once.
        quorum_timeout_s: limit for the other replicas to reach the sync, so longer than a round; and for connecting to
            them before the first step.
        patience_s: limit for a lighthouse that is away to come back.
        hostname: address of this machine that the other replicas reach.
        device: where the parameters are.

    Raises:
        ValueError: a value is out of range, or not an address.
        OSError: the lighthouse does not answer, or `hostname` is not this machine's.
    """
    if not is_lighthouse_address(lighthouse):
        raise ValueError(
            f"lighthouse must be of the form http://host:port, not {lighthouse!r}: set diloco.lighthouse or "
            f"{LIGHTHOUSE_VARIABLE}"
        )
    check_non_negative("rank", rank)
    check_count("min_replicas", min_replicas)
    for name, seconds in {
        "timeout_s": timeout_s,
        "quorum_timeout_s": quorum_timeout_s,
        "patience_s": patience_s,
    }.items():
        check_positive(name, seconds)
    timeout, device = timedelta(seconds=timeout_s), torch.device(device)
    try:
        listener = socket.create_server((hostname, 0))
    except OSError as error:
        raise OSError(
            f"replica {rank} cannot listen on hostname {hostname!r}: {error}; set diloco.hostname to an address of "
            "this machine that the other replicas reach"
        ) from error
    port = listener.getsockname()[1]
    store = TCPStore(hostname, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    group = ReconfigurableNCCL(timeout=timeout) if device.type == "cuda" else LocalGloo(hostname, timeout)
    try:
        return ReplicaManager(
            store=store,
            lighthouse=lighthouse,
            patience_s=patience_s,
            device=device,
            pg=group,
            load_state_dict=None,
            state_dict=None,
            min_replica_size=min_replicas,
            use_async_quorum=False,
            # Or everyone would fetch the state of one replica at the start, though `agree` finds those that differ.
            init_sync=False,
            timeout=timeout,
            quorum_timeout=timedelta(seconds=quorum_timeout_s),
            connect_timeout=timedelta(seconds=min(timeout_s, MEET_S)),
            rank=0,
            world_size=1,
            store_addr=hostname,
            store_port=port,
            replica_id=f"replica_{rank}",
            hostname=hostname,
            transport=SafetensorsTransport(hostname),
        )
    except Exception as error:
        raise OSError(f"replica {rank} cannot reach the lighthouse at {lighthouse}: {error}; start it first") from error


def close(manager: ReplicaManager) -> None:
    """Leave the run and stop the manager's servers."""
    manager.shutdown(wait=False)
    if isinstance(manager._pg, LocalGloo):
        manager._pg.close_connections()
