"""A process that is one replica over an object store, for tests. It writes each round as a JSON line.

    store_process.py RANK REPLICAS URI ROUNDS_FILE SETTINGS

SETTINGS are JSON: `rounds` (how many to make; 0: until it is killed), `manager` (for ObjectStoreAllReduce), and what
`make_diloco_outer_loop` takes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from composer_replication.diloco import OuterRound, make_diloco_outer_loop
from composer_replication.diloco.serverless import ObjectStoreAllReduce, ObjectStoreManager


def replica(rank: int, replicas: int, uri: str, rounds_file: Path, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    wanted = settings.pop("rounds")
    reduce = ObjectStoreAllReduce(
        uri, rank, replicas, **{"poll_interval_s": 0.05, "timeout_s": 600.0, "run_id": "run", **settings.pop("manager")}
    )
    manager = ObjectStoreManager(reduce)
    # Replicas start from parameters of their own and have data of their own; the function to learn is the same.
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(rank))
    targets = inputs @ torch.linspace(-1, 1, 18).reshape(6, 3)
    torch.manual_seed(100 + rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    fragments = list(model) if settings.pop("streaming", False) else [model]
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with rounds_file.open("a", buffering=1) as rounds:

        def on_round(outer_round: OuterRound) -> None:
            seen = {"digest": loop.digest(), "pid": os.getpid(), "loss": loss.item()}
            rounds.write(json.dumps(dataclasses.asdict(outer_round) | seen) + "\n")

        with make_diloco_outer_loop(manager, fragments, inner, on_round=on_round, **settings) as loop:
            while not wanted or manager.current_step() < wanted:
                inner.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                manager.report_progress(len(inputs), 1)
                inner.step()


if __name__ == "__main__":
    replica(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), json.loads(sys.argv[5]))
