"""The default way through a recipe: in this process, by the operators' batched interface, without an engine's start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.replaysim.records import PairRecord

# What the operators work on; the chat messages stay behind and are joined again by index.
COLUMNS = ("index", "state", "lesson", "chosen", "rejected")


class OperatorError(RuntimeError):
    """An operator, or the engine that runs it, failed; the message has its reason."""


@dataclass(frozen=True)
class Drop:
    """That a step dropped a record: by its statistics, or because it is the same as an earlier one."""

    index: int
    position: int
    stats: Mapping[str, Any] | None = None
    same_as: int | None = None


@dataclass
class Outcome:
    """What is left of the records' columns, and what was dropped; both in the order of the records.

    `columns` has the statistics of every filter, by its position, as `stats_<position>`.
    """

    columns: dict[str, list[Any]]
    drops: list[Drop]


def columns_of(records: Sequence[PairRecord]) -> dict[str, list[Any]]:
    """The records as the columns that operators work on."""
    return {name: [record[name] for record in records] for name in COLUMNS}  # type: ignore[literal-required]


def run_batched(operators: Sequence[Any], columns: dict[str, list[Any]]) -> Outcome:
    """Run the operators of `load_operators` one after another over all records.

    Raises:
        OperatorError: one failed.
    """
    from composer_replication.replaysim.loading import no_installs, words_stripped_once
    from composer_replication.replaysim.pair_operators import PairDeduplicator, PairFilter

    drops: list[Drop] = []
    with no_installs(), words_stripped_once():
        for operator in operators:
            run = _map
            if isinstance(operator, PairFilter):
                run = _filter
            elif isinstance(operator, PairDeduplicator):
                run = _find_duplicates
            try:
                found = run(operator, columns)
            except RuntimeError as error:
                raise OperatorError(" ".join(str(error).split())) from error
            if found:
                drops += found
                gone = {drop.index for drop in found}
                keep = [index not in gone for index in columns["index"]]
                columns = {name: list(itertools.compress(values, keep)) for name, values in columns.items()}
    return Outcome(columns, sorted(drops, key=lambda drop: drop.index))


def _filter(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    stats: list[dict[str, Any]] = []
    keep: list[bool] = []
    for batch in _batches(operator, columns):
        measured = operator.measure(batch)
        keep += operator.judge(batch, measured)
        stats += measured
    columns[f"stats_{operator.position}"] = stats
    rows = zip(columns["index"], stats, keep, strict=True)
    return [Drop(index, operator.position, stats=one) for index, one, kept in rows if not kept]


def _find_duplicates(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    hashes = [operator.hash_of(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    same_as = operator.duplicates(columns["index"], hashes)
    return [Drop(index, operator.position, same_as=kept) for index, kept in same_as.items()]


def _map(operator: Any, columns: dict[str, list[Any]]) -> list[Drop]:
    made = [operator.process_batched(batch) for batch in _batches(operator, columns)]
    for name in ("chosen", "rejected"):
        columns[name] = [text for batch in made for text in batch[name]]
    return []


def _batches(operator: Any, columns: dict[str, list[Any]]) -> Iterator[dict[str, list[Any]]]:
    """The batches that data-juicer's own engines would make."""
    for start in range(0, len(columns["index"]), operator.batch_size):
        yield {name: columns[name][start : start + operator.batch_size] for name in COLUMNS}
