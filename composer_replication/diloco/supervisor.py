"""All replicas of a run on this machine: start them, restart those that die, and read their rounds."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from composer_replication.diloco.devices import devices_of
from composer_replication.diloco.settings import RANK_VARIABLE, ROUNDS_FILE, SYNC_FILE

LOG_FILE = "replica.log"
_LAST_LINES = 5
# For the step under way and a checkpoint; and for one that may be waiting at a sync for those that have ended.
_ENDING_S, _WAITING_S = 60.0, 5.0


@dataclass
class LocalReplica:
    """A replica's process and what it has recorded since the supervisor started it."""

    rank: int
    folder: Path
    process: subprocess.Popen[bytes]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    restarts: int = 0
    offset: int = 0
    rounds_of_process: int = 0
    state: Literal["running", "done", "failed", "stopped"] = "running"

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.folder / LOG_FILE

    def read_rounds(self) -> None:
        """Read the lines that came since the last time; the one that is being written has no end yet."""
        file = self.folder / ROUNDS_FILE
        if not file.is_file():
            return
        with file.open("rb") as lines:
            lines.seek(self.offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                self.rounds.append(json.loads(line))
                self.rounds_of_process += 1

    @property
    def last_round(self) -> int:
        """Number of the last round that it committed; -1 for none."""
        return max((one["round"] for one in self.rounds if one["committed"]), default=-1)

    def seconds_in_step(self) -> float:
        """How long its start or its optimiser step has taken so far; long is a wait for other replicas."""
        try:
            return time.time() - (self.folder / SYNC_FILE).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def last_lines(self) -> str:
        """The end of what the process printed, in one line."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        return " / ".join(line.strip() for line in text.splitlines()[-_LAST_LINES:] if line.strip())

    def digests(self) -> dict[int, str]:
        """The shared state after each round, by the last process."""
        own = self.rounds[len(self.rounds) - self.rounds_of_process :]
        return {one["round"]: one["digest"] for one in own if one["committed"]}


class Supervisor:
    """Runs `composer-replication train` once for each replica, in `folder/replica-R`; its end ends them all.

    Args:
        arguments: of `train`: the configuration and its overrides.
        folder: the output_dir of the configuration.
        replicas: how many.
        wanted: how many without which the rest cannot go on.
        ends_apart: whether one that misses the last rounds is no failure.
        max_restarts: how often each of them is started again.
        environment: variables of the replicas, beside this process's own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        replicas: int,
        *,
        wanted: int,
        ends_apart: bool = False,
        max_restarts: int,
        environment: Mapping[str, str],
    ) -> None:
        self._arguments, self._max_restarts = list(arguments), max_restarts
        self._wanted, self._ends_apart = wanted, ends_apart
        # For several processes on the same cores, one thread each is the fastest where they are as many as the cores.
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // replicas))}
        self._environment = {**threads, **os.environ, **environment}
        self.messages: list[str] = []
        self._differing: set[int] = set()
        self.replicas: list[LocalReplica] = []
        self._behind_since = 0.0
        # Replicas read its one end, which ends when this process does, however that comes about.
        self._lifeline = os.pipe()
        try:
            for rank in range(replicas):
                own = folder / f"replica-{rank}"
                own.mkdir(parents=True, exist_ok=True)
                before = own / ROUNDS_FILE
                offset = before.stat().st_size if before.is_file() else 0
                self.replicas.append(LocalReplica(rank, own, self._start(rank, own), offset=offset))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.replicas:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        for end in self._lifeline:
            os.close(end)

    @property
    def is_over(self) -> bool:
        """Whether no replica is running."""
        return all(one.state != "running" for one in self.replicas)

    @property
    def is_identical(self) -> bool:
        """Whether all replicas had the same shared state after every round that several of them made."""
        return not self._differing

    @property
    def is_good(self) -> bool:
        """Whether every replica came to its end, they agree, and of their rounds one at least was committed."""
        ends = ("done", "stopped") if self._ends_apart else ("done",)
        trained = any(one.last_round >= 0 for one in self.replicas) or not any(one.rounds for one in self.replicas)
        return self.is_identical and trained and all(one.state in ends for one in self.replicas)

    def look(self) -> None:
        """Read new rounds, compare them, and see to processes that have ended; `messages` gets what there is to say."""
        for one in self.replicas:
            ended = one.process.poll()
            one.read_rounds()
            if one.state == "running" and ended is not None:
                self._see_to(one, ended)
        self._compare()
        running = [one for one in self.replicas if one.state == "running"]
        if running and any(one.state == "failed" for one in self.replicas):
            going = [one for one in self.replicas if one.state in ("running", "done")]
            if len(going) < self._wanted:
                self.messages.append(f"{len(going)} replicas are left and {self._wanted} are needed: ending the rest")
                self.stop()
        self._end_those_behind()

    def stop(self) -> None:
        """Let the replicas end with a checkpoint after the step under way; kill those that wait for others."""
        running = [one for one in self.replicas if one.state == "running"]
        for one in running:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
        until = time.monotonic() + _ENDING_S
        while (left := [one for one in running if one.process.poll() is None]) and time.monotonic() < until:
            for one in left if len(left) < len(self.replicas) else ():
                if one.seconds_in_step() > _WAITING_S:
                    one.process.kill()
            time.sleep(0.1)
        for one in running:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
            one.read_rounds()
            one.state = "stopped"

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as JSON takes them."""
        return {
            "rounds": max((len(one.digests()) for one in self.replicas), default=0),
            "identical": self.is_identical,
            "restarts": sum(one.restarts for one in self.replicas),
            "replicas": [_figures(one) for one in self.replicas],
        }

    def _see_to(self, one: LocalReplica, code: int) -> None:
        if code == 0:
            one.state = "done"
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = f"replica {one.rank} {how}"
        if lines := one.last_lines():
            said += f"; it said: {lines}"
        # An error before the first round will come again: a setting, the model, the data.
        hopeless = code > 0 and one.rounds_of_process == 0
        others_done = any(other.state == "done" for other in self.replicas)
        if hopeless or others_done or one.restarts >= self._max_restarts:
            one.state = "failed"
            why = "others have finished" if others_done else "it made no round" if hopeless else "it died too often"
            self.messages.append(f"{said}; not started again, as {why}")
            return
        one.restarts += 1
        one.rounds_of_process = 0
        one.process = self._start(one.rank, one.folder)
        self.messages.append(f"{said}; started again ({one.restarts} of {self._max_restarts})")

    def _end_those_behind(self) -> None:
        """End replicas that wait for a round which the others have made, when those have finished."""
        running = [one for one in self.replicas if one.state == "running"]
        done = [one for one in self.replicas if one.state == "done"]
        # One that has made no round had finished before this start.
        last = max((one.last_round if one.rounds else math.inf for one in done), default=-1)
        behind = [one for one in running if one.last_round < last and one.seconds_in_step() > _WAITING_S]
        if not behind or len(running) >= self._wanted:
            self._behind_since = 0.0
            return
        self._behind_since = self._behind_since or time.monotonic()
        if time.monotonic() > self._behind_since + _WAITING_S:
            missed = ", ".join(str(one.rank) for one in behind)
            furthest = max(done, key=lambda one: one.last_round).folder
            self.messages.append(f"replica {missed} missed the last round; the others have finished: see {furthest}")
            self.stop()

    def _compare(self) -> None:
        found: dict[int, dict[str, list[int]]] = {}
        for one in self.replicas:
            for number, digest in one.digests().items():
                found.setdefault(number, {}).setdefault(digest, []).append(one.rank)
        for number, ranks in sorted(found.items()):
            if len(ranks) > 1 and number not in self._differing:
                self._differing.add(number)
                groups = " and ".join(", ".join(map(str, group)) for group in ranks.values())
                self.messages.append(f"round {number}: the replicas {groups} differ")

    def _start(self, rank: int, folder: Path) -> subprocess.Popen[bytes]:
        program = (
            "from composer_replication.diloco.supervisor import be_supervised; be_supervised(); "
            "from composer_replication.cli import main; main()"
        )
        (folder / SYNC_FILE).unlink(missing_ok=True)  # of a process that was killed
        log: IO[bytes]
        with (folder / LOG_FILE).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", program, "train", *self._arguments, "--json"],
                stdin=self._lifeline[0],
                stdout=log,
                stderr=log,
                env={**self._environment, **devices_of(rank, self._environment), RANK_VARIABLE: str(rank)},
                start_new_session=True,
            )


def be_supervised() -> None:
    """Let this process end by its supervisor's Ctrl-C, and with it however it ends."""
    # Ctrl-C reaches the supervisor alone; here it is default even under nohup, which ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_the_supervisor, daemon=True).start()


def _end_with_the_supervisor() -> None:
    os.read(0, 1)  # a read of sys.stdin would keep its lock, for which the interpreter waits at its end
    os.write(2, b"error: `diloco run` has ended, and this replica with it\n")
    os._exit(1)


def _figures(one: LocalReplica) -> dict[str, Any]:
    last = one.rounds[-1] if one.rounds else {}
    return {
        "rank": one.rank,
        "state": one.state,
        "rounds": len(one.digests()),
        "step": last.get("step", 0),
        "loss": next((line["loss"] for line in reversed(one.rounds) if line["loss"] is not None), None),
        "participants": last.get("participants"),
        "bytes_up": sum(line["bytes_up"] for line in one.rounds),
        "bytes_down": sum(line["bytes_down"] for line in one.rounds),
        "seconds_waited": sum(line["seconds_waited"] for line in one.rounds),
        "healed": sum(line["healed"] for line in one.rounds),
        "restarts": one.restarts,
        "exit_code": one.process.returncode,
        "digest": last.get("digest"),
        "log": str(one.log),
    }
