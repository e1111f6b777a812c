"""The default way through a recipe: in this process, by the operators' batched interface, without an engine's start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.replaysim.records import PairRecord

# What the operators work on; the chat messages stay behind and are joined again by index.
COLUMNS = ("index", "state", "chosen", "rejected")


@dataclass(frozen=True)
class Drop:
    """That a step dropped a record: by its statistics, or because it is the same as an earlier one."""

    index: int
    position: int
    stats: Mapping[str, Any] | None = None
    same_as: int | None = None


@dataclass
class Outcome:
    """What is left of the records' columns, `stats_<position>` among them, and what was dropped; in order of index."""

    columns: dict[str, list[Any]]
    drops: list[Drop] = field(default_factory=list)


def columns_of(records: Sequence[PairRecord]) -> dict[str, list[Any]]:
    """The records as the columns that operators work on."""
    return {name: [record[name] for record in records] for name in COLUMNS}  # type: ignore[literal-required]


def run_batched(operators: Sequence[Any], columns: dict[str, list[Any]]) -> Outcome:
    """Run the operators of `load_operators` one after another over all records."""
    from composer_replication.replaysim.loading import no_installs
    from composer_replication.replaysim.pair_operators import PairDeduplicator, PairFilter

    outcome = Outcome(columns)
    with no_installs():
        for operator in operators:
            if isinstance(operator, PairFilter):
                outcome.columns = _filtered(operator, outcome)
            elif isinstance(operator, PairDeduplicator):
                outcome.columns = _without_duplicates(operator, outcome)
            else:
                outcome.columns = _joined(operator.process_batched(batch) for batch in _batches(operator, outcome))
    outcome.drops.sort(key=lambda drop: drop.index)
    return outcome


def _filtered(operator: Any, outcome: Outcome) -> dict[str, list[Any]]:
    columns, keep = [], []
    for batch in _batches(operator, outcome):
        columns.append(operator.compute_stats_batched(batch))
        keep += operator.process_batched(columns[-1])
    filtered = _joined(iter(columns))
    for index, stats, kept in zip(filtered["index"], filtered[f"stats_{operator.position}"], keep, strict=True):
        if not kept:
            outcome.drops.append(Drop(index, operator.position, stats=json.loads(stats)))
    return _selected(filtered, keep)


def _without_duplicates(operator: Any, outcome: Outcome) -> dict[str, list[Any]]:
    columns = outcome.columns
    rows = range(len(columns["index"]))
    hashes = [operator.hash_of({name: columns[name][row] for name in COLUMNS}) for row in rows]
    same_as = operator.duplicates(columns["index"], hashes)
    outcome.drops += [Drop(index, operator.position, same_as=kept) for index, kept in same_as.items()]
    return _selected(columns, [index not in same_as for index in columns["index"]])


def _batches(operator: Any, outcome: Outcome) -> Iterator[dict[str, list[Any]]]:
    """The batches that data-juicer's own engines would make."""
    count = len(outcome.columns["index"])
    for start in range(0, max(count, 1), operator.batch_size):
        stop = start + operator.batch_size
        yield {name: values[start:stop] for name, values in outcome.columns.items()}


def _joined(batches: Iterator[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    first, *others = batches
    return {name: [*values, *(value for one in others for value in one[name])] for name, values in first.items()}


def _selected(columns: dict[str, list[Any]], keep: Sequence[bool]) -> dict[str, list[Any]]:
    return {name: [value for value, kept in zip(values, keep, strict=True) if kept] for name, values in columns.items()}
