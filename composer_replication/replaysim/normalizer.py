"""`DJNormalizer`: preference pairs through a recipe of data-juicer operators."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from composer_replication.replaysim.batched import Drop, Outcome, columns_of, run_batched
from composer_replication.replaysim.recipe import RECIPES, Recipe, load_recipe
from composer_replication.replaysim.records import NormalizedDPOPair, PairRecord, makes_a_call, normalized, to_records
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
            if None. Every operator's `text_key` is `chosen`, `rejected`, or (a deduplicator's) `pair`.
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
        with _collector_paused():
            return self._normalize(list(to_records(pairs)))

    def _normalize(self, records: Sequence[PairRecord]) -> list[NormalizedDPOPair]:
        if self.recipe is None:
            kept = [normalized(record, {"skipped": True}) for record in records]
            self.report = _report(records, [], NormalizeReport(None, None, None))
            return kept
        outcome = self._run(self.recipe, records)
        report = NormalizeReport(self.recipe.name, self.recipe.sha256, self.executor)
        self.report = _report(records, self._dropped(records, outcome.drops), report)
        self.report.ops = _by_step(self.recipe, self.report, outcome.drops)
        return self._kept(self.recipe, records, outcome)

    def _run(self, recipe: Recipe, records: Sequence[PairRecord]) -> Outcome:
        columns = columns_of(records)
        if self.executor == "batched" or not records:
            return run_batched(self._operators, columns)
        from composer_replication.replaysim.engines import run_engine

        return run_engine(
            self.executor, recipe, self._operators, columns, processes=self.processes, work_dir=self.work_dir
        )

    def _kept(self, recipe: Recipe, records: Sequence[PairRecord], outcome: Outcome) -> list[NormalizedDPOPair]:
        columns = outcome.columns
        filters = [step for step in recipe.steps if f"stats_{step.position}" in columns]
        labels = [step.label for step in recipe.steps]
        kept = []
        for row, index in enumerate(columns["index"]):
            stats: dict[str, dict[str, Any]] = {}
            for step in filters:
                stats.setdefault(step.field, {}).update(columns[f"stats_{step.position}"][row])
            metadata = {
                "recipe": recipe.name,
                "recipe_sha256": recipe.sha256,
                "executor": self.executor,
                "ops": labels,
                "stats": stats,
            }
            chosen, rejected = columns["chosen"][row], columns["rejected"][row]
            kept.append(normalized(records[index], metadata, chosen=chosen, rejected=rejected))
        return kept

    def _dropped(self, records: Sequence[PairRecord], drops: Sequence[Drop]) -> list[DroppedPair]:
        dropped = []
        for drop in drops:
            record, operator = records[drop.index], self._operators[drop.position]
            if drop.same_as is not None:
                reason = f"{operator.label}: the same as {records[drop.same_as]['state_id']} (pair {drop.same_as})"
            else:
                reason = operator.explain(drop.stats)
            op = operator.label.partition(" on ")[0]
            dropped.append(
                DroppedPair(drop.index, record["state_id"], op, operator.field, reason, makes_a_call(record))
            )
        return dropped


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
    report.tool_call_pairs_in = sum(map(makes_a_call, records))
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
