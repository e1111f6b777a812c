"""A torchft run for tests: a lighthouse and replicas, each a process that can be killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from processes import environment, wait_for

_PROGRAM = Path(__file__).with_name("torchft_process.py")


class TorchftRun:
    """A run in `folder`; settings are those of the outer loop and of torchft_process.py. Its end kills everything."""

    def __init__(self, folder: Path, replicas: int, *, min_replicas: int | None = None, **settings: Any) -> None:
        self._folder, self._settings = folder, settings
        self._min_replicas = replicas if min_replicas is None else min_replicas
        self._settings["manager"] = {"min_replicas": self._min_replicas, **settings.get("manager", {})}
        self._started: list[subprocess.Popen[bytes]] = []
        self.replicas: list[subprocess.Popen[bytes]] = []
        self.address = ""
        self.start_lighthouse("127.0.0.1:0")
        for rank in range(replicas):
            self.replicas.append(self._replica(rank))

    def __enter__(self) -> TorchftRun:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        if kind is not None:
            for log in sorted(self._folder.glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text()[-4000:]}\n")

    def start_lighthouse(self, bind: str) -> None:
        """Start the lighthouse and wait until it listens."""
        written = self._folder / "address"
        written.unlink(missing_ok=True)
        self.lighthouse = self._start("lighthouse", "lighthouse", written, bind, self._min_replicas)
        self._wait(written.exists)
        self.address = written.read_text()

    def restart(self, rank: int) -> None:
        """Start a replica again that has ended."""
        self.replicas[rank].wait()
        self.replicas[rank] = self._replica(rank)

    def kill(self, rank: int, when: Literal["in sync", "between syncs", "now"] = "now") -> None:
        """Kill a replica and wait for its end."""
        signals = {"now": signal.SIGKILL, "in sync": signal.SIGUSR1, "between syncs": signal.SIGUSR2}
        self.replicas[rank].send_signal(signals[when])
        assert self.replicas[rank].wait() == -signal.SIGKILL

    def wait_for_healing(self, rank: int) -> None:
        """Wait until the replica's present process has taken over a state and committed a round with it."""
        pid = self.replicas[rank].pid

        def healed() -> bool:
            own = [one for one in self.rounds(rank) if one["pid"] == pid and one["committed"]]
            return any(one["healed"] for one in own)

        self._wait(healed)

    def rounds(self, rank: int) -> list[dict[str, Any]]:
        """Return the rounds of a replica so far, over all of its lives."""
        file = self._folder / f"rounds-{rank}.jsonl"
        text = file.read_text() if file.exists() else ""
        # The line that is being written has no end yet.
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]

    def digests(self, rank: int) -> dict[int, str]:
        """Return the digest after each committed round."""
        return {one["round"]: one["digest"] for one in self.rounds(rank) if one["committed"]}

    def wait_for_rounds(
        self, count: int, *, participants: int | None = None, ranks: Sequence[int] | None = None
    ) -> int:
        """Wait until the replicas have committed `count` more rounds, of that many participants; return the last."""
        ranks = range(len(self.replicas)) if ranks is None else ranks
        done = {rank: len(self.rounds(rank)) for rank in ranks}

        def more(rank: int) -> list[int]:
            new = self.rounds(rank)[done[rank] :]
            return [r["round"] for r in new if r["committed"] and participants in (None, r["participants"])]

        self._wait(lambda: all(len(more(rank)) >= count for rank in ranks))
        return min(more(rank)[-1] for rank in ranks)

    def common_rounds(self) -> int:
        """Return how many committed rounds all replicas have seen, after a check that nobody differs in any."""
        seen = [self.digests(rank) for rank in range(len(self.replicas))]
        for number in {number for one in seen for number in one}:
            assert len({one[number] for one in seen if number in one}) == 1, f"replicas differ after round {number}"
        return len(set.intersection(*map(set, seen)))

    def _replica(self, rank: int) -> subprocess.Popen[bytes]:
        settings, rounds = json.dumps(self._settings), self._folder / f"rounds-{rank}.jsonl"
        return self._start(f"replica-{rank}", "replica", rank, self.address, settings, rounds)

    def _start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), *map(str, arguments)],
                stdout=log,
                stderr=log,
                env=environment(OMP_NUM_THREADS="1"),
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _wait(self, condition: Any) -> None:
        """Wait for a state; a replica that ended by itself will not reach it."""

        def reached() -> bool:
            ended = [
                rank for rank, process in enumerate(self.replicas) if process.poll() not in (None, -signal.SIGKILL)
            ]
            assert not ended, f"replicas {ended} ended"
            return bool(condition())

        wait_for(reached)
