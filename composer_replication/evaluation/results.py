"""Results: outcomes, what is measured in them, the comparison of two models, and their files.

DIR/results.jsonl   an outcome a line: a sample of a task, a turn or a pair
DIR/against.jsonl   the same of the model that it is compared with
DIR/summary.json    means with intervals, differences, settings, versions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from composer_replication._files import whole_file
from composer_replication.evaluation.intervals import Cluster, Statistic, estimate, mean
from composer_replication.evaluation.paired import compare

Outcome = dict[str, Any]
"""What came of one sample, turn or pair, as JSON."""

OnProgress = Callable[[int, int], None]
"""Is told what is done, and of how much."""

_OUTCOMES, _AGAINST, _SUMMARY = "results.jsonl", "against.jsonl", "summary.json"


class Measure(NamedTuple):
    """Values by task or session. A share is of values that are 0 or 1."""

    clusters: dict[str, Cluster]
    is_share: bool = False
    statistic: Statistic = mean


Measures = Callable[[Sequence[Outcome]], dict[str, Measure]]


def measure(
    outcomes: Iterable[Outcome],
    cluster: str,
    value: Callable[[Outcome], float],
    weight: Callable[[Outcome], float] = lambda _: 1.0,
    *,
    is_share: bool = False,
) -> Measure:
    """Add up values and their weights, by the outcomes' key that says which cluster they belong to."""
    sums: dict[str, Cluster] = {}
    for one in outcomes:
        total, number = sums.get(one[cluster], (0.0, 0.0))
        sums[one[cluster]] = Cluster(total + value(one), number + weight(one))
    return Measure(sums, is_share)


@dataclass(frozen=True)
class Evaluation:
    """The outcomes of one model, with what they depend on: `kind` ("environment" or "logs") and `settings` are equal
    for models that can be compared."""

    kind: str
    model: str
    settings: Mapping[str, Any]
    outcomes: list[Outcome]


def summarised(ours: Evaluation, theirs: Evaluation | None, measures: Measures, *, seed: int = 0) -> dict[str, Any]:
    """Return means, intervals and, with another model, paired differences, as `summary.json` has them.

    Raises:
        ValueError: the two are not of the same tasks and settings, or were tokenised differently.
    """
    from composer_replication.trainer.model_card import package_versions

    found = measures(ours.outcomes)
    summary = {
        "kind": ours.kind,
        "model": ours.model,
        "settings": dict(ours.settings),
        "versions": package_versions(),
        "measures": _estimates(found, seed),
    }
    if theirs is None:
        return summary
    _check_comparable(ours, theirs)
    others = measures(theirs.outcomes)
    differences = {
        name: compare(one.clusters, others[name].clusters, one.statistic, seed=seed)._asdict()
        for name, one in found.items()
        if name in others
    }
    return summary | {
        "against": {"model": theirs.model, "measures": _estimates(others, seed)},
        "differences": differences,
    }


def _estimates(measures: Mapping[str, Measure], seed: int) -> dict[str, dict[str, Any]]:
    return {
        name: estimate(one.clusters.values(), one.statistic, is_share=one.is_share, seed=seed)._asdict()
        for name, one in measures.items()
    }


def _check_comparable(ours: Evaluation, theirs: Evaluation) -> None:
    for name in dict.fromkeys(["kind", *ours.settings, *theirs.settings]):
        one, other = ({"kind": side.kind, **side.settings}.get(name) for side in (ours, theirs))
        if one != other:
            raise ValueError(f"{theirs.model} was evaluated with {name} {other!r}, and {ours.model} with {one!r}")


def write_results(folder: Path, summary: Mapping[str, Any], ours: Evaluation, theirs: Evaluation | None = None) -> None:
    """Write the files of an evaluation; each appears whole, the summary last.

    Raises:
        OSError: the folder cannot be written.
    """
    for name, one in ((_OUTCOMES, ours), (_AGAINST, theirs)):
        if one is not None:
            with whole_file(folder / name, "results") as temporary, temporary.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(outcome, ensure_ascii=False) + "\n" for outcome in one.outcomes)
    with whole_file(folder / _SUMMARY, "results") as temporary:
        temporary.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def is_saved(folder: Path) -> bool:
    """Whether a folder has the files of an evaluation."""
    return (folder / _SUMMARY).is_file() and (folder / _OUTCOMES).is_file()


def read_results(folder: Path) -> Evaluation:
    """Read the evaluation of a folder's model.

    Raises:
        ValueError: a file was damaged.
    """
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
        lines = (folder / _OUTCOMES).read_text(encoding="utf-8").splitlines()
        return Evaluation(summary["kind"], summary["model"], summary["settings"], [json.loads(line) for line in lines])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} has no results that can be read: {error}; evaluate that model again") from None
