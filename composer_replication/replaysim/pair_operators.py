"""Data-juicer's operators, wrapped for pairs: the same three classes run in-process and on data-juicer's own engines.

Each wraps the operator that a recipe names and lets it judge one field. Two things need the wrapping. Data-juicer keeps
one statistic of a kind per record, so that a second `text_length_filter`, on `rejected`, would judge by the length of
`chosen`; here every step keeps its own. And what an engine drops is gone without a word; here it is noted.

Importing this module imports data-juicer. It uses nothing else of this package: Ray sends its classes to its workers
by value, which therefore need data-juicer alone.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from data_juicer.ops.base_op import NON_STATS_FILTERS, OPERATORS, Deduplicator, Filter, Mapper
from data_juicer.ops.load import load_ops
from data_juicer.utils.constant import Fields, HashKeys

Columns = dict[str, list[Any]]

INDEX = "index"
TEXTS = ("chosen", "rejected")
_PLAIN = frozenset((int, float, bool, str, type(None)))
# Between the parts of a pair that a deduplicator compares as one text.
_SEPARATOR = "\x1e"


def stats_column(position: int) -> str:
    """Return the column of a filter's statistics; on engines they are JSON, since a column must have one type."""
    return f"stats_{position}"


def text_of(field: str, sample: Mapping[str, Any]) -> str:
    """Return the text of a field; "pair" is built each time, because a mapper may have changed its parts."""
    if field == "pair":
        return _SEPARATOR.join((sample["state"], sample["chosen"], sample["rejected"]))
    text: str = sample[field]
    return text


class _Step:
    """A recipe's step: the operator it names, and the folder where it notes what it drops (None: nowhere)."""

    def __init__(self, step: dict[str, Any], notes: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.position: int = step["position"]
        self.field: str = step["field"]
        self.label = f"{step['op']} on {self.field}"
        self.inner: Any = load_ops([{step["op"]: dict(step["arguments"])}])[0]
        self.notes = notes

    def note(self, drops: Iterable[Mapping[str, Any]]) -> None:
        """Write down what was dropped; a task that an engine repeats writes the same again."""
        lines = "".join(json.dumps(drop) + "\n" for drop in drops)
        if self.notes is not None and lines:
            name = f"{self.position}-{platform.node()}-{os.getpid()}.jsonl"
            with Path(self.notes, name).open("a", encoding="ascii") as file:
                file.write(lines)

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        """Name the step in the error of a failure; engines do not."""
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"{self.label} failed: {type(error).__name__}: {error}") from error

    def _inner_batch(self, samples: Mapping[str, Any]) -> Columns:
        """Return the batch for the wrapped operator, without the results of earlier steps."""
        count = len(samples[INDEX])
        batch = {name: list(samples[name]) for name in (INDEX, *TEXTS)}
        for name in (Fields.stats, Fields.meta, Fields.context):
            batch[name] = [{} for _ in range(count)]
        return batch


@NON_STATS_FILTERS.register_module("pair_filter")
@OPERATORS.register_module("pair_filter")
class PairFilter(_Step, Filter):  # type: ignore[misc]
    """A filter on one side of the pairs."""

    _batched_op = True

    def measure(self, samples: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the wrapped operator's statistics of each record, in JSON's types on every engine."""
        with self.named_failures():
            stats = self.inner.compute_stats_batched(self._inner_batch(samples))[Fields.stats]
        return [one if _PLAIN.issuperset(map(type, one.values())) else _plain(one) for one in stats]

    def judge(self, samples: Mapping[str, Any], stats: list[dict[str, Any]]) -> list[bool]:
        """Return whether the wrapped operator keeps each record."""
        batch = self._inner_batch(samples)
        batch[Fields.stats] = stats
        with self.named_failures():
            if self.inner.is_batched_op():
                return [bool(kept) for kept in self.inner.process_batched(batch)]
            return [bool(self.inner.process_single(sample)) for sample in _rows(batch)]

    def compute_stats_batched(self, samples: Any, *args: Any, **kwargs: Any) -> Any:
        samples[stats_column(self.position)] = [json.dumps(one) for one in self.measure(samples)]
        return samples

    def process_batched(self, samples: Any) -> list[bool]:
        stats = [json.loads(one) for one in samples[stats_column(self.position)]]
        keep = self.judge(samples, stats)
        self.note(
            {"index": index, "stats": one}
            for index, one, kept in zip(samples[INDEX], stats, keep, strict=True)
            if not kept
        )
        return keep

    def explain(self, stats: Mapping[str, Any]) -> str:
        """Return why a record with these statistics is dropped."""
        bounds = {
            name: value
            for name, value in vars(self.inner).items()
            if name.startswith(("min_", "max_")) and isinstance(value, int | float) and not isinstance(value, bool)
        }
        if len(stats) == 1:
            ((name, value),) = stats.items()
            lows = [bound for key, bound in bounds.items() if key.startswith("min_")]
            highs = [bound for key, bound in bounds.items() if key.startswith("max_")]
            if isinstance(value, int | float) and len(lows) <= 1 and len(highs) <= 1:
                if lows and not (value >= lows[0] if self.inner.min_closed_interval else value > lows[0]):
                    return f"{self.label}: {name} {_short(value)} {'<' if value < lows[0] else '<='} {_short(lows[0])}"
                if highs and not (value <= highs[0] if self.inner.max_closed_interval else value < highs[0]):
                    return (
                        f"{self.label}: {name} {_short(value)} {'>' if value > highs[0] else '>='} {_short(highs[0])}"
                    )
        shown = ", ".join(f"{name} {_short(value)}" for name, value in (*stats.items(), *bounds.items()))
        return f"{self.label}: {shown}" if shown else self.label


@OPERATORS.register_module("pair_mapper")
class PairMapper(_Step, Mapper):  # type: ignore[misc]
    """A mapper on one side of the pairs. Only changed texts are kept of its output."""

    _batched_op = True

    def process_batched(self, samples: Any, *args: Any, **kwargs: Any) -> Any:
        with self.named_failures():
            batch = self._inner_batch(samples)
            if self.inner.is_batched_op():
                made = self.inner.process_batched(batch)
            else:
                rows = [self.inner.process_single(sample) for sample in _rows(batch)]
                made = {name: [row[name] for row in rows] for name in (INDEX, *TEXTS)}
            if list(made[INDEX]) != list(samples[INDEX]):
                raise ValueError(f"{len(samples[INDEX])} records became {len(made[INDEX])}; it may only change texts")
        for name in TEXTS:
            samples[name] = list(made[name])
        return samples


@OPERATORS.register_module("pair_deduplicator")
class PairDeduplicator(_Step, Deduplicator):  # type: ignore[misc]
    """A deduplicator by hash. The pair with the smallest index stays, on every engine and in any order of arrival."""

    _supported_exec_modes = ("default", "ray")

    @property
    def column(self) -> str:
        """The column of the hashes."""
        return f"hash_{self.position}"

    def compute_hash(self, sample: Any) -> Any:
        sample[self.column] = self.hash_of(sample)
        return sample

    def hash_of(self, sample: Mapping[str, Any]) -> str:
        """Return the wrapped operator's hash of a record."""
        text = {self.inner.text_key: text_of(self.field, sample)}
        with self.named_failures():
            # The class's method: the instance's is wrapped once more, for records that are nested.
            found: str = type(self.inner).compute_hash(self.inner, text)[HashKeys.hash]
        return found

    def duplicates(self, indices: Iterable[int], hashes: Iterable[str]) -> dict[int, int]:
        """Return, by index of each duplicate, the index of the record that stays."""
        rows = list(zip(indices, hashes, strict=True))
        first: dict[str, int] = {}
        for index, found in rows:
            first[found] = min(index, first.get(found, index))
        same_as = {index: first[found] for index, found in rows if first[found] != index}
        self.note({"index": index, "same_as": kept} for index, kept in same_as.items())
        return same_as

    def process(self, dataset: Any, show_num: int = 0) -> tuple[Any, dict[str, Any]]:
        indices = list(dataset[INDEX])
        gone = self.duplicates(indices, dataset[self.column])
        return dataset.select([row for row, index in enumerate(indices) if index not in gone]), {}

    def run(self, dataset: Any, **kwargs: Any) -> Any:
        if not hasattr(dataset, "map_batches"):
            return super().run(dataset, **kwargs)
        # Ray: data-juicer's own deduplicator for it keeps whichever copy comes first, and takes empty texts for
        # something else than its other one does. The hashes are collected instead, 40 bytes a record.
        hashed = dataset.map_batches(self._add_hashes, batch_format="pyarrow").materialize()
        indices: list[int] = []
        hashes: list[str] = []
        for batch in hashed.select_columns([INDEX, self.column]).iter_batches(batch_format="pyarrow", batch_size=None):
            indices += batch[INDEX].to_pylist()
            hashes += batch[self.column].to_pylist()
        gone = frozenset(self.duplicates(indices, hashes))
        return hashed.map_batches(partial(_without, gone), batch_format="pyarrow")

    def _add_hashes(self, table: Any) -> Any:
        import pyarrow

        hashes = [self.hash_of(sample) for sample in table.to_pylist()]
        return table.append_column(self.column, pyarrow.array(hashes, pyarrow.string()))


def _rows(columns: Columns) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _without(gone: frozenset[int], table: Any) -> Any:
    import pyarrow

    return table.filter(pyarrow.array([index not in gone for index in table[INDEX].to_pylist()], pyarrow.bool_()))


def _plain(stats: dict[str, Any]) -> dict[str, Any]:
    """Return statistics in JSON's types; numpy's numbers become Python's."""
    plain: dict[str, Any] = json.loads(json.dumps(stats, default=lambda value: value.tolist()))
    return plain


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
