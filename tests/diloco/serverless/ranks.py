"""The ranks of a run, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from composer_replication.diloco.serverless import ObjectStoreAllReduce

Result = TypeVar("Result")


def in_threads(count: int, rank: Callable[[int], Result]) -> list[Result]:
    """Call a function for every rank at once, and return the results in the order of ranks."""
    with ThreadPoolExecutor(count) as threads:
        return [one.result() for one in [threads.submit(rank, number) for number in range(count)]]


def errors_of(count: int, rank: Callable[[int], Any]) -> list[str]:
    """The message of the error that each rank raises, with its type; "" if it raises none."""

    def attempt(number: int) -> str:
        try:
            rank(number)
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            return f"{type(error).__name__}: {error}"
        return ""

    return in_threads(count, attempt)


def at(place: Path | str, rank: int, world_size: int, **settings: Any) -> ObjectStoreAllReduce:
    """A rank that looks often and gives up late."""
    chosen = {"poll_interval_s": 0.02, "timeout_s": 300.0, "run_id": "run", **settings}
    return ObjectStoreAllReduce(str(place), rank, world_size, **chosen)
