"""Replicas over torchft that are killed at random: time that the others lose, rounds that are kept, divergence.

Four replicas in processes of their own train with inner steps padded to 0.2 s. First nobody is killed: that is the
fault-free rate. Then about every 45 s a random one gets SIGKILL, at a random moment or, every third time, inside a
sync, and is started again at once.

seconds_lost_per_fault: from the last round before a kill until the first one with all replicas again, the time of a
survivor beyond its rounds at the fault-free rate; the median over kills and survivors.
rounds_kept: rounds with faults over rounds that the fault-free rate would have given.
max_divergence: rounds after which the shared parameters or the outer momentum of two replicas differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import BenchmarkError, judged, machine, main, targets_table
from rich.console import Console
from rich.table import Table

REPLICAS, SYNC_EVERY, STEP_S = 4, 10, 0.2
SECONDS, FAULT_EVERY_S = 600.0, 45.0


@dataclass(frozen=True)
class Fault:
    """A kill: who, when, whether inside a sync, and the process that replaces the victim."""

    rank: int
    moment: float
    in_sync: bool
    successor: int


def replica(rank: int, address: str, rounds_file: Path) -> None:
    """Train until killed, and write a line for every round. After SIGUSR1 it kills itself inside the next sync."""
    import torch

    from composer_replication.diloco import OuterRound, make_diloco_outer_loop
    from composer_replication.diloco.torchft_replica import torchft_manager

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(rank + os.getpid())
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8))
    inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    target = torch.linspace(-1, 1, 64 * 8).reshape(64, 8)
    dies = False

    def die_in_sync(*_: Any) -> None:
        nonlocal dies
        dies = True

    signal.signal(signal.SIGUSR1, die_in_sync)
    # Last, because the others may wait for whoever has a manager.
    manager = torchft_manager(rank, lighthouse=address, min_replicas=REPLICAS // 2)
    average = manager.allreduce

    def allreduce(*arguments: Any, **keywords: Any) -> Any:
        work = average(*arguments, **keywords)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return work

    manager.allreduce = allreduce  # type: ignore[method-assign]
    with rounds_file.open("a", buffering=1) as rounds:

        def on_round(made: OuterRound) -> None:
            figures = {"round": made.round, "committed": made.committed, "participants": made.participants}
            seen = {"waited": made.seconds_waited, "healed": made.healed, "digest": loop.digest(), "pid": os.getpid()}
            rounds.write(json.dumps(figures | seen | {"moment": time.time()}) + "\n")

        loop = make_diloco_outer_loop(manager, [model], inner, sync_every=SYNC_EVERY, on_round=on_round)
        with loop:
            while True:
                start = time.monotonic()
                inputs = torch.randn(16, 64, generator=generator)
                inner.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), inputs @ target).backward()
                time.sleep(max(0.0, STEP_S - (time.monotonic() - start)))
                inner.step()


class Soak:
    """The processes of the run and what they wrote."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self.processes = [self._start(rank) for rank in range(REPLICAS)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, "--replica", str(rank), "--address", self._address]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self._folder / f"{rank}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--rounds", str(self._file(rank))], env=environment, stdout=log, stderr=log
            )

    def _file(self, rank: int) -> Path:
        return self._folder / f"{rank}.jsonl"

    def rounds(self, rank: int) -> list[dict[str, Any]]:
        """Return the committed rounds of a replica in all of its lives."""
        text = self._file(rank).read_text() if self._file(rank).exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        return [line for line in lines if line["committed"]]

    def is_whole(self, since: float) -> bool:
        """Return whether everybody's present process has committed a round with all others since then."""
        return all(
            any(one["pid"] == process.pid and one["participants"] == REPLICAS and one["moment"] > since for one in own)
            for process, own in zip(self.processes, map(self.rounds, range(REPLICAS)), strict=True)
        )

    def wait_until_whole(self, since: float) -> None:
        """Wait for `is_whole`."""
        until = time.monotonic() + 300
        while not self.is_whole(since):
            for rank, process in enumerate(self.processes):
                if process.poll() is not None:
                    raise BenchmarkError(f"replica {rank} ended with {process.returncode}: {self._last_words(rank)}")
            if time.monotonic() > until:
                raise BenchmarkError("the replicas did not come together within 300 s")
            time.sleep(0.05)

    def _last_words(self, rank: int) -> str:
        return ((self._folder / f"{rank}.log").read_text().strip().splitlines() or ["nothing"])[-1]

    def kill(self, rank: int, *, in_sync: bool) -> Fault:
        """Kill a replica and start it again."""
        process = self.processes[rank]
        process.send_signal(signal.SIGUSR1 if in_sync else signal.SIGKILL)
        process.wait()
        moment = time.time()
        self.processes[rank] = self._start(rank)
        return Fault(rank, moment, in_sync, self.processes[rank].pid)

    def close(self) -> None:
        """Kill everybody."""
        for process in self.processes:
            process.kill()
            process.wait()


def seconds_lost(rounds: Sequence[Sequence[dict[str, Any]]], fault: Fault, per_round: float) -> list[float]:
    """Return what each survivor lost by a fault."""
    lost = []
    for rank, own in enumerate(rounds):
        if rank != fault.rank:
            before = max(one["moment"] for one in own if one["moment"] <= fault.moment)
            after = [one for one in own if one["moment"] > fault.moment]
            # One round with everybody may have been under way when the victim was killed.
            gone = next((index for index, one in enumerate(after) if one["participants"] < REPLICAS), 0)
            whole = next(index for index in range(gone, len(after)) if after[index]["participants"] == REPLICAS)
            lost.append(after[whole]["moment"] - before - (whole + 1) * per_round)
    return lost


def divergence(rounds: Sequence[Sequence[dict[str, Any]]]) -> int:
    """Return the number of rounds after which two replicas differed."""
    digests: dict[int, set[str]] = {}
    for own in rounds:
        for one in own:
            digests.setdefault(one["round"], set()).add(one["digest"])
    return sum(len(seen) > 1 for seen in digests.values())


def soak(seconds: float, fault_every_s: float, seed: int) -> dict[str, Any]:
    """Run without and with faults and return the figures of both."""
    from composer_replication.diloco.torchft_replica import Lighthouse

    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Lighthouse(REPLICAS // 2) as lighthouse:
        run = Soak(Path(folder), lighthouse.address)
        try:
            run.wait_until_whole(0.0)
            start = time.time()
            time.sleep(max(20.0, seconds / 10))
            quiet = [one["moment"] for one in run.rounds(0) if one["moment"] > start]
            per_round = (quiet[-1] - quiet[0]) / (len(quiet) - 1)
            first = quiet[-1]
            faults: list[Fault] = []
            while time.time() - first < seconds:
                time.sleep(fault_every_s * chosen.uniform(0.8, 1.2) if faults else 1.0)
                run.wait_until_whole(faults[-1].moment if faults else 0.0)
                faults.append(run.kill(chosen.randrange(REPLICAS), in_sync=len(faults) % 3 == 2))
            run.wait_until_whole(faults[-1].moment)
            rounds = [run.rounds(rank) for rank in range(REPLICAS)]
        finally:
            run.close()
    last = max(one["moment"] for own in rounds for one in own)
    kept = len({one["round"] for own in rounds for one in own if one["moment"] > first})
    lost = [seconds_lost(rounds, fault, per_round) for fault in faults]
    healed = {one["pid"] for own in rounds for one in own if one["healed"]}
    return {
        "seconds_with_faults": last - first,
        "seconds_per_round": per_round,
        "faults": len(faults),
        "in_sync": sum(fault.in_sync for fault in faults),
        "healed": sum(fault.successor in healed for fault in faults),
        "rounds": kept,
        "rounds_kept": kept * per_round / (last - first),
        "seconds_lost_per_fault": statistics.median(one for each in lost for one in each),
        "seconds_lost": [
            {"in_sync": fault.in_sync, "survivors": each} for fault, each in zip(faults, lost, strict=True)
        ],
        "max_divergence": divergence(rounds),
    }


def make_report(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Make the report, or be one of its replicas."""
    if arguments.replica is not None:
        replica(arguments.replica, arguments.address, arguments.rounds)
        return None
    figures = soak(60.0 if arguments.quick else arguments.seconds, arguments.fault_every, arguments.seed)
    return {
        "benchmark": "fault_soak",
        "machine": machine("torch", "torchft"),
        "shape": {"replicas": REPLICAS, "sync_every": SYNC_EVERY, "step_seconds": STEP_S},
        "results": figures,
        "targets": [
            judged("seconds_lost_per_fault", figures["seconds_lost_per_fault"], "<=2.5"),
            judged("rounds_kept", figures["rounds_kept"], ">=0.93"),
            judged("max_divergence", figures["max_divergence"], "<=0"),
        ],
    }


def show(made: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table("figure", "value", title=made["benchmark"])
    for name, value in made["results"].items():
        if not isinstance(value, list):
            table.add_row(name.replace("_", " "), f"{value:.4g}")
    Console().print(table, targets_table(made), sep="\n", highlight=False)


if __name__ == "__main__":
    main(
        make_report,
        show=show,
        options={
            "--seconds": {"type": float, "default": SECONDS, "help": "length of the part with faults"},
            "--fault-every": {"type": float, "default": FAULT_EVERY_S, "help": "mean seconds between two kills"},
            "--seed": {"type": int, "default": 0, "help": "of the choice of victims and moments"},
            "--replica": {"type": int, "help": argparse.SUPPRESS},
            "--address": {"help": argparse.SUPPRESS},
            "--rounds": {"type": Path, "help": argparse.SUPPRESS},
        },
    )
