"""`DJNormalizer`: preference pairs through a recipe of data-juicer operators; in memory, from file to file, or straight
from a replay."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import composer_replication
from composer_replication._files import sha256_of, whole_file
from composer_replication.replaysim.engines import Drop, Outcome, columns_of, run_batched, run_engine
from composer_replication.replaysim.recipe import RECIPES, Recipe, load_operators, load_recipe, require_data_juicer
from composer_replication.replaysim.records import (
    DroppedPair,
    NormalizedDPOPair,
    NormalizeReport,
    OpReport,
    PairRecord,
    to_records,
    with_texts,
)
from composer_replication.teacher_replay.compact_pairs import compact_rows, is_compact
from composer_replication.teacher_replay.pair_files import put_lines, save_preference, stored_pairs
from composer_replication.teacher_replay.records import Pair, TeacherCallResult
from composer_replication.traces import Step

__all__ = [
    "DJNormalizer",
    "NormalizedDPOPair",
    "normalize_file",
    "replay_and_normalize_trace",
    "replay_and_normalize_trace_sync",
]

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
        processes: number of processes an engine uses; one per core by default.
        work_dir: parent of an engine's temporary folder; the system's default if None.

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
            require_data_juicer()
            self.recipe = load_recipe(self.DEFAULT_RECIPE if recipe_path is None else recipe_path)
            # Already here, so that a wrong recipe is known before anything is paid for pairs.
            self._operators = load_operators(self.recipe)

    def normalize(self, pairs: Iterable[Mapping[str, Any] | Pair]) -> list[NormalizedDPOPair]:
        """Run the recipe over `DPOPair`s or `Pair`s. `report` then says what each operator dropped, and why.

        Raises:
            ValueError: a pair lacks a key.
            OperatorError: a RuntimeError; an operator or its engine failed.
        """
        with _collector_paused():
            given = [
                pair if isinstance(pair, Pair) else Pair.of(pair, f"pair {number}") for number, pair in enumerate(pairs)
            ]
            return [NormalizedDPOPair.of(pair, metadata) for pair, metadata in self.kept(lambda: given)]

    def kept(self, pairs: Callable[[], Iterable[Pair]]) -> KeptPairs:
        """Run the recipe over pairs that are not all in memory at once.

        Args:
            pairs: starts an iteration over the pairs. It is called once here, for their texts, and again whenever what
                is kept is iterated over, and must give the same each time.
        """
        with _collector_paused():
            records = list(to_records(pairs()))
            outcome = self._run(records)
        self.report = self._report(records, outcome.drops)
        metadata: dict[str, Any] = {"skipped": True}
        if self.recipe is not None:
            metadata = {
                "recipe": self.recipe.name,
                "recipe_sha256": self.recipe.sha256,
                "executor": self.executor,
                "ops": [step.label for step in self.recipe.steps],
            }
        return KeptPairs(pairs, self.recipe, outcome.columns, metadata)

    def _run(self, records: Sequence[PairRecord]) -> Outcome:
        columns = columns_of(records)
        if self.recipe is None:
            return Outcome(columns, [])
        if self.executor == "batched" or not records:
            return run_batched(self._operators, columns)
        return run_engine(
            self.executor, self.recipe, self._operators, columns, processes=self.processes, work_dir=self.work_dir
        )

    def _report(self, records: Sequence[PairRecord], drops: Sequence[Drop]) -> NormalizeReport:
        recipe = self.recipe
        report = NormalizeReport(None, None, None)
        if recipe is not None:
            report = NormalizeReport(recipe.name, recipe.sha256, self.executor)
        report.dropped = [self._dropped(drop, records) for drop in drops]
        report.pairs_in, report.pairs_out = len(records), len(records) - len(drops)
        report.tool_call_pairs_in = sum(record["tool_call"] for record in records)
        report.tool_call_pairs_out = report.tool_call_pairs_in - sum(one.tool_call for one in report.dropped)
        left = len(records)
        for step in recipe.steps if recipe is not None else ():
            calls = [records[drop.index]["tool_call"] for drop in drops if drop.position == step.position]
            report.ops.append(OpReport(step.op, step.field, left, len(calls), sum(calls)))
            left -= len(calls)
        return report

    def _dropped(self, drop: Drop, records: Sequence[PairRecord]) -> DroppedPair:
        record, operator = records[drop.index], self._operators[drop.position]
        if drop.same_as is not None:
            reason = f"{operator.label}: the same as {records[drop.same_as]['state_id']} (pair {drop.same_as})"
        else:
            reason = operator.explain(drop.stats)
        op = operator.label.partition(" on ")[0]
        return DroppedPair(drop.index, record["state_id"], op, operator.field, reason, record["tool_call"])


class KeptPairs(Iterable[tuple[Pair, dict[str, Any]]]):
    """The pairs that a recipe keeps, in order, with their metadata; they are made anew for each iteration."""

    def __init__(
        self,
        pairs: Callable[[], Iterable[Pair]],
        recipe: Recipe | None,
        columns: Mapping[str, Sequence[Any]],
        metadata: dict[str, Any],
    ) -> None:
        self._pairs, self._recipe, self._columns, self._metadata = pairs, recipe, columns, metadata

    def __iter__(self) -> Iterator[tuple[Pair, dict[str, Any]]]:
        columns, row = self._columns, 0
        steps = self._recipe.steps if self._recipe is not None else ()
        filters = [step for step in steps if f"stats_{step.position}" in columns]
        for index, pair in enumerate(self._pairs()):
            if row == len(columns["index"]):
                return
            if index != columns["index"][row]:
                continue
            metadata = dict(self._metadata)
            if self._recipe is not None:
                stats: dict[str, dict[str, Any]] = {}
                for step in filters:
                    stats.setdefault(step.field, {}).update(columns[f"stats_{step.position}"][row])
                metadata["stats"] = stats
                pair, changed = with_texts(pair, chosen=columns["chosen"][row], rejected=columns["rejected"][row])
                if changed:
                    metadata["changed"] = changed
            yield pair, metadata
            row += 1


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: many small objects are made without cycles, and it would walk over all of them."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()


async def replay_and_normalize_trace(
    *,
    states: Any,
    teachers: Any = None,
    agreement_threshold: int = 2,
    max_total_usd: float = 5.0,
    normalizer: DJNormalizer | None = None,
    **replay_kwargs: Any,
) -> tuple[list[TeacherCallResult], list[NormalizedDPOPair]]:
    """Replay a trace, extract pairs and normalise them.

    Args:
        states: the steps of one trace (`Sequence[TraceState]`).
        teachers: for `replay_trace`; its defaults if None.
        agreement_threshold: how many teachers must agree on a pair's chosen action.
        max_total_usd: the cap on what the teachers may cost.
        normalizer: `DJNormalizer()` if None; made before a teacher is asked, so that a wrong recipe costs nothing.
        replay_kwargs: for `replay_trace` (`api_key`, `ledger`, `gate`, `tools`, ...). What decides agreement
            (`agreement`, by default "action": teachers word things freely; `min_margin`) goes to `extract_dpo_pairs`
            as well.

    Returns:
        Every answer of the teachers, and the pairs that are left; `normalizer.report` says what was dropped and why.
    """
    from composer_replication.teacher_replay.pairs import extract_pairs_with_report
    from composer_replication.teacher_replay.schedule import replay_trace
    from composer_replication.teacher_replay.tool_schemas import complete_tools

    normalizer = DJNormalizer() if normalizer is None else normalizer
    if teachers is not None:
        replay_kwargs["teachers"] = teachers
    agreement = {
        "agreement": replay_kwargs.pop("agreement", "action"),
        "agreement_threshold": agreement_threshold,
        "min_margin": replay_kwargs.pop("min_margin", 0),
    }
    states = list(states)
    answers = await replay_trace(states, max_total_usd=max_total_usd, **agreement, **replay_kwargs)
    tools = complete_tools(replay_kwargs.get("tools", ()), [Step.of(state) for state in states])
    pairs = extract_pairs_with_report(states, answers, tools=tools, **agreement).pairs
    # In a thread: an engine may take a minute, and the event loop may have others to serve.
    return answers, await asyncio.to_thread(normalizer.normalize, pairs)


def replay_and_normalize_trace_sync(
    *args: Any, **kwargs: Any
) -> tuple[list[TeacherCallResult], list[NormalizedDPOPair]]:
    """`replay_and_normalize_trace` for callers without an event loop.

    Raises:
        RuntimeError: there is one; await the other instead.
    """
    return asyncio.run(replay_and_normalize_trace(*args, **kwargs))


@dataclass
class NormalizedFile:
    """The result of `normalize_file`: the report of `DJNormalizer` for JSON, and whether it was up to date."""

    report: dict[str, Any]
    up_to_date: bool


def normalize_file(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    recipe: str | os.PathLike[str] | None = None,
    executor: Executor = "batched",
    skip_dj: bool = False,
    processes: int | None = None,
    preference: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> NormalizedFile:
    """Normalise a JSONL file of pairs into a JSONL file of `NormalizedDPOPair` rows.

    The output has the form of the input: compact (see `compact_pairs`), or plain. Memory holds the pairs' actions, not
    their histories. Files appear whole or not at all. `OUTPUT.summary.json` holds the report, and digests of the input,
    the recipe and the output: if none has changed, nothing is done again, unless `force` is set.

    Args:
        preference: also write the pairs in TRL's preference format: .jsonl or .parquet.

    Raises:
        FileNotFoundError: there is no such file of pairs, or no such recipe.
        ValueError: a line is not a pair (names it), or the file changed while it was read; or see `DJNormalizer`.
        OSError: the output cannot be written.
    """
    source, outputs = Path(source), [Path(output), *([Path(preference)] if preference is not None else [])]
    _check_paths(source, outputs)
    summary_path = outputs[0].with_name(outputs[0].name + ".summary.json")
    made_by = {**_made_by(recipe, executor, skip_dj), "input_sha256": sha256_of(source)}
    if not force:
        earlier = _earlier_report(summary_path, made_by, outputs)
        if earlier is not None:
            return NormalizedFile(earlier, up_to_date=True)
    normalizer = DJNormalizer(recipe, executor=executor, skip_dj=skip_dj, processes=processes)
    # That the output can be written is known before the work begins.
    with whole_file(outputs[0], "the pairs") as temporary:
        kept = normalizer.kept(lambda: stored_pairs(source))
        assert normalizer.report is not None
        report = normalizer.report.as_dict()
        if not report["pairs_in"]:
            raise ValueError(f"{source}: there is no pair in it")
        rows = (vars(NormalizedDPOPair.of(pair, metadata)) for pair, metadata in kept)
        put_lines(compact_rows(rows) if is_compact(source) else rows, temporary)
        if sha256_of(source) != made_by["input_sha256"]:
            # It is read twice, and the operators' results would be joined to other pairs.
            raise ValueError(f"{source}: it changed while it was read; run this again")
    if preference is not None:
        save_preference((pair for pair, _ in kept), preference)
    digests = [sha256_of(path) for path in outputs]
    with whole_file(summary_path, "the pairs") as temporary:
        temporary.write_text(json.dumps({"made_by": made_by, "outputs": digests, "report": report}, indent=2) + "\n")
    return NormalizedFile(report, up_to_date=False)


def _check_paths(source: Path, outputs: Sequence[Path]) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"{source}: there is no such file of pairs")
    for path, endings in zip(outputs, ((".jsonl",), (".jsonl", ".parquet")), strict=False):
        if path.suffix not in endings:
            raise ValueError(f"{path}: this is written as {' or '.join(endings)}")
        if path.exists() and path.samefile(source):
            raise ValueError(f"{path}: this is the input; give another file")
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise ValueError(f"{outputs[0]}: this is given for both outputs")


def _made_by(recipe: str | os.PathLike[str] | None, executor: str, skip_dj: bool) -> dict[str, Any]:
    """Return what the output depends on besides the input."""
    try:
        data_juicer = None if skip_dj else version("py-data-juicer")
    except PackageNotFoundError:  # the normaliser says which extra is missing
        data_juicer = None
    return {
        "composer-replication": composer_replication.__version__,
        "py-data-juicer": data_juicer,
        "recipe_sha256": None if skip_dj else load_recipe(recipe or DJNormalizer.DEFAULT_RECIPE).sha256,
        "executor": None if skip_dj else executor,
    }


def _earlier_report(summary: Path, made_by: dict[str, Any], outputs: Sequence[Path]) -> dict[str, Any] | None:
    """Return the report of an earlier run, if it had the same input and its outputs are unchanged."""
    try:
        earlier = json.loads(summary.read_bytes())
        # A run may have written one output more.
        digests = zip(outputs, earlier["outputs"][: len(outputs)], strict=True)
        unchanged = earlier["made_by"] == made_by and all(sha256_of(path) == digest for path, digest in digests)
        return dict(earlier["report"]) if unchanged else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
