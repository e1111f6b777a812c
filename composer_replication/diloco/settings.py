"""The section `diloco:` of a configuration: how one of several replicas trains with the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from composer_replication.channels.fields import (
    BelowOne,
    Count,
    CountOrZero,
    Flag,
    Fraction,
    OnlyWith,
    Positive,
    Settings,
)

RANK_VARIABLE = "REPLICA_RANK"
LIGHTHOUSE_VARIABLE = "TORCHFT_LIGHTHOUSE"
ROUNDS_FILE, SYNC_FILE = "rounds.jsonl", "at_sync"  # in the folder of a replica


@dataclass(frozen=True)
class DilocoSection(Settings):
    """One replica of several that train the same model on different data and synchronise every so many steps."""

    replicas: Count = 2
    """Number of replicas. Each gets every so-manyth row of the data."""
    backend: Literal["torchft", "store"] = "torchft"
    """torchft: replicas reach each other, and a lighthouse where they meet; store: they only share an object store."""
    sync_every: Count = 100
    """Optimiser steps between two syncs of the same parameters; training.steps is a multiple of it."""
    outer_lr: Positive = 0.7
    """Learning rate of the outer SGD, whose gradient is the averaged change of the parameters."""
    outer_momentum: BelowOne = 0.9
    """Momentum of the outer SGD."""
    nesterov: Flag = True
    """Use Nesterov momentum in the outer SGD."""
    fragments: Count = 1
    """Parts of the parameters that are synchronised one after another, evenly over sync_every steps."""
    sync_delay: CountOrZero = 0
    """Steps between sending a fragment and applying its average, in which training goes on."""
    update_alpha: Fraction = 0.0
    """Share of the local parameters that is kept at a sync."""
    min_replicas: Count | None = None
    """Replicas without which no round is made (null: all; with averaging: decoupled, more than half)."""
    timeout_s: Positive = 1800.0
    """Longest wait for the other replicas at a sync, in seconds."""
    lighthouse: Annotated[str | None, OnlyWith("backend", "torchft")] = None
    """Address of the lighthouse, http://host:port (null: the environment variable TORCHFT_LIGHTHOUSE)."""
    hostname: Annotated[str, OnlyWith("backend", "torchft")] = "127.0.0.1"
    """Address of this machine by which the other replicas reach it."""
    store: Annotated[str | None, OnlyWith("backend", "store")] = None
    """Where the replicas meet: a folder, or s3://, gs://, az://, hf://. `diloco run` has output_dir/store for null."""
    run_id: Annotated[str | None, OnlyWith("backend", "store")] = None
    """Name of the run in the store, the same for all replicas and new each time all are started (null: they agree on
    one, and a replica that dies cannot come back). `diloco run` gives one."""
    codec: Annotated[Literal["auto", "float32", "bfloat16", "int8", "int4", "sparse"], OnlyWith("backend", "store")] = (
        "auto"
    )
    """Encoding of what is sent. auto: sparse, which loses nothing, where it is no larger than int4, else int4."""
    averaging: Annotated[Literal["mean", "tokens", "decoupled"], OnlyWith("backend", "store")] = "mean"
    """mean: all replicas count the same; tokens: by the tokens they trained on; decoupled: nobody waits."""
    grace_s: Annotated[Positive, OnlyWith("backend", "store")] = 10.0
    """Wait for the others once min_replicas are there, in seconds."""
    poll_interval_s: Annotated[Positive, OnlyWith("backend", "store")] = 1.0
    """Longest pause between two looks into the store, in seconds."""

    @property
    def min_participants(self) -> int | None:
        """Replicas that suffice for a round; None: all are waited for."""
        if self.min_replicas is None and self.averaging == "decoupled":
            return self.replicas // 2 + 1
        return self.min_replicas

    @property
    def wanted(self) -> int:
        """Replicas without which no round is made."""
        return self.replicas if self.min_participants is None else self.min_participants


def diloco_problems(settings: DilocoSection, steps: int, processes: int) -> Iterator[str]:
    """One line for each combination that makes no sense: the key, what is wrong, and the way out."""
    between, rest = divmod(settings.sync_every, settings.fragments)
    if rest:
        yield (
            f"diloco.sync_every: {settings.sync_every} is not a multiple of the {settings.fragments} diloco.fragments"
        )
    elif settings.sync_delay >= between:
        yield (
            f"diloco.sync_delay: {settings.sync_delay} must be below {between}, the steps between two syncs "
            "(sync_every / fragments)"
        )
    if late := steps % settings.sync_every:
        # What is learned after the last sync would be in no other replica, and is left out of the final model.
        yield (
            f"training.steps: {steps} is not a multiple of diloco.sync_every ({settings.sync_every}), so the last "
            f"{late} steps would be lost; use {steps - late or settings.sync_every}"
        )
    if settings.min_replicas is not None and settings.min_replicas > settings.replicas:
        yield f"diloco.min_replicas: {settings.min_replicas} is more than the {settings.replicas} diloco.replicas"
    if settings.lighthouse is not None and not is_lighthouse_address(settings.lighthouse):
        yield f"diloco.lighthouse: {settings.lighthouse!r} is not of the form http://host:port"
    if settings.nesterov and not settings.outer_momentum:
        yield "diloco.nesterov: it looks ahead by the momentum, and outer_momentum is 0; set nesterov: false"
    if processes > 1:
        yield (
            f"diloco: a launcher started {processes} processes (WORLD_SIZE), and a replica is one process; start one "
            "for each replica, with `composer-replication diloco run`"
        )


def is_lighthouse_address(address: str) -> bool:
    """Whether it is of the form http://host:port."""
    try:
        parts = urlsplit(address)
        return parts.scheme == "http" and bool(parts.hostname and parts.port)
    except ValueError:  # not a port
        return False


def replica_rank(settings: DilocoSection) -> int:
    """The number of this replica, from the environment.

    Raises:
        ValueError: it is missing, or out of range.
    """
    given = os.environ.get(RANK_VARIABLE)
    if given is None:
        raise ValueError(
            f"diloco: {RANK_VARIABLE} is not set; `composer-replication diloco run CONFIG` starts all replicas here, "
            f"or set it to the number of this one (0 to {settings.replicas - 1})"
        )
    if not given.isdigit() or int(given) >= settings.replicas:
        raise ValueError(
            f"diloco: {RANK_VARIABLE} is {given!r}, and diloco.replicas is {settings.replicas}; set it to 0 to "
            f"{settings.replicas - 1}"
        )
    return int(given)
