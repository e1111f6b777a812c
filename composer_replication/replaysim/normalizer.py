"""`DJNormalizer`: preference pairs through a recipe of data-juicer operators."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from composer_replication.replaysim.batched import Drop, Outcome, columns_of, run_batched
from composer_replication.replaysim.recipe import RECIPES, Recipe, load_recipe
from composer_replication.replaysim.records import NormalizedDPOPair, PairRecord, normalized, to_records
from composer_replication.replaysim.report import DroppedPair, NormalizeReport, OpReport

Executor = Literal["batched", "data-juicer", "ray"]


class DJNormalizer:
    """Filters, changes and deduplicates pairs by a data-juicer recipe. The order of pairs is kept.

    The three executors run the same operators and give the same pairs: "batched" in this process, at once;
    "data-juicer" and "ray" on data-juicer's own engines, in processes of their own, for sets that are worth the start.
    No package is installed for an operator, and the engines work offline: the models it needs must be on the disk. A
    recipe may hold code (in `python_lambda_mapper`, for one), so use those that you trust.

    Args:
        recipe_path: a data-juicer YAML file, or the name of a recipe that comes with the package; the default recipe
            if None. Every operator's `text_key` is `chosen`, `rejected`, or (a deduplicator's) `pair` or `lesson`.
        skip_dj: pass the pairs through, with `metadata={"skipped": True}`; data-juicer is not needed.
        executor: see above.
        processes: how many an engine uses at once; one per core by default.
        work_dir: where an engine's temporary folder is made; the system's place for them by default.

    Raises:
        MissingExtraError: a RuntimeError; data-juicer is not installed.
        FileNotFoundError: there is no such recipe.
        ValueError: the recipe is wrong, or asks for an operator that data-juicer does not know.
    """

    DEFAULT_RECIPE: ClassVar[Path] = RECIPES / "default.yaml"

    def __init__(
        self,
        recipe_path: str | os.PathLike[str] | None = None,
        *,
        skip_dj: bool = False,
        executor: Executor = "batched",
        processes: int | None = None,
        work_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if executor not in get_args(Executor):
            raise ValueError(f"executor must be one of {', '.join(get_args(Executor))}, got {executor!r}")
        if processes is not None and processes < 1:
            raise ValueError(f"processes must be at least 1, got {processes}")
        self.skip_dj, self.executor, self.processes, self.work_dir = skip_dj, executor, processes, work_dir
        self.report: NormalizeReport | None = None
        self.recipe: Recipe | None = None
        self._operators: list[Any] = []
        if not skip_dj:
            from composer_replication.replaysim.loading import load_operators, require_data_juicer

            require_data_juicer()
            self.recipe = load_recipe(self.DEFAULT_RECIPE if recipe_path is None else recipe_path)
            # Already here, so that a wrong recipe is known before anything is paid for pairs.
            self._operators = load_operators(self.recipe)

    def normalize(self, pairs: Iterable[Mapping[str, Any]]) -> list[NormalizedDPOPair]:
        """Run the recipe. `report` then says what each operator dropped, and why.

        Raises:
            ValueError: a pair lacks a key.
            OperatorError: a RuntimeError; an operator or its engine failed.
        """
        given = list(pairs)
        with _collector_paused():
            return list(self.kept(lambda: given))

    def kept(self, pairs: Callable[[], Iterable[Mapping[str, Any]]]) -> KeptPairs:
        """`normalize` for pairs that are not to be in memory all at once.

        Args:
            pairs: begins to give the pairs; it is called once here, for their texts, and again whenever what is kept is
                iterated over, and must give the same each time.
        """
        with _collector_paused():
            records = list(to_records(pairs()))
            if self.recipe is None:
                self.report = _report(records, [], NormalizeReport(None, None, None))
                return KeptPairs(pairs, None, {"index": range(len(records))}, {"skipped": True})
            outcome = self._run(self.recipe, records)
        report = NormalizeReport(self.recipe.name, self.recipe.sha256, self.executor)
        self.report = _report(records, self._dropped(records, outcome.drops), report)
        self.report.ops = _by_step(self.recipe, self.report, outcome.drops)
        metadata = {
            "recipe": self.recipe.name,
            "recipe_sha256": self.recipe.sha256,
            "executor": self.executor,
            "ops": [step.label for step in self.recipe.steps],
        }
        return KeptPairs(pairs, self.recipe, outcome.columns, metadata)

    def _run(self, recipe: Recipe, records: Sequence[PairRecord]) -> Outcome:
        columns = columns_of(records)
        if self.executor == "batched" or not records:
            return run_batched(self._operators, columns)
        from composer_replication.replaysim.engines import run_engine

        return run_engine(
            self.executor, recipe, self._operators, columns, processes=self.processes, work_dir=self.work_dir
        )

    def _dropped(self, records: Sequence[PairRecord], drops: Sequence[Drop]) -> list[DroppedPair]:
        dropped = []
        for drop in drops:
            record, operator = records[drop.index], self._operators[drop.position]
            if drop.same_as is not None:
                reason = f"{operator.label}: the same as {records[drop.same_as]['state_id']} (pair {drop.same_as})"
            else:
                reason = operator.explain(drop.stats)
            op = operator.label.partition(" on ")[0]
            dropped.append(DroppedPair(drop.index, record["state_id"], op, operator.field, reason, record["tool_call"]))
        return dropped


class KeptPairs(Iterable[NormalizedDPOPair]):
    """The pairs that a recipe keeps, in order, made as they are iterated over, each time anew."""

    def __init__(
        self,
        pairs: Callable[[], Iterable[Mapping[str, Any]]],
        recipe: Recipe | None,
        columns: Mapping[str, Sequence[Any]],
        metadata: dict[str, Any],
    ) -> None:
        self._pairs, self._columns, self._metadata = pairs, columns, metadata
        steps = recipe.steps if recipe is not None else ()
        self._filters = [step for step in steps if f"stats_{step.position}" in columns]
        self._has_run = recipe is not None

    def __len__(self) -> int:
        return len(self._columns["index"])

    def __iter__(self) -> Iterator[NormalizedDPOPair]:
        columns, row = self._columns, 0
        for index, pair in enumerate(self._pairs()):
            if row == len(self):
                return
            if index != columns["index"][row]:
                continue
            metadata = dict(self._metadata)
            texts = {}
            if self._has_run:
                metadata["stats"] = self._stats(row)
                texts = {side: columns[side][row] for side in ("chosen", "rejected")}
            yield normalized(pair, metadata, **texts)
            row += 1

    def _stats(self, row: int) -> dict[str, dict[str, Any]]:
        stats: dict[str, dict[str, Any]] = {}
        for step in self._filters:
            stats.setdefault(step.field, {}).update(self._columns[f"stats_{step.position}"][row])
        return stats


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Many small objects are made, and no cycles: the collector would walk over the whole heap again and again."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()


def _report(records: Sequence[PairRecord], dropped: list[DroppedPair], report: NormalizeReport) -> NormalizeReport:
    report.dropped = dropped
    report.pairs_in, report.pairs_out = len(records), len(records) - len(dropped)
    report.tool_call_pairs_in = sum(record["tool_call"] for record in records)
    report.tool_call_pairs_out = report.tool_call_pairs_in - sum(one.tool_call for one in dropped)
    return report


def _by_step(recipe: Recipe, report: NormalizeReport, drops: Sequence[Drop]) -> list[OpReport]:
    ops, left = [], report.pairs_in
    for step in recipe.steps:
        calls = [
            one.tool_call for one, drop in zip(report.dropped, drops, strict=True) if drop.position == step.position
        ]
        ops.append(OpReport(step.op, step.field, left, len(calls), sum(calls)))
        left -= len(calls)
    return ops
