"""A process of a torchft run for tests: one replica, or a lighthouse. It runs until it is killed.

    torchft_process.py lighthouse ADDRESS_FILE BIND MIN_REPLICAS
    torchft_process.py replica RANK ADDRESS SETTINGS ROUNDS_FILE

Each round is a JSON line in ROUNDS_FILE. SIGUSR1 has the replica end itself with SIGKILL inside the next sync, when the
others average with it; SIGUSR2 between two syncs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from composer_replication.diloco import OuterRound, make_diloco_outer_loop
from composer_replication.diloco.torchft_replica import Lighthouse, ReplicaManager, torchft_manager


def lighthouse(address_file: str, bind: str, min_replicas: str) -> None:
    server = Lighthouse(int(min_replicas), bind=bind, join_timeout_s=5.0)
    written = Path(f"{address_file}.part")
    written.write_text(server.address)
    written.rename(address_file)
    threading.Event().wait()


class Death:
    """SIGKILL from this process to itself, at a point of the round that a signal has chosen."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._in_sync = self._between = False
        self._averaged = 0
        self._allreduce = manager.allreduce
        manager.allreduce = self.allreduce  # type: ignore[method-assign]
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_in_sync", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "_between", True))

    def allreduce(self, *arguments: Any, **keywords: Any) -> Any:
        # At the second tensor, so that the others have some of the averages and not all.
        self._averaged += 1
        if self._in_sync and self._averaged > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._allreduce(*arguments, **keywords)

    def before_step(self) -> None:
        self._averaged = 0
        if self._between:
            os.kill(os.getpid(), signal.SIGKILL)


def replica(rank: str, address: str, settings: str, rounds_file: str) -> None:
    torch.set_num_threads(1)
    chosen: dict[str, Any] = json.loads(settings)
    manager_settings = {"min_replicas": 2, **chosen.pop("manager", {})}
    manager = torchft_manager(int(rank), lighthouse=address, **manager_settings)
    death, transport, served = Death(manager), manager._checkpoint_transport, []
    serve = transport.send_checkpoint

    def noted(*, dst_ranks: list[int], **more: Any) -> None:
        served.extend(dst_ranks)
        serve(dst_ranks=dst_ranks, **more)

    transport.send_checkpoint = noted
    # Replicas start from parameters of their own and have data of their own; the function to learn is the same.
    generator = torch.Generator().manual_seed(int(rank))
    inputs = torch.randn(64, 6, generator=generator)
    targets = inputs @ torch.linspace(-1, 1, 18).reshape(6, 3)
    torch.manual_seed(100 if chosen.pop("equal_start", False) else 100 + int(rank))
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    fragments = list(model) if chosen.pop("streaming", False) else [model]
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    before: list[float] = []
    # Registered before the outer loop's own hook, so it sees the parameters before a sync.
    inner.register_step_post_hook(
        lambda *_: before.__setitem__(slice(None), torch.cat([p.flatten() for p in model.parameters()]).tolist())
    )
    with Path(rounds_file).open("a", buffering=1) as rounds:

        def on_round(outer_round: OuterRound) -> None:
            seen = {"digest": loop.digest(), "local": before, "pid": os.getpid(), "served": served}
            rounds.write(json.dumps(dataclasses.asdict(outer_round) | seen) + "\n")

        loop = make_diloco_outer_loop(manager, fragments, inner, on_round=on_round, **chosen)
        with loop:
            while True:
                death.before_step()
                inner.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                inner.step()


if __name__ == "__main__":
    {"lighthouse": lighthouse, "replica": replica}[sys.argv[1]](*sys.argv[2:])
