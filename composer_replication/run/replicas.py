"""A training run as one of several replicas: its folder, its rows, its seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import set_seed

from composer_replication.diloco.replica import Replica
from composer_replication.diloco.settings import replica_rank
from composer_replication.run.configuration import Config
from composer_replication.run.data import TrainingData


def of_replica(config: Config) -> tuple[Config, Replica | None]:
    """The configuration with the replica's own output_dir, and the replica; without `diloco`, unchanged and None.

    Raises:
        ValueError: the environment does not say which replica this is, or a setting is missing.
        MissingExtraError: torchft is not installed.
    """
    if config.diloco is None:
        return config, None
    rank = replica_rank(config.diloco)
    folder = config.training.output_dir / f"replica-{rank}"
    training = config.training.model_copy(update={"output_dir": folder})
    return config.model_copy(update={"training": training}), Replica(config.diloco, rank, folder)


def rows_of_replica(data: TrainingData, replica: Replica | None, config: Config) -> TrainingData:
    """Every so-manyth row of the data.

    Raises:
        ValueError: a replica would have none, or too few prompts for a step.
    """
    if replica is None:
        return data
    count, training = replica.settings.replicas, config.training
    rollouts = training.batch_size * training.gradient_accumulation
    needed = {"traces": 1, "pairs": 1, "prompts": max(1, rollouts // config.channels.grpo.num_generations)}
    rows: dict[str, Any] = {}
    for name, least in needed.items():
        given: list[Any] = getattr(data, name)
        if given and len(given) < count * least:
            raise ValueError(
                f"diloco.replicas: {count} replicas need {count * least} {name} ({least} each), and there are "
                f"{len(given)}; use fewer replicas, or more {name}"
            )
        rows[name] = given[replica.rank :: count]
    return replace(data, **rows)


def become_replica(trainer: Any, replica: Replica | None) -> None:
    """Make a trainer a replica. Weights and adapters were made with the seed of all; rollouts and order are its own."""
    if replica is not None:
        trainer.replica = replica
        trainer.args.seed = (trainer.args.seed + replica.rank) % 2**32
        set_seed(trainer.args.seed)
